"""`streamgauge status`: show the counters of the pipeline and check that they reconcile."""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import click

from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.reconciliation import (
    Captured,
    Reconciliation,
    TableCounts,
    Unread,
    abandoned_positions,
    captured,
    count_tables,
    stored_ids,
    unread_in_folder,
)
from streamgauge.commands.sql import StoreClient
from streamgauge.ingest import ready_file
from streamgauge.ingest.guards import fault_lines
from streamgauge.ingest.identifiers import is_answer
from streamgauge.ingest.private_files import MOVABLE
from streamgauge.ingest.record_log.reader_cursors import read_cursors
from streamgauge.ingest.record_log.run_totals import RunTotals, read_run_totals, unreported_streams
from streamgauge.settings.flags import load_with_running_parts, settings_in_use, settings_options
from streamgauge.settings.model import PARTS_OF_UP, Settings
from streamgauge.settings.values import format_option, print_report

KAFKA_TIMEOUT_S = 20.0
FULL_BYTES = 2**20
"""A disk with less free space is full: an append of the log, a commit or a file of it may fail."""
Kafka = tuple[str, str, Mapping[str, Any]]
"""Brokers, topic, client options."""


@click.command("status")
@settings_options("data", "store", "kafka", "kafka_topic", "kafka_options")
@format_option()
def status_command(form: str, **given: Any) -> int:
    """Show the counters of the pipeline and check that they reconcile.

    Exit code 0 if captured = stored + in flight + lost, every part of `up` runs, no thread or loop of a part is at fault, no disk
    is full and each loss is reported, else 1.
    """
    settings = load_with_running_parts(given)
    try:
        status = pipeline_status(settings)
    except QueryError as e:
        # The parts are reported although the tables cannot be read: that is when one needs to know which part has failed.
        data = settings.data
        silent, failed, found = silent_parts(data), failed_parts(data), faults(data)
        lines = (*silent, *_headlines(found))
        if not failed:
            raise click.ClickException(". ".join((str(e).rstrip("."), *lines))) from None
        report = {"error": str(e), "silent_parts": silent, "failed_parts": failed, "faults": found}
        print_report(report, "\n".join([*lines, str(e)]), form)
        return 1
    print_report(status, render(status), form)
    return 0 if status["reconciles"] and not status["failed_parts"] and not status["faults"] else 1


def pipeline_status(settings: Settings) -> dict[str, Any]:
    """Collect the counters of a data folder's pipeline. Raises QueryError if the tables cannot be read."""
    unknown: list[str] = []
    data = settings.data
    kafka = (settings.kafka, settings.kafka_topic, settings.kafka_options) if settings.kafka else None
    log_dir = data / "log"
    # Before and after the other counts, which take a while: the truth of this moment is between the two.
    totals_before = read_run_totals(log_dir)
    location = locate(settings.store, data)
    with StoreClient([settings]) as tables:
        counts = count_tables(tables.rows)
        open_ids = {i for p in counts.positions for i in p.open_ids if not is_answer(i)}
        if abandoned := abandoned_positions(counts.positions):
            abandoned_ids = {i for p in abandoned for i in p.open_ids if not is_answer(i)}
            ended = stored_ids(tables.rows, abandoned_ids)  # in the current log
            open_ids -= ended
            if abandoned_ids - ended:
                unknown.append(
                    f"{len(abandoned_ids - ended)} streams in flight were open in another log, which analytics read until "
                    f"{_time(max(p.updated_ms for p in abandoned))}"
                )
        unread, notes = _count_unread(data, counts, kafka)
        unknown += notes
        new_ids = unread.stream_ids - open_ids
        in_log = len(new_ids) - len(stored_ids(tables.rows, new_ids))
        (damaged,) = tables.rows(
            "SELECT coalesce(sum(size), 0)::BIGINT AS n FROM dead_letters WHERE reason = 'damaged_segment'"
        )
        alerts = tables.rows("SELECT rule, gateway, model, message FROM alerts WHERE state = 'firing'")
    # After the other counts: streams that are reported meanwhile are missing here, and do not count twice.
    unreported = unreported_streams(log_dir)
    totals_after = read_run_totals(log_dir)
    streams_captured = captured(counts.taps, totals_before, totals_after, now_ms=int(time.time() * 1000))
    streams_captured = replace(streams_captured, at_least=streams_captured.at_least + unreported)
    if streams_captured.at_most is not None:  # whether the runs that captured them are among these is unknown
        imported = counts.counters.get("imported_streams", 0)
        streams_captured = replace(streams_captured, at_most=streams_captured.at_most + imported)
    tap_file = ready_file.read_ready_file(data / "run" / "tap.json")
    tap = _tap_counters(tap_file)
    if tap_file is not None and tap is None:
        unknown.append("the tap does not respond on its admin port")
    if tap is not None and tap.get("lost_untold"):
        unknown.append(f"the tap lost {tap['lost_untold']} records of unknown streams")
    if damaged["n"]:
        unknown.append(
            f"{damaged['n']} entries of the log are damaged: streams with no other entry are missing"
        )
        at_least = min(
            streams_captured.at_least, counts.recorded + counts.expired + counts.forgotten + in_log
        )
        streams_captured = replace(streams_captured, at_least=at_least)
    reconciliation = Reconciliation(
        captured=streams_captured,
        stored=counts.recorded - counts.lost,
        expired=counts.expired,
        forgotten=counts.forgotten,
        lost=counts.lost,
        open=len(open_ids),
        in_log=in_log,
        unreported=unreported,
        unknown=(*streams_captured.unknown, *unknown),
    )
    return {
        **_as_json(data, reconciliation, counts, unread, totals_after, tap),
        "events": _events(counts),
        "alerts": alerts,
        "attach": location.attach_statement,
    }


def full_disks(data: Path) -> list[str]:
    """A sentence for each full disk of a data folder."""
    found: dict[int, str] = {}
    for folder in (data, *(data / name for name in MOVABLE)):
        with contextlib.suppress(OSError):
            disk = os.statvfs(folder)
            free_bytes = disk.f_bavail * disk.f_frsize
            if free_bytes < FULL_BYTES or (disk.f_files and not disk.f_favail):
                what = f"{free_bytes} bytes" if free_bytes < FULL_BYTES else "no inodes"
                found.setdefault(
                    folder.stat().st_dev, f"the disk of {folder} is full ({what} free). Free some space"
                )
    return list(found.values())


def failed_parts(data: Path) -> dict[str, str]:
    """Why each part of a running `up` that does not run has ended, or cannot start."""
    found = {part: (ready_file.part_of_up(data, part) or {}).get("failure") for part in PARTS_OF_UP}
    return {part: why for part, why in found.items() if why is not None}


def silent_parts(data: Path) -> list[str]:
    """A sentence for each part that does not respond or does not run."""
    return [found for part in PARTS_OF_UP if (found := ready_file.silence(data, part)) is not None]


def faults(data: Path) -> dict[str, list[str]]:
    """A line for each thread or loop at fault, by running part; for each full disk, and for unreported losses of the tap.

    Parts write them to their ready files. The tap is also asked, because it cannot write on a full disk.
    """
    found = {part: fault_lines(ready_file.written_faults(data, part)) for part in PARTS_OF_UP}
    tap = ready_file.read_of_running(data / "run" / "tap.json") or {}
    try:
        with urllib.request.urlopen(f"{tap['admin']}/recordingz", timeout=5):  # noqa: S310  our own tap's URL
            found["tap"] = []
    except urllib.error.HTTPError as e:
        if e.code == HTTPStatus.SERVICE_UNAVAILABLE:
            found["tap"] = e.read().decode().splitlines()
    except (OSError, ValueError, KeyError):
        pass
    found["disk"] = full_disks(data)
    if unreported := unreported_streams(data / "log"):
        found["tap"] += [
            f"{unreported} streams are lost without a row in `losses`: a run that ended could not write them to {data / 'log'}. "
            "The next run of the tap reports them",
        ]
    return {part: lines for part, lines in found.items() if lines}


def _headlines(found: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"fault in {part}: {line}" for part, lines in found.items() for line in lines]


def _count_unread(data: Path, counts: TableCounts, kafka: Kafka | None) -> tuple[Unread, list[str]]:
    """Count streams in the log that analytics has not read. Returns them and notes on uncounted data."""
    notes: list[str] = []
    log_dir = data / "log"
    unread = Unread()
    local_id = _read_text(log_dir / "id")
    local = {p.partition: p.high for p in counts.positions if p.log_id == local_id}
    shipped = read_cursors(log_dir).get("ship")
    if local_id is not None:
        unread = unread_in_folder(log_dir, shipped if shipped is not None else local)
    if kafka is not None:
        missing = set(settings_in_use(data).get("kafka_options", ())) - set(kafka[2])
        if missing:  # without them, this would read as another user, or wait for a connection that fails
            notes.append(
                f"unread streams in Kafka are not counted: analytics uses the Kafka options {', '.join(sorted(missing))}. "
                "Pass --kafka-options or set STREAMGAUGE_KAFKA_OPTIONS."
            )
        else:
            _count_unread_in_kafka(unread, kafka, counts, notes)
    elif shipped is not None:
        notes.append(
            "unread streams in Kafka are not counted: analytics is not running. Pass --kafka to count them."
        )
    if not unread.complete:
        notes.append("the log has more unread data than was counted")
    return unread, notes


def _count_unread_in_kafka(unread: Unread, kafka: Kafka, counts: TableCounts, notes: list[str]) -> None:
    """Count from analytics' positions to the current ends, for at most `KAFKA_TIMEOUT_S`."""
    from streamgauge.ingest.record_log.kafka_reader import KafkaReader

    reader = KafkaReader(*kafka)  # no consumer group: reading must not move the position of analytics
    deadline_s = time.monotonic() + KAFKA_TIMEOUT_S
    try:
        while not (partitions := reader.partitions()):
            if time.monotonic() > deadline_s:
                notes.append(f"unread streams in Kafka are not counted: no response from {kafka[0]}")
                return
            time.sleep(0.1)
        high = {p.partition: p.high for p in counts.positions if p.log_id == reader.log_id}
        # Fixed now: with traffic, the end moves faster than this reads.
        ends = {p: reader.end(p) for p in partitions}
        for partition in partitions:
            reader.seek(partition, high.get(partition, 0))
        ends = {p: end for p, end in ends.items() if end > high.get(p, 0)}
        while ends and unread.complete:
            if time.monotonic() > deadline_s:
                unread.complete = False
            for entry in reader.poll(0.5):
                unread.add(entry.payload)
                if entry.offset + 1 >= ends.get(entry.partition, 0):
                    ends.pop(entry.partition, None)
    finally:
        reader.close()


def _events(counts: TableCounts) -> list[str]:
    """What happened within the last hour."""
    if not counts.log_gone_streams:
        return []
    return [
        f"{_time(counts.log_gone_ms)}: the record log was deleted or replaced. "
        f"{counts.log_gone_streams} streams that were open are lost (losses.cause = 'log_gone')."
    ]


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _as_json(
    data: Path,
    reconciliation: Reconciliation,
    counts: TableCounts,
    unread: Unread,
    runs: Mapping[str, RunTotals],
    tap: Mapping[str, int] | None,
) -> dict[str, Any]:
    streams_captured: Captured = reconciliation.captured
    files = {part: ready_file.read_ready_file(data / "run" / f"{part}.json") for part in PARTS_OF_UP}
    return {
        **{
            name: getattr(reconciliation, name)
            for name in ("reconciles", "stored", "expired", "forgotten", "open", "in_log", "unreported")
        },
        "captured": streams_captured.at_least,
        "captured_at_most": streams_captured.at_most,
        "in_flight": reconciliation.open + reconciliation.in_log,
        "lost": reconciliation.lost + reconciliation.unreported,
        "unknown": list(reconciliation.unknown),
        "stages": _stages(counts, unread, runs, files["ship"]),
        "parts": {part: content["pid"] for part, content in files.items() if content},
        "silent_parts": silent_parts(data),
        "failed_parts": failed_parts(data),
        "faults": faults(data),
        "tap": dict(tap) if tap is not None else None,
        **{part: files[part] for part in ("ship", "capture")},
        "tap_runs": [
            {name: getattr(run, name) for name in ("tap", "worker", "incarnation", "stopped", "counters")}
            for run in counts.taps
        ],
        "log": {
            "unread_entries": unread.entries,
            "unread_bytes": unread.bytes,
            "partitions": {
                p.partition: {"high": p.high, "low": p.low, "open": len(p.open_ids)} for p in counts.positions
            },
        },
        "analytics": dict(counts.counters),
        "tables": {
            name: getattr(counts, name)
            for name in ("streams", "events", "open_streams", "losses", "dead_letters")
        },
        "losses_by_cause": dict(counts.losses_by_cause),
    }


def _stages(
    counts: TableCounts, unread: Unread, runs: Mapping[str, RunTotals], ship: Mapping[str, Any] | None
) -> dict[str, dict[str, int]]:
    """Counters by stage. Bytes are body bytes in tap and analytics, encoded bytes in log and ship."""
    other_taps = [t.counters for t in counts.taps if t.incarnation not in runs]

    def total(name: str) -> int:
        local: int = sum(getattr(totals, name) for totals in runs.values())
        return local + sum(counters.get(name, 0) for counters in other_taps)

    stages = {
        "tap": {
            "streams": total("streams_opened"),
            "records": total("records"),
            "bytes": total("captured_bytes"),
            "lost_records": total("lost_records"),
            "lost_bytes": total("lost_bytes"),
        },
        "log (unread)": {
            "streams": len(unread.stream_ids),
            "entries": unread.entries,
            "records": unread.records,
            "bytes": unread.bytes,
        },
    }
    if ship is not None:
        stages["ship (since its start)"] = {
            name: ship[name]
            for name in ("records", "messages", "bytes", "too_large_records", "damaged_entries")
            if isinstance(ship.get(name), int)
        }
    counted = counts.counters
    stages["analytics"] = {
        name: counted.get(source, 0)
        for name, source in (
            ("streams", "streams_opened"),
            ("entries", "entries"),
            ("records", "records"),
            ("bytes", "body_bytes"),
            ("duplicate_records", "duplicate_records"),
            ("late_records", "late_records"),
            ("lost_streams", "streams_lost"),
            ("ambiguous_hops", "hops_ambiguous"),
            ("skipped_hops", "hops_skipped"),
        )
    }
    stages["tables"] = {"streams": counts.streams, "events": counts.events, "losses": counts.losses}
    return stages


def render(status: Mapping[str, Any]) -> str:
    """The status as text."""
    most = status["captured_at_most"]
    bound = "" if most == status["captured"] else f" to {most}" if most is not None else " or more"
    deleted = ", ".join(f"{status[name]} {name}" for name in ("expired", "forgotten") if status[name])
    lines = [
        *_headlines(status["faults"]),
        f"captured {status['captured']}{bound} streams",
        f"  stored    {status['stored']:>10}" + (f"  (and {deleted})" if deleted else ""),
        f"  in flight {status['in_flight']:>10}  ({status['open']} open, {status['in_log']} in the log)",
        f"  lost      {status['lost']:>10}"
        + (f"  ({status['unreported']} of them without a row yet)" if status["unreported"] else ""),
        "the counters reconcile" if status["reconciles"] else "the counters DO NOT reconcile",
        *(f"unknown: {note}" for note in status["unknown"]),
        *status["events"],
        *_alert_lines(status["alerts"]),
        *status["silent_parts"],
    ]
    lines.append("")
    for stage, numbers in status["stages"].items():
        counters = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in numbers.items())
        lines.append(f"{stage:<24} {counters}")
    for title, numbers in (
        ("tap", status["tap"]),
        ("capture", status["capture"]),
        ("ship", status["ship"]),
        ("log", {k: v for k, v in status["log"].items() if k != "partitions"}),
        ("analytics", status["analytics"]),
        ("tables (rows)", status["tables"]),
        ("losses by cause", status["losses_by_cause"]),
        ("parts (pid)", status["parts"]),
    ):
        if numbers:
            lines += ["", title]
            lines += [
                f"  {name:<28} {value:>14}"
                for name, value in sorted(numbers.items())
                if isinstance(value, int | str)
            ]
    lines += ["", "attach from a DuckDB client", f"  {status['attach']}"]
    return "\n".join(lines)


def _alert_lines(alerts: Sequence[Mapping[str, Any]]) -> list[str]:
    if not alerts:
        return []
    rules = Counter(alert["rule"] for alert in alerts)
    listed = ", ".join(f"{count} {rule}" if count > 1 else rule for rule, count in rules.items())
    noun = "alert" if len(alerts) == 1 else "alerts"
    return [f"{len(alerts)} {noun} firing: {listed}. `streamgauge alerts` shows more."]


def _tap_counters(tap: Mapping[str, Any] | None) -> dict[str, int] | None:
    if tap is None:
        return None
    try:
        with urllib.request.urlopen(f"{tap['admin']}/ledger", timeout=5) as response:  # noqa: S310  our own tap's URL
            counters: dict[str, int] = json.load(response)
    except (OSError, ValueError, KeyError):
        return None
    return counters if isinstance(counters.get("streams_opened"), int) else None


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None

"""`streamgauge status`: every counter of the pipeline, and whether they reconcile."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from analytics.query.errors import QueryError
from analytics.query.query_pool import QueryPool
from analytics.storage.location import SQLITE, locate
from analytics.storage.reconciliation import (
    Asking,
    Captured,
    Ledger,
    TableCounts,
    Unread,
    captured,
    count_tables,
    stored_ids,
    unread_in_folder,
)
from ingest.record_log.reader_cursors import read_cursors
from ingest.record_log.run_totals import RunTotals, read_run_totals
from streamgauge.flags import load, settings_options

KAFKA_S = 20.0
Kafka = tuple[str, str, Mapping[str, Any]]
"""Brokers, topic, client options."""
PARTS = ("tap", "ship", "analyze", "serve", "dashboard")


@click.command("status")
@settings_options("data", "store", "kafka", "kafka_topic", "kafka_options")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def status_command(form: str, **given: Any) -> int:
    """Show the counters of the pipeline and check that they reconcile.

    Exit code 0 if captured = stored + in flight + lost, else 1.
    """
    settings = load(given)
    kafka = (settings.kafka, settings.kafka_topic, settings.kafka_options) if settings.kafka else None
    try:
        said = gather(settings.data, kafka, settings.store)
    except QueryError as e:
        raise click.ClickException(str(e)) from None
    click.echo(json.dumps(said, indent=1) if form == "json" else render(said))
    return 0 if said["reconciles"] else 1


def gather(data: Path, kafka: Kafka | None = None, store: str = SQLITE) -> dict[str, Any]:
    """Everything that can be known of the pipeline of a data folder. Raises QueryError when its tables cannot be read."""
    unknown: list[str] = []
    log_dir = data / "log"
    noted = read_run_totals(log_dir)
    location = locate(store, data)
    with contextlib.closing(QueryPool(location, untrusted=False)) as tables:
        counts = count_tables(tables)
        open_ids = {i for p in counts.positions for i in p.open_ids}
        if len({p.log_id for p in counts.positions}) > 1:
            # A log that is no longer read names streams that may have ended in the one that is.
            open_ids -= stored_ids(tables, open_ids)
            unknown.append(
                "there are positions in a log that is no longer read: its open streams count as in flight"
            )
        unread, notes = _unread(data, counts, kafka)
        unknown += notes
        new_ids = unread.stream_ids - open_ids
        in_log = len(new_ids) - len(stored_ids(tables, new_ids))
        damaged = _damaged(tables)
    runs = read_run_totals(log_dir)
    taken = captured(counts.taps, noted, runs, now_ms=int(time.time() * 1000))
    tap_file = _said_by(data, "tap")
    tap = _tap_ledger(tap_file)
    if tap_file is not None and tap is None:
        unknown.append("the tap does not answer on its admin port")
    if tap is not None and tap.get("lost_untold"):
        unknown.append(f"the tap lost {tap['lost_untold']} records and could not tell of which streams")
    if damaged:
        unknown.append(
            f"{damaged} entries of the log could not be read: streams wholly in them are in no table"
        )
        taken = replace(taken, at_least=min(taken.at_least, counts.streams + counts.expired + in_log))
    ledger = Ledger(
        captured=taken,
        stored=counts.streams - counts.lost,
        expired=counts.expired,
        lost=counts.lost,
        open=len(open_ids),
        in_log=in_log,
        unknown=(*taken.unknown, *unknown),
    )
    return {**_as_json(data, ledger, counts, unread, runs, tap), "attach": location.attach_statement}


def _unread(data: Path, counts: TableCounts, kafka: Kafka | None) -> tuple[Unread, list[str]]:
    """What no table knows of yet, and what cannot be seen from here."""
    notes: list[str] = []
    log_dir = data / "log"
    unread = Unread()
    local_id = _text(log_dir / "id")
    local = {p.partition: p.high for p in counts.positions if p.log_id == local_id}
    shipped = read_cursors(log_dir).get("ship")
    if local_id is not None:
        unread = unread_in_folder(log_dir, shipped if shipped is not None else local)
    if kafka is not None:
        _read_on_in_kafka(unread, kafka, counts, notes)
    elif shipped is not None:
        notes.append("streams that wait in Kafka to be read are not counted: name it with --kafka")
    if not unread.complete:
        notes.append("the log holds more than was looked through")
    return unread, notes


def _read_on_in_kafka(unread: Unread, kafka: Kafka, counts: TableCounts, notes: list[str]) -> None:
    """From where analytics has read to what is the end now, for at most `KAFKA_S`."""
    from ingest.record_log.kafka_reader import KafkaReader

    reader = KafkaReader(*kafka)
    deadline_s = time.monotonic() + KAFKA_S
    try:
        while not (partitions := reader.partitions()):
            if time.monotonic() > deadline_s:
                notes.append(f"Kafka at {kafka[0]} does not answer: streams that wait there are not counted")
                return
            time.sleep(0.1)
        high = {p.partition: p.high for p in counts.positions if p.log_id == reader.log_id}
        left = {p: reader.end(p) for p in partitions}
        for partition in partitions:
            reader.seek(partition, high.get(partition, 0))
        left = {p: end for p, end in left.items() if end > high.get(p, 0)}
        while left and unread.complete:
            if time.monotonic() > deadline_s:
                unread.complete = False
            for entry in reader.poll(0.5):
                unread.add(entry.payload)
                if entry.offset + 1 >= left.get(entry.partition, 0):
                    left.pop(entry.partition, None)
    finally:
        reader.close()


def _damaged(tables: Asking) -> int:
    """Entries of the log that nobody could read (`dead_letters` has their ranges)."""
    row = tables.query(
        "SELECT coalesce(sum(size), 0)::BIGINT FROM dead_letters WHERE reason = 'damaged_segment'"
    ).row(0)
    return int(row[0])


def _as_json(
    data: Path,
    ledger: Ledger,
    counts: TableCounts,
    unread: Unread,
    runs: Mapping[str, RunTotals],
    tap: Mapping[str, int] | None,
) -> dict[str, Any]:
    taken: Captured = ledger.captured
    ship = _said_by(data, "ship")
    return {
        "reconciles": ledger.reconciles,
        "captured": taken.at_least,
        "captured_at_most": taken.at_most,
        "stored": ledger.stored,
        "expired": ledger.expired,
        "in_flight": ledger.open + ledger.in_log,
        "open": ledger.open,
        "in_log": ledger.in_log,
        "lost": ledger.lost,
        "unknown": list(ledger.unknown),
        "stages": _stages(counts, unread, runs, ship),
        "parts": {name: said["pid"] for name in PARTS if (said := _said_by(data, name)) is not None},
        "tap": dict(tap) if tap is not None else None,
        "ship": ship,
        "tap_runs": [
            {
                "tap": t.tap,
                "worker": t.worker,
                "incarnation": t.incarnation,
                "stopped": t.stopped,
                "counters": dict(t.counters),
            }
            for t in counts.taps
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
    """What each stage counts, down the stream. Bytes are of bodies at the ends, of packed entries and messages between."""
    elsewhere = [t.counters for t in counts.taps if t.incarnation not in runs]

    def taken(name: str) -> int:
        noted: int = sum(getattr(totals, name) for totals in runs.values())
        return noted + sum(counters.get(name, 0) for counters in elsewhere)

    stages = {
        "tap": {
            "streams": taken("streams_opened"),
            "records": taken("records"),
            "bytes": taken("captured_bytes"),
            "lost_records": taken("lost_records"),
            "lost_bytes": taken("lost_bytes"),
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
        )
    }
    stages["tables"] = {"streams": counts.streams, "events": counts.events, "losses": counts.losses}
    return stages


def render(said: Mapping[str, Any]) -> str:
    """The account for people."""
    most = said["captured_at_most"]
    bound = "" if most == said["captured"] else f" to {most}" if most is not None else " or more"
    lines = [
        f"captured {said['captured']}{bound} streams",
        f"  stored    {said['stored']:>10}"
        + (f"  (and {said['expired']} expired)" if said["expired"] else ""),
        f"  in flight {said['in_flight']:>10}  ({said['open']} open, {said['in_log']} in the log)",
        f"  lost      {said['lost']:>10}",
        "the counters reconcile" if said["reconciles"] else "the counters DO NOT reconcile",
        *(f"not known: {note}" for note in said["unknown"]),
    ]
    lines.append("")
    for stage, numbers in said["stages"].items():
        told = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in numbers.items())
        lines.append(f"{stage:<24} {told}")
    for title, numbers in (
        ("tap", said["tap"]),
        ("ship", said["ship"]),
        ("log", {k: v for k, v in said["log"].items() if k != "partitions"}),
        ("analytics", said["analytics"]),
        ("tables (rows)", said["tables"]),
        ("losses by cause", said["losses_by_cause"]),
        ("parts (pid)", said["parts"]),
    ):
        if numbers:
            lines += ["", title]
            lines += [
                f"  {name:<28} {value:>14}"
                for name, value in sorted(numbers.items())
                if isinstance(value, int | str)
            ]
    lines += ["", "attach from any DuckDB client", f"  {said['attach']}"]
    return "\n".join(lines)


def _said_by(data: Path, part: str) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        said = json.loads((data / "run" / f"{part}.json").read_text())
        if isinstance(said, dict) and "pid" in said:
            return said
    return None


def _tap_ledger(tap: Mapping[str, Any] | None) -> dict[str, int] | None:
    if tap is None:
        return None
    try:
        with urllib.request.urlopen(f"{tap['admin']}/ledger", timeout=5) as answer:  # noqa: S310  our own tap's URL
            said: dict[str, int] = json.load(answer)
    except (OSError, ValueError, KeyError):
        return None
    return said if isinstance(said.get("streams_opened"), int) else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None

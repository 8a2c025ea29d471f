"""Reconciliation: captured = stored + in flight + lost + deleted rows (expired or forgotten).

Rules
1. Each term is counted from a separate source. Captured: the run totals that taps write around each append, which survive
   kill -9 and a full disk. Stored and lost: counted rows. In flight: the ids in `log_positions`, and the streams in the log
   after the positions. No term is computed from the others, except streams that an ended run could not write to the log: they
   are lost according to its totals, until the next run reports them and they have rows.
2. The counts of a running pipeline are taken at different times. So captured has two bounds: streams in the log before the
   other counts, and streams opened by the tap after them. The sum must lie between the two.
3. Unknown terms are reported (`unknown`). Captured is then only a lower bound: for a tap on another machine that did not end
   cleanly, the last counters are those of its last `Alive`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from streamgauge.ingest.identifiers import ANSWER_DIGIT, is_answer
from streamgauge.ingest.ready_file import SILENT_WITHOUT_UP_AFTER_S
from streamgauge.ingest.record_log.run_totals import RunTotals
from streamgauge.ingest.record_log.segments import list_partitions, list_segments, open_segment, read_rows
from streamgauge.ingest.records import Alive, Damaged, unpack

RECORDED_BY_TAP = f"substr(stream_id::VARCHAR, 20, 1) <> '{ANSWER_DIGIT}'"
"""SQL condition: a tap counts this stream. It counts a WebSocket, but not its answers."""

MAX_LOG_BYTES = 512 * 2**20
"""Bytes of the log that are read after the positions. Streams beyond them are unknown."""

_COUNTS = f"""
WITH log_gone AS (
    SELECT count(DISTINCT stream_id) AS streams, coalesce(epoch_ms(max(lost_at)), 0) AS lost_ms FROM losses
    WHERE cause = 'log_gone' AND lost_at > now() - INTERVAL 1 HOUR
)
SELECT to_json({{
    streams: (SELECT count(*) FROM streams),
    recorded: (SELECT count(*) FROM streams WHERE {RECORDED_BY_TAP}),
    lost: (SELECT count(*) FROM streams WHERE outcome = 'tap_lost' AND {RECORDED_BY_TAP}),
    expired: (SELECT coalesce(max(value), 0) FROM counters WHERE name = 'expired_streams_rows'),
    forgotten: (SELECT coalesce(sum(value), 0)::BIGINT FROM counters WHERE name = 'forgotten_streams_rows'),
    events: (SELECT count(*) FROM events),
    open_streams: (SELECT coalesce(sum(len(open_stream_ids)), 0)::BIGINT FROM log_positions),
    losses: (SELECT count(*) FROM losses),
    dead_letters: (SELECT count(*) FROM dead_letters),
    counters: (SELECT map_from_entries(coalesce(list((name, value)), [])) FROM counters),
    losses_by_cause: (SELECT map_from_entries(coalesce(list((cause, n)), []))
        FROM (SELECT cause, count(*) AS n FROM losses GROUP BY 1)),
    taps: (SELECT coalesce(list({{tap: tap, worker: tap_worker, incarnation: incarnation, started_ms: epoch_ms(started_at),
        alive_ms: epoch_ms(last_alive_at), stopped: stopped, counters: counters::JSON}}), []) FROM taps),
    positions: (SELECT coalesce(list({{log_id: log_id, partition: partition, high: high, low: low, open_ids: open_stream_ids,
        updated_ms: epoch_ms(updated_at)}}), []) FROM log_positions),
    log_gone_streams: (SELECT streams FROM log_gone),
    log_gone_ms: (SELECT lost_ms FROM log_gone)
}})::VARCHAR AS counts
"""
"""A single statement, which reads one snapshot of the tables. The names are those of `TableCounts`."""


Rows = Callable[[str], Sequence[Mapping[str, Any]]]
"""Runs one statement on the store and returns the rows. Raises QueryError."""


@dataclass(frozen=True, slots=True)
class TapRun:
    """The last report of one run of one tap worker in the log."""

    tap: str
    worker: int
    incarnation: str
    started_ms: int
    alive_ms: int
    stopped: bool
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """The position of one partition and its open streams."""

    log_id: str
    partition: str
    high: int
    low: int
    open_ids: tuple[str, ...]
    updated_ms: int = 0


@dataclass(frozen=True, slots=True)
class TableCounts:
    """Counts of one snapshot of the tables."""

    streams: int
    recorded: int
    """Without the answers on WebSockets, which no tap counts."""
    lost: int
    expired: int
    forgotten: int
    """Deleted by `streamgauge forget`."""
    events: int
    open_streams: int
    losses: int
    dead_letters: int
    counters: Mapping[str, int]
    losses_by_cause: Mapping[str, int]
    taps: Sequence[TapRun]
    positions: Sequence[PartitionPosition]
    log_gone_streams: int = 0
    """Streams lost within the last hour because their log was replaced or deleted."""
    log_gone_ms: int = 0
    """When the last of them was lost."""


@dataclass(frozen=True, slots=True)
class Captured:
    """Streams that the taps recorded. `at_most` None: no upper bound is known."""

    at_least: int
    at_most: int | None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The terms. `reconciles` is true if their sum lies within the bounds of captured."""

    captured: Captured
    stored: int
    expired: int
    lost: int
    open: int
    in_log: int
    forgotten: int = 0
    unreported: int = 0
    """Lost streams of ended runs that have no row yet."""
    unknown: tuple[str, ...] = field(default=())

    @property
    def accounted(self) -> int:
        deleted = self.expired + self.forgotten
        return self.stored + deleted + self.lost + self.unreported + self.open + self.in_log

    @property
    def reconciles(self) -> bool:
        too_many = self.captured.at_most is not None and self.accounted > self.captured.at_most
        return self.accounted >= self.captured.at_least and not too_many


def count_tables(rows: Rows) -> TableCounts:
    """Count one snapshot of the tables. Raises QueryError."""
    (row,) = rows(_COUNTS)
    return msgspec.json.decode(row["counts"], type=TableCounts)


def captured(
    taps: Sequence[TapRun], before: Mapping[str, RunTotals], after: Mapping[str, RunTotals], *, now_ms: int
) -> Captured:
    """Bounds of the captured streams. Totals are those of this folder's log by incarnation, read before and after the other
    counts.

    Other runs count with their last report in the log: taps on other machines, and old runs without totals.
    """
    unknown: list[str] = []
    at_least = sum(before.get(incarnation, RunTotals()).streams_in_log for incarnation in after)
    at_most: int | None = sum(totals.streams_opened for totals in after.values())
    for run in taps:
        if run.incarnation in after:
            continue
        at_least += run.counters.get("streams_opened", 0)
        at_most = at_most + run.counters.get("streams_opened", 0) if at_most is not None else None
        if not run.stopped:
            silent_s = max(0, now_ms - run.alive_ms) / 1000
            at_most = None
            note = f"streams of tap {run.tap} worker {run.worker} since its last report, {silent_s:.0f} s ago"
            if silent_s >= SILENT_WITHOUT_UP_AFTER_S:
                note += ": it did not end cleanly, or does not reach the log"
            unknown.append(note)
    return Captured(at_least, at_most, tuple(unknown))


def abandoned_positions(positions: Sequence[PartitionPosition]) -> list[PartitionPosition]:
    """Positions with open streams in a log other than the one that moved last."""
    current = max(positions, key=lambda p: p.updated_ms).log_id if positions else ""
    return [p for p in positions if p.log_id != current and p.open_ids]


@dataclass(slots=True)
class Unread:
    """Content of a log after the positions."""

    stream_ids: set[str] = field(default_factory=set)
    entries: int = 0
    records: int = 0
    bytes: int = 0
    complete: bool = True

    def add(self, payload: Any) -> None:
        """Add an entry. Damaged ones are ignored."""
        if not isinstance(payload, bytes):
            return
        self.entries += 1
        self.bytes += len(payload)
        self.complete = self.bytes < MAX_LOG_BYTES
        records = unpack(payload)[0]
        self.records += len(records)
        self.stream_ids.update(
            record.stream
            for record in records
            if not isinstance(record, (Alive, Damaged)) and not is_answer(record.stream)
        )


def unread_in_folder(log_dir: Path, positions: Mapping[str, int]) -> Unread:
    """The streams in the embedded log from these offsets on, 0 for a missing partition."""
    unread = Unread()
    for partition in list_partitions(log_dir):
        at = positions.get(partition, 0)
        for segment in list_segments(log_dir / partition):
            start = max(at, segment.first)
            try:
                with closing(open_segment(segment.path)) as connection:
                    while unread.complete:
                        rows, error = read_rows(connection, start, 8 * 2**20)
                        for _, payload, _ in rows:
                            unread.add(payload)
                        if error is not None or not rows:
                            break
                        start = rows[-1][0] + 1
            except OSError:
                continue  # the segment was read and deleted meanwhile
    return unread


def stored_ids(rows: Rows, stream_ids: set[str]) -> set[str]:
    """The ids of streams that have a row. A log may still contain stored streams."""
    found: set[str] = set()
    ids = [i for i in sorted(stream_ids) if len(i) == 36 and set(i) <= set("0123456789abcdef-")]
    for start in range(0, len(ids), 2000):
        listed = ", ".join(f"'{i}'" for i in ids[start : start + 2000])
        stored = rows(f"SELECT stream_id::VARCHAR AS id FROM streams WHERE stream_id IN ({listed})")
        found.update(row["id"] for row in stored)
    return found

"""The partitions that one consumer owns: taken from where the store says, replayed, let go of. The loop: `analytics.consumer`.

Rules
1. Owning a partition is claiming its position in the store: whoever had it before is fenced from then on.
2. What a position calls open is read again ([low, high), for those streams alone) before anything else of the partition, and
   counted as little as it is stored: `replayed` holds what the assembler counted of it.
3. What was open in a log that nobody can read any more ends as lost, once, when the first partition is taken.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import duckdb
import polars as pl

from analytics.assembly.assembler import Assembler
from analytics.assembly.partition import Position
from analytics.measures.measured_rows import lost_row
from analytics.storage.commit import Commit
from ingest.ids import uuid7_wall_ns
from ingest.record_log.interface import Entry, LogReader
from ingest.records import unpack

log = logging.getLogger(__name__)

REPLAY_OFFSETS = 1024
RECALLED = 65_536
"""Ids of stored streams that are remembered after a restart, for duplicates that a log may deliver late."""


class Tables(Protocol):
    """The store as a consumer needs it (`analytics.storage.store.Store`)."""

    def acquire_partition(self, log_id: str, partition: str) -> Position | None: ...
    def release_partition(self, log_id: str, partition: str) -> None: ...
    def other_positions(self, log_id: str) -> list[tuple[str, str]]: ...
    def kept_records(self, log_id: str, partition: str) -> dict[str, list[bytes]]: ...
    def cursor(self) -> duckdb.DuckDBPyConnection: ...
    def commit(self, commit: Commit) -> None: ...
    def write_open_streams(self, rows: pl.DataFrame) -> None: ...


class Holdings:
    """Which partitions are ours, and how far each is read."""

    def __init__(
        self,
        reader: LogReader,
        store: Tables,
        assembler: Assembler,
        *,
        is_gone: Callable[[str], bool],
        begins_at: Callable[[str], int],
    ) -> None:
        """The arguments are those of `analytics.consumer.Consumer`."""
        self.high: dict[str, int] = {}
        """All entries before it are read, by partition."""
        self.moved: set[str] = set()
        """Partitions whose position is another than the store's."""
        self.heard_s: dict[str, float] = {}
        self.kept_ids: set[str] = set()
        """Open streams that have records in the store."""
        self.replayed: Counter[str] = Counter()
        self._reader = reader
        self._store = store
        self._assembler = assembler
        self._is_gone = is_gone
        self._begins_at = begins_at
        self._asked_what_is_gone = False

    def look(self) -> None:
        """Take the partitions that are new. Their late duplicates are known by the newest ids of the store."""
        new = sorted(set(self._reader.partitions()) - self.high.keys())
        for partition in new:
            self.take(partition)
        if new:
            self._assembler.recall(self._newest_ids())

    def take(self, partition: str) -> None:
        """Own a partition, and send the reader to where it goes on."""
        log_id = self._reader.log_id
        if not self._asked_what_is_gone:
            self._asked_what_is_gone = True
            self._end_what_was_open_in_logs_that_are_gone(log_id)
        stored = self._store.acquire_partition(log_id, partition)
        self.heard_s[partition] = time.monotonic()
        begins_at = self._begins_at(partition)
        if stored is None or stored.high < begins_at:
            self.high[partition] = begins_at
            self._reader.seek(partition, begins_at)
            if begins_at:
                self.moved.add(partition)
                log.info(
                    "partition %s: on from %d, for what is before it went another way", partition, begins_at
                )
            return
        self._replay(log_id, partition, stored)
        self.high[partition] = stored.high
        self._reader.seek(partition, stored.high)

    def let_go(self, partition: str) -> None:
        """Forget a partition that is another consumer's now."""
        log.info("partition %s is another consumer's now", partition)
        self._assembler.drop(partition)
        self._store.release_partition(self._reader.log_id, partition)
        del self.high[partition]
        self.moved.discard(partition)
        self.heard_s.pop(partition, None)

    def _replay(self, log_id: str, partition: str, stored: Position) -> None:
        counted = Counter(self._assembler.counters)
        self._assembler.resume(partition, stored.open_stream_ids)
        kept = self._store.kept_records(log_id, partition)
        for stream_id, payloads in kept.items():
            self._assembler.restore(partition, stream_id, payloads)
            self.kept_ids.add(stream_id)
        entries = 0
        for entry in self._entries(partition, stored.low, stored.high):
            self._assembler.feed(partition, entry.offset, unpack(entry.payload)[0])
            entries += 1
        self._assembler.end_replay(partition)
        self.replayed += self._assembler.counters - counted
        log.info(
            "partition %s: on from %d (%d open streams, %d kept, %d entries read again)",
            partition, stored.high, len(stored.open_stream_ids), len(kept), entries,
        )  # fmt: skip

    def _entries(self, partition: str, low: int, high: int) -> Iterable[Entry]:
        """[low, high) in small steps; steps grow over gaps in the offsets."""
        at, step = low, REPLAY_OFFSETS
        while at < high:
            entries: Sequence[Entry] = self._reader.range(partition, at, min(at + step, high))
            yield from entries
            at += step
            step = REPLAY_OFFSETS if entries else step * 2

    def _newest_ids(self) -> Iterable[str]:
        cursor = self._store.cursor()
        try:
            rows = cursor.execute(
                f"SELECT stream_id::VARCHAR FROM streams ORDER BY started_at DESC LIMIT {RECALLED}"
            ).fetchall()
        finally:
            cursor.close()
        return (row[0] for row in rows)

    def _end_what_was_open_in_logs_that_are_gone(self, log_id: str) -> None:
        for other_id, partition in self._store.other_positions(log_id):
            if not self._is_gone(other_id):
                continue
            stored = self._store.acquire_partition(other_id, partition)
            if stored is None or not stored.open_stream_ids:
                continue
            log.warning(
                "%d streams were open in a log that is gone (%s, partition %s): they are lost",
                len(stored.open_stream_ids), other_id, partition,
            )  # fmt: skip
            ids = list(stored.open_stream_ids)
            streams = pl.concat([lost_row(i, uuid7_wall_ns(i), None, None) for i in ids])
            losses = streams.select(
                "stream_id", "tap", pl.lit(partition).alias("partition"), cause=pl.lit("log_gone")
            )
            losses = losses.with_columns(
                lost_at=pl.lit(time.time_ns() // 1000).cast(pl.Datetime("us", "UTC"))
            )
            self._store.commit(
                Commit(
                    other_id,
                    positions={partition: Position(stored.high, stored.high, ())},
                    tables={"streams": streams, "losses": losses},
                    finished_stream_ids=ids,
                    totals={"streams_rows": len(ids), "streams_lost": len(ids), "losses_rows": len(ids)},
                )
            )
            self._store.release_partition(other_id, partition)

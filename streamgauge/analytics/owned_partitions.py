"""The partitions owned by one consumer: claim, replay, release. `streamgauge.analytics.consumer` is the loop.

Rules
1. A consumer owns a partition once it has claimed its position in the store. The previous owner can then no longer commit.
2. A claim replays the open streams of the position before new entries are read. `replayed` has the assembler's counts of the
   replay, which were already counted once.
3. Streams that were open in a deleted log end as lost, once, when the first partition is claimed.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set

import polars as pl

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.assembly.partition import LOG_GONE, LogPosition
from streamgauge.analytics.measures.dead_letters import DAMAGED_REASON, DeadLetters, failed
from streamgauge.analytics.measures.measure import lost_row
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.tables import LOSSES
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.partition_positions import PartitionLost
from streamgauge.analytics.storage.store import Store
from streamgauge.analytics.storage.websocket_states import WebSocketStates
from streamgauge.ingest.generated_ids import uuid7_wall_ns
from streamgauge.ingest.record_log.interface import Entry, LogReader
from streamgauge.ingest.records import unpack

log = logging.getLogger(__name__)

REPLAY_OFFSETS = 1024
RECALLED_IDS = 65_536
"""Ids of stored streams that are loaded after a restart to detect late duplicates."""


class OwnedPartitions:
    """The owned partitions and how far each is read."""

    def __init__(
        self,
        reader: LogReader,
        store: Store,
        assembler: Assembler,
        dead_letters: DeadLetters,
        *,
        is_deleted_log: Callable[[str], bool],
        first_offset: Callable[[str], int],
        states: WebSocketStates | None,
    ) -> None:
        self.high: dict[str, int] = {}
        """Next offset to read, by partition."""
        self.changed: set[str] = set()
        """Partitions whose position differs from the stored one."""
        self.last_entry_s: dict[str, float] = {}
        """Monotonic time of the last entry, by partition."""
        self.kept_ids: set[str] = set()
        """Open streams with checkpoints in the store."""
        self.replayed: Counter[str] = Counter()
        self._reader = reader
        self._store = store
        self._assembler = assembler
        self._dead_letters = dead_letters
        self._is_deleted_log = is_deleted_log
        self._first_offset = first_offset
        self._states = states
        self._checked_deleted_logs = False

    def refresh(self) -> None:
        """Claim new partitions, and load the newest stored ids to detect their late duplicates."""
        new = sorted(set(self._reader.partitions()) - self.high.keys())
        for partition in new:
            self.claim(partition)
        # Late duplicates of stored streams would open them again. The newest ids suffice, because duplicates are recent.
        if new:
            self._assembler.recall(self._newest_ids())

    def claim(self, partition: str) -> None:
        """Own a partition, replay its open streams and seek to its position."""
        log_id = self._reader.log_id
        if not self._checked_deleted_logs:
            self._checked_deleted_logs = True
            self._lose_streams_of_deleted_logs(log_id)
        stored = self._store.acquire_partition(log_id, partition)
        self.last_entry_s[partition] = time.monotonic()
        first_offset = self._first_offset(partition)
        if stored is None or stored.high < first_offset:
            self.high[partition] = first_offset
            self._reader.seek(partition, first_offset)
            if first_offset:
                self.changed.add(partition)
                log.info(
                    "partition %s: starting at %d. Earlier entries were shipped.", partition, first_offset
                )
            return
        known = self._stored_letters(log_id, partition, stored)
        counted = Counter(self._assembler.counters)
        self.kept_ids |= self._replay(partition, stored, known)
        self.replayed += self._assembler.counters - counted
        self._assembler.end_replay(partition)
        self.high[partition] = stored.high
        self.take_damage(known)
        self._reader.seek(partition, stored.high)

    def take_damage(self, known: Set[tuple[int, str]] = frozenset()) -> None:
        """Record damaged ranges. They precede the entries that the last poll returned. `known`: offsets and reasons of dead letters
        that the store has."""
        for damage in self._reader.take_unreadable():
            if (damage.first, DAMAGED_REASON) not in known:
                damaged = (damage.partition, damage.first, damage.end)
                self._dead_letters.add_damaged_range(damage.partition, damage.first, damaged)
            if damage.partition in self.high:
                self._assembler.suspect_open_streams(damage.partition)

    def _stored_letters(self, log_id: str, partition: str, stored: LogPosition) -> set[tuple[int, str]]:
        """(offset, reason) of the dead letters of entries that will be replayed."""
        query = (
            "SELECT log_offset, reason FROM dead_letters WHERE stream_id IS NULL "
            "AND log_id = ? AND partition = ? AND log_offset >= ? AND log_offset < ?"
        )
        if stored.low >= stored.high:
            return set()
        with self._store.cursor() as cursor:
            return set(cursor.execute(query, [log_id, partition, stored.low, stored.high]).fetchall())

    def _replay(self, partition: str, stored: LogPosition, known: Set[tuple[int, str]]) -> set[str]:
        """Restore only the open streams of a position from [low, high). Returns the ids of those with checkpoints.

        A checkpoint or an entry that raises an exception becomes a dead letter, and the replay goes on with the next. `known`: offsets
        and reasons of dead letters that the store has.
        """
        assembler, states = self._assembler, self._states
        assembler.resume(partition, stored.open_stream_ids)
        kept = self._store.kept_records(self._reader.log_id, partition)
        for stream_id, payloads in kept.items():
            try:
                state = states.load(stream_id, payloads[-1]) if states is not None else None
                assembler.restore(partition, stream_id, payloads, state)
            except Exception as e:
                cause = self._dead_letters.add_unrestored(partition, stream_id, b"".join(payloads), e)
                assembler.lose(partition, stream_id, cause)
        entries = 0
        for entry in _entries(self._reader, partition, stored.low, stored.high):
            records, _ = unpack(entry.payload)
            try:
                assembler.feed(partition, entry.offset, records)
            except Exception as e:
                assembler.lose_records(partition, entry.offset, records, failed("replay", e))
                if not {(entry.offset, failed(step, e)) for step in ("assemble", "replay")} & known:
                    self._dead_letters.add_failed("replay", partition, entry.offset, entry.payload, e)
            entries += 1
        log.info(
            "partition %s: resuming at %d (%d open streams, %d of them from checkpoints, %d entries replayed)",
            partition, stored.high, len(stored.open_stream_ids), len(kept), entries,
        )  # fmt: skip
        return set(kept)

    def release(self, partition: str) -> None:
        """Discard the state of a partition that another consumer owns now."""
        log.info("partition %s: released to another consumer", partition)
        self._assembler.drop(partition)
        self._store.release_partition(self._reader.log_id, partition)
        del self.high[partition]
        self.changed.discard(partition)
        self.last_entry_s.pop(partition, None)

    def _newest_ids(self) -> Iterable[str]:
        query = f"SELECT stream_id::VARCHAR FROM streams ORDER BY started_at DESC LIMIT {RECALLED_IDS}"
        with self._store.cursor() as cursor:
            return [row[0] for row in cursor.execute(query).fetchall()]

    def _lose_streams_of_deleted_logs(self, log_id: str) -> None:
        for other_id, partition in self._store.other_positions(log_id):
            if not self._is_deleted_log(other_id):
                continue
            stored = self._store.acquire_partition(other_id, partition)
            if stored is None or not stored.open_stream_ids:
                continue
            log.warning(
                "%d streams are lost: they were open in a log that no longer exists (%s, partition %s)",
                len(stored.open_stream_ids), other_id, partition,
            )  # fmt: skip
            ids = list(stored.open_stream_ids)
            streams = pl.concat([lost_row(i, uuid7_wall_ns(i), None, None) for i in ids])
            lost_us = time.time_ns() // 1000
            losses = frame_of_rows(
                LOSSES, [(i, None, partition, None, None, LOG_GONE, None, lost_us, None) for i in ids]
            )
            with contextlib.suppress(PartitionLost):  # another process of the group ends them
                self._store.commit(
                    Commit(
                        other_id,
                        positions={partition: LogPosition(stored.high, stored.high, ())},
                        tables={"streams": streams, "losses": losses},
                        finished_stream_ids=ids,
                        totals={"streams_rows": len(ids), "streams_lost": len(ids), "losses_rows": len(ids)},
                    )
                )
            self._store.release_partition(other_id, partition)


def _entries(reader: LogReader, partition: str, low: int, high: int) -> Iterable[Entry]:
    """The entries in [low, high), read in small steps. The step doubles after each one without entries."""
    at, step = low, REPLAY_OFFSETS
    while at < high:
        entries: Sequence[Entry] = reader.range(partition, at, min(at + step, high))
        yield from entries
        at += step
        # Parts of the range may be deleted. Steps that double skip a gap of any length in few calls.
        step = REPLAY_OFFSETS if entries else step * 2

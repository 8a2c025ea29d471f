"""From log entries to committed rows: the loop's state and its steps. The process around it is `analytics.main`; which
partitions are read, and from where, is `analytics.owned_partitions`.

Rules
1. What is committed together was taken together: finished streams, losses, failures, kept records, positions.
2. After a restart the position's [low, high) is read again for its open streams alone, then the log from `high` on. Nothing
   is committed before that is done.
3. An entry that is no entry, a record that is no record and a stream that cannot be measured become dead letters (reason,
   size and hash, no text); the rest goes on. A stream that cannot be measured is stored as `tap_lost`.
4. A commit that fails leaves the table as it was and this object ahead of it: it must not be used any more.
5. Commits are at least `commit_interval_s` apart and take at most `COMMIT_SHARE` of the time; while a backlog is read, at
   most a third. Positions alone are committed every `POSITIONS_EVERY_S`. An idle log costs no commits.
6. Streams in flight are no part of a commit: their file is replaced every `OPEN_STREAMS_EVERY_S`, when they have changed.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from analytics.assembly.assembler import Assembler
from analytics.assembly.stream import FinishedStream
from analytics.measures.dead_letters import DeadLetters
from analytics.measures.measured_rows import Measure, measured_rows
from analytics.owned_partitions import Holdings, Tables
from analytics.storage.commit import Commit, TapReport
from ingest.record_log.interface import Entry, LogReader
from ingest.records import pack, read_damage, unpack

log = logging.getLogger(__name__)


class Witness(Protocol):
    """Told of what is committed: it may add tables of its own to the transaction, and never fails it."""

    @property
    def waiting(self) -> bool:
        """Whether it has rows to commit, streams or not."""

    def rows(
        self, finished: Sequence[FinishedStream], tables: Mapping[str, pl.DataFrame]
    ) -> Mapping[str, pl.DataFrame]:
        """Before a commit: its finished streams, the rows measured of them; the tables to add."""

    def committed(self) -> None:
        """What `rows` was last told of is in the store."""


OPEN_STREAMS_EVERY_S = 0.5
POSITIONS_EVERY_S = 5.0
"""After a crash the log is read again from the last position, so it need not be recent."""
COMMIT_SHARE = 0.15
SLOWEST_S = 1.0
"""Longest pause between commits, however long the last one took."""
END_S = 0.1
"""A log without a new entry for this long, while rows wait, is read to its end."""
TOTALS = (
    "records", "frames", "body_bytes", "streams_opened", "streams_finished", "streams_lost", "duplicate_records",
    "late_records", "failures", "doubted_streams", "evicted_streams", "oversized_streams", "checkpoints", "early_checkpoints",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pace:
    """How often rows become visible, and how much may be in memory before."""

    commit_interval_s: float = 0.25
    commit_events: int = 200_000
    commit_bytes: int = 32 * 2**20
    lost_after_s: float = 60.0
    writers_are_local: bool = True
    """The log's silence is its writer's silence (embedded); not so behind a broker."""


class Consumer:
    """Reads one log into one store. One owner thread."""

    def __init__(
        self,
        reader: LogReader,
        store: Tables,
        assembler: Assembler,
        measure: Measure,
        pace: Pace | None = None,
        *,
        is_gone: Callable[[str], bool] = lambda log_id: False,
        begins_at: Callable[[str], int] = lambda partition: 0,
        witness: Witness | None = None,
    ) -> None:
        """`is_gone` tells of another log's id whether nobody can read it any more: its open streams end as lost.

        `begins_at` tells of a partition from where on its entries are ours: those before went another way (`ship`), even
        when they are still there and our position is before them.
        """
        self._witness = witness
        self._reader = reader
        self._store = store
        self._assembler = assembler
        self._measure = measure
        self._pace = pace or Pace()
        self._holdings = Holdings(reader, store, assembler, is_gone=is_gone, begins_at=begins_at)
        self._finished: list[FinishedStream] = []
        self._finished_events = 0
        self._dead_letters = DeadLetters()
        self._bytes = 0
        self._counters: Counter[str] = Counter()
        self._counted: Counter[str] = Counter()
        self._told_taps: dict[tuple[str, int, str], int] = {}
        self._open_is_stale = True
        self._opened_at_s = self._committed_s = self._paced_s = float("-inf")
        """When open streams were last written, the last commit was made, and the last that was not full."""
        self._commit_cost_s = self._open_cost_s = 0.0
        self._failed = False
        self._is_behind = False
        """The last look at the log found something."""
        self.commits = 0

    # -- partitions --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Claim the partitions there are, and replay what was open."""
        self._holdings.look()

    def hand_over(self, partitions: Collection[str]) -> None:
        """These are another consumer's next: commit while they are ours, so that it goes on from here, and forget them."""
        if self._failed:
            return
        self.finish()
        for partition in partitions:
            if partition in self._holdings.high:
                self._holdings.let_go(partition)
        self._open_is_stale = True

    def abandon_log(self) -> None:
        """The log was made anew under us: what was open in it will never end. Commit, as lost, and stop using this."""
        for partition in self._holdings.high:
            self._assembler.lose_open(partition)
            self._holdings.moved.add(partition)
        self.finish()

    # -- the loop's step ---------------------------------------------------------------------------------------------

    def step(self, timeout_s: float) -> bool:
        """Read once, commit if it is time. True when there was something to read.

        Raises what the reader raises (LogBroken, OSError), and the store's StoreFailed and PartitionLost.
        """
        self._holdings.look()
        entries = self._reader.poll(min(timeout_s, self._look_for_s()))
        self._take_damage()
        foreign: set[str] = set()
        for entry in entries:
            if entry.partition not in self._holdings.high:
                self._holdings.take(entry.partition)
                foreign.add(entry.partition)  # found within this poll: it is read again from its position
            if entry.partition not in foreign:
                self.feed(entry)
                if self._is_full():
                    self.commit()
        self._is_behind = bool(entries)
        if not entries:
            self._end_the_silent()
        if self._due_in_s(self._is_behind) <= 0:
            self.commit()
            self._paced_s = self._committed_s
        if self._open_is_stale and time.monotonic() >= self._open_due_at_s():
            self._write_open_streams()
        return bool(entries)

    def feed(self, entry: Entry) -> None:
        """One entry of a partition that is ours, in order."""
        partition, payload = entry.partition, entry.payload
        records, poison = unpack(payload)
        for bad in poison:
            damaged = read_damage(bad.payload)
            if damaged is not None:
                self._dead_letters.add_damaged_range(partition, entry.offset, damaged, bad.payload)
            else:
                self._dead_letters.add(partition, entry.offset, None, bad.reason, bad.size, bad.payload)
        if records:
            try:
                self._assembler.feed(partition, entry.offset, records)
            except Exception as e:
                log.exception("entry %d of partition %s cannot be processed", entry.offset, partition)
                self._dead_letters.add(
                    partition, entry.offset, None, f"assemble: {type(e).__name__}", len(payload), payload
                )
        self._holdings.high[partition] = entry.offset + 1
        self._holdings.moved.add(partition)
        self._holdings.heard_s[partition] = time.monotonic()
        self._open_is_stale = True
        self._bytes += len(payload)
        self._counters["entries"] += 1
        self._counters["log_bytes"] += len(payload)
        self._take_finished()

    def _take_finished(self) -> None:
        for stream in self._assembler.take_finished():
            self._finished.append(stream)
            self._holdings.moved.add(stream.partition)
            if stream.decoder is not None:
                self._finished_events += len(stream.decoder.events)

    def _end_the_silent(self) -> None:
        """A local log that was silent for `lost_after_s` has no living writer: not even its `Alive` came."""
        if not self._pace.writers_are_local or not self._assembler.open_count:
            return
        before_s = time.monotonic() - self._pace.lost_after_s
        for partition, heard_s in self._holdings.heard_s.items():
            if partition in self._holdings.high and heard_s < before_s:
                self._assembler.lose_open(partition)
                self._holdings.heard_s[partition] = time.monotonic()
                self._open_is_stale = True
        self._take_finished()

    # -- committing --------------------------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        return self._finished_events >= self._pace.commit_events or self._bytes >= self._pace.commit_bytes

    def _look_for_s(self) -> float:
        """How long to look for entries: until it is time to commit, or the log is known to be read to its end."""
        due_in_s = self._due_in_s(self._is_behind)
        if self._is_behind:
            due_in_s = min(due_in_s, max(END_S, self._due_in_s(is_behind=False)))
        return due_in_s

    def _due_in_s(self, is_behind: bool) -> float:
        """Seconds until there is something to do, as things are; at most 0.25 when there is nothing."""
        now_s = time.monotonic()
        if self._finished or (self._witness is not None and self._witness.waiting):
            interval_s = self._pace.commit_interval_s
        elif self._holdings.high and self._dead_letters:
            interval_s = OPEN_STREAMS_EVERY_S
        elif self._holdings.high and self._holdings.moved:
            interval_s = POSITIONS_EVERY_S
        else:
            return 0.25
        if is_behind:
            return self._committed_s + max(interval_s, 2 * self._commit_cost_s) - now_s
        # A commit may have waited for upkeep: that is no reason to wait longer than a second.
        cost_s = min(self._commit_cost_s / COMMIT_SHARE, SLOWEST_S)
        return self._paced_s + max(interval_s, cost_s) - now_s

    def _open_due_at_s(self) -> float:
        return self._opened_at_s + max(OPEN_STREAMS_EVERY_S, 10 * self._open_cost_s)

    def _write_open_streams(self) -> None:
        """Show readers what is in flight. Not needed for the numbers to be right, so a failure is only logged."""
        began_s = time.monotonic()
        try:
            self._store.write_open_streams(self._assembler.open_streams())
            self._open_is_stale = False
        except OSError as e:
            log.warning("the file of open streams cannot be written: %s", e)
        self._opened_at_s = time.monotonic()
        self._open_cost_s = self._opened_at_s - began_s

    def commit(self) -> None:
        """Everything up to here into the store, in one transaction; then the log may trim."""
        began_s, holdings = time.monotonic(), self._holdings
        self._take_finished()
        self._add_failures()
        commit = Commit(self._reader.log_id if holdings.high else "")  # one that was never reached has no id
        checkpoints = self._assembler.checkpoint_records()
        commit.kept_records = [(c.partition, c.stream_id, c.payload) for c in checkpoints]
        holdings.kept_ids.update(c.stream_id for c in checkpoints)
        commit.finished_stream_ids = [s.stream_id for s in self._finished if s.stream_id in holdings.kept_ids]
        holdings.moved.update(c.partition for c in checkpoints)
        moved = holdings.moved & holdings.high.keys()
        positions = {p: self._assembler.position(p, holdings.high[p]) for p in sorted(moved)}
        commit.positions = positions
        tables = measured_rows(self._finished, self._measure, self._dead_letters)
        if self._witness is not None:
            tables |= self._witness.rows(self._finished, tables)
        tables["losses"] = pl.concat([self._assembler.take_losses(), self._dead_letters.loss_rows()])
        tables["dead_letters"] = self._dead_letters.rows(commit.log_id)
        commit.tables = tables
        commit.taps = self._news_of_taps()
        commit.totals = self._increments(tables)
        try:
            self._store.commit(commit)
        except BaseException:
            self._failed = True
            raise
        self.commits += 1
        if self._witness is not None:
            self._witness.committed()
        holdings.kept_ids.difference_update(commit.finished_stream_ids)
        for partition, position in positions.items():
            self._reader.release(partition, position.low)
        self._finished, self._bytes, self._finished_events = [], 0, 0
        self._dead_letters.clear()
        holdings.moved.clear()
        self._committed_s = time.monotonic()
        self._commit_cost_s = self._committed_s - began_s

    def _add_failures(self) -> None:
        for failure in self._assembler.take_failures():
            payload = pack([failure.record], compress=False)
            self._dead_letters.add(
                failure.partition, failure.offset, failure.stream_id, failure.reason, len(payload), payload
            )

    def _take_damage(self) -> None:
        """What the reader could not read lies before what it has just returned."""
        for damage in self._reader.take_unreadable():
            self._dead_letters.add_damaged_range(
                damage.partition, damage.first, (damage.partition, damage.first, damage.end)
            )
            if damage.partition in self._holdings.high:
                self._assembler.doubt(damage.partition)

    def _news_of_taps(self) -> list[TapReport]:
        news = []
        for key, alive in self._assembler.taps.items():
            if self._told_taps.get(key) != alive.mono_ns:
                self._told_taps[key] = alive.mono_ns
                news.append(
                    TapReport(
                        tap=alive.tap,
                        tap_worker=alive.tap_worker,
                        incarnation=alive.incarnation,
                        started_wall_ns=alive.started_wall_ns,
                        wall_ns=alive.wall_ns,
                        stopping=alive.stopping,
                        counters=alive.counters,
                    )
                )
        for key in self._told_taps.keys() - self._assembler.taps.keys():
            del self._told_taps[key]
        return news

    def _increments(self, tables: dict[str, pl.DataFrame]) -> dict[str, int]:
        counted = (
            self._assembler.counters - self._holdings.replayed
        )  # what a replay counts was counted before
        increments = {name: counted[name] - self._counted[name] for name in TOTALS}
        self._counted = counted
        for name, table in tables.items():
            increments[f"{name}_rows"] = table.height
        increments.update(self._counters)
        increments.update(self._dead_letters.counters)
        self._counters.clear()
        return increments

    def health(self) -> dict[str, float]:
        """How far it is: gauges and totals of the pipeline, by metric name without its prefix."""
        taps = self._assembler.taps.values()

        def told(name: str) -> float:
            return float(sum(alive.counters.get(name, 0) for alive in taps))

        return {
            "streams.active": float(self._assembler.open_count),
            "pipeline.lag": float(
                sum(max(0, self._reader.end(p) - high) for p, high in self._holdings.high.items())
            ),
            "pipeline.since_commit": max(0.0, time.monotonic() - self._committed_s) if self.commits else 0.0,
            "pipeline.loop_lag": max((a.counters.get("loop_lag_max_ns", 0) for a in taps), default=0) / 1e9,
            "pipeline.log_size": float(
                max((a.counters.get("log_size_bytes_now", 0) for a in taps), default=0)
            ),
            "pipeline.captured": told("streams_opened"),
            "pipeline.lost_records": told("lost_records"),
        }

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Commit what is finished and where we are; open streams stay open, in the log."""
        holdings = self._holdings
        if holdings.high and (holdings.moved or self._finished or self._dead_letters):
            self.commit()
        if holdings.high and self._open_is_stale:
            self._write_open_streams()

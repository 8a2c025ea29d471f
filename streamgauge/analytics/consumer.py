"""The consumer loop: read log entries, commit rows and positions together. `streamgauge.analytics.main` is the process around it.

Rules
1. Finished streams, losses, dead letters, checkpoints and positions are committed in one transaction. The states of open
   WebSockets are stored before it, and deleted after it once they are no longer needed (`storage.websocket_states`).
2. After a restart, [low, high) of each position is read again, only for its open streams. Then reading continues from `high`.
   Nothing is committed before this replay is done.
3. Invalid entries and records, and streams that cannot be measured, become dead letters (reason, size, hash, no content). A
   stream that cannot be measured is stored as `tap_lost`.
4. After a failed commit this object is ahead of the store and must not be used again.
5. Commits are at least `commit_interval_s` apart, four times that while few events wait, and twice the CPU time of the last one, but
   never more than `MAX_PAUSE_S` for it: on a busy machine commits take long, but rows must stay fresh. A full batch is committed at
   once. Positions without rows are committed every `POSITIONS_EVERY_S`. An idle log causes no commits.
6. Streams in flight are not committed. They are written to a separate file (`storage.open_streams_file`).
"""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import polars as pl

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.assembly.partition import LOG_GONE, TAP_DIED
from streamgauge.analytics.commit_hook import CommitHook
from streamgauge.analytics.measures.dead_letters import DeadLetters, failed
from streamgauge.analytics.measures.measure import Measure, measured_rows
from streamgauge.analytics.measures.open_streams import OpenPartition, open_stream_frame, waiting_for_client
from streamgauge.analytics.measures.outcome import LOST
from streamgauge.analytics.owned_partitions import OwnedPartitions
from streamgauge.analytics.schema.tables import COUNTER_PARTS
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.store import Store
from streamgauge.analytics.storage.websocket_states import WebSocketStates
from streamgauge.ingest.guards import Guards
from streamgauge.ingest.record_log.interface import Entry, LogReader
from streamgauge.ingest.records import Alive, read_damage, unpack

log = logging.getLogger(__name__)

OPEN_STREAMS_EVERY_S = 0.5
OBSERVE_EVERY_S = 1.0
_NEVER_READ = 2**63
"""End of a partition whose end is not known yet."""
OBSERVE_SHARE = 0.05
"""Streams in flight are observed this often, with at most this share of one core."""
POSITIONS_EVERY_S = 5.0
"""After a crash the log is read again from the last position, so it need not be recent."""
FEW_EVENTS, FEW_INTERVALS = 2_000, 4
"""While fewer events of finished streams wait, commits are this many intervals apart: each costs as much as reading 2,000 events."""
MAX_PAUSE_S = 0.6
"""Longest pause because of the cost of the last commit: upkeep may have run at the same time."""
IDLE_WAIT_S = 0.25
ASSEMBLER_TOTALS = (
    "records", "frames", "body_bytes", "streams_opened", "streams_finished", "duplicate_records", "late_records", "failures",
    "doubted_streams", "evicted_streams", "oversized_streams", "checkpoints", "early_checkpoints",
    "evicted_windows", "undecodable_websockets", "lost_websocket_states",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """Limits that start a commit, and the time after which silent taps count as lost."""

    commit_interval_s: float = 0.25
    commit_events: int = 200_000
    commit_bytes: int = 32 * 2**20
    """A commit is made early if this many events are finished or this many log bytes are read."""
    lost_after_s: float = 60.0
    writers_are_local: bool = True
    """Whether taps write the log directly (embedded log). Then a silent log means that its writer died."""


class Consumer:
    """Reads one log into one store. Not thread-safe."""

    def __init__(
        self,
        reader: LogReader,
        store: Store,
        assembler: Assembler,
        measure: Measure,
        policy: CommitPolicy | None = None,
        *,
        is_deleted_log: Callable[[str], bool] = lambda log_id: False,
        first_offset: Callable[[str], int] = lambda partition: 0,
        states: WebSocketStates | None = None,
        hooks: Sequence[CommitHook] = (),
        guards: Guards | None = None,
        observe: Callable[[Sequence[OpenPartition], bool], None] = lambda partitions, is_complete: None,
    ) -> None:
        """`is_deleted_log`: whether the log with this id can no longer be read. Its open streams end as lost.

        `first_offset`: the first offset of a partition to read. `ship` has already sent the entries before it, even if they
        still exist and the stored position is before them. `observe` is called with the partitions that are read up to their ends
        and whether these are all, at least `OBSERVE_EVERY_S` apart, also while the log is idle.
        """
        self._hooks = hooks
        self._guards = guards or Guards()
        self._hook_increments: list[tuple[CommitHook, Mapping[str, int]]] = []
        """The hooks whose rows are in this commit."""
        self._observe = observe
        self._open_partitions: Mapping[str, OpenPartition] = {}
        """As of the last write of the file of open streams. Some of the streams may have ended since."""
        self._ends: dict[str, int] = {}
        """The ends of the partitions at the last observation."""
        self._observe_due_s = 0.0
        self._reader = reader
        self._store = store
        self._assembler = assembler
        self._measure = measure
        self._policy = policy or CommitPolicy()
        self._dead_letters = DeadLetters()
        self._owned = OwnedPartitions(
            reader,
            store,
            assembler,
            self._dead_letters,
            is_deleted_log=is_deleted_log,
            first_offset=first_offset,
            states=states,
        )
        self._states = states
        self._finished: list[FinishedStream] = []
        self._finished_events = 0
        self._bytes = 0
        self._counters: Counter[str] = Counter()
        self._counted: Counter[str] = Counter()
        self._reported_taps: dict[tuple[str, int, str], int] = {}
        self._open_changed = True
        self._open_written_s = self._committed_s = self._interval_from_s = float("-inf")
        """Times of the last write of open streams, the last commit, and the last commit that was not early."""
        self._commit_cost_s = self._open_cost_s = 0.0
        self._failed = False
        self.commits = 0

    # -- partitions --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Claim the existing partitions and replay their open streams."""
        self._owned.refresh()

    def release_partitions(self, partitions: Collection[str]) -> None:
        """Commit, then release partitions that another consumer will continue from that commit."""
        if self._failed:
            return
        self.finish()
        for partition in partitions:
            if partition in self._owned.high:
                self._owned.release(partition)
        self._open_changed = True

    def lose_open_streams(self) -> int:
        """End all open streams as lost and commit, because the log was replaced. Do not use this object afterwards.

        Returns their number. It is 0 if a group reader has already released the partitions: the next claim ends their streams.
        """
        lost = self._assembler.open_count
        self._owned.take_damage()
        for partition in self._owned.high:
            self._assembler.lose_open(partition, LOG_GONE)
            self._owned.changed.add(partition)
        self.finish()
        return lost

    # -- the loop's step ---------------------------------------------------------------------------------------------

    def step(self, timeout_s: float) -> bool:
        """Read once and commit if it is due. Returns whether there were entries.

        Raises the reader's errors (LogBroken, OSError) and the store's StoreFailed and PartitionLost.
        """
        self._owned.refresh()
        entries = self._reader.poll(min(timeout_s, self._commit_due_in_s()))
        self._owned.take_damage()
        claimed: set[str] = set()
        for entry in entries:
            if entry.partition not in self._owned.high:
                self._owned.claim(entry.partition)
                # Its entries of this poll are dropped here: they arrive again after the replay.
                claimed.add(entry.partition)  # the reader now restarts at the stored position
            if entry.partition not in claimed:
                self.feed(entry)
                if self._is_full():
                    self.commit()
        if not entries:
            self._end_silent_partitions()
        if self._commit_due_in_s() <= 0:
            self.commit()
            self._interval_from_s = self._committed_s
        if self._open_changed and time.monotonic() >= self._open_due_at_s():
            self._write_open_streams()
        if (now_s := time.monotonic()) >= self._observe_due_s:
            self._observe_partitions()
            cost_s = time.monotonic() - now_s
            # The pause grows with the cost, so that many streams in flight cannot take the time of the log.
            self._observe_due_s = now_s + max(OBSERVE_EVERY_S, cost_s / OBSERVE_SHARE)
        return bool(entries)

    def _observe_partitions(self) -> None:
        """A partition counts as read up to its end if it has every entry that existed at the last observation."""
        ends, self._ends = self._ends, {name: self._reader.end(name) for name in self._owned.high}
        current = [
            self._open_partitions[name]
            for name in self._ends.keys() & self._open_partitions.keys()
            if self._open_partitions[name].high >= ends.get(name, _NEVER_READ)
        ]
        self._observe(current, len(current) == len(self._ends))

    def feed(self, entry: Entry) -> None:
        """Process one entry of an owned partition. Call in order of offsets."""
        partition, payload, owned = entry.partition, entry.payload, self._owned
        records, invalid = unpack(payload)
        for bad in invalid:
            damaged = read_damage(bad.payload)
            if damaged is not None:
                self._dead_letters.add_damaged_range(partition, entry.offset, damaged, bad.payload)
            else:
                self._dead_letters.add(partition, entry.offset, bad.reason, bad.size, bad.payload)
        if records:
            try:
                self._assembler.feed(partition, entry.offset, records)
            except Exception as e:
                # The entry counts as consumed. If it were read again, the same bug would stop analytics for good.
                self._dead_letters.add_failed("assemble", partition, entry.offset, payload, e)
                self._assembler.lose_records(partition, entry.offset, records, failed("assemble", e))
        owned.high[partition] = entry.offset + 1
        owned.changed.add(partition)
        owned.last_entry_s[partition] = time.monotonic()
        self._open_changed = True
        self._bytes += len(payload)
        self._counters["entries"] += 1
        self._counters["log_bytes"] += len(payload)
        self._take_finished()

    def _take_finished(self) -> None:
        for stream in self._assembler.take_finished():
            self._finished.append(stream)
            self._owned.changed.add(stream.partition)
            if stream.body is not None:
                self._finished_events += len(stream.body.events)

    def _end_silent_partitions(self) -> None:
        """A live tap writes `Alive` records. A local log without entries for `lost_after_s` has no live writer."""
        if not self._policy.writers_are_local or not self._assembler.open_count:
            return
        before_s = time.monotonic() - self._policy.lost_after_s
        for partition, last_entry_s in self._owned.last_entry_s.items():
            if partition in self._owned.high and last_entry_s < before_s:
                self._assembler.lose_open(partition, TAP_DIED)
                self._owned.last_entry_s[partition] = time.monotonic()
                self._open_changed = True
        self._take_finished()

    # -- committing --------------------------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        policy = self._policy
        return self._finished_events >= policy.commit_events or self._bytes >= policy.commit_bytes

    def _commit_due_in_s(self) -> float:
        """Seconds until the next commit, `IDLE_WAIT_S` if there is nothing to commit."""
        if self._finished or any(
            self._ask(hook, partial(getattr, hook, "waiting"), False) for hook in self._hooks
        ):
            few = self._finished_events < FEW_EVENTS
            interval_s = self._policy.commit_interval_s * (FEW_INTERVALS if few else 1)
        elif self._owned.high and self._dead_letters:
            interval_s = OPEN_STREAMS_EVERY_S
        elif self._owned.high and self._owned.changed:
            interval_s = POSITIONS_EVERY_S
        else:
            return IDLE_WAIT_S
        pause_s = max(interval_s, min(2 * self._commit_cost_s, MAX_PAUSE_S))
        return self._interval_from_s + pause_s - time.monotonic()

    def _open_due_at_s(self) -> float:
        # The file has a row for each stream in flight and is written whole: at most a tenth of the time goes into it.
        return self._open_written_s + max(OPEN_STREAMS_EVERY_S, 10 * self._open_cost_s)

    def _write_open_streams(self) -> None:
        """Publish the streams in flight. They are only for display, so a failure is logged and ignored."""
        began_s = time.monotonic()
        try:
            # Silence is measured from the one to the other, so both are of the same moment.
            self._open_partitions = {
                name: OpenPartition(
                    name, high, self._assembler.open_streams(name), self._assembler.reports(name)
                )
                for name, high in self._owned.high.items()
            }
            streams = [*chain.from_iterable(one.streams for one in self._open_partitions.values())]
            waiting = waiting_for_client(self._assembler.taps.values())
            self._store.write_open_streams(open_stream_frame(streams, waiting, self._assembler.labels))
            self._open_changed = False
        except OSError as e:
            log.warning("cannot write the file of open streams: %s", e)
        self._open_written_s = time.monotonic()
        self._open_cost_s = self._open_written_s - began_s

    def commit(self) -> None:
        """Commit everything read so far in one transaction, then release log entries that are no longer needed."""
        began_s, owned = time.process_time(), self._owned
        self._take_finished()
        for failure in self._assembler.take_failures():
            self._dead_letters.add_failure(failure)
        commit = Commit(self._reader.log_id if owned.high else "")  # a log that was never reached has no id
        checkpoints = self._assembler.checkpoint_records()
        commit.kept_records = [(c.partition, c.stream_id, c.payload) for c in checkpoints]
        if self._states is not None:
            for c in checkpoints:
                if c.state is not None and not self._states.save(c.stream_id, c.payload, c.state):
                    self._counters["unsaved_websocket_states"] += 1
        owned.kept_ids.update(c.stream_id for c in checkpoints)
        commit.finished_stream_ids = [s.stream_id for s in self._finished if s.stream_id in owned.kept_ids]
        owned.changed.update(c.partition for c in checkpoints)
        changed = owned.changed & owned.high.keys()
        positions = {p: self._assembler.position(p, owned.high[p]) for p in sorted(changed)}
        commit.positions = positions
        commit.tables = tables = self._tables(commit.log_id)
        commit.taps = self._new_tap_reports()
        commit.totals = self._increments(tables)
        try:
            self._store.commit(commit)
        except BaseException:
            # Even after an error the store may have committed. Only a new start reads what it holds.
            self._failed = True
            raise
        self.commits += 1
        for hook, _ in self._hook_increments:
            self._ask(hook, hook.committed, None)
        if self._states is not None:
            self._states.committed(commit.finished_stream_ids)
        owned.kept_ids.difference_update(commit.finished_stream_ids)
        for partition, position in positions.items():
            # After the commit: before it, a crash would need these entries again.
            self._reader.release(partition, position.low)
        self._finished, self._bytes, self._finished_events = [], 0, 0
        self._dead_letters.clear()
        owned.changed.clear()
        self._committed_s = time.monotonic()
        self._commit_cost_s = time.process_time() - began_s

    def _tables(self, log_id: str) -> dict[str, pl.DataFrame]:
        tables = measured_rows(self._finished, self._measure, self._dead_letters)
        counted = tables.pop(COUNTER_PARTS.name, None)
        for name, value in counted.iter_rows() if counted is not None else ():
            self._counters[name] += value
        added: dict[str, list[pl.DataFrame]] = {}
        self._hook_increments = []
        for hook in self._hooks:
            made = self._ask(hook, partial(hook.rows, self._finished, tables), None)
            increments = self._ask(hook, partial(getattr, hook, "increments"), None)
            if made is not None and increments is not None:
                self._hook_increments.append((hook, increments))
                for table, rows in made.items():
                    added.setdefault(table, []).append(rows)
        tables["losses"] = pl.concat([self._assembler.take_losses(), self._dead_letters.loss_rows()])
        tables["dead_letters"] = self._dead_letters.rows(log_id)
        for table, frames in added.items():
            tables[table] = pl.concat([*([tables[table]] if table in tables else []), *frames])
        return tables

    def _ask(self, hook: CommitHook, question: Callable[[], Any], otherwise: Any) -> Any:
        """What a hook returns; `otherwise` after an exception, which is its own fault: the commit goes on without its rows."""
        try:
            return question()
        except Exception as e:
            self._guards.guard(f"commit hook {type(hook).__name__}").failed(e)
            return otherwise

    def _new_tap_reports(self) -> list[Alive]:
        taps, reported = self._assembler.taps, self._reported_taps
        # Only reports that are new: the store updates a row for each, and a silent tap has the same one in every commit.
        self._reported_taps = {key: alive.mono_ns for key, alive in taps.items()}
        return [alive for key, alive in taps.items() if reported.get(key) != alive.mono_ns]

    def _increments(self, tables: dict[str, pl.DataFrame]) -> dict[str, int]:
        # Replayed records were counted before the restart.
        counted = self._assembler.counters - self._owned.replayed
        increments = {name: counted[name] - self._counted[name] for name in ASSEMBLER_TOTALS}
        self._counted = counted
        for name, table in tables.items():
            increments[f"{name}_rows"] = table.height
        if "streams" in tables:
            increments["streams_lost"] = tables["streams"].filter(outcome=LOST.outcome).height
        increments.update(self._counters)
        for _, of_hook in self._hook_increments:
            increments.update(of_hook)
        increments.update(self._dead_letters.counters)
        self._counters.clear()
        return increments

    def health(self) -> dict[str, float]:
        """Gauges and totals of the pipeline by metric name without its prefix."""
        taps = self._assembler.taps.values()

        def total(name: str) -> float:
            return float(sum(alive.counters.get(name, 0) for alive in taps))

        def largest(name: str) -> float:
            return float(max((alive.counters.get(name, 0) for alive in taps), default=0))

        return {
            "streams.active": float(self._assembler.open_count),
            "pipeline.lag": float(
                sum(max(0, self._reader.end(p) - high) for p, high in self._owned.high.items())
            ),
            "pipeline.since_commit": max(0.0, time.monotonic() - self._committed_s) if self.commits else 0.0,
            "pipeline.loop_lag": largest("loop_lag_max_ns") / 1e9,
            "pipeline.log_size": largest("log_size_bytes_now"),
            "pipeline.captured": total("streams_opened"),
            "pipeline.lost_records": total("lost_records"),
        }

    def finish(self) -> None:
        """Commit finished streams and positions. Open streams stay in the log."""
        owned = self._owned
        if owned.high and (owned.changed or self._finished or self._dead_letters):
            self.commit()
        if owned.high and self._open_changed:
            self._write_open_streams()


YOUNG_OBJECTS = 250_000
"""More objects than a full commit creates. At most about 50 MB of cyclic garbage."""


def tune_gc() -> None:
    """Freeze all imported objects and collect rarely. Call once, after the imports."""
    # The streams of a commit are several hundred thousand objects that live until the commit. Rows, records and decoders
    # contain no reference cycles (a test checks this), so reference counting frees them. With Python's default thresholds
    # the cycle collector took a sixth of the consumer's CPU, and with a threshold of 50,000 objects still 4 %.
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)

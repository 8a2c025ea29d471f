"""From log entries to committed rows: the loop's state and its steps. The process around it is `analytics.consume`.

Rules
1. What is committed together was taken together: finished streams, losses, failures, kept records, positions.
2. After a restart the position's [low, high) is read again for its open streams alone, then the log from `high` on. Nothing
   is committed before that is done.
3. An entry that is no entry, a record that is no record and a stream that cannot be measured become dead letters (reason,
   size and hash, no text); the rest goes on. A stream that cannot be measured is stored as `tap_lost`.
4. A commit that fails leaves the table as it was and this object ahead of it: it must not be used any more.
5. Commits are at least `commit_interval_s` apart, and take at most a quarter of the time; an idle log costs none.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from analytics.assemble import Assembler
from analytics.dead_letters import DeadLetters
from analytics.store import Commit, Store, StoredPosition, Tap
from analytics.stream import FinishedStream
from ingest.log import Entry, LogReader
from ingest.records import pack, unpack

log = logging.getLogger(__name__)

Measure = Callable[[Sequence[FinishedStream]], dict[str, pl.DataFrame]]


class Witness(Protocol):
    """Told of what is committed: it may add tables of its own to the transaction, and never fails it."""

    def rows(
        self, finished: Sequence[FinishedStream], tables: Mapping[str, pl.DataFrame]
    ) -> Mapping[str, pl.DataFrame]:
        """Before a commit: its finished streams, the rows measured of them; the tables to add."""

    def committed(self) -> None:
        """What `rows` was last told of is in the store."""


REPLAY_OFFSETS = 1024
RECALLED = 65_536
"""Ids of stored streams that are remembered after a restart, for duplicates that a log may deliver late."""
OPEN_STREAMS_EVERY_S = 0.5
TOTALS = (
    "records", "frames", "body_bytes", "streams_opened", "streams_finished", "streams_lost", "duplicate_records",
    "late_records", "failures", "evicted_streams", "oversized_streams", "checkpoints", "early_checkpoints",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pace:
    """How often rows become visible, and how much may be in memory before."""

    commit_interval_s: float = 0.15
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
        store: Store,
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
        self._is_gone = is_gone
        self._witness = witness
        self._begins_at = begins_at
        self._asked_what_is_gone = False
        self._reader = reader
        self._store = store
        self._assembler = assembler
        self._measure = measure
        self._pace = pace or Pace()
        self._high: dict[str, int] = {}
        self._heard_s: dict[str, float] = {}
        self._finished: list[FinishedStream] = []
        self._finished_events = 0
        self._dead = DeadLetters()
        self._moved: set[str] = set()
        self._bytes = 0
        self._counters: Counter[str] = Counter()
        self._counted: Counter[str] = Counter()
        self._told_taps: dict[tuple[str, int, str], int] = {}
        self._kept_ids: set[str] = set()
        self._open_is_stale = True
        self._opened_at_s = self._committed_s = float("-inf")
        self._commit_cost_s = self._open_cost_s = 0.0
        self.commits = 0

    # -- partitions --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Claim the partitions there are, and replay what was open."""
        self._look()
        self._assembler.recall(self._newest_ids())

    def _newest_ids(self) -> Iterable[str]:
        cursor = self._store.cursor()
        try:
            rows = cursor.execute(
                f"SELECT stream_id::VARCHAR FROM streams ORDER BY started_at DESC LIMIT {RECALLED}"
            ).fetchall()
        finally:
            cursor.close()
        return (row[0] for row in rows)

    def _look(self) -> None:
        """Take the partitions that are new, let go of those that are another's now."""
        now = set(self._reader.partitions())
        for partition in sorted(now - self._high.keys()):
            self._take(partition)
        for partition in [p for p in self._high if p not in now]:
            self._let_go(partition)

    def _take(self, partition: str) -> bool:
        """Own a partition; True when it goes on from a stored position, to which the reader was sent."""
        log_id = self._reader.log_id
        if not self._asked_what_is_gone:
            self._asked_what_is_gone = True
            self._end_what_was_open_in_logs_that_are_gone(log_id)
        stored = self._store.claim(log_id, partition)
        self._heard_s[partition] = time.monotonic()
        begins_at = self._begins_at(partition)
        if stored is None or stored.high < begins_at:
            self._high[partition] = begins_at
            if not begins_at:
                return False
            self._reader.seek(partition, begins_at)
            self._moved.add(partition)
            log.info("partition %s: on from %d, for what is before it went another way", partition, begins_at)
            return True
        self._high[partition] = stored.high
        self._assembler.resume(partition, stored.open_stream_ids)
        kept = self._store.kept_records(log_id, partition)
        for stream_id, payloads in kept.items():
            self._assembler.restore(partition, stream_id, payloads)
            self._kept_ids.add(stream_id)
        entries = 0
        for entry in self._replay(partition, stored.low, stored.high):
            self._assembler.feed(partition, entry.offset, unpack(entry.payload)[0])
            entries += 1
        self._assembler.end_replay(partition)
        self._reader.seek(partition, stored.high)
        self._counted = Counter(self._assembler.counters)  # what the replay counted was counted before
        log.info(
            "partition %s: on from %d (%d open streams, %d kept, %d entries read again)",
            partition, stored.high, len(stored.open_stream_ids), len(kept), entries,
        )  # fmt: skip
        return True

    def _end_what_was_open_in_logs_that_are_gone(self, log_id: str) -> None:
        for other_id, partition in self._store.other_positions(log_id):
            if not self._is_gone(other_id):
                continue
            stored = self._store.claim(other_id, partition)
            if stored is None or not stored.open_stream_ids:
                continue
            log.warning(
                "%d streams were open in a log that is gone (%s, partition %s): they are lost",
                len(stored.open_stream_ids), other_id, partition,
            )  # fmt: skip
            ids = list(stored.open_stream_ids)
            streams = pl.concat([_lost_row(i, int(i[:8] + i[9:13], 16) * 1_000_000, None, None) for i in ids])
            losses = streams.select(
                "stream_id", "tap", pl.lit(partition).alias("partition"), cause=pl.lit("log_gone")
            )
            losses = losses.with_columns(
                lost_at=pl.lit(time.time_ns() // 1000).cast(pl.Datetime("us", "UTC"))
            )
            self._store.commit(
                Commit(
                    other_id,
                    positions={partition: StoredPosition(stored.high, stored.high, ())},
                    tables={"streams": streams, "losses": losses},
                    forget=ids,
                    totals={"streams_rows": len(ids), "streams_lost": len(ids), "losses_rows": len(ids)},
                )
            )
            self._store.disown(other_id, partition)

    def abandon_log(self) -> None:
        """The log was made anew under us: what was open in it will never end. Commit, as lost, and stop using this."""
        for partition in list(self._high):
            self._assembler.lose_open(partition)
            self._moved.add(partition)
        self.finish()

    def _replay(self, partition: str, low: int, high: int) -> Iterable[Entry]:
        """[low, high) in small steps; steps grow over gaps in the offsets."""
        at, step = low, REPLAY_OFFSETS
        while at < high:
            entries = self._reader.range(partition, at, min(at + step, high))
            yield from entries
            at += step
            step = REPLAY_OFFSETS if entries else step * 2

    def _let_go(self, partition: str) -> None:
        log.info("partition %s is another consumer's now", partition)
        self._assembler.drop(partition)
        self._store.disown(self._reader.log_id, partition)
        del self._high[partition]
        self._moved.discard(partition)
        self._finished = [s for s in self._finished if s.partition != partition]

    # -- the loop's step ---------------------------------------------------------------------------------------------

    def step(self, timeout_s: float) -> bool:
        """Read once, commit if it is time. True when there was something to read.

        Raises what the reader raises (LogBroken, OSError), and the store's StoreFailed and Fenced.
        """
        self._look()
        entries = self._reader.poll(min(timeout_s, self._due_in_s()))
        foreign: set[str] = set()
        for entry in entries:
            if entry.partition not in self._high and self._take(entry.partition):
                foreign.add(
                    entry.partition
                )  # assigned within this poll: it is read again from where its position says
            if entry.partition not in foreign:
                self.feed(entry)
                if self._is_full():
                    self.commit()
        if not entries:
            self._end_the_silent()
        if self._high and self._due_in_s() <= 0:
            self.commit()
        return bool(entries)

    def feed(self, entry: Entry) -> None:
        """One entry of a partition that is ours, in order."""
        partition, payload = entry.partition, entry.payload
        records, poison = unpack(payload)
        for bad in poison:
            self._dead.bury(partition, entry.offset, None, bad.reason, bad.size, bad.payload)
        if records:
            try:
                self._assembler.feed(partition, entry.offset, records)
            except Exception as e:
                log.exception("entry %d of partition %s cannot be processed", entry.offset, partition)
                self._dead.bury(
                    partition, entry.offset, None, f"assemble: {type(e).__name__}", len(payload), payload
                )
        self._high[partition] = entry.offset + 1
        self._moved.add(partition)
        self._heard_s[partition] = time.monotonic()
        self._open_is_stale = True
        self._bytes += len(payload)
        self._counters["entries"] += 1
        self._counters["log_bytes"] += len(payload)
        self._take_finished()

    def _take_finished(self) -> None:
        for stream in self._assembler.take_finished():
            self._finished.append(stream)
            self._moved.add(stream.partition)
            if stream.decoder is not None:
                self._finished_events += len(stream.decoder.events)

    def _end_the_silent(self) -> None:
        """A local log that was silent for `lost_after_s` has no living writer: not even its `Alive` came."""
        if not self._pace.writers_are_local or not self._assembler.open_count:
            return
        before_s = time.monotonic() - self._pace.lost_after_s
        for partition, heard_s in self._heard_s.items():
            if partition in self._high and heard_s < before_s:
                self._assembler.lose_open(partition)
                self._heard_s[partition] = time.monotonic()
                self._open_is_stale = True
        self._take_finished()

    # -- committing --------------------------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        return self._finished_events >= self._pace.commit_events or self._bytes >= self._pace.commit_bytes

    def _due_in_s(self) -> float:
        """Seconds until there is something to commit, as things are; at most 0.25, so that signals are heard."""
        if not self._high:
            return 0.25
        since_s = time.monotonic() - self._committed_s
        if self._finished:
            return max(self._pace.commit_interval_s, 3 * self._commit_cost_s) - since_s
        if self._moved or self._dead or self._open_is_stale:
            return max(OPEN_STREAMS_EVERY_S, 3 * self._commit_cost_s) - since_s
        return 0.25

    def commit(self) -> None:
        """Everything up to here into the store, in one transaction; then the log may trim."""
        began_s = time.monotonic()
        self._take_finished()
        self._bury_failures()
        commit = Commit(self._reader.log_id)
        checkpoints = self._assembler.checkpoint_records()
        commit.keep = [(c.partition, c.stream_id, c.payload) for c in checkpoints]
        self._kept_ids.update(c.stream_id for c in checkpoints)
        commit.forget = [s.stream_id for s in self._finished if s.stream_id in self._kept_ids]
        self._moved.update(c.partition for c in checkpoints)
        positions = {p: self._assembler.position(p, self._high[p]) for p in self._moved if p in self._high}
        commit.positions = positions
        tables = self._rows(self._finished)
        if self._witness is not None:
            tables |= self._witness.rows(self._finished, tables)
        tables["losses"] = self._assembler.take_losses()
        tables["dead_letters"] = self._dead.rows(self._reader.log_id)
        commit.tables = tables
        if self._open_is_stale and began_s - self._opened_at_s >= max(
            OPEN_STREAMS_EVERY_S, 10 * self._open_cost_s
        ):
            commit.open_streams = self._assembler.open_streams()
        commit.taps = self._news_of_taps()
        commit.totals = self._increments(tables)
        self._store.commit(commit)
        self.commits += 1
        if self._witness is not None:
            self._witness.committed()
        if commit.open_streams is not None:
            self._open_is_stale = False
            self._opened_at_s = time.monotonic()
            self._open_cost_s = self._opened_at_s - began_s
        self._kept_ids.difference_update(commit.forget)
        for partition, position in positions.items():
            self._reader.release(partition, position.low)
        self._finished, self._bytes, self._finished_events = [], 0, 0
        self._dead.clear()
        self._moved.clear()
        self._committed_s = time.monotonic()
        self._commit_cost_s = self._committed_s - began_s

    def _rows(self, finished: Sequence[FinishedStream]) -> dict[str, pl.DataFrame]:
        if not finished:
            return {}
        try:
            return dict(self._measure(finished))
        except Exception:
            log.exception("a batch of %d streams cannot be measured: one by one", len(finished))
        parts: list[dict[str, pl.DataFrame]] = []
        for stream in finished:
            try:
                parts.append(self._measure([stream]))
            except Exception as e:
                reason = f"measure: {type(e).__name__}"
                self._dead.bury(stream.partition, -1, stream.stream_id, reason, 0, stream.stream_id.encode())
                parts.append({"streams": _unmeasured(stream)})
        names = {name for part in parts for name in part}
        return {
            name: pl.concat([p[name] for p in parts if name in p], how="diagonal_relaxed") for name in names
        }

    def _bury_failures(self) -> None:
        for failure in self._assembler.take_failures():
            payload = pack([failure.record], compress=False)
            self._dead.bury(
                failure.partition, failure.offset, failure.stream_id, failure.reason, len(payload), payload
            )
        take_damage = getattr(self._reader, "take_damage", None)
        if take_damage is not None:
            for damage in take_damage():
                self._dead.bury(
                    damage.partition, damage.first, None, "damaged_segment", damage.end - damage.first, b""
                )

    def _news_of_taps(self) -> list[Tap]:
        news = []
        for key, alive in self._assembler.taps.items():
            if self._told_taps.get(key) != alive.mono_ns:
                self._told_taps[key] = alive.mono_ns
                news.append(
                    Tap(
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
        counted = self._assembler.counters
        increments = {name: counted[name] - self._counted[name] for name in TOTALS}
        self._counted = Counter(counted)
        for name, table in tables.items():
            increments[f"{name}_rows"] = table.height
        increments.update(self._counters)
        increments.update(self._dead.counters)
        self._counters.clear()
        return increments

    def health(self) -> dict[str, float]:
        """How far it is: gauges and totals of the pipeline, by metric name without its prefix."""
        taps = self._assembler.taps.values()

        def told(name: str) -> float:
            return float(sum(alive.counters.get(name, 0) for alive in taps))

        return {
            "streams.active": float(self._assembler.open_count),
            "pipeline.lag": float(sum(max(0, self._reader.end(p) - high) for p, high in self._high.items())),
            "pipeline.since_commit": max(0.0, time.monotonic() - self._committed_s) if self.commits else 0.0,
            "pipeline.loop_lag": max((a.counters.get("loop_lag_max_ns", 0) for a in taps), default=0) / 1e9,
            "pipeline.log_size": float(max((a.counters.get("log_size_bytes_now", 0) for a in taps), default=0)),
            "pipeline.captured": told("streams_opened"),
            "pipeline.lost_records": told("lost_records"),
        }

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Commit what is finished and where we are; open streams stay open, in the log."""
        if self._high and (self._moved or self._finished or self._dead or self._open_is_stale):
            self._opened_at_s = float("-inf")
            self.commit()


def _unmeasured(stream: FinishedStream) -> pl.DataFrame:
    """The row of a stream whose measuring failed: that it was there, and nothing invented."""
    opened = stream.opened
    return _lost_row(
        stream.stream_id,
        stream.started_wall_ns,
        opened.gateway if opened else None,
        opened.tap if opened else None,
    )


def _lost_row(stream_id: str, started_wall_ns: int, gateway: str | None, tap: str | None) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "stream_id": [stream_id],
            "started_at": [started_wall_ns // 1000],
            "gateway": [gateway],
            "tap": [tap],
            "outcome": ["tap_lost"],
            "error_type": ["tap_lost"],
        },
        schema_overrides={"gateway": pl.String, "tap": pl.String},
    ).with_columns(pl.col("started_at").cast(pl.Datetime("us", "UTC")))

"""Put streams together from the records of the log, each exactly once, across batches and restarts. No I/O, no clock.

Rules that this file and `analytics.assembly.partition` keep:

1. A record is known by (stream, seq). The records of one stream come in order within one partition; duplicates, of one
   record or of whole sequences, are dropped. A seq that is jumped over is a hole, and a hole ends in `tap_lost`.
2. A stream ends by its `Closed`; or, as `tap_lost`, when its incarnation is superseded, silent (`analytics.assembly.tap_liveness`)
   or has said that it stopped. Silence of the stream itself never ends it, unless it has a hole: then it is lost anyway, its
   `Closed` may be lost too, and it ends when nothing has come of it for `lost_after_ns` of log time.
3. A stream that has ended is remembered, so that late duplicates do not raise it again: the newest `remember` per
   partition from here, and those that `recall` was told of (from the table) after a restart.
4. `position` says what a restart needs: `high` (all before it is read), `low` (the oldest entry that holds a record of
   an open stream which no checkpoint holds) and the ids of the open streams. The restart:
   `resume(partition, ids)`, `restore(...)` of the checkpoints, `feed` of [low, high), `end_replay(partition)`, then on
   from `high`. In the replay only the records of those ids count.
5. What `take_finished`, `checkpoint_records` and `position` answer belongs into one transaction. After a failed commit
   the state in memory is ahead of the store: drop this object and build a new one from the stored positions.
6. Everything is bounded: open streams (the oldest is ended as `tap_lost`), the events of open streams (the largest
   is ended so), records held for checkpoints (checkpointed early), ids, incarnations. `counters` tells of each.
7. A stream that was open where entries of the log could not be read is in doubt. Its next record clears it, or shows the hole;
   when nothing comes for a long time, or its tap ends, its end was there: it is lost.
8. What cannot be processed is a `Failure`, never an exception: the record is set aside, its stream has a hole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import polars as pl

from analytics.assembly.open_stream_rows import open_frame
from analytics.assembly.partition import Checkpoint, Failure, Outbox, Partition, Position
from analytics.assembly.stream import FinishedStream
from analytics.assembly.tap_liveness import GONE_AFTER_NS
from analytics.schema.tables import LOSSES, frame
from ingest.records import Alive, AnyRecord, Damaged, unpack

__all__ = ["Assembler", "Checkpoint", "Failure", "FinishedStream", "Position"]

MAX_OPEN_ROWS = 20_000
"""`open_streams` shows the newest of them, no more: it is written anew with each commit."""


class Assembler:
    """The open streams of all partitions that this consumer reads. One owner, not thread-safe."""

    def __init__(
        self,
        *,
        capture: Sequence[str] = (),
        lost_after_ns: int = 60_000_000_000,
        gone_after_ns: int | None = GONE_AFTER_NS,
        checkpoint_after_ns: int = 60_000_000_000,
        max_open: int = 200_000,
        max_open_events: int = 4_000_000,
        max_held_bytes: int = 256 * 2**20,
        remember: int = 65_536,
    ) -> None:
        """`capture`: globs of the paths whose text is kept; `max_open_events`: rows in memory of all open streams (about
        0.3 KB each); `remember`: ids per partition.
        """
        self._lost_after_ns = lost_after_ns
        self._gone_after_ns = gone_after_ns
        self._checkpoint_after_ns = checkpoint_after_ns
        self._max_open = max_open
        self._max_open_events = max_open_events
        self._max_held_bytes = max_held_bytes
        self._partitions: dict[str, Partition] = {}
        self._out = Outbox(capture=capture, remember=remember)

    @property
    def taps(self) -> dict[tuple[str, int, str], Alive]:
        """(tap, tap_worker, incarnation) → its newest `Alive`, for the ledger. The newest 1024."""
        return self._out.taps

    @property
    def counters(self) -> Counter[str]:
        """Totals since the start: records, frames, body_bytes, streams_opened, streams_finished, streams_lost, holes,
        duplicate_records, late_records, failures, evicted_streams, oversized_streams, checkpoints, early_checkpoints.
        """
        return self._out.counters

    @property
    def open_count(self) -> int:
        """Streams in flight, of all partitions."""
        return sum(len(p.open) for p in self._partitions.values())

    # -- the restart -----------------------------------------------------------------------------------------------

    def resume(self, partition: str, open_ids: Collection[str]) -> None:
        """A partition is read again from a stored position: until `end_replay` only records of `open_ids` count."""
        self.drop(partition)
        self._partition(partition).replaying = frozenset(open_ids)

    def restore(self, partition: str, stream_id: str, payloads: Iterable[bytes]) -> None:
        """Feed back the checkpoints of an open stream, in order. Between `resume` and the replay."""
        part = self._partition(partition)
        for payload in payloads:
            records, _ = unpack(payload)
            own = [r for r in records if not isinstance(r, (Alive, Damaged)) and r.stream == stream_id]
            part.feed(-1, own)
            stream = part.open.get(stream_id)
            if stream is not None:
                stream.without_text(own, capture=self._out.capture)

    def end_replay(self, partition: str) -> None:
        """The stored `high` is reached: from here on every record counts."""
        self._partition(partition).replaying = None

    def recall(self, stream_ids: Iterable[str]) -> None:
        """Ids of streams that are in the table already (the newest ones are enough): their late duplicates are dropped.

        After a restart, before the first `feed` behind `end_replay`. Replaces what was recalled before.
        """
        self._out.recalled = frozenset(stream_ids)

    def drop(self, partition: str) -> None:
        """Forget a partition: it is read by another consumer now, or will be resumed."""
        part = self._partitions.pop(partition, None)
        if part is not None:
            for stream in part.open.values():
                part.release(stream)

    # -- feeding ---------------------------------------------------------------------------------------------------

    def feed(self, partition: str, offset: int, records: Sequence[AnyRecord]) -> None:
        """The records of one entry. Entries of a partition come in order of their offsets."""
        part = self._partition(partition)
        opened = self.counters["streams_opened"]
        part.feed(offset, records)
        if self.counters["streams_opened"] != opened and self.open_count > self._max_open:
            self._evict()
        if self._out.open_events > self._max_open_events:
            self._shed_events()

    def lose_open(self, partition: str) -> None:
        """End the open streams of a partition as `tap_lost`.

        For a caller that knows, as only a clock can tell, that nobody writes to it any more (embedded: its end was
        watched for `lost_after` without a record).
        """
        self._partition(partition).lose_open()

    def doubt(self, partition: str) -> None:
        """Some of a partition's entries cannot be read, at the place to which it is fed (rule 7)."""
        self._partition(partition).doubt()

    # -- bounds ----------------------------------------------------------------------------------------------------

    def _evict(self) -> None:
        """Too many open streams: those that began first are given up."""
        while self.open_count > self._max_open:
            oldest = [(next(iter(p.open.values())), p) for p in self._partitions.values() if p.open]
            stream, part = min(oldest, key=lambda pair: pair[0].started_wall_ns)
            part.give_up(stream, "too_many_open_streams")
            self.counters["evicted_streams"] += 1

    def _shed_events(self) -> None:
        """Too many events in memory: the largest streams are given up until a tenth is free."""
        sized = sorted(
            ((s.event_count, s, p) for p in self._partitions.values() for s in p.open.values()),
            key=lambda item: item[0],
        )
        while sized and self._out.open_events > self._max_open_events * 0.9:
            _, stream, part = sized.pop()
            part.give_up(stream, "stream_too_large")
            self.counters["oversized_streams"] += 1

    # -- what is taken out -------------------------------------------------------------------------------------------

    def take_finished(self) -> list[FinishedStream]:
        """The streams that have ended since the last call."""
        finished, self._out.finished = self._out.finished, []
        return finished

    def take_failures(self) -> list[Failure]:
        """The records that could not be processed since the last call."""
        failures, self._out.failures = self._out.failures, []
        return failures

    def take_losses(self) -> pl.DataFrame:
        """Rows of table `losses`: the holes of the streams that have ended since the last call."""
        losses, self._out.losses = self._out.losses, []
        return frame(
            LOSSES,
            {
                "stream_id": [stream_id for stream_id, _, _, _ in losses],
                "tap": [tap for _, tap, _, _ in losses],
                "partition": [partition for _, _, partition, _ in losses],
                "first_seq": [hole.first_seq for _, _, _, hole in losses],
                "last_seq": [hole.last_seq for _, _, _, hole in losses],
                "cause": [hole.cause for _, _, _, hole in losses],
                "bytes": [hole.bytes for _, _, _, hole in losses],
                "lost_at": [hole.at_wall_ns // 1000 for _, _, _, hole in losses],
            },
        )

    def position(self, partition: str, high: int) -> Position:
        """Where a restart begins, given that all entries before `high` were fed. Call after `checkpoint_records`."""
        return self._partition(partition).position(high)

    def checkpoint_records(self) -> list[Checkpoint]:
        """Of each stream that has been held for over a minute of log time: its records since its last checkpoint, without text.

        They go into the store in the transaction of the positions; then the stream no longer holds back `low`.
        When more is held than half of `max_held_bytes`, the longest held go early.
        """
        checkpoints = [
            c for p in self._partitions.values() for c in p.due_checkpoints(self._checkpoint_after_ns)
        ]
        if self._out.held_bytes > self._max_held_bytes // 2:
            checkpoints += self._checkpoint_early()
        self.counters["checkpoints"] += len(checkpoints)
        return checkpoints

    def _checkpoint_early(self) -> list[Checkpoint]:
        held = [
            (stream.held_since_ns - part.liveness.now_ns, -stream.held_bytes, stream, part)
            for part in self._partitions.values()
            if part.replaying is None
            for stream in part.open.values()
            if stream.held
        ]
        held.sort(key=lambda item: item[:2])
        checkpoints: list[Checkpoint] = []
        for _, _, stream, part in held:
            if self._out.held_bytes <= self._max_held_bytes // 4:
                break
            checkpoints.append(part.checkpoint(stream))
        self.counters["early_checkpoints"] += len(checkpoints)
        return checkpoints

    def open_streams(self) -> pl.DataFrame:
        """Rows of table `open_streams`: what is known so far. The newest `MAX_OPEN_ROWS` of each partition."""
        streams = []
        for part in self._partitions.values():
            for stream in list(part.open.values())[-MAX_OPEN_ROWS:]:
                part.decode(stream)
                streams.append(stream)
        return open_frame(streams)

    def _partition(self, name: str) -> Partition:
        part = self._partitions.get(name)
        if part is None:
            part = self._partitions[name] = Partition(
                name, self._out, lost_after_ns=self._lost_after_ns, gone_after_ns=self._gone_after_ns
            )
        return part

"""Assemble streams from log records, each exactly once, across batches and restarts. No I/O, no clock.

Rules of this file and `streamgauge.analytics.assembly.partition`:

1. (stream, seq) identifies a record. The records of a stream arrive in order within one partition. Duplicate records and
   repeated sequences are dropped. A skipped seq is a record gap, and a stream with a gap ends as `tap_lost`.
2. A stream ends with its `Closed`. It ends as `tap_lost` when its incarnation is superseded, silent
   (`streamgauge.analytics.assembly.tap_liveness`) or stopped. A silent stream is not ended, unless it has a gap: its `Closed` may be in
   the gap, so it ends after `lost_after_ns` of log time without records.
3. Ids of ended streams are remembered so that late duplicates do not reopen them: the newest `remember` ids per
   partition, and after a restart the ids from the store (`recall`).
4. `position` returns what a restart needs: `high` (all entries before it are consumed), `low` (the oldest entry with a
   record of an open stream that no checkpoint holds) and the ids of the open streams. To restart, call `resume(partition,
   ids)`, `restore(...)` with the checkpoints, `feed` with [low, high), then `end_replay(partition)`, and continue from
   `high`. During the replay only records of those ids are used.
5. The results of `take_finished`, `checkpoint_records` and `position` belong in one transaction. After a failed commit the
   state in memory is ahead of the store: discard this object and build a new one from the stored positions.
6. Every structure is bounded: open streams (the oldest is evicted as `tap_lost`), events of open streams (the largest stream is
   evicted), records held for checkpoints (checkpointed early), ids, incarnations. `counters` counts each eviction.
7. A stream that was open where log entries are unreadable is suspect. Its next record shows whether it has a gap. If none
   arrives for a long time, or its tap ends, its end was unreadable and it is lost.
8. A record that cannot be processed becomes a `Failure`, never an exception, and its stream gets a gap. A replay does not report
   it again.
9. A gap waits for its cause, because a `Lost` record may come after later records: up to `lost_after_ns` of log time, a stream whose
   `Closed` has arrived stays open, and so do the answers of a WebSocket.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple
from operator import length_hint

import polars as pl

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.assembly.open_stream import OpenStream
from streamgauge.analytics.assembly.partition import Checkpoint, LogPosition, Outbox, Partition
from streamgauge.analytics.assembly.record_validation import Failure
from streamgauge.analytics.assembly.tap_liveness import TAP_GONE_AFTER_NS
from streamgauge.analytics.decoding.conversation import ConversationReader
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.tables import LOSSES
from streamgauge.ingest.labels import Label
from streamgauge.ingest.records import Alive, AnyRecord, Damaged, unpack

log = logging.getLogger(__name__)

MAX_OPEN_ROWS = 20_000
"""Limit of rows in `open_streams` per partition: the newest streams. The whole file is rewritten each time."""


class Assembler:
    """The open streams of all partitions of one consumer. Not thread-safe."""

    def __init__(
        self,
        *,
        capture: Sequence[str] = (),
        lost_after_ns: int = 60_000_000_000,
        tap_gone_after_ns: int | None = TAP_GONE_AFTER_NS,
        checkpoint_after_ns: int = 60_000_000_000,
        max_open: int = 200_000,
        max_open_events: int = 4_000_000,
        max_held_bytes: int = 256 * 2**20,
        remember: int = 65_536,
        client_key: bytes = b"",
        labels: Sequence[Label] = (),
        store_websockets: bool = False,
    ) -> None:
        """`capture`: globs of paths whose text is kept. `max_open_events`: events of all open streams in memory (about 0.3 KB
        each). `remember`: ids of ended streams per partition. `client_key`: key of session ids (`streamgauge.ingest.keyed_ids`).
        `labels`: those of bodies are read. `store_websockets`: `Checkpoint.state` is stored. Otherwise, only the log holds the
        records of WebSockets.
        """
        self._lost_after_ns = lost_after_ns
        self._tap_gone_after_ns = tap_gone_after_ns
        self._checkpoint_after_ns = checkpoint_after_ns
        self._max_open = max_open
        self._max_open_events = max_open_events
        self._max_held_bytes = max_held_bytes
        self.labels = tuple(labels)
        self._partitions: dict[str, Partition] = {}
        self._out = out = Outbox(capture, remember, ConversationReader(client_key, labels), store_websockets)
        self.taps: dict[tuple[str, int, str], Alive] = out.taps
        """(tap, tap_worker, incarnation) → its newest `Alive`."""
        self.counters: Counter[str] = out.counters
        """Totals since the start: records, frames, body_bytes, streams_opened, streams_finished, record_gaps,
        duplicate_records, late_records, failures, doubted_streams (suspects), evicted_streams, oversized_streams,
        checkpoints, early_checkpoints, evicted_windows, undecodable_websockets, lost_websocket_states.
        """

    @property
    def open_count(self) -> int:
        return sum(len(p.open) for p in self._partitions.values())

    # -- restart -----------------------------------------------------------------------------------------------

    def resume(self, partition: str, open_ids: Collection[str]) -> None:
        """Begin the replay of a partition: until `end_replay` only records of `open_ids` are used."""
        self.drop(partition)
        self._partition(partition).replaying = frozenset(open_ids)

    def restore(
        self, partition: str, stream_id: str, payloads: Iterable[bytes], state: bytes | None = None
    ) -> None:
        """Feed the checkpoints of an open stream, in order, and the last one's state. Call between `resume` and the replay."""
        part = self._partition(partition)
        for payload in payloads:
            records, _ = unpack(payload)
            stream_records = [
                r for r in records if not isinstance(r, (Alive, Damaged)) and r.stream == stream_id
            ]
            part.feed(-1, stream_records)
            stream = part.open.get(stream_id)
            if stream is not None:
                stream.without_text(stream_records, capture=self._out.capture)
        if (stream := part.open.get(stream_id)) is not None:
            part.restore_websocket(stream, state)

    def end_replay(self, partition: str) -> None:
        """The stored `high` is reached: all further records are used."""
        self._partition(partition).end_replay()

    def recall(self, stream_ids: Iterable[str]) -> None:
        """Set the ids of stored streams whose late duplicates are dropped. The newest ones are enough.

        Call after a restart, before the first `feed` after `end_replay`. Replaces earlier ids.
        """
        self._out.recalled = frozenset(stream_ids)

    def drop(self, partition: str) -> None:
        """Discard the state of a partition that another consumer reads or that will be resumed."""
        part = self._partitions.pop(partition, None)
        if part is not None:
            for stream in part.open.values():
                part.release(stream)

    # -- feeding ---------------------------------------------------------------------------------------------------

    def feed(self, partition: str, offset: int, records: Sequence[AnyRecord]) -> None:
        """Process the records of one entry. Entries of a partition arrive in order of their offsets."""
        part = self._partition(partition)
        opened = self.counters["streams_opened"]
        remaining = iter(records)
        while True:
            try:
                part.feed(offset, remaining)
                break
            except Exception as error:
                # The iterator is behind the record that raised it. The next ones are processed.
                log.exception("a record in entry %d of partition %s cannot be processed", offset, partition)
                part.fail(offset, records[-1 - length_hint(remaining)], error)
        # Counting the open streams visits every partition, so it is done only after a stream was opened.
        if self.counters["streams_opened"] != opened and self.open_count > self._max_open:
            self._evict_oldest()
        if self._out.open_events > self._max_open_events:
            self._evict_largest()

    def lose_open(self, partition: str, cause: str) -> None:
        """End the open streams of a partition as `tap_lost`, because no more records of them will come."""
        self._partition(partition).lose_open(cause)

    def lose(self, partition: str, stream_id: str, cause: str) -> None:
        """End a stream whose records are gone."""
        self._partition(partition).lose(stream_id, cause)

    def lose_records(self, partition: str, offset: int, records: Iterable[AnyRecord], cause: str) -> None:
        """The streams of these records have a gap there, unless they were processed before."""
        for record in records:
            self._partition(partition).lose_record(offset, record, cause)

    def suspect_open_streams(self, partition: str) -> None:
        """Entries of the partition after the last one fed are unreadable (rule 7)."""
        self._partition(partition).suspect_open_streams()

    # -- bounds ----------------------------------------------------------------------------------------------------

    def _evict_oldest(self) -> None:
        """Evict the oldest streams beyond `max_open`."""
        while self.open_count > self._max_open:
            oldest = [(next(iter(p.open.values())), p) for p in self._partitions.values() if p.open]
            stream, part = min(oldest, key=lambda pair: pair[0].started_wall_ns)
            part.finish(stream, None, "too_many_open_streams")
            self.counters["evicted_streams"] += 1

    def _evict_largest(self) -> None:
        """Evict the largest streams until a tenth of `max_open_events` is free."""
        sized = sorted(
            ((s.event_count, s, p) for p in self._partitions.values() for s in p.open.values()),
            key=lambda item: item[0],
        )
        # Down to 90 %, so that the sort of all streams does not run again for the next event.
        while sized and self._out.open_events > self._max_open_events * 0.9:
            _, stream, part = sized.pop()
            part.finish(stream, None, "stream_too_large")
            self.counters["oversized_streams"] += 1

    # -- results -------------------------------------------------------------------------------------------

    def take_finished(self) -> list[FinishedStream]:
        """The streams that ended since the last call."""
        finished, self._out.finished = self._out.finished, []
        return finished

    def take_failures(self) -> list[Failure]:
        failures, self._out.failures = self._out.failures, []
        return failures

    def take_losses(self) -> pl.DataFrame:
        """Rows of table `losses`: the gaps of the streams that ended since the last call."""
        losses, self._out.losses = self._out.losses, []
        rows = [(*stream, *astuple(gap)[:-1], gap.at_wall_ns // 1000, None) for *stream, gap in losses]
        return frame_of_rows(LOSSES, rows)

    def position(self, partition: str, high: int) -> LogPosition:
        """The position of a restart after all entries before `high` were fed. Call after `checkpoint_records`."""
        return self._partition(partition).position(high)

    def checkpoint_records(self) -> list[Checkpoint]:
        """Redacted records of each stream that has been held for longer than `checkpoint_after_ns` of log time.

        Store them in the transaction of the positions, so that these streams no longer hold back `low`. If more than half of
        `max_held_bytes` is held, the streams held longest are checkpointed early.
        """
        checkpoints = [
            c for p in self._partitions.values() for c in p.due_checkpoints(self._checkpoint_after_ns)
        ]
        # Early at half and down to a quarter: one large round of checkpoints costs less than one for each commit.
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
            if stream.held:  # not yet with its socket
                checkpoints += part.checkpoints(stream)
        self.counters["early_checkpoints"] += len(checkpoints)
        return checkpoints

    def open_streams(self, *partitions: str) -> list[OpenStream]:
        """The newest `MAX_OPEN_ROWS` streams in flight of each of these partitions (default: all), with all frames decoded."""
        streams = []
        for part in map(self._partition, partitions or self._partitions):
            for stream in list(part.open.values())[-MAX_OPEN_ROWS:]:
                part.decode(stream)
                streams.append(stream)
        return streams

    def reports(self, partition: str) -> list[Alive]:
        """The newest `Alive` of each incarnation in this partition."""
        return self._partition(partition).liveness.reports

    def _partition(self, name: str) -> Partition:
        part = self._partitions.get(name)
        if part is None:
            part = self._partitions[name] = Partition(
                name, self._out, lost_after_ns=self._lost_after_ns, tap_gone_after_ns=self._tap_gone_after_ns
            )
        return part

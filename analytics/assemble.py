"""Put streams together from the records of the log, each exactly once, across batches and restarts. No I/O, no clock.

Rules that this file keeps:

1. A record is known by (stream, seq). The records of one stream come in order within one partition; duplicates, of one
   record or of whole sequences, are dropped. A seq that is jumped over is a hole, and a hole ends in `tap_lost`.
2. A stream ends by its `Closed`; or, as `tap_lost`, when its incarnation is superseded, silent (`analytics.liveness`) or
   has said that it stopped. Silence of the stream itself never ends it. One whose `Opened` is missing ends when nothing
   has come of it for `lost_after_ns` of log time.
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
7. What cannot be processed is a `Failure`, never an exception: the record is set aside, its stream has a hole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import polars as pl

from analytics.liveness import Liveness
from analytics.stream import STREAM_ID, FinishedStream, Hole, OpenStream
from analytics.tables import LOSSES, OPEN_STREAMS, frame
from ingest.records import Alive, AnyRecord, Closed, Frames, Lost, Opened, Request, pack, unpack

MAX_NS = 2**61
"""No honest time or length is larger; a record that says so is refused."""
HELD_RECORD_BYTES = 150
"""What a record and a frame cost in memory beside their bytes, about."""
MAX_OPEN_ROWS = 20_000
"""`open_streams` shows the newest of them, no more: it is written anew with each commit."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a partition is read, and what a restart has to read again."""

    high: int
    low: int
    open_stream_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Records of one long stream, packed: with those before them they stand for the log's entries."""

    stream_id: str
    partition: str
    first_seq: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that could not be processed: for `dead_letters`."""

    partition: str
    offset: int
    stream_id: str | None
    reason: str
    record: AnyRecord


@dataclass(slots=True, eq=False)
class _Partition:
    name: str
    liveness: Liveness
    open: dict[str, OpenStream] = field(default_factory=dict)
    by_incarnation: dict[str, dict[str, OpenStream]] = field(default_factory=dict)
    orphans: dict[str, OpenStream] = field(default_factory=dict)  # their Opened is missing
    finished: dict[str, None] = field(default_factory=dict)  # the newest last
    replaying: frozenset[str] | None = None
    wall_ns: int = 0
    scanned_log_ns: int = 0


class Assembler:
    """The open streams of all partitions that this consumer reads. One owner, not thread-safe."""

    def __init__(
        self,
        *,
        capture_content: bool = False,
        lost_after_ns: int = 60_000_000_000,
        checkpoint_after_ns: int = 60_000_000_000,
        max_open: int = 200_000,
        max_open_events: int = 4_000_000,
        max_held_bytes: int = 256 * 2**20,
        remember: int = 65_536,
    ) -> None:
        """`max_open_events`: rows in memory of all open streams (about 0.3 KB each); `remember`: ids per partition."""
        self._capture_content = capture_content
        self._lost_after_ns = lost_after_ns
        self._checkpoint_after_ns = checkpoint_after_ns
        self._max_open = max_open
        self._max_open_events = max_open_events
        self._max_held_bytes = max_held_bytes
        self._remember = remember
        self._partitions: dict[str, _Partition] = {}
        self._recalled: frozenset[str] = frozenset()
        self._finished: list[FinishedStream] = []
        self._losses: list[tuple[str, str | None, str, Hole]] = []
        self._failures: list[Failure] = []
        self._open_count = 0
        self._open_events = 0
        self._held_bytes = 0
        self.taps: dict[tuple[str, int, str], Alive] = {}
        """(tap, tap_worker, incarnation) → its newest `Alive`, for the ledger. The newest 1024."""
        self.counters: Counter[str] = Counter()
        """records, frames, body_bytes, streams_opened, streams_finished, streams_lost, duplicate_records,
        late_records, failures, evicted_streams, oversized_streams, early_checkpoints …: totals since the start."""

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
            self._feed(part, -1, [r for r in records if not isinstance(r, Alive) and r.stream == stream_id])
        stream = part.open.get(stream_id)
        if stream is not None:
            stream.checkpointed = True

    def end_replay(self, partition: str) -> None:
        """The stored `high` is reached: from here on every record counts."""
        self._partition(partition).replaying = None

    def recall(self, stream_ids: Iterable[str]) -> None:
        """Ids of streams that are in the table already (the newest ones are enough): their late duplicates are dropped.

        After a restart, before the first `feed` behind `end_replay`. Replaces what was recalled before.
        """
        self._recalled = frozenset(stream_ids)

    def drop(self, partition: str) -> None:
        """Forget a partition: it is read by another consumer now, or will be resumed."""
        part = self._partitions.pop(partition, None)
        if part is not None:
            for stream in part.open.values():
                self._release(stream)
            self._open_count -= len(part.open)

    # -- feeding ---------------------------------------------------------------------------------------------------

    def feed(self, partition: str, offset: int, records: Sequence[AnyRecord]) -> None:
        """The records of one entry. Entries of a partition come in order of their offsets."""
        self._feed(self._partition(partition), offset, records)
        if self._open_events > self._max_open_events:
            self._shed_events()

    def _feed(self, part: _Partition, offset: int, records: Sequence[AnyRecord]) -> None:
        open_streams = part.open
        frame_count = body_bytes = 0
        for record in records:
            if type(record) is not Frames:
                self._feed_other(part, offset, record)
                continue
            stream = open_streams.get(record.stream)
            if stream is None or record.seq != stream.next_seq or stream.broken:
                stream = self._admit(part, offset, record)
                if stream is None:
                    continue
            size, at_ns, sane = 0, stream.last_ns, True
            for frame_ns, data in record.frames:
                sane &= at_ns <= frame_ns
                at_ns = frame_ns
                size += len(data)
            if not sane or at_ns > MAX_NS or not _sane_frames(record):
                self._fail(part, offset, record, "bad_times", stream)
                continue
            frame_count += len(record.frames)
            body_bytes += size
            stream.next_seq += 1
            stream.body_bytes += size
            stream.last_ns = at_ns
            stream.last_log_ns = part.liveness.now_ns
            stream.uncaptured_bytes += record.uncaptured_bytes
            self._hold(part, stream, offset, record, size + HELD_RECORD_BYTES * (1 + len(record.frames)))
            if stream.broken:
                continue
            try:
                decoder = stream.decoder
                if decoder is None:
                    decoder = stream.begin_body(record.response, capture_content=self._capture_content)
                events_before = len(decoder.events)
                decoder.feed(record.frames)
                self._open_events += len(decoder.events) - events_before
            except Exception as error:  # a defect of ours must cost one stream, not the consumer
                self._fail(part, offset, record, f"decoder: {type(error).__name__}", stream)
        self.counters["records"] += len(records)
        self.counters["frames"] += frame_count
        self.counters["body_bytes"] += body_bytes

    def _feed_other(self, part: _Partition, offset: int, record: AnyRecord) -> None:
        reason = _unsound(record)
        if reason is not None:
            stream_id = getattr(record, "stream", None)
            self._fail(part, offset, record, reason, part.open.get(stream_id) if stream_id else None)
        elif isinstance(record, Alive):
            self._feed_alive(part, record)
        elif isinstance(record, Lost):
            self._feed_lost(part, offset, record)
        else:
            stream = self._admit(part, offset, record)
            if stream is None:
                return
            stream.next_seq += 1
            stream.last_log_ns = part.liveness.now_ns
            if isinstance(record, Opened):
                self._hold(part, stream, offset, record, 4 * HELD_RECORD_BYTES)
                self._enrol(part, stream, record)
            elif isinstance(record, Request):
                self._hold(part, stream, offset, record, HELD_RECORD_BYTES + len(record.body))
                stream.read_request(record)
            elif isinstance(record, Closed):
                stream.last_ns = max(stream.last_ns, record.end_ns)
                self._finish(part, stream, record)

    def _feed_lost(self, part: _Partition, offset: int, record: Lost) -> None:
        stream = part.open.get(record.stream)
        if stream is not None and record.seq < stream.next_seq:
            if not stream.explain_hole(record):
                self.counters["duplicate_records"] += 1
            if record.last_seq < stream.next_seq:
                return
        else:
            stream = self._admit(part, offset, record)
            if stream is None:
                return
            stream.add_hole(Hole(record.seq, record.last_seq, record.cause, record.bytes, record.at_wall_ns))
        stream.next_seq = record.last_seq + 1
        stream.last_log_ns = part.liveness.now_ns
        self._hold(part, stream, offset, record, HELD_RECORD_BYTES)

    def _admit(
        self, part: _Partition, offset: int, record: Opened | Request | Frames | Closed | Lost
    ) -> OpenStream | None:
        """The open stream that this record is the next of; None for a duplicate. Makes the stream, finds the hole."""
        stream = part.open.get(record.stream)
        if stream is None:
            stream = self._begin(part, offset, record)
            if stream is None:
                return None
        if record.seq < stream.next_seq:
            self.counters["duplicate_records"] += 1
            return None
        if record.seq > stream.next_seq:
            at_wall_ns = stream.started_wall_ns + stream.last_ns
            stream.add_hole(Hole(stream.next_seq, record.seq - 1, "missing", None, at_wall_ns))
            stream.next_seq = record.seq
            self.counters["holes"] += 1
        return stream

    def _begin(
        self, part: _Partition, offset: int, record: Opened | Request | Frames | Closed | Lost
    ) -> OpenStream | None:
        stream_id = record.stream
        if part.replaying is not None and stream_id not in part.replaying:
            return None
        if stream_id in part.finished or stream_id in self._recalled:
            self.counters["late_records"] += 1
            return None
        reason = _unsound(record)
        if reason is not None:
            self._fail(part, offset, record, reason, None)
            return None
        if self._open_count >= self._max_open:
            self._evict()
        stream = OpenStream(stream_id, int(stream_id[:8] + stream_id[9:13], 16) * 1_000_000)
        part.open[stream_id] = stream
        part.orphans[stream_id] = stream
        self._open_count += 1
        self.counters["streams_opened"] += 1
        return stream

    def _enrol(self, part: _Partition, stream: OpenStream, record: Opened) -> None:
        stream.read_opened(record)
        part.wall_ns = max(part.wall_ns, record.wall_ns)
        part.orphans.pop(stream.stream_id, None)
        part.by_incarnation.setdefault(record.incarnation, {})[stream.stream_id] = stream
        given_up = part.liveness.opened(record)
        if given_up is not None:
            self._lose_all(part, given_up)

    # -- the end of streams ----------------------------------------------------------------------------------------

    def _feed_alive(self, part: _Partition, record: Alive) -> None:
        part.wall_ns = max(part.wall_ns, record.wall_ns)
        key = (record.tap, record.tap_worker, record.incarnation)
        known = self.taps.get(key)
        if known is None or record.mono_ns >= known.mono_ns:
            self.taps.pop(key, None)
            self.taps[key] = record
            if len(self.taps) > 1024:
                del self.taps[next(iter(self.taps))]
        for incarnation in part.liveness.alive(record):
            self._lose_all(part, incarnation)
        for rival in part.liveness.rivals(record):
            streams = part.by_incarnation.get(rival, {})
            for stream in [s for s in streams.values() if s.started_wall_ns <= record.started_wall_ns]:
                self._finish(part, stream, None)
        if record.stopping:
            self._lose_all(part, record.incarnation)
            part.liveness.forget(record.incarnation)
        limit_ns = part.liveness.now_ns - self._lost_after_ns
        for stream in [s for s in part.orphans.values() if s.last_log_ns < limit_ns]:
            self._finish(part, stream, None)

    def lose_open(self, partition: str) -> None:
        """End the open streams of a partition as `tap_lost`.

        For a caller that knows, as only a clock can tell, that nobody writes to it any more (embedded: its end was
        watched for `lost_after` without a record).
        """
        part = self._partition(partition)
        for stream in list(part.open.values()):
            self._finish(part, stream, None)

    def _lose_all(self, part: _Partition, incarnation: str) -> None:
        for stream in list(part.by_incarnation.get(incarnation, {}).values()):
            self._finish(part, stream, None)

    def _finish(
        self, part: _Partition, stream: OpenStream, closed: Closed | None, cause: str = "tap_died"
    ) -> None:
        """End a stream; without its `Closed` as lost, and `cause` says why."""
        stream_id = stream.stream_id
        del part.open[stream_id]
        part.orphans.pop(stream_id, None)
        if stream.opened is not None:
            siblings = part.by_incarnation[stream.opened.incarnation]
            del siblings[stream_id]
            if not siblings:
                del part.by_incarnation[stream.opened.incarnation]
        part.finished[stream_id] = None
        if len(part.finished) > self._remember:
            del part.finished[next(iter(part.finished))]
        self._open_count -= 1
        self._release(stream)
        if closed is not None and stream.opened is None:
            stream.broken = True
        try:
            finished = stream.finish(part.name, closed, capture_content=self._capture_content)
        except Exception as error:
            reason = f"decoder: {type(error).__name__}"
            self._failures.append(
                Failure(part.name, stream.held_offset, stream_id, reason, closed or _NOTHING)
            )
            self.counters["failures"] += 1
            stream.decoder = None
            stream.add_hole(Hole(0, max(0, stream.next_seq - 1), reason, None, stream.started_wall_ns))
            finished = stream.finish(part.name, closed, capture_content=self._capture_content)
        self._finished.append(finished)
        tap = stream.opened.tap if stream.opened is not None else None
        holes: Sequence[Hole] = stream.holes
        if closed is None:
            at_wall_ns = max(part.wall_ns, stream.started_wall_ns)
            holes = [*holes, Hole(stream.next_seq, stream.next_seq, cause, None, at_wall_ns)]
        self._losses += [(stream_id, tap, part.name, hole) for hole in holes]
        self.counters["streams_finished"] += 1
        self.counters["streams_lost"] += finished.lost

    def _fail(
        self, part: _Partition, offset: int, record: AnyRecord, reason: str, stream: OpenStream | None
    ) -> None:
        """Set a record aside; its stream, if there is one, has a hole there."""
        stream_id = getattr(record, "stream", None)
        if not isinstance(stream_id, str) or not STREAM_ID.fullmatch(stream_id):
            stream_id = None
        self._failures.append(Failure(part.name, offset, stream_id, reason, record))
        self.counters["failures"] += 1
        if stream is not None and not isinstance(record, Alive):
            seq = min(stream.next_seq, record.seq)
            stream.add_hole(Hole(seq, seq, reason, None, stream.started_wall_ns + stream.last_ns))
            stream.next_seq = max(stream.next_seq, seq + 1)

    # -- bounds ----------------------------------------------------------------------------------------------------

    def _hold(self, part: _Partition, stream: OpenStream, offset: int, record: AnyRecord, size: int) -> None:
        """The log, or the next checkpoint, must keep this record for as long as the stream is open."""
        if offset < 0:
            return  # comes from a checkpoint
        if stream.held_offset < 0:
            stream.held_offset = offset
            stream.held_since_ns = part.liveness.now_ns
        stream.held.append(record)
        stream.held_bytes += size
        self._held_bytes += size

    def _release(self, stream: OpenStream) -> None:
        self._held_bytes -= stream.held_bytes
        stream.held_bytes = 0
        stream.held = []
        if stream.decoder is not None:
            self._open_events -= len(stream.decoder.events)

    def _evict(self) -> None:
        """Room for one more: the stream that has been open for longest is given up."""
        oldest = min(
            (
                (p, s)
                for p in self._partitions.values()
                for s in [next(iter(p.open.values()), None)]
                if s is not None
            ),
            key=lambda pair: pair[1].started_wall_ns,
        )
        self._give_up(*oldest, "too_many_open_streams")
        self.counters["evicted_streams"] += 1

    def _shed_events(self) -> None:
        """Too many events in memory: the largest streams are given up until a tenth is free."""
        sized = sorted(
            (
                (len(s.decoder.events), p, s)
                for p in self._partitions.values()
                for s in p.open.values()
                if s.decoder
            ),
            key=lambda item: item[0],
        )
        while sized and self._open_events > self._max_open_events * 0.9:
            _, part, stream = sized.pop()
            self._give_up(part, stream, "stream_too_large")
            self.counters["oversized_streams"] += 1

    def _give_up(self, part: _Partition, stream: OpenStream, cause: str) -> None:
        self._finish(part, stream, None, cause)

    # -- what is taken out -------------------------------------------------------------------------------------------

    def take_finished(self) -> list[FinishedStream]:
        """The streams that have ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def take_failures(self) -> list[Failure]:
        """The records that could not be processed since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def take_losses(self) -> pl.DataFrame:
        """Rows of table `losses`: the holes of the streams that have ended since the last call."""
        losses, self._losses = self._losses, []
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
                "at": [hole.at_wall_ns // 1000 for _, _, _, hole in losses],
            },
        )

    def position(self, partition: str, high: int) -> Position:
        """Where a restart begins, given that all entries before `high` were fed. Call after `checkpoint_records`."""
        part = self._partition(partition)
        low = min((s.held_offset for s in part.open.values() if s.held_offset >= 0), default=high)
        return Position(high, min(low, high), tuple(part.open))

    def checkpoint_records(self) -> list[Checkpoint]:
        """Of each stream that has been held for over a minute of log time: its records since its last checkpoint.

        They go into the store in the transaction of the positions; then the stream no longer holds back `low`.
        When more is held than half of `max_held_bytes`, the longest held go early.
        """
        checkpoints: list[Checkpoint] = []
        for part in self._partitions.values():
            now_ns = part.liveness.now_ns
            if part.replaying is not None or now_ns - part.scanned_log_ns < self._checkpoint_after_ns // 60:
                continue
            part.scanned_log_ns = now_ns
            due = now_ns - self._checkpoint_after_ns
            checkpoints += [
                self._checkpoint(part, stream)
                for stream in part.open.values()
                if stream.held_offset >= 0 and stream.held_since_ns < due
            ]
        if self._held_bytes > self._max_held_bytes // 2:
            checkpoints += self._checkpoint_early()
        self.counters["checkpoints"] += len(checkpoints)
        return checkpoints

    def _checkpoint_early(self) -> list[Checkpoint]:
        held = sorted(
            ((s.held_since_ns - p.liveness.now_ns, -s.held_bytes, s.stream_id, p, s)
             for p in self._partitions.values() if p.replaying is None
             for s in p.open.values() if s.held_offset >= 0),
            key=lambda item: item[:3],
        )  # fmt: skip
        checkpoints = []
        for *_, part, stream in held:
            if self._held_bytes <= self._max_held_bytes // 4:
                break
            checkpoints.append(self._checkpoint(part, stream))
            self.counters["early_checkpoints"] += 1
        return checkpoints

    def _checkpoint(self, part: _Partition, stream: OpenStream) -> Checkpoint:
        first = stream.held[0]
        assert not isinstance(first, Alive)
        checkpoint = Checkpoint(stream.stream_id, part.name, first.seq, pack(stream.held, compress=True))
        self._held_bytes -= stream.held_bytes
        stream.held_bytes = 0
        stream.held = []
        stream.held_offset = -1
        stream.checkpointed = True
        return checkpoint

    def open_streams(self) -> pl.DataFrame:
        """Rows of table `open_streams`: what is known so far. The newest `MAX_OPEN_ROWS` of each partition."""
        streams = [s for p in self._partitions.values() for s in list(p.open.values())[-MAX_OPEN_ROWS:]]
        rows = [_open_row(s) for s in streams]
        return frame(OPEN_STREAMS, {name: [row[name] for row in rows] for name in OPEN_STREAMS})

    @property
    def open_count(self) -> int:
        """Streams in flight, of all partitions."""
        return self._open_count

    @property
    def held_bytes(self) -> int:
        """Memory held for checkpoints, about."""
        return self._held_bytes

    def _partition(self, name: str) -> _Partition:
        part = self._partitions.get(name)
        if part is None:
            part = self._partitions[name] = _Partition(name, Liveness(self._lost_after_ns))
        return part


_NOTHING = Alive("", 0, "", 0, 0, 0)


def _open_row(stream: OpenStream) -> dict[str, object]:
    opened, decoder = stream.opened, stream.decoder
    usage = decoder.usage if decoder is not None else None
    events = decoder.events if decoder is not None else None
    return {
        "stream_id": stream.stream_id,
        "gateway": opened.gateway if opened else None,
        "tap": opened.tap if opened else None,
        "client_id": opened.client_id if opened else None,
        "dialect": decoder.dialect if decoder else None,
        "operation": decoder.operation if decoder else None,
        "path": opened.path if opened else None,
        "request_model": stream.request.model,
        "response_model": decoder.response_model if decoder else None,
        "trace_id": opened.trace_id if opened else None,
        "started_at": stream.started_wall_ns // 1000,
        "http_status": stream.response.status if stream.response else None,
        "ttft_ns": decoder.first_output_ns if decoder else None,
        "last_event_ns": events.at_ns[-1] if events else None,
        "last_output_ns": decoder.last_output_ns if decoder else None,
        "event_count": len(events) if events is not None else 0,
        "output_event_count": decoder.output_event_count if decoder else 0,
        "output_tokens": usage.output_tokens if usage is not None else None,
        "response_bytes": stream.body_bytes + stream.uncaptured_bytes,
        "updated_at": (stream.started_wall_ns + stream.last_ns) // 1000,
    }


def _sane_frames(record: Frames) -> bool:
    response = record.response
    if not 0 <= record.uncaptured_bytes < MAX_NS or (record.frames and record.frames[0][0] < 0):
        return False
    return response is None or (100 <= response.status <= 999 and 0 <= response.headers_ns < MAX_NS)


def _unsound(record: AnyRecord) -> str | None:
    """Why no honest tap wrote this record, None if it may have. (Bad ids and numbers must not reach the tables.)"""
    if isinstance(record, Alive):
        numbers: tuple[int | None, ...] = (
            record.wall_ns,
            record.mono_ns,
            record.started_wall_ns,
            record.tap_worker,
        )
        return None if _within(numbers) else "bad_numbers"
    if not STREAM_ID.fullmatch(record.stream):
        return "bad_stream_id"
    numbers = (record.seq,)
    if isinstance(record, Opened):
        numbers += (
            record.wall_ns,
            record.mono_ns,
            record.tap_worker,
            record.server_port,
            -record.client_start_ns,
        )
        if record.server_port > 65535 or not 0 <= record.trace_flags <= 255 or record.seq != 0:
            return "bad_numbers"
    elif isinstance(record, Closed):
        numbers += (record.end_ns, record.connected_ns, record.request_sent_ns, record.request_bytes)
        numbers += (record.response_bytes, record.delivered_bytes, record.client_drain_ns)
        if record.client_left_ns is not None and not -MAX_NS < record.client_left_ns < MAX_NS:
            return "bad_numbers"
    elif isinstance(record, Lost):
        numbers += (record.last_seq - record.seq, record.last_seq, record.at_wall_ns, record.bytes)
    return None if _within(numbers) else "bad_numbers"


def _within(numbers: Iterable[int | None]) -> bool:
    return all(n is None or 0 <= n < MAX_NS for n in numbers)

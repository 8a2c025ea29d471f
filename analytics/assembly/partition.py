"""The open streams of one partition of the log: which record belongs where, and when a stream is over. No I/O, no clock.

The rules are those of `analytics.assembly.assembler`. A record that is the next one of its stream takes the short way; whatever
else comes (a duplicate, a hole, the first record of a stream) goes through `_admit`. Frames wait in their stream until there
are many, its rows are asked for or it is over, because decoding many at once costs a fraction of decoding each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from analytics.assembly.record_validation import stream_of, unsound, unsound_frames
from analytics.assembly.stream import FinishedStream, Hole, OpenStream
from analytics.assembly.tap_liveness import GONE_AFTER_NS, Liveness
from ingest.ids import uuid7_wall_ns
from ingest.records import (
    Alive,
    AnyRecord,
    Closed,
    Damaged,
    Frames,
    Lost,
    Opened,
    Request,
    StreamRecord,
    pack,
)

MAX_PENDING_FRAMES = 512
MAX_TAPS = 1024
RECORD_BYTES = 150
"""What a record and a frame cost in memory beside their bytes, about."""
DOUBT_PATIENCE = 15
"""Times `lost_after_ns` of log time: a stream in doubt that is silent for so long has ended where nobody could read it."""
DAMAGE = "log_damaged"


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


@dataclass(frozen=True, slots=True)
class _Doubt:
    """An open stream whose records may have been among those that could not be read, and where it was then."""

    stream: OpenStream
    next_seq: int
    since_ns: int


@dataclass(slots=True)
class Outbox:
    """What all partitions share: what has come out of them, and what they hold together."""

    capture: Sequence[str]
    """Globs of the paths whose text is kept."""
    remember: int
    finished: list[FinishedStream] = field(default_factory=list)
    losses: list[tuple[str, str | None, str, Hole]] = field(default_factory=list)
    """(stream, tap, partition, hole)."""
    failures: list[Failure] = field(default_factory=list)
    recalled: frozenset[str] = frozenset()
    """Ids of streams that the store has already."""
    open_events: int = 0
    """Events of open streams in memory, and frames that are still to be decoded."""
    held_bytes: int = 0
    """Memory of the records that are held for checkpoints, about."""
    counters: Counter[str] = field(default_factory=Counter)
    taps: dict[tuple[str, int, str], Alive] = field(default_factory=dict)
    """(tap, tap_worker, incarnation) → its newest `Alive`; the newest `MAX_TAPS`."""

    def note(self, record: Alive) -> None:
        """A sign of life, which may come in several partitions and more than once."""
        key = (record.tap, record.tap_worker, record.incarnation)
        known = self.taps.get(key)
        if known is None or record.mono_ns >= known.mono_ns:
            self.taps.pop(key, None)  # to the end: it is the newest
            self.taps[key] = record
            if len(self.taps) > MAX_TAPS:
                del self.taps[next(iter(self.taps))]


class Partition:
    """One partition. Its entries come in order of their offsets."""

    def __init__(
        self, name: str, outbox: Outbox, *, lost_after_ns: int, gone_after_ns: int | None = GONE_AFTER_NS
    ) -> None:
        self.name = name
        self.open: dict[str, OpenStream] = {}
        """In the order in which they began."""
        self.liveness = Liveness(lost_after_ns, gone_after_ns)
        self.replaying: frozenset[str] | None = None
        """In a replay: the only streams that count."""
        self._out = outbox
        self._lost_after_ns = lost_after_ns
        self._by_incarnation: dict[str, dict[str, OpenStream]] = {}
        self._doomed: dict[
            str, OpenStream
        ] = {}  # have a hole: lost for sure, and their `Closed` may be in it
        self._doubted: dict[str, _Doubt] = {}
        self._finished: dict[str, None] = {}  # ids, the newest last
        self._wall_ns = 0
        self._scanned_ns = 0

    # -- feeding ---------------------------------------------------------------------------------------------------

    def feed(self, offset: int, records: Iterable[AnyRecord]) -> None:
        """The records of one entry; offset -1: of a checkpoint."""
        open_streams, liveness, out = self.open, self.liveness, self._out
        record_count = frame_count = body_bytes = 0
        for record in records:
            record_count += 1
            if type(record) is not Frames:
                self._feed_other(offset, record)
                continue
            stream = open_streams.get(record.stream)
            if stream is None or record.seq != stream.next_seq or stream.broken:
                stream = self._admit(offset, record)
                if stream is None:
                    continue
            frames = record.frames
            times, reads = zip(*frames, strict=True) if frames else ((), ())
            reason = unsound_frames(record, times, stream.last_ns)
            if reason is not None:
                self._fail(offset, record, reason, stream)
                continue
            wire = record.wire_bytes
            size = sum(map(len, reads) if wire is None else wire)
            frame_count += len(frames)
            body_bytes += size
            stream.next_seq += 1
            stream.body_bytes += size
            stream.last_log_ns = liveness.now_ns
            stream.uncaptured_bytes += record.uncaptured_bytes
            if times:
                stream.last_ns = times[-1]
            if record.response is not None:
                self._look_at_coding(stream, record)
            self._hold(stream, offset, record, size + RECORD_BYTES * (1 + len(frames)))
            if not stream.broken:
                if record.response is not None:
                    stream.response = record.response
                stream.pending_ns += times
                stream.pending += reads
                if wire is not None:
                    stream.take_wire(wire, record.coding_fault)
                out.open_events += len(frames)
                if len(stream.pending) >= MAX_PENDING_FRAMES:
                    self.decode(stream)
        counters = out.counters
        counters["records"] += record_count
        counters["frames"] += frame_count
        counters["body_bytes"] += body_bytes

    def decode(self, stream: OpenStream) -> None:
        """Decode the frames that wait. A defect of ours costs this stream, not the consumer."""
        times, reads = stream.pending_ns, stream.pending
        if not reads:
            return
        events_before = len(stream.decoder.events) if stream.decoder is not None else 0
        try:
            stream.decode(capture=self._out.capture)
        except Exception as error:
            frames = list(zip(times, reads, strict=True))
            record = Frames(stream.stream_id, max(0, stream.next_seq - 1), frames)
            self._fail(stream.held_offset, record, f"decoder: {type(error).__name__}", stream)
        events_now = len(stream.decoder.events) if stream.decoder is not None else 0
        self._out.open_events += events_now - events_before - len(reads)

    def _feed_other(self, offset: int, record: AnyRecord) -> None:
        reason = unsound(record)
        if reason is not None:
            stream_id = stream_of(record)
            self._fail(offset, record, reason, self.open.get(stream_id) if stream_id else None)
        elif isinstance(record, Alive):
            self._feed_alive(record)
        elif isinstance(record, Damaged):
            for incarnation in record.incarnations:
                self._doubt(self._by_incarnation.get(incarnation, {}).values())
        elif isinstance(record, Lost):
            self._feed_lost(offset, record)
        else:
            stream = self._admit(offset, record)
            if stream is None:
                return
            stream.next_seq += 1
            stream.last_log_ns = self.liveness.now_ns
            if isinstance(record, Opened):
                self._hold(stream, offset, record, 4 * RECORD_BYTES)
                self._enrol(stream, record)
            elif isinstance(record, Request):
                self._hold(stream, offset, record, RECORD_BYTES + len(record.body))
                stream.read_request(record)
            elif isinstance(record, Closed):
                stream.last_ns = max(stream.last_ns, record.end_ns)
                self._finish(stream, record)

    def _feed_lost(self, offset: int, record: Lost) -> None:
        stream = self.open.get(record.stream)
        if stream is not None and record.seq < stream.next_seq:
            explained = stream.explain_hole(record)
            if not explained:
                self._out.counters["duplicate_records"] += 1
            if record.last_seq < stream.next_seq:
                return
            if (
                not explained
            ):  # its first part had come before it was dropped; nobody knows how many bytes that was
                self._break(stream, stream.next_seq, record.last_seq, record.cause, None, record.at_wall_ns)
        else:
            stream = self._admit(offset, record)
            if stream is None:
                return
            self._break(stream, record.seq, record.last_seq, record.cause, record.bytes, record.at_wall_ns)
        stream.next_seq = record.last_seq + 1
        stream.last_log_ns = self.liveness.now_ns
        self._hold(stream, offset, record, RECORD_BYTES)
        if record.last:
            self._finish(stream, None, None)

    def _admit(self, offset: int, record: StreamRecord) -> OpenStream | None:
        """The open stream that this record is the next of; None for a duplicate. Makes the stream, finds the hole."""
        stream = self.open.get(record.stream)
        if stream is None:
            stream = self._begin(offset, record)
            if stream is None:
                return None
        if record.seq < stream.next_seq:
            self._out.counters["duplicate_records"] += 1
            return None
        if record.seq > stream.next_seq:
            doubted = self._doubted.get(record.stream)
            told = doubted is not None and doubted.next_seq == stream.next_seq
            self._break(stream, stream.next_seq, record.seq - 1, DAMAGE if told else "missing")
            stream.next_seq = record.seq
            self._out.counters["holes"] += 1
        return stream

    def _begin(self, offset: int, record: StreamRecord) -> OpenStream | None:
        stream_id = record.stream
        if self.replaying is not None and stream_id not in self.replaying:
            return None
        if stream_id in self._finished or stream_id in self._out.recalled:
            self._out.counters["late_records"] += 1
            return None
        reason = unsound(record) if isinstance(record, Frames) else None  # the others were looked at before
        if reason is not None:
            self._fail(offset, record, reason, None)
            return None
        stream = OpenStream(stream_id, uuid7_wall_ns(stream_id))
        self.open[stream_id] = stream
        self._out.counters["streams_opened"] += 1
        return stream

    def _enrol(self, stream: OpenStream, record: Opened) -> None:
        stream.read_opened(record)
        self._wall_ns = max(self._wall_ns, record.wall_ns)
        self._by_incarnation.setdefault(record.incarnation, {})[stream.stream_id] = stream
        given_up = self.liveness.opened(record)
        if given_up is not None:
            self._lose_all(given_up)

    # -- the end of streams ----------------------------------------------------------------------------------------

    def _feed_alive(self, record: Alive) -> None:
        self._out.note(record)
        self._wall_ns = max(self._wall_ns, record.wall_ns)
        for incarnation in self.liveness.alive(record):
            self._lose_all(incarnation)
        for rival in self.liveness.rivals(record):
            streams = self._by_incarnation.get(rival, {})
            for stream in [s for s in streams.values() if s.started_wall_ns <= record.started_wall_ns]:
                self._finish(stream, None)
        if record.stopping:
            self._lose_all(record.incarnation)
            self.liveness.forget(record.incarnation)
        limit_ns = self.liveness.now_ns - self._lost_after_ns
        for stream in [s for s in self._doomed.values() if s.last_log_ns < limit_ns]:
            self._finish(stream, None, "missing")
        self._look_at_doubted()

    def doubt(self) -> None:
        """Entries of this partition could not be read: the end of any open stream may have been among them."""
        self._doubt(self.open.values())

    def _doubt(self, streams: Iterable[OpenStream]) -> None:
        for stream in streams:
            self._doubted[stream.stream_id] = _Doubt(stream, stream.next_seq, self.liveness.now_ns)
            self._out.counters["doubted_streams"] += 1

    def _look_at_doubted(self) -> None:
        limit_ns = self.liveness.now_ns - DOUBT_PATIENCE * self._lost_after_ns
        for stream_id, doubt in list(self._doubted.items()):
            if doubt.stream.next_seq != doubt.next_seq:
                del self._doubted[stream_id]
            elif doubt.since_ns < limit_ns:
                self._finish(doubt.stream, None)

    def lose_open(self) -> None:
        """Nobody writes here any more: end all open streams as lost."""
        for stream in list(self.open.values()):
            self._finish(stream, None)

    def give_up(self, stream: OpenStream, cause: str) -> None:
        """A bound of ours is reached: end this stream as lost."""
        self._finish(stream, None, cause)

    def _lose_all(self, incarnation: str) -> None:
        for stream in list(self._by_incarnation.get(incarnation, {}).values()):
            self._finish(stream, None)

    def _finish(self, stream: OpenStream, closed: Closed | None, cause: str | None = "tap_died") -> None:
        """End a stream; without its `Closed` as lost, and `cause` says why (None: that was said before)."""
        stream_id = stream.stream_id
        self.decode(stream)
        del self.open[stream_id]
        self._doomed.pop(stream_id, None)
        doubt = self._doubted.pop(stream_id, None)
        if doubt is not None and doubt.next_seq == stream.next_seq and cause == "tap_died":
            cause = DAMAGE
        if stream.opened is not None:
            siblings = self._by_incarnation[stream.opened.incarnation]
            del siblings[stream_id]
            if not siblings:
                del self._by_incarnation[stream.opened.incarnation]
        self._finished[stream_id] = None
        if len(self._finished) > self._out.remember:
            del self._finished[next(iter(self._finished))]
        self.release(stream)
        if closed is not None and stream.opened is None:
            stream.broken = True
        finished = self._outcome_of(stream, closed)
        self._out.finished.append(finished)
        tap = stream.opened.tap if stream.opened is not None else None
        holes = list(stream.holes)
        if closed is None and cause is not None:
            at_wall_ns = max(self._wall_ns, stream.started_wall_ns)
            holes.append(Hole(stream.next_seq, stream.next_seq, cause, None, at_wall_ns))
        self._out.losses += [(stream_id, tap, self.name, hole) for hole in holes]
        self._out.counters["streams_finished"] += 1
        self._out.counters["streams_lost"] += finished.lost

    def _outcome_of(self, stream: OpenStream, closed: Closed | None) -> FinishedStream:
        capture = self._out.capture
        try:
            return stream.finish(self.name, closed, capture=capture)
        except Exception as error:  # as in `decode`
            reason = f"decoder: {type(error).__name__}"
            record = closed or Frames(stream.stream_id, max(0, stream.next_seq - 1), [])
            self._fail(stream.held_offset, record, reason, stream)
            stream.decoder = None
            return stream.finish(self.name, closed, capture=capture)

    def _fail(self, offset: int, record: AnyRecord, reason: str, stream: OpenStream | None) -> None:
        """Set a record aside; its stream, if there is one, has a hole there."""
        self._out.failures.append(Failure(self.name, offset, stream_of(record), reason, record))
        self._out.counters["failures"] += 1
        if stream is not None and not isinstance(record, (Alive, Damaged)):
            seq = min(stream.next_seq, record.seq)
            self._break(stream, seq, seq, reason)
            stream.next_seq = max(stream.next_seq, seq + 1)

    def _break(
        self,
        stream: OpenStream,
        first_seq: int,
        last_seq: int,
        cause: str,
        size: int | None = None,
        at_wall_ns: int | None = None,
    ) -> None:
        """A stream has a hole."""
        if at_wall_ns is None:
            at_wall_ns = stream.started_wall_ns + stream.last_ns
        stream.add_hole(Hole(first_seq, last_seq, cause, size, at_wall_ns))
        if stream.stream_id in self.open:
            self._doomed[stream.stream_id] = stream

    # -- what the log must keep --------------------------------------------------------------------------------------

    def position(self, high: int) -> Position:
        """Where a restart begins, given that all entries before `high` were fed."""
        low = min((s.held_offset for s in self.open.values() if s.held_offset >= 0), default=high)
        return Position(high, min(low, high), tuple(self.open))

    def due_checkpoints(self, after_ns: int) -> list[Checkpoint]:
        """Of the streams that have been held for longer than `after_ns` of log time."""
        now_ns = self.liveness.now_ns
        if self.replaying is not None or now_ns - self._scanned_ns < after_ns // 60:
            return []
        self._scanned_ns = now_ns
        return [
            self.checkpoint(stream)
            for stream in self.open.values()
            if stream.held and stream.held_since_ns < now_ns - after_ns and not stream.only_in_log
        ]

    def checkpoint(self, stream: OpenStream) -> Checkpoint:
        """The records of a stream since its last checkpoint; from now on they need no log."""
        first = stream.held[0]
        assert not isinstance(first, (Alive, Damaged))
        records = stream.without_text(stream.held, capture=self._out.capture)
        checkpoint = Checkpoint(stream.stream_id, self.name, first.seq, pack(records, compress=True))
        self._let_go(stream)
        return checkpoint

    def release(self, stream: OpenStream) -> None:
        """A stream is open no more: give back what it holds."""
        self._let_go(stream)
        self._out.open_events -= stream.event_count

    def _hold(self, stream: OpenStream, offset: int, record: AnyRecord, size: int) -> None:
        """The log, or the next checkpoint, must keep this record for as long as the stream is open."""
        if offset < 0:
            return  # comes from a checkpoint
        if stream.held_offset < 0:
            stream.held_offset = offset
            stream.held_since_ns = self.liveness.now_ns
        if stream.only_in_log:
            return
        stream.held.append(record)
        stream.held_bytes += size
        self._out.held_bytes += size

    def _look_at_coding(self, stream: OpenStream, record: Frames) -> None:
        """A compressed body whose text must not be stored stays in the log alone: it holds back `low` while it is open."""
        head = record.response
        coded = head is not None and any(name == "content-encoding" for name, _ in head.headers)
        if coded and record.wire_bytes is None and not stream.captures(self._out.capture):
            stream.only_in_log = True
            self._out.held_bytes -= stream.held_bytes
            stream.held, stream.held_bytes = [], 0

    def _let_go(self, stream: OpenStream) -> None:
        self._out.held_bytes -= stream.held_bytes
        stream.held_bytes = 0
        stream.held = []
        stream.held_offset = -1

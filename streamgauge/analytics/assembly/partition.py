"""The open streams of one log partition: assign records to streams, detect gaps, decide when a stream ends. No I/O, no clock.

`streamgauge.analytics.assembly.assembler` has the rules. The next expected record of a stream takes the fast path in `feed`.
Duplicates, records after a gap and first records go through `_stream_expecting`. Frames are decoded in batches
(`MAX_PENDING_FRAMES`, at the end of the stream, or when its row is requested), which costs a fraction of decoding them one
by one.

How far one log partition is consumed: the columns of `log_positions` with the same names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from streamgauge.analytics.assembly.finished_stream import MISSING, FinishedStream, RecordGap
from streamgauge.analytics.assembly.open_stream import OpenStream
from streamgauge.analytics.assembly.record_validation import (
    MAX_NS,
    Failure,
    failure_of,
    invalid_frames,
    invalid_record,
    stream_of,
)
from streamgauge.analytics.assembly.tap_liveness import TAP_GONE_AFTER_NS, Liveness
from streamgauge.analytics.decoding.conversation import ConversationReader
from streamgauge.ingest.generated_ids import uuid7_wall_ns
from streamgauge.ingest.identifiers import is_answer
from streamgauge.ingest.records import (
    Alive,
    AnyRecord,
    Closed,
    Damaged,
    Frames,
    Lost,
    Opened,
    Request,
    ResponseHeaders,
    StreamRecord,
    pack,
)
from streamgauge.ingest.websockets.splitter import (
    AnswerSplitter,
    SocketRecord,
    SplitterState,
    Windows,
    without_frames,
)

MAX_PENDING_FRAMES = 512
MAX_TAPS = 1024
RECORD_BYTES = 150
"""Approximate memory of a record or frame, in addition to its bytes."""
SUSPECT_FACTOR = 15
"""A suspect stream without records for this many times `lost_after_ns` (log time) is lost: its end was in the damaged part."""
DAMAGE = "log_damaged"
LOG_GONE = "log_gone"
TAP_DIED = "tap_died"
STATE_LOST = "websocket_state_lost"
_decode_state = msgspec.msgpack.Decoder(SplitterState).decode


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Packed records of one long stream. A stream's checkpoints together replace its entries in the log."""

    stream_id: str
    partition: str
    first_seq: int
    payload: bytes
    state: bytes | None = None
    """Of a WebSocket: its splitter after these records, **with text**."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    """An open stream that may have records in a damaged part of the log, and its state at that point."""

    stream: OpenStream
    next_seq: int
    since_ns: int


@dataclass(slots=True)
class Outbox:
    """Results and resource totals shared by all partitions."""

    capture: Sequence[str]
    """Globs of the paths whose text is kept."""
    remember: int
    read_conversation: ConversationReader
    store_websockets: bool
    """Checkpoints of WebSockets have their state. Otherwise, only the log holds their records."""
    finished: list[FinishedStream] = field(default_factory=list)
    losses: list[tuple[str, str | None, str, RecordGap]] = field(default_factory=list)
    """(stream, tap, partition, gap)."""
    failures: list[Failure] = field(default_factory=list)
    recalled: frozenset[str] = frozenset()
    """Ids of streams that the store already has."""
    open_events: int = 0
    """Events and undecoded frames of all open streams."""
    held_bytes: int = 0
    """Approximate memory of the records held for checkpoints."""
    counters: Counter[str] = field(default_factory=Counter)
    taps: dict[tuple[str, int, str], Alive] = field(default_factory=dict)
    """(tap, tap_worker, incarnation) → its newest `Alive`; the newest `MAX_TAPS`."""
    windows: Windows = field(init=False)

    def __post_init__(self) -> None:
        self.windows = Windows(self.counters, self.read_conversation.key)

    def note_alive(self, record: Alive) -> None:
        """Keep the newest report of a tap. It may arrive repeatedly and in several partitions."""
        key = (record.tap, record.tap_worker, record.incarnation)
        known = self.taps.get(key)
        if known is None or record.mono_ns >= known.mono_ns:
            self.taps.pop(key, None)  # move to the end: newest last
            self.taps[key] = record
            if len(self.taps) > MAX_TAPS:
                del self.taps[next(iter(self.taps))]


class Partition:
    """One partition. Its entries arrive in order of their offsets."""

    def __init__(
        self,
        name: str,
        outbox: Outbox,
        *,
        lost_after_ns: int,
        tap_gone_after_ns: int | None = TAP_GONE_AFTER_NS,
    ) -> None:
        self.name = name
        self.open: dict[str, OpenStream] = {}
        """In the order of their first records."""
        self.liveness = Liveness(lost_after_ns, tap_gone_after_ns)
        self.replaying: frozenset[str] | None = None
        """During a replay: the only streams whose records are used."""
        self._out = outbox
        self._lost_after_ns = lost_after_ns
        self._by_incarnation: dict[str, dict[str, OpenStream]] = {}
        self._incomplete: dict[str, OpenStream] = {}  # have a gap, which may contain their `Closed`
        self._unexplained: dict[str, int] = {}
        """Open streams with a gap that no record explains, and the log time when it was found."""
        self._suspects: dict[str, _Suspect] = {}
        # A dict, because it keeps the order: the oldest id is removed first.
        self._finished: dict[str, None] = {}  # ids, newest last
        self._wall_ns = 0
        self._scanned_ns = 0
        self._lost_states = 0
        """Of WebSockets, in this replay."""

    # -- feeding ---------------------------------------------------------------------------------------------------

    def feed(self, offset: int, records: Iterable[AnyRecord]) -> None:
        """The records of one entry, or of a checkpoint (offset -1)."""
        open_streams, liveness, out = self.open, self.liveness, self._out
        # Locals, added once per entry: a Counter is updated through a hash of its key.
        record_count = frame_count = body_bytes = 0
        for record in records:
            record_count += 1
            # Nearly all records are frames. They are handled here, without a call per record.
            if type(record) is not Frames:
                self._feed_other(offset, record)
                continue
            if record.from_client is not None:
                self._feed_websocket(offset, record)
                continue
            stream = open_streams.get(record.stream)
            if stream is None or record.seq != stream.next_seq or stream.incomplete:
                stream = self._stream_expecting(offset, record)
                if stream is None:
                    continue
            frames = record.frames
            # In C: an entry has hundreds of frames.
            times, reads = zip(*frames, strict=True) if frames else ((), ())
            reason = invalid_frames(record, times, stream.last_ns)
            if reason is not None:
                self._fail(offset, record, reason)
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
                self._check_content_coding(stream, record)
            self._hold(stream, offset, record, size + RECORD_BYTES * (1 + len(frames)))
            if not stream.incomplete:
                if record.response is not None:
                    stream.response = record.response
                stream.pending_ns += times
                stream.pending += reads
                if wire is not None:
                    stream.add_wire_bytes(wire, record.coding_fault)
                out.open_events += len(frames)
                if len(stream.pending) >= MAX_PENDING_FRAMES:
                    self.decode(stream)
        counters = out.counters
        counters["records"] += record_count
        counters["frames"] += frame_count
        counters["body_bytes"] += body_bytes

    # -- WebSockets ------------------------------------------------------------------------------------------------

    def _feed_websocket(self, offset: int, record: Frames) -> None:
        """Frames of a WebSocket: feed the records that its splitter makes of them."""
        stream = self._stream_expecting(offset, record)
        if stream is None:
            return
        reason = invalid_frames(record, [at_ns for at_ns, _ in record.frames], stream.last_ns)
        if reason is not None:
            self._fail(offset, record, reason)
            return
        splitter = self._splitter(stream, record.response or stream.response)
        own = without_frames(record) if splitter is None else self._split(offset, splitter, record)
        self.feed(offset, [own])

    def _splitter(self, stream: OpenStream, response: ResponseHeaders | None) -> AnswerSplitter | None:
        if stream.splitter is None and not (stream.incomplete or stream.opened is None or response is None):
            stored = self._out.store_websockets
            stream.splitter = AnswerSplitter(stream.opened, response, self._out.windows, storable=stored)
            if not stored:  # its windows are text
                self._keep_only_in_log(stream)
        return stream.splitter

    def restore_websocket(self, stream: OpenStream, state: bytes | None) -> None:
        """Continue an open WebSocket after its checkpoints. Without its state, its answers are lost in `end_replay`."""
        if not self._out.store_websockets or not stream.is_websocket:
            return
        try:
            stream.splitter = AnswerSplitter.restored(_decode_state(state or b""), self._out.windows)
        except msgspec.DecodeError:  # missing, or of another version
            if stream.incomplete:
                return
            splitter = self._splitter(stream, stream.response)
            assert splitter is not None
            splitter.lose(STATE_LOST)
            self._lost_states += 1

    def end_replay(self) -> None:
        """All further records are used. Answers that their socket does not continue are lost.

        Other streams whose records are gone stay open: the log may still report their loss.
        """
        ids, self.replaying = self.replaying or frozenset(), None
        self._out.counters["lost_websocket_states"] += self._lost_states
        self._lost_states = 0
        if self._out.store_websockets:
            sockets = [stream.splitter for stream in self.open.values() if stream.splitter is not None]
            continued = {answer.stream for splitter in sockets for answer in splitter.open}
            for stream_id in filter(is_answer, ids - continued):
                self.lose(stream_id, STATE_LOST)
        for stream_id in ids - self.open.keys() - self._finished.keys():
            gone = self.open[stream_id] = self._incomplete[stream_id] = _new_stream(stream_id)
            gone.last_log_ns = self.liveness.now_ns

    def _split(self, offset: int, splitter: AnswerSplitter, record: SocketRecord) -> SocketRecord:
        """Feed the records of a socket's answers, and return its own one."""
        own, answers, error = splitter.split(record)
        if error is not None and self.replaying is None:
            reason = f"websocket: {type(error).__name__}"
            self._report(failure_of(self.name, offset, record, reason))
            self._add_loss(record.stream, RecordGap(record.seq, record.seq, reason, None, self._wall_ns))
        self.feed(offset, answers)
        return own

    def _lose_answers(self, stream: OpenStream, cause: str) -> None:
        """Nothing more can be decoded of a socket: its open answers are lost."""
        if stream.splitter is not None:
            self.feed(stream.held_offset, stream.splitter.lose(cause))

    # -- decoding and records -----------------------------------------------------------------------------------------

    def decode(self, stream: OpenStream) -> None:
        """Decode the pending frames. An exception in the decoder loses only this stream."""
        times, reads = stream.pending_ns, stream.pending
        if not reads:
            return
        events_before = len(stream.decoder.events) if stream.decoder is not None else 0
        try:
            stream.decode(capture=self._out.capture)
        except Exception as error:
            frames = list(zip(times, reads, strict=True))
            # The pending frames came in several records. The dead letter is of all of them, because any may be the cause.
            record = Frames(stream.stream_id, max(0, stream.next_seq - 1), frames)
            self._fail_decoding(stream, record, error)
        events_now = len(stream.decoder.events) if stream.decoder is not None else 0
        self._out.open_events += events_now - events_before - len(reads)

    def _feed_other(self, offset: int, record: AnyRecord) -> None:
        reason = invalid_record(record)
        if reason is not None:
            self._fail(offset, record, reason)
        elif isinstance(record, Alive):
            self._feed_alive(record)
        elif isinstance(record, Damaged):
            for incarnation in record.incarnations:
                self._mark_suspect(self._by_incarnation.get(incarnation, {}).values())
        elif isinstance(record, Lost):
            self._feed_lost(offset, record)
        else:
            stream = self._stream_expecting(offset, record)
            if stream is None:
                return
            stream.next_seq += 1
            stream.last_log_ns = self.liveness.now_ns
            if isinstance(record, Opened):
                self._hold(stream, offset, record, 4 * RECORD_BYTES)
                self._read_opened(stream, record)
            elif isinstance(record, Request):
                self._hold(stream, offset, record, RECORD_BYTES + len(record.body))
                stream.read_request(record, self._out.read_conversation)
            elif isinstance(record, Closed):
                if (splitter := stream.splitter) is not None:
                    record = self._split(offset, splitter, record)
                stream.last_ns = max(stream.last_ns, record.end_ns)
                if stream.stream_id in self._unexplained:
                    stream.closed = record
                    self._hold(stream, offset, record, RECORD_BYTES)
                else:
                    self.finish(stream, record)

    def _feed_lost(self, offset: int, record: Lost) -> None:
        stream = self.open.get(record.stream)
        if stream is not None and record.seq < stream.next_seq:
            explained = stream.explain_gap(record)
            if not explained:
                self._out.counters["duplicate_records"] += 1
            if record.last_seq < stream.next_seq:
                if explained:
                    self._hold(stream, offset, record, RECORD_BYTES)
                    self._explained(stream)
                return
            if not explained:  # records before the gap arrived, so its size in bytes is unknown
                self._add_gap(stream, stream.next_seq, record.last_seq, record.cause, None, record.at_wall_ns)
        else:
            stream = self._stream_expecting(offset, record)
            if stream is None:
                return
            self._add_gap(stream, record.seq, record.last_seq, record.cause, record.bytes, record.at_wall_ns)
        stream.next_seq = record.last_seq + 1
        stream.last_log_ns = self.liveness.now_ns
        self._hold(stream, offset, record, RECORD_BYTES)
        self._explained(stream)
        if record.last:
            self.finish(stream, None, None)

    def _stream_expecting(self, offset: int, record: StreamRecord) -> OpenStream | None:
        """The stream of this record, opened if necessary; None if the record is dropped. Adds a gap for skipped records."""
        stream = self.open.get(record.stream)
        if stream is None:
            # Records of other types were validated before.
            reason = invalid_record(record) if isinstance(record, Frames) else None
            if reason is not None:
                self._fail(offset, record, reason)
                return None
            stream = self._open(record.stream)
            if stream is None:
                return None
        if record.seq < stream.next_seq:
            self._out.counters["duplicate_records"] += 1
            return None
        if record.seq > stream.next_seq:
            self._skip_to(stream, record.seq)
        return stream

    def _skip_to(self, stream: OpenStream, seq: int) -> None:
        suspect = self._suspects.get(stream.stream_id)
        damaged = suspect is not None and suspect.next_seq == stream.next_seq
        self._add_gap(stream, stream.next_seq, seq - 1, DAMAGE if damaged else MISSING)
        stream.next_seq = seq
        self._out.counters["record_gaps"] += 1

    def _open(self, stream_id: str) -> OpenStream | None:
        """Open a stream. None: it has ended before, or is not replayed."""
        if self.replaying is not None and stream_id not in self.replaying:
            return None
        if stream_id in self._finished or stream_id in self._out.recalled:
            self._out.counters["late_records"] += 1
            return None
        stream = self.open[stream_id] = _new_stream(stream_id)
        self._out.counters["streams_opened"] += 1
        return stream

    def _read_opened(self, stream: OpenStream, record: Opened) -> None:
        stream.read_opened(record)
        self._wall_ns = max(self._wall_ns, record.wall_ns)
        self._by_incarnation.setdefault(record.incarnation, {})[stream.stream_id] = stream
        evicted = self.liveness.opened(record)
        if evicted is not None:
            self._lose_all(evicted)

    # -- the end of streams ----------------------------------------------------------------------------------------

    def _feed_alive(self, record: Alive) -> None:
        self._out.note_alive(record)
        self._wall_ns = max(self._wall_ns, record.wall_ns)
        for incarnation in self.liveness.alive(record):
            self._lose_all(incarnation)
        for rival in self.liveness.rivals(record):
            streams = self._by_incarnation.get(rival, {})
            # Streams that started after this incarnation did are another tap's of the same name.
            for stream in [s for s in streams.values() if s.started_wall_ns <= record.started_wall_ns]:
                self.finish(stream, None)
        if record.stopping:
            self._lose_all(record.incarnation)
            self.liveness.remove(record.incarnation)
            # Without `Opened` a stream belongs to no incarnation. Perhaps no other record will arrive.
            for stream in [self.open[i] for i in self._unexplained]:
                if stream.closed is not None and stream.opened is None:
                    self._stop_waiting(stream)
        limit_ns = self.liveness.now_ns - self._lost_after_ns
        # `Alive` records drive all time limits: they are the only records that arrive while streams are silent.
        for stream in [s for s in self._incomplete.values() if s.last_log_ns < limit_ns]:
            # Its end may be in one of its gaps, which have their causes.
            self.finish(stream, None, None if stream.record_gaps else MISSING)
        for stream_id in [i for i, since_ns in self._unexplained.items() if since_ns < limit_ns]:
            self._stop_waiting(self.open[stream_id])
        self._check_suspects()

    def suspect_open_streams(self) -> None:
        """Entries of this partition are unreadable: the end of any open stream may be in them."""
        self._mark_suspect(self.open.values())

    def _mark_suspect(self, streams: Iterable[OpenStream]) -> None:
        for stream in streams:
            self._suspects[stream.stream_id] = _Suspect(stream, stream.next_seq, self.liveness.now_ns)
            self._out.counters["doubted_streams"] += 1

    def _check_suspects(self) -> None:
        limit_ns = self.liveness.now_ns - SUSPECT_FACTOR * self._lost_after_ns
        for stream_id, suspect in list(self._suspects.items()):
            if suspect.stream.next_seq != suspect.next_seq:
                del self._suspects[stream_id]
            elif suspect.since_ns < limit_ns:
                self.finish(suspect.stream, None)

    def lose_open(self, cause: str) -> None:
        for stream in list(self.open.values()):
            self.finish(stream, None, cause)

    def _lose_all(self, incarnation: str) -> None:
        for stream in list(self._by_incarnation.get(incarnation, {}).values()):
            self.finish(stream, None)

    def finish(self, stream: OpenStream, closed: Closed | None, cause: str | None = TAP_DIED) -> None:
        """End a stream. Without `Closed` it is lost because of `cause` (None: its gaps have the cause)."""
        stream_id = stream.stream_id
        if stream_id not in self.open:  # an answer ends with its socket
            return
        closed = closed or stream.closed
        # Answers that wait for the cause of a gap are lost by that gap.
        self._lose_answers(stream, stream.record_gaps[0].cause if stream.record_gaps else cause or MISSING)
        self.decode(stream)
        del self.open[stream_id]
        self._incomplete.pop(stream_id, None)
        self._unexplained.pop(stream_id, None)
        suspect = self._suspects.pop(stream_id, None)
        if suspect is not None and suspect.next_seq == stream.next_seq and cause == TAP_DIED:
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
        # Without `Opened` neither the upstream nor the request is known, so the end alone proves nothing.
        if closed is not None and stream.opened is None:
            stream.incomplete = True
        self._out.finished.append(self._finished_stream(stream, closed))
        gaps = list(stream.record_gaps)
        if closed is None and cause is not None:
            at_wall_ns = max(self._wall_ns, stream.started_wall_ns)
            gaps.append(RecordGap(stream.next_seq, stream.next_seq, cause, None, at_wall_ns))
        for gap in gaps:
            self._add_loss(stream_id, gap, stream)
        if stream.failure is not None:
            self._report(stream.failure)
        self._out.counters["streams_finished"] += 1

    def lose(self, stream_id: str, cause: str) -> None:
        """End a stream whose records are gone."""
        self.finish(self.open.setdefault(stream_id, _new_stream(stream_id)), None, cause)

    def _finished_stream(self, stream: OpenStream, closed: Closed | None) -> FinishedStream:
        capture = self._out.capture
        try:
            return stream.finish(self.name, closed, capture=capture)
        except Exception as error:  # as in `decode`
            record = closed or Frames(stream.stream_id, max(0, stream.next_seq - 1), [])
            self._fail_decoding(stream, record, error)
            stream.decoder = None
            return stream.finish(self.name, closed, capture=capture)

    def fail(self, offset: int, record: AnyRecord, error: Exception) -> None:
        """Report a record whose processing raised an exception, perhaps after it was counted. That is a bug."""
        reason, stream_id = f"assemble: {type(error).__name__}", stream_of(record)
        has_ended = stream_id in self._finished
        self._fail(offset, record, reason, counted=True)
        if has_ended and not isinstance(record, (Alive, Damaged)) and self.replaying is None:
            self._report(failure_of(self.name, offset, record, reason))
            self._add_loss(record.stream, RecordGap(record.seq, record.seq, reason, None, self._wall_ns))

    def _fail(self, offset: int, record: AnyRecord, reason: str, *, counted: bool = False) -> None:
        """Report a record that cannot be processed."""
        is_lost = self.lose_record(offset, record, reason, counted=counted)
        # A replay repeats what was reported before the restart.
        if (is_lost or stream_of(record) is None) and self.replaying is None:
            self._report(failure_of(self.name, offset, record, reason))

    def lose_record(self, offset: int, record: AnyRecord, cause: str, *, counted: bool = False) -> bool:
        """The stream of a record gets a gap there, and is opened for it if necessary. False: it has no such stream, or it has this
        record. `counted`: `next_seq` may be after it."""
        stream_id = stream_of(record)
        if stream_id is None or isinstance(record, (Alive, Damaged)):
            return False
        stream = self.open.get(stream_id) or self._open(stream_id)
        if stream is None:
            return False
        seq = record.seq
        if 0 <= seq < stream.next_seq and not counted:
            self._out.counters["duplicate_records"] += 1
            return False
        if not 0 <= seq < MAX_NS:
            seq = stream.next_seq
        if seq > stream.next_seq:
            self._skip_to(stream, seq)
        self._add_gap(stream, seq, seq, cause)
        stream.next_seq = max(stream.next_seq, seq + 1)
        stream.last_log_ns = self.liveness.now_ns
        # In place of the record: a checkpoint keeps the cause of the gap.
        at_wall_ns = stream.record_gaps[-1].at_wall_ns
        self._hold(stream, offset, Lost(stream_id, seq, seq, cause, at_wall_ns), RECORD_BYTES)
        if isinstance(record, Closed) and stream_id not in self._unexplained:
            self.finish(stream, None, None)
        return True

    def _fail_decoding(self, stream: OpenStream, record: Frames | Closed, error: Exception) -> None:
        """A stream that cannot be decoded. It is reported at its end: a replay may decode its records in other batches."""
        if stream.failure is None:
            reason = f"decoder: {type(error).__name__}"
            stream.failure = failure_of(self.name, stream.held_offset, record, reason)
            self._add_gap(stream, record.seq, record.seq, reason)

    def _report(self, failure: Failure) -> None:
        self._out.failures.append(failure)
        self._out.counters["failures"] += 1

    def _add_loss(self, stream_id: str, gap: RecordGap, stream: OpenStream | None = None) -> None:
        stream = stream or self.open.get(stream_id)
        tap = stream.opened.tap if stream is not None and stream.opened is not None else None
        self._out.losses.append((stream_id, tap, self.name, gap))

    def _add_gap(
        self,
        stream: OpenStream,
        first_seq: int,
        last_seq: int,
        cause: str,
        size: int | None = None,
        at_wall_ns: int | None = None,
    ) -> None:
        if at_wall_ns is None:
            at_wall_ns = stream.started_wall_ns + stream.last_ns
        stream.add_gap(RecordGap(first_seq, last_seq, cause, size, at_wall_ns))
        if stream.stream_id in self.open:
            self._incomplete[stream.stream_id] = stream
        if cause == MISSING:
            self._unexplained.setdefault(stream.stream_id, self.liveness.now_ns)
            if stream.splitter is not None:
                stream.splitter.stop(MISSING)
        elif stream.stream_id not in self._unexplained:
            self._lose_answers(stream, cause)

    def _explained(self, stream: OpenStream) -> None:
        if stream.stream_id in self._unexplained and all(gap.cause != MISSING for gap in stream.record_gaps):
            self._stop_waiting(stream)

    def _stop_waiting(self, stream: OpenStream) -> None:
        """The gaps of a stream are explained, or will not be: what waited for their causes ends."""
        self._unexplained.pop(stream.stream_id, None)
        if stream.closed is not None:
            self.finish(stream, stream.closed)
        else:
            self._lose_answers(stream, stream.record_gaps[0].cause)

    # -- positions and checkpoints --------------------------------------------------------------------------------------

    def position(self, high: int) -> LogPosition:
        """The position of a restart after all entries before `high` were fed."""
        low = min((s.held_offset for s in self.open.values() if s.held_offset >= 0), default=high)
        return LogPosition(high, min(low, high), tuple(self.open))

    def due_checkpoints(self, after_ns: int) -> list[Checkpoint]:
        """Checkpoints of streams with records held for longer than `after_ns` of log time."""
        now_ns = self.liveness.now_ns
        # Each scan visits all open streams, so it runs at most 60 times within the age that it looks for.
        if self.replaying is not None or now_ns - self._scanned_ns < after_ns // 60:
            return []
        self._scanned_ns = now_ns
        return [
            checkpoint
            for stream in self.open.values()
            if stream.held and stream.held_since_ns < now_ns - after_ns and not stream.only_in_log
            for checkpoint in self.checkpoints(stream)
        ]

    def checkpoints(self, stream: OpenStream) -> list[Checkpoint]:
        """The records of a stream since its last checkpoint, and those of a socket's open answers. The log no longer needs them."""
        streams, state = [stream], None
        if self._out.store_websockets and stream.is_websocket:
            splitter = self._splitter(stream, stream.response)
            if splitter is not None:
                # The state makes only later records of its answers.
                open_answers = [self.open.get(answer.stream) for answer in splitter.open]
                streams += [answer for answer in open_answers if answer is not None and answer.held]
                state = msgspec.msgpack.encode(splitter.state)
        return [self._checkpoint(one, state if one is stream else None) for one in streams]

    def _checkpoint(self, stream: OpenStream, state: bytes | None) -> Checkpoint:
        first = stream.held[0]
        assert not isinstance(first, (Alive, Damaged))
        records = stream.without_text(stream.held, capture=self._out.capture)
        payload = pack(records, compress=True)
        self._release_held(stream)
        return Checkpoint(stream.stream_id, self.name, first.seq, payload, state)

    def release(self, stream: OpenStream) -> None:
        """Subtract a stream that is no longer open from the resource totals."""
        self._release_held(stream)
        self._out.open_events -= stream.event_count

    def _hold(self, stream: OpenStream, offset: int, record: AnyRecord, size: int) -> None:
        """Keep this record in the log or the next checkpoint while the stream is open."""
        if offset < 0:
            return  # from a checkpoint
        if stream.held_offset < 0:
            stream.held_offset = offset
            stream.held_since_ns = self.liveness.now_ns
        if stream.only_in_log:
            return
        stream.held.append(record)
        stream.held_bytes += size
        self._out.held_bytes += size

    def _check_content_coding(self, stream: OpenStream, record: Frames) -> None:
        """A compressed body cannot be redacted for a checkpoint. Unless its text may be stored, only the log keeps it."""
        response = record.response
        coded = response is not None and any(name == "content-encoding" for name, _ in response.headers)
        if coded and record.wire_bytes is None and not stream.captures(self._out.capture):
            self._keep_only_in_log(stream)

    def _keep_only_in_log(self, stream: OpenStream) -> None:
        stream.only_in_log = True
        # The records in memory are of no use then: no checkpoint can be made of them.
        self._out.held_bytes -= stream.held_bytes
        stream.held, stream.held_bytes = [], 0

    def _release_held(self, stream: OpenStream) -> None:
        self._out.held_bytes -= stream.held_bytes
        stream.held_bytes = 0
        stream.held = []
        stream.held_offset = -1


def _new_stream(stream_id: str) -> OpenStream:
    return OpenStream(stream_id, uuid7_wall_ns(stream_id))


@dataclass(frozen=True, slots=True)
class LogPosition:
    """All entries before `high` are consumed. A restart reads [low, high) again for the open streams."""

    high: int
    low: int
    open_stream_ids: tuple[str, ...]

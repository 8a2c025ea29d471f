"""Make the records of one exchange: `Opened`, `Request`, `Frames`, `Closed`, and `Lost` for dropped data.

The exchange calls the recorder after it has forwarded the bytes, in the order of the protocol. The recorder keeps the data
and reserves room for it in the `RecordBuffer`. It makes the records when the buffer flushes it, or when 64 KiB of frames
wait. A short exchange makes all its records at once, after its end.

Guarantees
- The records of a stream are numbered without a gap: a lost record takes a number too, and a `Lost` record names it.
- Without room, response frames are dropped. Each contiguous run of dropped frames takes one number. A dropped request body
  and a dropped head take one number each.
- A stream may have half as many bytes in the log's queue as are free there (`RecordBuffer`). Without that share it loses frames
  while others have room.
- After an exception, `abandon` writes what is known and reports the rest as lost. Numbers are used up and reserved bytes are
  released before any step that could fail, or after it, so an abandoned stream leaves no gap and no reserved bytes.
"""

from __future__ import annotations

import contextlib
import time

from streamgauge.ingest import identifiers
from streamgauge.ingest.generated_ids import uuid7
from streamgauge.ingest.keyed_ids import SessionHeaders
from streamgauge.ingest.records import (
    AnyRecord,
    Cause,
    Closed,
    Frames,
    Lost,
    Opened,
    Request,
    ResponseHeaders,
    Wait,
    encode,
    frames_prefix,
)
from streamgauge.ingest.tap.http.client_identity import client_id
from streamgauge.ingest.tap.http.heads import NO_BODY, RequestHead, ResponseHead
from streamgauge.ingest.tap.http.routing import Route
from streamgauge.ingest.tap.http.trace_context import TraceContext
from streamgauge.ingest.tap.options import TapOptions
from streamgauge.ingest.tap.recording import body_capture as capture
from streamgauge.ingest.tap.recording.failures import ABANDONED, CAUSE
from streamgauge.ingest.tap.recording.record_buffer import RECORD_OVERHEAD_BYTES, RecordBuffer
from streamgauge.ingest.tap.recording.relayed import RelayedEnd, RelayedRecords

FLUSH_BYTES = 65_536
FRAME_OVERHEAD_BYTES = 96  # a tuple, an int and the header of a bytes object
WAIT_BYTES = 26  # two integers and a word in MessagePack
_COLON = ord(":")
_UNLIMITED = capture.UNLIMITED


class RecorderFactory:
    """Buffer and options shared by the recorders of one worker."""

    def __init__(
        self, buffer: RecordBuffer, options: TapOptions, *, incarnation: str, client_key: bytes
    ) -> None:
        self.buffer = buffer
        self.options = options
        self.incarnation = incarnation
        self.client_key = client_key
        self.session_headers = SessionHeaders(options.session_headers, client_key)
        self._origins: dict[int, bytes] = {}

    def origin(self, route: Route) -> bytes:
        """The MessagePack of `Opened` from `tap` to `server_port`, for `native_recorder`."""
        encoded = self._origins.get(route.upstream_index)
        if encoded is None:
            # These six values are the same for all requests to one upstream. Their MessagePack is made once and copied
            # into each `Opened`.
            upstream, options = route.upstream, self.options
            values = (
                options.tap_name, options.worker, self.incarnation, upstream.name, upstream.host, upstream.port
            )  # fmt: skip
            encoded = self._origins[route.upstream_index] = b"".join(map(encode, values))
        return encoded

    def recorded(self, head: RequestHead) -> list[tuple[str, str]]:
        """The fields of a request's head to record, with its session id."""
        fields = [field.recorded for field in head.fields if field.recorded is not None]
        session = self.session_headers.recorded(head.fields)
        if session is not None:
            fields.append(session)
        return fields


End = tuple[Cause, str | None, int, int, int, bool, bool, list[Wait]]
"""Cause, detail, time, bytes of the request's and the response's body, whether the upstream connection was reused, whether it was a
tunnel, waits."""


def opened_record(
    factory: RecorderFactory,
    stream: str,
    head: RequestHead,
    route: Route,
    trace: TraceContext,
    client_start_ns: int,
    t0_ns: int,
    wall_ns: int,
) -> Opened:
    upstream, options = route.upstream, factory.options
    return Opened(
        stream,
        0,
        options.tap_name,
        options.worker,
        factory.incarnation,
        upstream.name,
        upstream.host,
        upstream.port,
        identifiers.name(head.method) or "",
        identifiers.path(route.target),
        wall_ns,
        t0_ns,
        min(0, client_start_ns - t0_ns),
        trace.trace_id,
        trace.span_id,
        trace.parent_span_id,
        trace.flags,
        client_id(head.known, factory.client_key),
        factory.recorded(head),
        capture.capture_content(head),
        identifiers.query_model(route.target) if "?" in route.target else None,
        options.clock_id,
    )


def closed_record(
    stream: str,
    seq: int,
    t0_ns: int,
    connected_ns: int | None,
    request_sent_ns: int | None,
    end: End,
    refused_status: int | None,
    first_byte_ns: int | None,
    drained_ns: int | None,
    client_left_ns: int | None,
    undelivered_bytes: int,
) -> Closed:
    """`connected_ns` and `request_sent_ns` are durations since `t0_ns`, the others times."""
    cause, detail, end_ns, request_bytes, response_bytes, reused, tunnel, waits = end
    return Closed(
        stream,
        seq,
        cause,
        detail,
        end_ns - t0_ns,
        connected_ns,
        request_sent_ns,
        request_bytes,
        response_bytes,
        max(0, response_bytes - undelivered_bytes),
        None if drained_ns is None else max(end_ns, drained_ns) - t0_ns,
        None if client_left_ns is None else max(end_ns, client_left_ns) - t0_ns,
        reused,
        tunnel,
        refused_status,
        None if first_byte_ns is None else first_byte_ns - t0_ns,
        None if tunnel else waits,
    )


class StreamRecorder:
    """Records one exchange. All times passed in are CLOCK_MONOTONIC in ns."""

    __slots__ = (
        "_body",
        "_body_truncated",
        "_buffer",
        "_capture",
        "_connected_ns",
        "_dropped_bytes",
        "_end",
        "_epoch",
        "_event_stream",
        "_factory",
        "_frame_bytes",
        "_frames",
        "_held_bytes",
        "_new_bytes",
        "_remaining_bytes",
        "_request",
        "_request_sent_ns",
        "_responded_ns",
        "_response",
        "_seq",
        "_t0_ns",
        "_uncaptured_bytes",
        "_wall_ns",
        "first_byte_ns",
        "last_output_ns",
        "refused_status",
        "stream",
        "waiting",
    )

    def __init__(
        self,
        factory: RecorderFactory,
        head: RequestHead,
        route: Route,
        trace: TraceContext,
        client_start_ns: int,
        t0_ns: int,
        wall_ns: int,
    ) -> None:
        buffer = self._buffer = factory.buffer
        self._factory = factory
        self.stream = ""
        self._seq = 0
        self._frames: list[tuple[int, bytes]] = []
        self._frame_bytes = 0
        self._uncaptured_bytes = 0
        self._held_bytes = self._new_bytes = 0
        """Bytes appended in this and the previous epoch of the buffer, and in this one: at least what the log still has to take."""
        self._epoch = 0
        self._dropped_bytes = -1
        """≥ 0 while a run of frames is being dropped. No frames wait then."""
        self._request: tuple[RequestHead, Route, TraceContext, int] | None = None
        """The content of `Opened`, until it is written."""
        self._t0_ns = t0_ns
        self._wall_ns = wall_ns
        self._capture: capture.RequestCapture | None = None
        if head.body is not NO_BODY:
            self._capture = capture.RequestCapture(head, factory.options.request_capture_bytes)
        self._body: bytes | None = None
        self._response: ResponseHead | None = None
        """The head of the response, until it is written with the first `Frames`."""
        self._remaining_bytes = 0
        """Bytes of the response's body that may still be captured."""
        self._event_stream = False
        self._connected_ns: int | None = None
        self._request_sent_ns: int | None = None
        self._end: End | None = None
        self.refused_status: int | None = None
        """Status of the tap's error response, if it refused the request."""
        self.first_byte_ns: int | None = None
        """Arrival of the first byte that is counted but not captured."""
        self.last_output_ns = 0
        """Time of the last read that held more than heartbeats."""
        self.waiting = True
        """The buffer is going to flush this recorder."""
        # With the margin: `Opened` is small and gives all later records their meaning. A stream without it could not
        # even say that it lost something.
        if buffer.reserve(head.size_bytes + RECORD_OVERHEAD_BYTES, margin=True):
            self._request = (head, route, trace, client_start_ns)
        else:
            self.stream = uuid7(wall_ns)
            self._lose_next()

    # --- the request

    def connected(self, now_ns: int) -> None:
        """The connection to the upstream is open."""
        if self._connected_ns is None:
            self._connected_ns = now_ns - self._t0_ns

    def request_data(self, payload: bytes) -> None:
        """Part of the request's body."""
        captured = self._capture
        if captured is not None:
            size_before = captured.size_bytes
            captured.feed(payload)
            buffer, added_bytes = self._buffer, captured.size_bytes - size_before
            # `reserve`, inlined: the size of the capture is what `abandon` releases.
            buffer.added_bytes += added_bytes
            if added_bytes and buffer.added_bytes - buffer.sink.done_bytes > buffer.limit_bytes:
                self._capture = None
                buffer.added_bytes -= captured.size_bytes
                self._lose_next()
            elif captured.full:
                self.record_request(False)

    def request_sent(self, now_ns: int) -> None:
        """The request's last byte was written to the upstream."""
        if self._request_sent_ns is None:
            self._request_sent_ns = now_ns - self._t0_ns

    def record_request(self, over: bool) -> None:
        """Record the captured part of the request's body, once. `over`: the body has ended."""
        captured = self._capture
        if captured is not None:
            body = captured.take(over=over)
            if body is not None:
                self._capture = None
                self._body, self._body_truncated = body, captured.truncated
                self._wait()

    # --- the response

    def response_head(self, head: ResponseHead, now_ns: int) -> None:
        """The final (not 1xx) head of the response."""
        self._remaining_bytes, self._event_stream = capture.response_limit(
            head.content_type, is_error=head.status >= 400
        )
        self._responded_ns = self.last_output_ns = now_ns
        if self._buffer.reserve(head.size_bytes, margin=True):
            self._response = head
            self._wait()
        else:
            self._lose_next()

    def response_data(self, payload: bytes, now_ns: int) -> None:
        """One read of the response's body."""
        remaining_bytes = self._remaining_bytes
        # Event streams have no limit: they skip the subtraction and its result, a new int per read.
        if remaining_bytes == _UNLIMITED:
            self._frame(now_ns - self._t0_ns, payload)
        elif (size := len(payload)) <= remaining_bytes:
            self._frame(now_ns - self._t0_ns, payload)
            self._remaining_bytes = remaining_bytes - size
        else:
            if remaining_bytes:
                self._frame(now_ns - self._t0_ns, payload[:remaining_bytes])
                self._remaining_bytes = 0
            if self.first_byte_ns is None:
                self.first_byte_ns = now_ns
            self._uncaptured_bytes += size - remaining_bytes
            self._wait()
        # Cheap tests first. Hardly any read of a stream starts with a colon, so the search for line starts in
        # `is_heartbeat` runs only for candidates. The time decides whether a stream is idle, see `timeouts`.
        if not self._event_stream or payload[0] != _COLON or not capture.is_heartbeat(payload):
            self.last_output_ns = now_ns

    def _frame(self, at_ns: int, body: bytes) -> None:
        """One captured read. The hot path: `RecordBuffer.reserve` is inlined."""
        buffer = self._buffer
        size = len(body)
        # The rule of `RecordBuffer`, written as one comparison: held <= free / 2 is used + 2 * held <= limit.
        # `_held_bytes` may be of an old epoch, which can only refuse. So the epoch is looked up only when the frame
        # would be dropped.
        used_bytes = buffer.added_bytes + size - buffer.sink.done_bytes
        if used_bytes + 2 * self._held_bytes > buffer.limit_bytes:
            self._hold(0)
            if used_bytes + 2 * self._held_bytes > buffer.limit_bytes:
                self._drop(size)
                return
        if self._dropped_bytes >= 0:
            self._end_dropped_run()
        self._frames.append((at_ns, body))
        # `reserve` without its check, which the first lines have made.
        buffer.added_bytes += size + FRAME_OVERHEAD_BYTES
        size += self._frame_bytes
        self._frame_bytes = size
        if size >= FLUSH_BYTES:
            self._write_waiting()
        elif not self.waiting:
            self._wait()

    def _hold(self, size_bytes: int) -> None:
        """Count bytes that this stream has added to the log's queue."""
        epoch = self._buffer.epoch()
        if epoch != self._epoch:
            self._held_bytes = self._new_bytes if epoch == self._epoch + 1 else 0
            self._epoch, self._new_bytes = epoch, 0
        self._new_bytes += size_bytes
        self._held_bytes += size_bytes

    def _drop(self, size_bytes: int) -> None:
        """There is no room for this frame: add it to the run of dropped frames."""
        if self._dropped_bytes < 0:
            # Frames before the gap get their number now. A `Frames` record with frames of both sides would place the
            # gap nowhere.
            self._write_waiting()
            self._dropped_bytes = 0
        self._dropped_bytes += size_bytes

    def _end_dropped_run(self) -> None:
        """Give the run of dropped frames its number and report it."""
        if self._dropped_bytes >= 0:
            self._lose(self._dropped_bytes)
            self._dropped_bytes = -1
            self._buffer.report(self.stream)

    # --- bodies that the relay forwards

    def state_for_relay(self) -> RelayedRecords | None:
        """Write all records that can be made now. Returns what the relay needs to make the next ones; None: losses must be
        reported first."""
        self._write_waiting()
        self._end_dropped_run()
        # The relay numbers its records itself. Until the loss has its number in the log, the relay's records would come
        # before it.
        if self.stream in self._buffer.unreported:
            return None
        return RelayedRecords(
            frames_prefix(self.stream), self._seq, self._t0_ns, self._remaining_bytes, self._event_stream, self.last_output_ns
        )  # fmt: skip

    def relay_lost_frames(self, seq: int, size_bytes: int) -> None:
        """The relay dropped a run of frames, which takes this number."""
        self._seq = seq
        self._lose(size_bytes)
        self._buffer.report(self.stream)

    def relay_ended(self, end: RelayedEnd) -> None:
        """The relay makes no more records of this stream."""
        self._seq = end.seq
        self._remaining_bytes = end.capture_bytes
        self._dropped_bytes = end.dropped_bytes
        self.last_output_ns = end.last_output_ns
        if end.first_uncaptured_ns:
            self.first_byte_ns = self.first_byte_ns or end.first_uncaptured_ns
        self._uncaptured_bytes += end.uncaptured_bytes

    # --- the end

    def ended(
        self,
        cause: Cause,
        detail: str | None,
        now_ns: int,
        request_bytes: int,
        response_bytes: int,
        reused: bool,
        tunnel: bool,
        waits: list[Wait],
    ) -> None:
        """The exchange is over. `end` follows."""
        self._end = (cause, detail, now_ns, request_bytes, response_bytes, reused, tunnel, waits)

    # --- the records

    def flush(self) -> None:
        """Write all records that can be made now. Called by the buffer."""
        self.waiting = False
        self._write_waiting()

    def end(self, drained_ns: int | None, client_left_ns: int | None, undelivered_bytes: int) -> None:
        """Write the remaining records, `Closed` last.

        Either the client's socket has accepted everything (`drained_ns`; None: this was not observed), or the client disconnected
        before that.
        """
        self._write_waiting()
        self._end_dropped_run()
        assert self._end is not None
        closed = closed_record(
            self.stream, self._seq, self._t0_ns, self._connected_ns, self._request_sent_ns, self._end, self.refused_status,
            self.first_byte_ns, drained_ns, client_left_ns, undelivered_bytes,
        )  # fmt: skip
        counters = self._buffer.counters
        counters.streams_closed += 1
        counters.closed_by_cause[closed.cause] += 1
        self._write(closed, RECORD_OVERHEAD_BYTES + WAIT_BYTES * len(self._end[7]))

    def abandon(self) -> None:
        """After an exception: write what is known and report the rest as lost. Later uses raise `Abandoned`."""
        buffer = self._buffer
        # Written first, because these records are complete and only what follows is unknown.
        with contextlib.suppress(Exception):  # this may be what has failed
            self._write_waiting()
        # From here on every use of the recorder raises `Abandoned`, which its callers expect: no call can write after
        # the last `Lost`.
        self._buffer = ABANDONED
        buffer.added_bytes -= self._reserved_bytes()  # `release`, inlined
        lost_bytes = self._frame_bytes + max(0, self._dropped_bytes)
        self._request = self._capture = self._body = self._response = None
        self._frames, self._frame_bytes = [], 0
        # The failure may have come before `Opened`. The stream gets its id nevertheless, so that the loss is a row of
        # its own.
        stream = self.stream or uuid7(self._wall_ns)
        try:
            buffer.lose(Lost(stream, self._seq, self._seq, CAUSE, time.time_ns(), lost_bytes, True))
        except Exception:
            buffer.counters.lost_untold += 1

    def _reserved_bytes(self) -> int:
        """Bytes reserved for what is not written yet."""
        size_bytes = self._frame_bytes + FRAME_OVERHEAD_BYTES * len(self._frames)
        if self._request is not None:
            size_bytes += self._request[0].size_bytes + RECORD_OVERHEAD_BYTES
        if self._response is not None:
            size_bytes += self._response.size_bytes
        if self._capture is not None:
            size_bytes += self._capture.size_bytes
        return size_bytes + len(self._body or b"")

    def _wait(self) -> None:
        if not self.waiting:
            self.waiting = True
            self._buffer.flush_later(self)

    def _write_waiting(self) -> None:
        """Write all waiting data as records, in the order of the protocol."""
        if self._request is not None:
            self._write_opened()
        body = self._body
        if body is not None:
            request = Request(self.stream, self._seq, body, self._body_truncated)
            self._body = None
            self._buffer.added_bytes -= len(body)  # `release`, inlined
            self._write(request, RECORD_OVERHEAD_BYTES + len(body))
        if self._frames or self._response is not None or self._uncaptured_bytes:
            self._write_frames()

    def _write_opened(self) -> None:
        assert self._request is not None
        head, route, trace, client_start_ns = self._request
        wall_ns = self._wall_ns
        # Here and not at the start of the exchange: requests that end within a batch need no `StreamRecorder`, and ids
        # cost a call.
        stream = self.stream = uuid7(wall_ns)
        opened = opened_record(
            self._factory, stream, head, route, trace, client_start_ns, self._t0_ns, wall_ns
        )
        size_bytes = head.size_bytes + RECORD_OVERHEAD_BYTES
        # Room and content are given up before the step that can fail: `abandon` would otherwise release the room a
        # second time.
        self._request = None
        self._buffer.added_bytes -= size_bytes  # `release`, inlined
        self._write(opened, size_bytes)

    def _write_frames(self) -> None:
        frames, size_bytes, response = self._frames, self._frame_bytes, self._response
        reserved_bytes = size_bytes + FRAME_OVERHEAD_BYTES * len(frames)
        buffer = self._buffer
        counters = buffer.counters
        # Most records of a stream have neither. They skip the two optional fields.
        if response is not None or self._uncaptured_bytes:
            headers = None
            if response is not None:
                reserved_bytes += response.size_bytes
                recorded = [field.recorded for field in response.fields if field.recorded is not None]
                headers = ResponseHeaders(response.status, recorded, self._responded_ns - self._t0_ns)
                self._response = None
            uncaptured_bytes, self._uncaptured_bytes = self._uncaptured_bytes, 0
            counters.uncaptured_bytes += uncaptured_bytes
            record = Frames(self.stream, self._seq, frames, headers, uncaptured_bytes)
        else:
            record = Frames(self.stream, self._seq, frames)
        self._frames, self._frame_bytes = [], 0
        buffer.added_bytes -= reserved_bytes  # `release`, inlined
        reserved_bytes += RECORD_OVERHEAD_BYTES
        # A stream's `Lost` comes before its next record, since numbers must reach the log in order. `append`, not
        # `add`: the frames have reserved their room, and to drop them now would count their bytes twice.
        if (not buffer.unreported or buffer.report(self.stream)) and buffer.append(record, reserved_bytes):
            self._seq += 1
            self._hold(reserved_bytes)
            counters.frames += len(frames)
            counters.captured_bytes += size_bytes
        else:
            self._lose(size_bytes)

    def _write(self, record: AnyRecord, size_bytes: int) -> None:
        """Write the next record."""
        buffer = self._buffer
        if (buffer.unreported and not buffer.report(self.stream)) or not buffer.add(record, size_bytes):
            self._lose(0, last=isinstance(record, Closed))
        else:
            self._seq += 1

    def _lose_next(self) -> None:
        """Report the next part of the exchange as lost, for lack of room. Data that waits is written before it."""
        self._write_waiting()
        self._lose(0)

    def _lose(self, size_bytes: int, *, last: bool = False) -> None:
        """Give the next number to lost data."""
        buffer, seq = self._buffer, self._seq
        buffer.lose(Lost(self.stream, seq, seq, buffer.loss_cause(), time.time_ns(), size_bytes, last))
        self._seq = seq + 1

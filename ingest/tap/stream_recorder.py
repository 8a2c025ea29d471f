"""What is recorded of one exchange: from what the two connections saw to the records of its stream.

The rules: it is told of everything after the bytes have gone on, and in order. The exchange knows nothing of records, a
recorder nothing of sockets. What it is told it only notes, and asks the buffer for room for heads and bodies as it does;
the records are made when the buffer flushes the stream, and those of a short exchange all together. `ended` says how the
exchange ended; the last record comes once the client's socket has drained or it is known that it never will.
"""

from __future__ import annotations

import time

from ingest.ids import uuid7
from ingest.records import Cause, Closed, Opened, ResponseHeaders
from ingest.tap import body_capture as capture
from ingest.tap import header_allow_list as allow_list
from ingest.tap.client_identity import client_id
from ingest.tap.http_head import Body, RequestHead, ResponseHead
from ingest.tap.options import TapOptions
from ingest.tap.record_buffer import RECORD_OVERHEAD_BYTES, RecordBuffer, StreamRecords
from ingest.tap.routing import Route
from ingest.tap.trace_context import TraceContext


class StreamRecorder(StreamRecords):
    """The recorder of one exchange. Times given are monotonic, in ns."""

    __slots__ = (
        "_asked",
        "_body",
        "_body_truncated",
        "_captured",
        "_cause",
        "_connected_ns",
        "_detail",
        "_drained_ns",
        "_end_ns",
        "_event_stream",
        "_factory",
        "_left",
        "_left_ns",
        "_request_bytes",
        "_request_sent_ns",
        "_responded_ns",
        "_response",
        "_response_bytes",
        "_reused",
        "_t0_ns",
        "_tunnel",
        "_undelivered_bytes",
        "last_output_ns",
    )

    def __init__(
        self,
        factory: RecorderFactory,
        head: RequestHead,
        route: Route,
        trace: TraceContext,
        client_start_ns: int,
        t0_ns: int,
    ) -> None:
        buffer = factory.buffer
        StreamRecords.__init__(self, buffer, "")
        self._factory = factory
        self._asked: tuple[RequestHead, Route, TraceContext, int, int] | None = None
        """What `Opened` says, until it is written."""
        self._t0_ns = t0_ns
        self._captured: capture.RequestCapture | None = None
        if head.body is not _NO_BODY:
            self._captured = capture.RequestCapture(head, factory.options.request_capture_bytes)
        self._body: bytes | None = None
        self._response: ResponseHead | None = None
        self._left = 0
        self._event_stream = False
        self._connected_ns: int | None = None
        self._request_sent_ns: int | None = None
        self._drained_ns: int | None = None
        self._left_ns: int | None = None
        self._undelivered_bytes = 0
        self.last_output_ns = 0
        """When the last read came that was more than heartbeats."""
        self.waiting = True
        buffer.wait_to_flush(self)
        wall_ns = time.time_ns()
        if buffer.note_head(head.size_bytes + RECORD_OVERHEAD_BYTES):
            self._asked = (head, route, trace, client_start_ns, wall_ns)
        else:
            self.stream = uuid7(wall_ns)
            self.lose_noted()

    # --- the request

    def sent_at_once(self, now_ns: int) -> None:
        """A connection was there, and the whole request, which has no body, has gone upstream."""
        if self._connected_ns is None:
            self._connected_ns = now_ns - self._t0_ns
            self._request_sent_ns = self._connected_ns

    def connected(self, now_ns: int) -> None:
        """A connection to the upstream is there."""
        if self._connected_ns is None:
            self._connected_ns = now_ns - self._t0_ns

    def request_data(self, payload: bytes) -> None:
        """A part of the request's body."""
        captured = self._captured
        if captured is not None:
            kept_before = captured.size_bytes
            captured.feed(payload)
            noted = captured.size_bytes - kept_before
            if noted and not self._buffer.note(noted):
                self._captured = None
                self._buffer.added_bytes -= kept_before
                self.lose_noted()
            elif captured.full:
                self.record_request(over=False)

    def request_sent(self, now_ns: int) -> None:
        """The request's last byte has gone upstream."""
        if self._request_sent_ns is None:
            self._request_sent_ns = now_ns - self._t0_ns

    def record_request(self, *, over: bool) -> None:
        """Record what there is of the request's body, once. `over`: there will be no more."""
        captured = self._captured
        if captured is not None:
            body = captured.take(over=over)
            if body is not None:
                self._captured = None
                self._body, self._body_truncated = body, captured.truncated
                if not self.waiting:
                    self._wait()

    # --- the response

    def response_head(self, head: ResponseHead, now_ns: int) -> None:
        """The final head of the response."""
        self._left, self._event_stream = capture.response_limit(
            head.content_type, is_error=head.status >= 400
        )
        self._responded_ns = self.last_output_ns = now_ns
        if self.note_response(head.size_bytes):
            self._response = head

    def response_data(self, payload: bytes, now_ns: int) -> None:
        """One read's part of the response's body."""
        left = self._left
        if left == _EVER:
            self.frame(now_ns - self._t0_ns, payload)
        elif (size := len(payload)) <= left:
            self.frame(now_ns - self._t0_ns, payload)
            self._left = left - size
        else:
            if left:
                self.frame(now_ns - self._t0_ns, payload[:left])
                self._left = 0
            self.uncaptured(size - left)
        if not self._event_stream or payload[0] != _COLON or not capture.is_heartbeat(payload):
            self.last_output_ns = now_ns

    # --- the end

    def ended(
        self,
        cause: Cause,
        detail: str | None,
        now_ns: int,
        request_bytes: int,
        response_bytes: int,
        *,
        reused: bool,
        tunnel: bool,
    ) -> None:
        """The exchange is over."""
        self._cause, self._detail, self._end_ns = cause, detail, now_ns
        self._request_bytes, self._response_bytes = request_bytes, response_bytes
        self._reused, self._tunnel = reused, tunnel

    def drained(self, now_ns: int | None) -> None:
        """The client's socket has taken everything; None: that will not be known."""
        self._drained_ns = now_ns
        self._buffer.wait_to_end(self)

    def left(self, now_ns: int, undelivered_bytes: int) -> None:
        """The client has left before its socket had taken everything."""
        self._left_ns, self._undelivered_bytes = now_ns, undelivered_bytes
        self._buffer.wait_to_end(self)

    # --- the records

    def _write_waiting(self) -> None:
        """All that there is to tell by now, in the order of the protocol."""
        if self._asked is not None:
            self._open()
        if self._body is not None:
            body, self._body = self._body, None
            self.request(body, truncated=self._body_truncated)
        response = self._response
        if response is not None:
            self._response = None
            recorded = [field[4] for field in response.fields if field[4] is not None]
            self._head = ResponseHeaders(response.status, recorded, self._responded_ns - self._t0_ns)
        StreamRecords._write_waiting(self)

    def _open(self) -> None:
        assert self._asked is not None
        (head, route, trace, client_start_ns, wall_ns), self._asked = self._asked, None
        factory = self._factory
        options, upstream, t0_ns = factory.options, route.upstream, self._t0_ns
        stream = self.stream = uuid7(wall_ns)
        path = allow_list.recorded_path(route.target)
        recorded = [field[4] for field in head.fields if field[4] is not None]
        trace_id, span_id, parent_span_id, flags = trace
        opened = Opened(
            stream,
            0,
            options.tap_name,
            options.worker,
            factory.incarnation,
            upstream.name,
            upstream.host,
            upstream.port,
            head.method,
            path,
            wall_ns,
            t0_ns,
            min(0, client_start_ns - t0_ns),
            trace_id,
            span_id,
            parent_span_id,
            flags,
            client_id(head.known, factory.client_key),
            recorded,
            capture.asked_for(head),
        )
        self.open(opened, head.size_bytes + RECORD_OVERHEAD_BYTES)

    def end(self) -> None:
        """Write what is left to tell: `Closed` is the last of it."""
        seq, t0_ns, end_ns = self.end_frames(), self._t0_ns, self._end_ns
        drained_ns, left_ns = self._drained_ns, self._left_ns
        self.close(
            Closed(
                self.stream,
                seq,
                self._cause,
                self._detail,
                end_ns - t0_ns,
                self._connected_ns,
                self._request_sent_ns,
                self._request_bytes,
                self._response_bytes,
                max(0, self._response_bytes - self._undelivered_bytes),
                None if drained_ns is None else max(end_ns, drained_ns) - t0_ns,
                None if left_ns is None else max(end_ns, left_ns) - t0_ns,
                self._reused,
                self._tunnel,
            )
        )


_COLON = ord(":")
_EVER = capture.EVER
_NO_BODY = Body.NONE


class RecorderFactory:
    """What the recorders of one worker have in common."""

    def __init__(
        self, buffer: RecordBuffer, options: TapOptions, *, incarnation: str, client_key: bytes
    ) -> None:
        self.buffer = buffer
        self.options = options
        self.incarnation = incarnation
        self.client_key = client_key

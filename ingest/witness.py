"""What is recorded of one exchange: from what the two connections saw to the records of its stream.

The rules: it is told of everything after the bytes have gone on, and in order. The exchange knows nothing of records, a
witness nothing of sockets. `ended` says how the exchange ended; `close` writes the last record, once the client's socket
has drained or it is known that it never will.
"""

from __future__ import annotations

import time

from ingest import allow_list, capture
from ingest.http_head import Body, RequestHead, ResponseHead
from ingest.identity import uuid7
from ingest.mirror import Mirror, StreamMirror
from ingest.records import Cause, Closed, Opened
from ingest.records import ResponseHead as MirroredHead
from ingest.routing import Route
from ingest.tap_options import TapOptions
from ingest.trace_context import TraceContext


class Witness(StreamMirror):
    """The witness of one exchange. Times given are monotonic, in ns."""

    __slots__ = (
        "_captured",
        "_cause",
        "_connected_ns",
        "_detail",
        "_end_ns",
        "_event_stream",
        "_left",
        "_request_bytes",
        "_request_sent_ns",
        "_response_bytes",
        "_reused",
        "_t0_ns",
        "_tunnel",
        "last_output_ns",
    )

    def __init__(
        self, mirror: Mirror, stream: str, t0_ns: int, captured: capture.RequestCapture | None
    ) -> None:
        StreamMirror.__init__(self, mirror, stream)
        self._t0_ns = t0_ns
        self._captured = captured
        self._left = 0
        self._event_stream = False
        self._connected_ns: int | None = None
        self._request_sent_ns: int | None = None
        self.last_output_ns = 0
        """When the last read came that was more than heartbeats."""

    # --- the request

    def connected(self, now_ns: int) -> None:
        """A connection to the upstream is there."""
        if self._connected_ns is None:
            self._connected_ns = now_ns - self._t0_ns

    def request_data(self, payload: bytes) -> None:
        """A part of the request's body."""
        captured = self._captured
        if captured is not None:
            captured.feed(payload)
            if captured.full:
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
                self.request(body, truncated=captured.truncated)

    # --- the response

    def response_head(self, head: ResponseHead, now_ns: int, *, last: bool) -> None:
        """The final head of the response. `last`: all the rest of the exchange is in the same read."""
        self._left, self._event_stream = capture.response_limit(
            head.content_type, is_error=head.status >= 400
        )
        recorded = [field[4] for field in head.fields if field[4] is not None]
        self._head = MirroredHead(head.status, recorded, now_ns - self._t0_ns)
        self.last_output_ns = now_ns
        if last:
            self._in_waiting = True  # nothing will wait: `ended` comes next and flushes it
        else:
            self._wait(now_ns)

    def response_data(self, payload: bytes, now_ns: int) -> None:
        """One read's part of the response's body."""
        left = self._left
        if left == _EVER:
            self.frame(now_ns - self._t0_ns, payload, now_ns)
        elif (size := len(payload)) <= left:
            self.frame(now_ns - self._t0_ns, payload, now_ns)
            self._left = left - size
        else:
            if left:
                self.frame(now_ns - self._t0_ns, payload[:left], now_ns)
                self._left = 0
            self.uncaptured(size - left, now_ns)
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
        if not tunnel:
            self._flush_frames()

    def drained(self, now_ns: int | None) -> None:
        """The client's socket has taken everything; None: that will not be known."""
        self._close(None if now_ns is None else max(self._end_ns, now_ns), None, 0)

    def left(self, now_ns: int, undelivered_bytes: int) -> None:
        """The client has left before its socket had taken everything."""
        self._close(None, max(self._end_ns, now_ns), undelivered_bytes)

    def _close(self, drained_ns: int | None, left_ns: int | None, undelivered_bytes: int) -> None:
        t0_ns = self._t0_ns
        self.close(
            Closed(
                self.stream,
                self.end_frames(),
                self._cause,
                self._detail,
                self._end_ns - t0_ns,
                self._connected_ns,
                self._request_sent_ns,
                self._request_bytes,
                self._response_bytes,
                max(0, self._response_bytes - undelivered_bytes),
                None if drained_ns is None else drained_ns - t0_ns,
                None if left_ns is None else left_ns - t0_ns,
                self._reused,
                self._tunnel,
            )
        )


_COLON = ord(":")
_EVER = capture.EVER


class Witnesses:
    """Makes the witnesses of one worker's exchanges."""

    def __init__(self, mirror: Mirror, options: TapOptions, *, incarnation: str, client_key: bytes) -> None:
        self._mirror = mirror
        self._options = options
        self._incarnation = incarnation
        self._client_key = client_key

    def call(
        self, head: RequestHead, route: Route, trace: TraceContext, client_start_ns: int, now_ns: int
    ) -> Witness:
        """The witness of an exchange that begins now."""
        options, upstream = self._options, route.upstream
        wall_ns = time.time_ns()
        stream = uuid7(wall_ns)
        known = head.known
        captured = (
            capture.RequestCapture(head, options.request_capture_bytes)
            if head.body is not Body.NONE
            else None
        )
        witness = Witness(self._mirror, stream, now_ns, captured)
        trace_id, span_id, parent_span_id, flags = trace
        witness.open(
            Opened(
                stream,
                0,
                options.tap_name,
                options.worker,
                self._incarnation,
                upstream.name,
                upstream.host,
                upstream.port,
                head.method,
                allow_list.path_of(route.target),
                wall_ns,
                now_ns,
                min(0, client_start_ns - now_ns),
                trace_id,
                span_id,
                parent_span_id,
                flags,
                allow_list.client_id(known, self._client_key),
                [field[4] for field in head.fields if field[4] is not None],
                capture.asked_for(head),
            )
        )
        return witness

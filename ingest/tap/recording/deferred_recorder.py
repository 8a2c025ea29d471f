"""Make the records of an exchange later, in one batch with those of other exchanges.

Making records between two reads delays the first bytes of other streams, because that code is not in the CPU's caches. A
`DeferredRecorder` therefore keeps the data of its exchange until the record buffer flushes it: within 45 ms after the exchange
ended, or after 40 to 80 ms. If the exchange has ended by then, its records are made without a `StreamRecorder`. It gets a
`StreamRecorder` if it is still open, or as soon as its bodies exceed `MAX_UNCOUNTED_BODY_BYTES`.
"""

from __future__ import annotations

import time
from typing import Protocol

from streamgauge.ingest.generated_ids import uuid7
from streamgauge.ingest.records import AnyRecord, Cause, Frames, Request, ResponseHeaders, Wait, encode
from streamgauge.ingest.tap.http.heads import NO_BODY, RequestHead, ResponseHead
from streamgauge.ingest.tap.http.receive_buffer import appended
from streamgauge.ingest.tap.http.routing import Route
from streamgauge.ingest.tap.http.trace_context import TraceContext
from streamgauge.ingest.tap.recording import body_capture as capture
from streamgauge.ingest.tap.recording.failures import ABANDONED
from streamgauge.ingest.tap.recording.record_buffer import RECORD_OVERHEAD_BYTES
from streamgauge.ingest.tap.recording.stream_recorder import (
    WAIT_BYTES,
    End,
    RecorderFactory,
    StreamRecorder,
    closed_record,
    opened_record,
)

MAX_UNCOUNTED_BODY_BYTES = 16_384
"""Limit of the body bytes kept per exchange. The record buffer does not count them."""


class Recorders(Protocol):
    """Makes the recorders of one worker's exchanges, in Python or native code (`native_recorder`)."""

    def new(
        self, head: RequestHead, route: Route, trace: TraceContext, client_start_ns: int, t0_ns: int
    ) -> DeferredRecorder:
        """The recorder of an exchange that starts."""

    def flush(self) -> None:
        """Give all records of ended exchanges to the record buffer."""


class DeferredRecorders:
    """`Recorders` in Python."""

    def __init__(self, factory: RecorderFactory) -> None:
        self._factory = factory

    def new(
        self, head: RequestHead, route: Route, trace: TraceContext, client_start_ns: int, t0_ns: int
    ) -> DeferredRecorder:
        return DeferredRecorder(self._factory, head, route, trace, client_start_ns, t0_ns)

    def flush(self) -> None:
        """Does nothing: the records are already in the record buffer."""


class DeferredRecorder:
    """Has the methods of `StreamRecorder` that a short exchange uses; `recorder` has the others."""

    __slots__ = (
        "_body", "_buffer", "_client_left_ns", "_client_start_ns", "_connected_ns", "_drained_ns", "_end", "_factory", "_frames", "_head",
        "_kept_bytes", "_recorder", "_request_over", "_request_sent_ns", "_responded_ns", "_response", "_route", "_t0_ns", "_trace",
        "_undelivered_bytes", "_wall_ns", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        factory: RecorderFactory,
        head: RequestHead,
        route: Route,
        trace: TraceContext,
        client_start_ns: int,
        t0_ns: int,
    ) -> None:
        buffer = self._buffer = factory.buffer
        self._factory = factory
        self._head = head
        self._route = route
        self._trace = trace
        self._client_start_ns = client_start_ns
        self._t0_ns = t0_ns
        # The id of the stream is made from this time and not before its records: most of a UUID's cost then falls into
        # the batch.
        self._wall_ns = time.time_ns()
        self._connected_ns: int | None = None
        self._request_sent_ns: int | None = None
        self._body: bytes | bytearray = b""
        self._request_over: bool | None = None
        self._response: ResponseHead | None = None
        self._responded_ns = 0
        self._frames: list[tuple[int, bytes]] = []
        self._kept_bytes = 0
        self._end: End | None = None
        self._drained_ns: int | None = None
        self._client_left_ns: int | None = None
        self._undelivered_bytes = 0
        self._recorder: StreamRecorder | None = None
        self.waiting = True
        # Also an exchange that never ends must be visible within 80 ms: `Opened` makes a stream appear as in flight.
        buffer.flush_later(self)
        buffer.counters.streams_opened += 1  # last: a stream without a recorder is counted elsewhere

    @property
    def recorder(self) -> StreamRecorder:
        """The recorder, with all that was kept."""
        # Everything kept is replayed through the usual methods. So there is one statement of what is recorded and when
        # room is missing, and this class only decides when it runs.
        recorder = self._recorder
        if recorder is None:
            recorder = self._recorder = StreamRecorder(
                self._factory,
                self._head,
                self._route,
                self._trace,
                self._client_start_ns,
                self._t0_ns,
                self._wall_ns,
            )
            replay(
                recorder, self._connected_ns, self._request_sent_ns, bytes(self._body), self._request_over, self._response,
                self._responded_ns, self._frames, self._end,
            )  # fmt: skip
            self._body, self._frames, self._response = b"", [], None
        return recorder

    # --- the request

    def connected(self, now_ns: int) -> None:
        if self._recorder is not None:
            self._recorder.connected(now_ns)
        elif self._connected_ns is None:
            self._connected_ns = now_ns

    def request_data(self, payload: bytes) -> None:
        if self._recorder is None and self._keep(len(payload)):
            if self._request_over is None:
                self._body = appended(self._body, payload)
        else:
            self.recorder.request_data(payload)

    def request_sent(self, now_ns: int) -> None:
        if self._recorder is not None:
            self._recorder.request_sent(now_ns)
        elif self._request_sent_ns is None:
            self._request_sent_ns = now_ns

    def record_request(self, over: bool) -> None:
        if self._recorder is not None:
            self._recorder.record_request(over)
        elif self._request_over is None:
            self._request_over = over

    # --- the response

    def response_head(self, head: ResponseHead, now_ns: int) -> None:
        if self._recorder is not None:
            self._recorder.response_head(head, now_ns)
        else:
            self._response, self._responded_ns = head, now_ns

    def response_data(self, payload: bytes, now_ns: int) -> None:
        if self._recorder is not None:
            self._recorder.response_data(payload, now_ns)
        elif self._keep(len(payload)):
            self._frames.append((now_ns, payload))
        else:
            self.recorder.response_data(payload, now_ns)

    # --- the end

    def ended(
        self, cause: Cause, detail: str | None, now_ns: int, request_bytes: int, response_bytes: int, reused: bool, tunnel: bool,
        waits: list[Wait],
    ) -> None:  # fmt: skip
        if self._recorder is not None:
            self._recorder.ended(cause, detail, now_ns, request_bytes, response_bytes, reused, tunnel, waits)
        else:
            self._end = (cause, detail, now_ns, request_bytes, response_bytes, reused, tunnel, waits)

    def drained(self, now_ns: int | None) -> None:
        """The client's socket has accepted everything. None: this was not observed. The last call."""
        self._drained_ns = now_ns
        self._buffer.end_later(self)

    def client_left(self, now_ns: int, undelivered_bytes: int) -> None:
        """The client disconnected before its socket had accepted everything. The last call."""
        self._client_left_ns, self._undelivered_bytes = now_ns, undelivered_bytes
        self._buffer.end_later(self)

    # --- the records

    def flush(self) -> None:
        """Write all records that can be made now. Called by the buffer."""
        self.waiting = False
        self.recorder.flush()

    def end(self) -> None:
        """Write the remaining records. Called by the buffer."""
        if self._recorder is not None or not self._write_all():
            self.recorder.end(self._drained_ns, self._client_left_ns, self._undelivered_bytes)

    def abandon(self) -> None:
        """As `StreamRecorder.abandon`. Raises if there is no recorder and none can be made: then nothing was written."""
        try:
            recorder = self.recorder
        except Exception:
            if self._recorder is None:
                self._recorder = ABANDONED
                raise
            recorder = self._recorder
        recorder.abandon()

    def _keep(self, size_bytes: int) -> bool:
        """Whether so many more bytes of bodies may be kept."""
        self._kept_bytes += size_bytes
        return self._kept_bytes <= MAX_UNCOUNTED_BODY_BYTES

    def _write_all(self) -> bool:
        """Write all records of the exchange. False: a `StreamRecorder` must do it, for lack of room or because not all is captured."""
        buffer, head, response, t0_ns, end = self._buffer, self._head, self._response, self._t0_ns, self._end
        assert end is not None
        # An upper bound, checked once for all four records. Below it nothing can be lost half-way, so this path needs
        # no `Lost`.
        size_bytes = 4 * RECORD_OVERHEAD_BYTES + head.size_bytes + self._kept_bytes + WAIT_BYTES * len(end[7])
        if response is not None:
            size_bytes += response.size_bytes
            # A part of the body must be cut by rule. `StreamRecorder` counts it; this path has no place for uncaptured
            # bytes.
            if capture.response_limit(response.content_type, response.status >= 400)[0] < self._kept_bytes:
                return False
        # Losses of other streams are reported first, in their order. And without room the rules for dropping apply.
        if buffer.unreported or not buffer.has_room(size_bytes):
            return False
        stream = uuid7(self._wall_ns)
        records: list[AnyRecord] = [
            opened_record(
                self._factory, stream, head, self._route, self._trace, self._client_start_ns, t0_ns, self._wall_ns
            )
        ]  # fmt: skip
        if self._body and head.body is not NO_BODY:
            captured = capture.RequestCapture(head, self._factory.options.request_capture_bytes)
            # `_body` may be a bytearray that grew in place. The capture keeps what it is fed, so it gets a copy.
            captured.feed(bytes(self._body))
            body = captured.take(over=bool(self._request_over))
            if body is not None:
                records.append(Request(stream, 1, body, captured.truncated))
        if response is not None:
            recorded = [field.recorded for field in response.fields if field.recorded is not None]
            headers = ResponseHeaders(response.status, recorded, self._responded_ns - t0_ns)
            frames = [(at_ns - t0_ns, payload) for at_ns, payload in self._frames]
            records.append(Frames(stream, len(records), frames, headers))
        records.append(
            closed_record(
                stream, len(records), t0_ns, _since(self._connected_ns, t0_ns), _since(self._request_sent_ns, t0_ns), end, None, None,
                self._drained_ns, self._client_left_ns, self._undelivered_bytes,
            )
        )  # fmt: skip
        captured_bytes = sum(len(payload) for _, payload in self._frames)
        buffer.append_exchanges(list(map(encode, records)), len(self._frames), captured_bytes, {end[0]: 1})
        return True


def replay(
    recorder: StreamRecorder,
    connected_ns: int | None,
    request_sent_ns: int | None,
    body: bytes,
    request_over: bool | None,
    response: ResponseHead | None,
    responded_ns: int,
    frames: list[tuple[int, bytes]],
    end: End | None,
) -> None:
    """Pass everything that a `DeferredRecorder` has kept. All times are monotonic."""
    if connected_ns is not None:
        recorder.connected(connected_ns)
    if request_sent_ns is not None:
        recorder.request_sent(request_sent_ns)
    if body:
        recorder.request_data(body)
    if request_over is not None:
        recorder.record_request(request_over)
    if response is not None:
        recorder.response_head(response, responded_ns)
    for now_ns, payload in frames:
        recorder.response_data(payload, now_ns)
    if end is not None:
        recorder.ended(*end)


def _since(at_ns: int | None, t0_ns: int) -> int | None:
    return None if at_ns is None else at_ns - t0_ns

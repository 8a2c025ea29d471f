"""Make the records of an exchange later, in a batch with those of others.

Between two reads, code that makes records is not in the CPU's caches and takes several times as long as in a batch. So the calls of
an exchange are kept and repeated on its `StreamRecorder` when the record buffer asks for records: after 40 to 80 ms, or soon
after a shorter exchange has ended. An exchange calls its `StreamRecorder` directly from then on, and from the first large read on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ingest.records import Cause, Wait
from ingest.tap.http_head import RequestHead, ResponseHead
from ingest.tap.routing import Route
from ingest.tap.stream_recorder import RecorderFactory, StreamRecorder
from ingest.tap.trace_context import TraceContext

_MAX_BYTES, _MAX_CALLS = 16_384, 16
"""Larger and further reads are not kept here, because the record buffer does not count them."""


class DeferredRecorder:
    """Has the methods of `StreamRecorder` that a short exchange uses; `recorder` has the others."""

    __slots__ = (
        "_arguments", "_buffer", "_calls", "_client_left_ns", "_drained_ns", "_recorder", "_undelivered_bytes", "waiting",
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
        buffer.counters.streams_opened += 1
        self._arguments = (factory, head, route, trace, client_start_ns, t0_ns, time.time_ns())
        self._calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._recorder: StreamRecorder | None = None
        self._drained_ns: int | None = None
        self._client_left_ns: int | None = None
        self._undelivered_bytes = 0
        self.waiting = True
        buffer.flush_later(self)

    @property
    def recorder(self) -> StreamRecorder:
        """The recorder, with all that was deferred."""
        recorder = self._recorder
        if recorder is None:
            recorder = self._recorder = StreamRecorder(*self._arguments)
            for method, arguments in self._calls:
                method(recorder, *arguments)
            self._calls = []
        return recorder

    def sent_at_once(self, now_ns: int) -> None:
        self._call(StreamRecorder.sent_at_once, (now_ns,))

    def connected(self, now_ns: int) -> None:
        self._call(StreamRecorder.connected, (now_ns,))

    def request_data(self, payload: bytes) -> None:
        if len(payload) > _MAX_BYTES or len(self._calls) >= _MAX_CALLS or self._recorder is not None:
            self.recorder.request_data(payload)
        else:
            self._calls.append((StreamRecorder.request_data, (payload,)))

    def request_sent(self, now_ns: int) -> None:
        self._call(StreamRecorder.request_sent, (now_ns,))

    def record_request(self, over: bool) -> None:
        self._call(StreamRecorder.record_request, (over,))

    def response_head(self, head: ResponseHead, now_ns: int) -> None:
        self._call(StreamRecorder.response_head, (head, now_ns))

    def response_data(self, payload: bytes, now_ns: int) -> None:
        recorder = self._recorder
        if recorder is not None:
            recorder.response_data(payload, now_ns)
        elif len(payload) > _MAX_BYTES or len(self._calls) >= _MAX_CALLS:
            self.recorder.response_data(payload, now_ns)
        else:
            self._calls.append((StreamRecorder.response_data, (payload, now_ns)))

    def ended(
        self, cause: Cause, detail: str | None, now_ns: int, request_bytes: int, response_bytes: int, reused: bool, tunnel: bool,
        waits: list[Wait],
    ) -> None:  # fmt: skip
        self._call(
            StreamRecorder.ended,
            (cause, detail, now_ns, request_bytes, response_bytes, reused, tunnel, waits),
        )

    def drained(self, now_ns: int | None) -> None:
        """As `StreamRecorder.drained`. The last call."""
        self._drained_ns = now_ns
        self._buffer.end_later(self)

    def client_left(self, now_ns: int, undelivered_bytes: int) -> None:
        """As `StreamRecorder.client_left`. The last call."""
        self._client_left_ns, self._undelivered_bytes = now_ns, undelivered_bytes
        self._buffer.end_later(self)

    def flush(self) -> None:
        """Write all records that can be made now. Called by the buffer."""
        self.waiting = False
        try:
            self.recorder.flush()
        except Exception:
            self._buffer.count_failed_recorder()

    def end(self) -> None:
        """Write the remaining records. Called by the buffer."""
        self.recorder.end(self._drained_ns, self._client_left_ns, self._undelivered_bytes)

    def _call(self, method: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if self._recorder is None:
            self._calls.append((method, arguments))
        else:
            method(self._recorder, *arguments)

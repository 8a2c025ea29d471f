"""Record and log the requests that the tap refuses before they have an exchange.

Each becomes a stream of two records, `Opened` and `Closed`, so that a misconfigured client is visible in the tables. At most
`BURST` at once and `PER_SECOND` on average are recorded per worker, so that refused requests cannot fill the record log. The
others are only counted (`refusals_unrecorded`). Each `Refusal` is logged at most once in `LOG_INTERVAL_S`.
"""

from __future__ import annotations

import logging
import time

from streamgauge.ingest import identifiers
from streamgauge.ingest.generated_ids import uuid7
from streamgauge.ingest.records import Closed, Opened, encode
from streamgauge.ingest.tap.counters import Counters
from streamgauge.ingest.tap.http.client_identity import client_id
from streamgauge.ingest.tap.http.error_responses import ErrorResponse
from streamgauge.ingest.tap.http.heads import RequestHead, method_and_target
from streamgauge.ingest.tap.http.trace_context import join_trace
from streamgauge.ingest.tap.recording.record_buffer import RECORD_OVERHEAD_BYTES
from streamgauge.ingest.tap.recording.stream_recorder import RecorderFactory

logger = logging.getLogger("streamgauge.tap")

PER_SECOND = 10
BURST = 100
LOG_INTERVAL_S = 60
_SECOND_NS = 1_000_000_000

_EXPLANATIONS: dict[str, str] = {
    "bad_request": "not valid HTTP/1.1. The response names the violation",
    "body_too_large": "the body is larger than --max-request-bytes",
    "headers_too_large": "the head is too large or has too many fields",
    "http2": "HTTP/2 without TLS is not supported. Configure the client for HTTP/1.1",
    "request_timeout": "the request did not arrive in time",
    "target_too_long": "the request target is too long",
    "tls": "TLS on a port without TLS. Use an http URL in the client, or pass --tls-cert",
    "unknown_upstream": "the path or x-streamgauge-upstream names no configured upstream",
}


class Refusals:
    """Counts, logs and records the refused requests of one worker. Times are monotonic, in ns."""

    def __init__(self, counters: Counters) -> None:
        self.recorder_factory: RecorderFactory | None = None
        """None: do not record."""
        self._counters = counters
        self._tokens = float(BURST)
        self._refilled_ns = 0
        self._logged_ns: dict[str, int] = {}
        self._unlogged: dict[str, int] = {}

    def count(self, refusal: str, now_ns: int) -> None:
        """Count and log a refused request."""
        if refusal == "unknown_upstream":
            self._counters.requests_unrouted += 1
        else:
            self._counters.requests_refused += 1
        count = self._unlogged.get(refusal, 0) + 1
        last_ns = self._logged_ns.get(refusal)
        if last_ns is not None and now_ns - last_ns < LOG_INTERVAL_S * _SECOND_NS:
            self._unlogged[refusal] = count
            return
        self._logged_ns[refusal], self._unlogged[refusal] = now_ns, 0
        since = f", {count} since the last message" if count > 1 else ""
        logger.warning("refused a request (%s%s): %s.", refusal, since, _EXPLANATIONS[refusal])

    def record(
        self, response: ErrorResponse, received: RequestHead | bytes, client_start_ns: int, now_ns: int
    ) -> None:
        """Record a refused request, within the limits. `response`: the tap's answer. `received`: the head, or the bytes of an
        invalid one."""
        factory = self.recorder_factory
        if factory is None:
            return
        counters, buffer, options = self._counters, factory.buffer, factory.options
        if isinstance(received, RequestHead):
            method, target, known = received.method, received.target, received.known
            headers = factory.recorded(received)
            size_bytes = received.size_bytes
        else:
            method, target = method_and_target(received)
            known, headers, size_bytes = {}, [], len(target)
        size_bytes += RECORD_OVERHEAD_BYTES
        if not self._take_token(now_ns) or not buffer.has_room(size_bytes + RECORD_OVERHEAD_BYTES):
            counters.refusals_unrecorded += 1
            return
        wall_ns = time.time_ns()
        stream = uuid7(wall_ns)
        trace = join_trace(known.get(b"traceparent"))
        opened = Opened(
            stream, 0, options.tap_name, options.worker, factory.incarnation, "", "", 0,
            identifiers.name(method) or "",
            identifiers.path(target), wall_ns, now_ns, min(0, client_start_ns - now_ns), trace.trace_id, trace.span_id,
            trace.parent_span_id, trace.flags, client_id(known, factory.client_key), headers,
            clock_id=options.clock_id,
        )  # fmt: skip
        status = response.status
        closed = Closed(
            stream, 1, "bad_request", response.code, 0, None, None, 0, 0, 0, None, refused_status=status
        )
        buffer.append_exchanges([encode(opened), encode(closed)], 0, 0, {closed.cause: 1})
        counters.streams_opened += 1

    def _take_token(self, now_ns: int) -> bool:
        tokens = self._tokens + (now_ns - self._refilled_ns) * PER_SECOND / _SECOND_NS
        self._tokens, self._refilled_ns = min(tokens, BURST), now_ns
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

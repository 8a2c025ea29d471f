"""Record and log the requests that the tap refuses before they have an exchange.

Each becomes a stream of two records, `Opened` and `Closed`, so that a misconfigured client is visible in the tables. At most
`BURST` at once and `PER_SECOND` on average are recorded per worker, so that refused requests cannot fill the record log. The
others are only counted (`refusals_unrecorded`). Each `Refusal` is logged at most once in `LOG_INTERVAL_S`.
"""

from __future__ import annotations

import logging

from streamgauge.ingest.facts import RequestFacts, RouteFacts
from streamgauge.ingest.http1.heads import RequestHead, method_and_target
from streamgauge.ingest.http1.trace_context import join_trace
from streamgauge.ingest.http1.upstreams import Upstream
from streamgauge.ingest.recording.failures import RecordingFailures
from streamgauge.ingest.recording.record_buffer import RECORD_OVERHEAD_BYTES
from streamgauge.ingest.recording.recorder import Recorders
from streamgauge.ingest.tap.http.error_responses import ErrorResponse

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
    "websocket": "--websockets refuse is set, so that clients use HTTP",
}


_NO_UPSTREAM = Upstream("", "http", "", 0, "")


class Refusals:
    """Counts, logs and records the refused requests of one worker. Times are monotonic, in ns."""

    def __init__(self, failures: RecordingFailures) -> None:
        self.recorders: Recorders | None = None
        """None: do not record."""
        self._failures = failures
        self._counters = failures.counters
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
        recorders = self.recorders
        if recorders is None:
            return
        request: RequestFacts
        if isinstance(received, RequestHead):
            request, target = received, received.target
        else:
            method, target = method_and_target(received)
            request = RequestFacts(method, [], {}, 0)
        room_bytes = request.size_bytes + 2 * RECORD_OVERHEAD_BYTES
        if not self._take_token(now_ns) or not recorders.buffer.has_room(room_bytes):
            self._counters.refusals_unrecorded += 1
            return
        route = RouteFacts(_NO_UPSTREAM, target)
        trace = join_trace(request.known.get(b"traceparent"))
        recorder = recorders.new(request, route, trace, client_start_ns, now_ns)
        try:
            recorder.ended("bad_request", response.code, now_ns, 0, 0, False, False, None, response.status)
            recorder.drained(None)
        except Exception as e:
            self._failures.failed(e, recorder)

    def _take_token(self, now_ns: int) -> bool:
        tokens = self._tokens + (now_ns - self._refilled_ns) * PER_SECOND / _SECOND_NS
        self._tokens, self._refilled_ns = min(tokens, BURST), now_ns
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

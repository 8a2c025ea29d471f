"""OTLP/HTTP receiver: `POST /v1/traces`, `/v1/logs` and `/v1/metrics` with protobuf or JSON, gzip or identity, whole or chunked.

Rules
1. 200 means stored (`streamgauge.analytics.intake.commit_queue`). Invalid items are reported as a partial success, so senders do
   not repeat them. If the queue is full or the commit takes too long, the response is 503 with Retry-After, and senders
   retry.
2. There are limits on body size, decompressed size and the queue, and those of `streamgauge.analytics.intake.connection_limits`.
3. Loopback needs no authentication. Any other address requires a bearer token, and the receiver does not start without one.
4. Only OTLP's content types are accepted. A web page cannot send them without a CORS preflight, to which the receiver does
   not respond. Without a token, requests must name an allowed host (`streamgauge.ingest.listening`); a page on a rebound name has
   no token.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvicorn
from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from streamgauge.analytics.intake.commit_queue import (
    STORE_WITHIN_S,
    CommitQueue,
    Refused,
    check_token,
    check_type,
)
from streamgauge.analytics.intake.connection_limits import AddressSlots, ReceiverLimits
from streamgauge.analytics.intake.otlp_messages import NotOtlp, Received, Row
from streamgauge.analytics.intake.received_events import parse_logs, parse_metrics
from streamgauge.analytics.intake.received_spans import parse_spans
from streamgauge.ingest import listening
from streamgauge.ingest.guards import Guard, Guards, guarded_thread

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 8 * 2**20
MAX_DECOMPRESSED_BYTES = 32 * 2**20
MAX_JSON_BYTES = 4 * 2**20
"""JSON takes thirty times longer to parse than protobuf: about half a second at this size."""
MAX_ITEMS = 10_000
"""Per request. A collector's default batch has 8,192."""
MAX_DECODING = 4
"""Bodies decoded at the same time."""
MAX_BODIES_BYTES = 16 * MAX_BODY_BYTES
"""Bodies in memory, received in part or whole."""
MAX_CONNECTIONS = 256
SILENT_AFTER_S = 10.0

_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_CODES = {400: 3, 401: 16, 413: 11, 415: 3, 503: 14}
"""HTTP status → code of google.rpc.Status."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One kind of requests."""

    path: str
    parse: Callable[..., Received]
    """As `parse_spans`."""
    queue: CommitQueue[Row]
    answer: Callable[[], Any]
    """Its message has the number of rejected items under the name `rejected`."""
    rejected: str


def signals(spans: CommitQueue[Row], events: CommitQueue[Row], session_key: bytes) -> list[Signal]:
    """Spans, and log records and metrics of agents. `session_key`: of the hashes of sessions."""
    logs, metrics = (partial(parse, session_key=session_key) for parse in (parse_logs, parse_metrics))
    return [
        Signal("/v1/traces", parse_spans, spans, ExportTraceServiceResponse, "rejected_spans"),
        Signal("/v1/logs", logs, events, ExportLogsServiceResponse, "rejected_log_records"),
        Signal("/v1/metrics", metrics, events, ExportMetricsServiceResponse, "rejected_data_points"),
    ]


class OtlpReceiver:
    """The HTTP server. It runs on its own thread between `start` and `close`."""

    def __init__(
        self,
        signals: Sequence[Signal],
        *,
        listen: str,
        token: str | None = None,
        allowed_hosts: Iterable[str] = (),
        guards: Guards | None = None,
    ) -> None:
        """Bind the address. Raises OSError if it cannot bind, ValueError for an insecure configuration (one line each)."""
        listening.check_listener("--otlp-listen", listen, "--otlp-token", token)
        self.queues = list(dict.fromkeys(signal.queue for signal in signals))
        self._token = token
        self._socket = listening.bind(listen, flag="--otlp-listen")
        host, _ = listening.split_address(listen)
        self.url = f"http://{listening.join_address(host, self._socket.getsockname()[1])}"
        """The value of OTEL_EXPORTER_OTLP_ENDPOINT for senders."""
        self._limits, self._slots = _new_limits()
        gate = Middleware(listening.HostGate, hosts=listening.AllowedHosts(allowed_hosts, listen_host=host))
        routes = [Route(one.path, partial(self._export, one), methods=["POST"]) for one in signals]
        app = Starlette(routes=routes, middleware=[gate] if token is None else [])
        self._config = uvicorn.Config(
            app, log_config=None, log_level="warning", access_log=False, lifespan="off", ws="none", proxy_headers=False,
            http=lambda **options: self._limits.connection(**options), server_header=False,  # type: ignore[arg-type]  # any callable
            timeout_graceful_shutdown=2,
        )  # fmt: skip
        self._guard = (guards or Guards()).guard("OTLP receiver", silent_after_s=SILENT_AFTER_S)
        self._closed = threading.Event()
        self._thread = guarded_thread(self._guard, self._run, self._closed)

    def start(self) -> None:
        self._socket.listen(128)
        self._thread.start()

    def close(self) -> None:
        """Reject waiting senders, who will retry, and stop."""
        for queue in self.queues:
            queue.close()
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(5)
        self._socket.close()

    def health(self) -> dict[str, float]:
        """The counters by metric name without its prefix."""
        limits = self._limits
        return {
            **dict(item for queue in self.queues for item in queue.health().items()),
            "otlp.connections_late": float(limits.too_late),
            "otlp.connections_turned_away": float(limits.turned_away),
        }

    def _run(self) -> None:
        """Serve until `close`. Each run has a server and an event loop of its own, on the same address."""
        self._limits, self._slots = _new_limits()
        with self._socket.dup() as sock:
            _Server(self._config, self._guard, self._closed).run(sockets=[sock])

    # -- one request ---------------------------------------------------------------------------------------------------

    async def _export(self, signal: Signal, request: Request) -> Response:
        content_type = request.headers.get("content-type", "").split(";", 1)[0]
        is_json = content_type.strip().lower() == _JSON
        try:
            self._check(request)
            body = await _body(request)
            coding = request.headers.get("content-encoding", "identity").strip().lower()
            async with self._slots.slot(request.client.host if request.client else ""):
                found = await asyncio.to_thread(_decode, signal, body, coding, is_json)
            await _store(signal.queue, found)
        except Refused as e:
            return _response(e.status, Status(code=_CODES[e.status], message=str(e)), is_json, e.headers())
        except ClientDisconnect:
            return Response(status_code=400)
        answer = signal.answer()
        if found.rejected:
            setattr(answer.partial_success, signal.rejected, found.rejected.total())
            answer.partial_success.error_message = "; ".join(
                f"{n} {why}" for why, n in found.rejected.items()
            )
        return _response(200, answer, is_json)

    def _check(self, request: Request) -> None:
        check_token(request.headers.get("authorization", ""), self._token)
        check_type(request.headers.get("content-type", ""), _PROTOBUF, _JSON)
        if request.headers.get("content-encoding", "identity").strip().lower() not in ("identity", "gzip"):
            raise Refused(415, "the content encoding must be gzip or identity")


async def _store(queue: CommitQueue[Row], found: Received) -> None:
    queue.count(refused=found.rejected.total(), ignored=found.ignored)
    if not found.rows:
        return
    waiting = queue.offer(found.rows)
    if waiting is None:
        raise Refused(503, "the queue is full")
    try:
        stored = await asyncio.wait_for(asyncio.wrap_future(waiting), STORE_WITHIN_S)
    except TimeoutError:
        raise Refused(503, "timeout while storing") from None
    if not stored:
        raise Refused(503, "the items could not be stored")


def _new_limits() -> tuple[ReceiverLimits, AddressSlots]:
    limits = ReceiverLimits(max_connections=MAX_CONNECTIONS, max_bytes=MAX_BODIES_BYTES)
    return limits, AddressSlots(MAX_DECODING)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, guard: Guard, closed: threading.Event) -> None:
        super().__init__(config)
        self._guard, self._closed = guard, closed

    async def on_tick(self, counter: int) -> bool:
        """The loop calls this every 0.1 s. True: stop."""
        self._guard.beat()
        return await super().on_tick(counter) or self._closed.is_set()


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise Refused(413, f"the body is larger than {MAX_BODY_BYTES} bytes. Send smaller batches")
        parts.append(part)
    return b"".join(parts)


def _decode(signal: Signal, body: bytes, coding: str, is_json: bool) -> Received:
    max_bytes = MAX_JSON_BYTES if is_json else MAX_DECOMPRESSED_BYTES
    if coding == "gzip":
        body = _decompress(body, max_bytes)
    if len(body) > max_bytes:
        raise Refused(413, f"the request is larger than {max_bytes} bytes. Send smaller batches")
    try:
        return signal.parse(body, is_json=is_json, now_ns=time.time_ns(), max_items=MAX_ITEMS)
    except NotOtlp as e:
        raise Refused(400, str(e)) from None


def _decompress(body: bytes, max_bytes: int) -> bytes:
    stream = zlib.decompressobj(31)
    try:
        plain = stream.decompress(body, max_bytes + 1)
    except zlib.error:
        raise Refused(400, "the body is not gzip") from None
    if len(plain) <= max_bytes and not stream.eof:
        raise Refused(400, "the gzip body is incomplete")
    return plain


def _response(
    status: int, message: Message, is_json: bool, headers: Mapping[str, str] | None = None
) -> Response:
    body = json_format.MessageToJson(message).encode() if is_json else message.SerializeToString()
    return Response(body, status, headers, _JSON if is_json else _PROTOBUF)

"""An OTLP/HTTP intake for traces: `POST /v1/traces`, protobuf or JSON, gzip or plain, answered as the OTLP specification says.

Rules
1. A 200 means stored (`analytics.otlp_receiver.span_queue`). Spans that cannot be any are told as a partial success; they must not be
   sent again. Whatever has no room or no time now is a 503 with Retry-After: senders try again.
2. Everything is bounded: the body as it comes and unpacked, the time to send it, bodies held at once, connections, the queue.
3. On the loopback nobody is asked. Beyond it each request needs the bearer token, and without one nothing is opened.
4. Only OTLP's own content types are read: no web page can send those here without being asked first, and it is not answered.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import socket
import threading
import time
import zlib

import uvicorn
from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from analytics.otlp_receiver.span_queue import ReceivedQueue
from analytics.otlp_receiver.span_rows import NotOtlp, Received, received

log = logging.getLogger(__name__)

PATH = "/v1/traces"
MAX_BODY_BYTES = 8 * 2**20
MAX_UNPACKED_BYTES = 32 * 2**20
MAX_JSON_BYTES = 4 * 2**20
"""Reading JSON costs thirty times what protobuf does: about half a second for so much."""
MAX_SPANS = 10_000
"""Of one request; a collector's batches have 8,192."""
MAX_BODIES = 4
"""Read and decoded at once: with the bounds above, what they cost in memory."""
MAX_CONNECTIONS = 256
SEND_WITHIN_S = 10.0
STORE_WITHIN_S = 8.0
"""Exporters wait for ten seconds."""
RETRY_AFTER_S = 1
MIN_TOKEN_CHARS = 16

_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_CODES = {400: 3, 401: 16, 408: 4, 413: 11, 415: 3, 503: 14}
"""HTTP status → code of google.rpc.Status."""


class Refused(Exception):
    """An answer that is no 200."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class OtlpIntake:
    """The listener. `start` opens it, `close` ends it; it runs in a thread of its own."""

    def __init__(self, queue: ReceivedQueue, *, host: str, port: int, token: str | None = None) -> None:
        """Take the address. Raises OSError when it cannot be taken, ValueError when it would be open to all; one line each."""
        if token is not None and len(token) < MIN_TOKEN_CHARS:
            raise ValueError(f"--otlp-token needs at least {MIN_TOKEN_CHARS} characters")
        if token is None and not _is_loopback(host):
            raise ValueError(
                f"--otlp-listen {host}:{port} is reached from elsewhere: it needs an --otlp-token"
            )
        self.queue, self._token = queue, token
        self._socket = _bound(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        """The endpoint that senders are told (OTEL_EXPORTER_OTLP_ENDPOINT)."""
        self._bodies = asyncio.Semaphore(MAX_BODIES)
        app = Starlette(routes=[Route(PATH, self._export, methods=["POST"])])
        self._server = uvicorn.Server(
            uvicorn.Config(
                app, log_config=None, log_level="warning", access_log=False, lifespan="off", ws="none", http="httptools",
                server_header=False, limit_concurrency=MAX_CONNECTIONS, timeout_graceful_shutdown=2,
            )
        )  # fmt: skip
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="otlp-intake", daemon=True
        )

    def start(self) -> None:
        """Listen."""
        self._socket.listen(128)
        self._thread.start()

    def close(self) -> None:
        """Whoever waits is told to come again; then the door is shut."""
        self.queue.close()
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(5)
        self._socket.close()

    # -- one request ---------------------------------------------------------------------------------------------------

    async def _export(self, request: Request) -> Response:
        is_json = _content_type(request) == _JSON
        try:
            self._admit(request)
            async with self._bodies:
                try:
                    body = await asyncio.wait_for(_body(request), SEND_WITHIN_S)
                except TimeoutError:
                    raise Refused(408, "the body did not come in time") from None
                packed = request.headers.get("content-encoding", "identity").strip().lower()
                found = await asyncio.to_thread(_decoded, body, packed, is_json)
            await self._stored(found)
        except Refused as refused:
            return _told(refused.status, Status(code=_CODES[refused.status], message=str(refused)), is_json)
        except ClientDisconnect:
            return Response(status_code=400)
        answer = ExportTraceServiceResponse()
        if found.refused:
            answer.partial_success.rejected_spans = found.refused.total()
            answer.partial_success.error_message = "; ".join(f"{n} {why}" for why, n in found.refused.items())
        return _told(200, answer, is_json)

    def _admit(self, request: Request) -> None:
        if self._token is not None:
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                raise Refused(401, "a bearer token is needed")
        if _content_type(request) not in (_PROTOBUF, _JSON):
            raise Refused(415, f"OTLP is {_PROTOBUF} or {_JSON}")
        if request.headers.get("content-encoding", "identity").strip().lower() not in ("identity", "gzip"):
            raise Refused(415, "content encodings are gzip or none")

    async def _stored(self, found: Received) -> None:
        self.queue.count(refused=found.refused.total())
        if not found.rows:
            return
        batch = self.queue.offer(found.rows)
        if batch is None:
            raise Refused(503, "no room for these spans now")
        try:
            stored = await asyncio.wait_for(asyncio.wrap_future(batch.stored), STORE_WITHIN_S)
        except TimeoutError:
            raise Refused(503, "not stored in time") from None
        if not stored:
            raise Refused(503, "these spans cannot be stored now")


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").split(";", 1)[0].strip().lower()


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise Refused(413, f"the body is larger than {MAX_BODY_BYTES} bytes: send smaller batches")
        parts.append(part)
    return b"".join(parts)


def _decoded(body: bytes, packed: str, is_json: bool) -> Received:
    most = MAX_JSON_BYTES if is_json else MAX_UNPACKED_BYTES
    if packed == "gzip":
        body = _unpacked(body, most)
    if len(body) > most:
        raise Refused(413, f"the request is larger than {most} bytes: send smaller batches")
    try:
        return received(body, is_json=is_json, now_ns=time.time_ns(), most=MAX_SPANS)
    except NotOtlp as e:
        raise Refused(400, str(e)) from None


def _unpacked(body: bytes, most: int) -> bytes:
    stream = zlib.decompressobj(31)
    try:
        plain = stream.decompress(body, most + 1)
    except zlib.error:
        raise Refused(400, "the body is not gzip") from None
    if len(plain) <= most and not stream.eof:
        raise Refused(400, "the body is cut short")
    return plain


def _told(status: int, message: Message, is_json: bool) -> Response:
    body = json_format.MessageToJson(message).encode() if is_json else message.SerializeToString()
    headers = {"retry-after": str(RETRY_AFTER_S)} if status == 503 else {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(body, status, headers, _JSON if is_json else _PROTOBUF)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM
        )[0]
        taken = socket.socket(family, kind, protocol)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(address)
        except OSError:
            taken.close()
            raise
    except OSError as e:
        raise OSError(
            f"cannot listen on {host}:{port} for spans ({e.strerror}): choose another with --otlp-listen"
        ) from None
    return taken

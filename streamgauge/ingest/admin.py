"""The admin port of a process that records. Read-only, one request per connection.

/healthz: the process runs. /readyz: it can forward. /recordingz: it records; else 503 with one line per fault. A fault of
recording never fails the first two, because clients are still served. /metrics and /ledger have the counters.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

from streamgauge.ingest.guards import probe
from streamgauge.ingest.http1.heads import BadRequest, HeadLimits, RequestHead, read_request_head
from streamgauge.ingest.listening import STATUS, AllowedHosts
from streamgauge.ingest.metrics import Report, render

_LIMITS = HeadLimits(head_bytes=16_384)
_REQUEST_S = 5.0
"""For a request to arrive and be answered."""


class Admin:
    """Serves the admin port to `hosts`. `report` and `faults` are those of all workers."""

    def __init__(
        self,
        report: Callable[[], Awaitable[Report]],
        is_ready: Callable[[], bool],
        faults: Callable[[], Mapping[str, str]],
        hosts: AllowedHosts,
    ) -> None:
        self._hosts = hosts
        self._report = report
        self._is_ready = is_ready
        self._faults = faults
        self._server: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> None:
        self._server = await asyncio.start_server(self._serve, sock=sock, limit=_LIMITS.head_bytes)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S):
                raw = await reader.readuntil(b"\r\n\r\n")
            head = read_request_head(raw, _LIMITS)
            refusal = self._refusal(head)
            if refusal is not None:
                status, content_type, body = STATUS, "text/plain", refusal.encode() + b"\n"
            else:
                status, content_type, body = await self._respond(head.method, head.target)
            if head.method == "HEAD":
                body = b""
        except BadRequest as e:
            status, content_type, body = e.status, "text/plain", e.reason.encode() + b"\n"
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.close()
            return
        response_head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(response_head.encode() + body)
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    def _refusal(self, head: RequestHead) -> str | None:
        def values(name: bytes) -> list[str]:
            return [field.value.decode("latin-1") for field in head.fields if field.name == name]

        return self._hosts.refusal(values(b"host"), values(b"origin"))

    async def _respond(self, method: str, target: str) -> tuple[int, str, bytes]:
        if method not in ("GET", "HEAD"):
            return 405, "text/plain", b"GET only\n"
        path = target.partition("?")[0]
        if path == "/healthz":
            return 200, "text/plain", b"ok\n"
        if path == "/readyz":
            ready = self._is_ready()
            return (200, "text/plain", b"ready\n") if ready else (503, "text/plain", b"not ready\n")
        if path == "/recordingz":
            status, body = probe(self._faults())
            return status, "text/plain; charset=utf-8", body.encode()
        if path == "/metrics":
            text = render(await self._report())
            return 200, "text/plain; version=0.0.4; charset=utf-8", text.encode()
        if path == "/ledger":
            stats = (await self._report()).stats
            return 200, "application/json", json.dumps(dict(stats)).encode() + b"\n"
        return 404, "text/plain", b"/healthz /readyz /recordingz /metrics /ledger\n"

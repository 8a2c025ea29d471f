"""One HTTP/1.1 connection of the simulator.

Requests are handled in order. Reading continues while a response is sent, to detect a disconnect. A client with more than
MAX_AHEAD pipelined requests is disconnected. What follows the head of a WebSocket is read from `upgraded`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

import httptools

MAX_BODY_BYTES = 32 * 2**20
MAX_HEADER_BYTES = 256 * 1024
MAX_AHEAD = 8
"""Maximum number of waiting pipelined requests per connection."""
MAX_UPGRADED_BYTES = 2**20
"""Bytes of a WebSocket that may wait. Above twice as many, the socket is not read."""
RESET_GRACE_S = 0.05
"""Pause before a reset, because a reset discards bytes that the client has not read."""


@dataclass(slots=True)
class Request:
    """One complete request."""

    wall_ns: int
    received_ns: int
    complete_ns: int = 0
    method: str = ""
    target: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    """Lower-case name → last value."""
    body: bytes = b""
    keep_alive: bool = True


Handler = Callable[["Connection", Request], Awaitable[None]]


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, handler: Handler, connections: set[Connection]) -> None:
        self._handler = handler
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._request: Request | None = None
        self._body: list[bytes] = []
        self._body_bytes = self._header_bytes = 0
        self._read_ns = self._wall_ns = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self.transport: asyncio.Transport | None = None
        self.client_left_ns: int | None = None
        """Time of the detected disconnect."""
        self.closing = False
        self.upgraded: asyncio.StreamReader | None = None
        """What the client sends after the head of a WebSocket."""

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop does not derive from it
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.client_left_ns = time.monotonic_ns()
        self._connections.discard(self)
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._read_ns, self._wall_ns = time.monotonic_ns(), time.time_ns()
        if self.upgraded is not None:
            self.upgraded.feed_data(data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as e:
            if not self._waiting or self._waiting[-1].headers.get("upgrade", "").lower() != "websocket":
                self._refuse(501)
                return
            self.upgraded = asyncio.StreamReader(MAX_UPGRADED_BYTES)
            if self.transport is not None:
                self.upgraded.set_transport(self.transport)
            self.upgraded.feed_data(data[e.args[0] :])
        except httptools.HttpParserError:
            self._refuse(400)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # httptools

    def on_message_begin(self) -> None:
        self._request = Request(wall_ns=self._wall_ns, received_ns=self._read_ns)
        self._body, self._body_bytes, self._header_bytes = [], 0, 0

    def on_url(self, url: bytes) -> None:
        if self._request is not None:
            self._request.target += url.decode("latin-1")
            self._headers_grow(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._request is not None:
            self._request.headers[name.decode("latin-1").lower()] = value.decode("utf-8", "replace")
            self._headers_grow(len(name) + len(value))

    def _headers_grow(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(431)

    def on_headers_complete(self) -> None:
        if self._request is not None and self._request.headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY_BYTES:
            self._refuse(413)
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        request, self._request = self._request, None
        if request is None or self.closing:
            return
        request.complete_ns = self._read_ns
        request.method = self._parser.get_method().decode("latin-1")
        request.keep_alive = self._parser.should_keep_alive()
        request.body = b"".join(self._body)
        self._waiting.append(request)
        if len(self._waiting) > MAX_AHEAD:
            self.close()
        elif self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        try:
            while self._waiting and not self.closing and self.client_left_ns is None:
                request = self._waiting.popleft()
                await self._handler(self, request)
                if not request.keep_alive:
                    self.close()
        except asyncio.CancelledError:
            if self.client_left_ns is None:
                raise
        finally:
            self._task = None

    def _refuse(self, status: int) -> None:
        if self.closing:
            return
        self.write(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nconnection: close\r\n"
                   "content-length: 0\r\n\r\n".encode())  # fmt: skip
        self.close()

    # for the handler

    def write(self, data: bytes) -> None:
        """Write to the socket. Does nothing after a disconnect."""
        if self.transport is not None and self.client_left_ns is None:
            self.transport.write(data)

    async def writable(self) -> None:
        """Wait while the write buffer is full."""
        if not self._writable.is_set():
            await self._writable.wait()

    def respond(self, status: int, headers: list[tuple[str, str]], body: bytes | None) -> None:
        """Write status and headers, and the whole body unless it is None."""
        self.write(
            encode_headers(status, headers + ([] if body is None else [("content-length", str(len(body)))]))
        )
        if body:
            self.write(body)

    def close(self) -> None:
        """Close after the write buffer is sent."""
        self.closing = True
        if self.transport is not None:
            self.transport.close()

    async def reset(self) -> None:
        """Send a TCP RST, `RESET_GRACE_S` after the last write."""
        self.closing = True
        await asyncio.sleep(RESET_GRACE_S)
        if self.transport is None or self.client_left_ns is not None:
            return
        tcp_socket = self.transport.get_extra_info("socket")
        if tcp_socket is not None:
            tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def stop(self) -> None:
        """End the current response and close immediately."""
        self.closing = True
        if self._task is not None:
            self._task.cancel()
        if self.transport is not None:
            self.transport.abort()


def encode_headers(status: int, headers: list[tuple[str, str]]) -> bytes:
    """Encode status line and headers."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")

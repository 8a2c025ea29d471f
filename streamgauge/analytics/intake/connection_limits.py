"""Limits of an HTTP receiver that uvicorn does not have: deadlines, and a share of the room for each client address.

Rules
1. A client has `HEADERS_WITHIN_S` for the headers of a request and `BODY_WITHIN_S` for its body, then it gets a 408. A connection
   without a request is closed after `HEADERS_WITHIN_S`. Single bytes do not extend a deadline.
2. There are at most `max_connections`. A further one closes the oldest connection without a whole request, of the address that
   has the most of them. So a client that opens many connections closes its own. uvicorn's `limit_concurrency` is not used: it also
   counts connections that are being closed.
3. An address may hold as many bytes of bodies as are free for others, at most half of `max_bytes`; above that it gets a 503.
4. Work on a whole body takes a slot (`AddressSlots`), of which one address may hold half.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from streamgauge.analytics.intake.commit_queue import RETRY_AFTER_S

HEADERS_WITHIN_S = 5
BODY_WITHIN_S = 10
"""OTLP exporters wait for ten seconds by default."""


class ReceiverLimits:
    """The limits of one receiver. Everything runs on its event loop; counters may be read from any thread."""

    def __init__(self, *, max_connections: int, max_bytes: int) -> None:
        self._max_connections = max_connections
        self._max_bytes = max_bytes
        self._open: set[LimitedConnection] = set()
        self._unfinished: dict[LimitedConnection, None] = {}
        """Connections without a whole request, the oldest first."""
        self._bytes_of: Counter[str] = Counter()
        self.too_late = 0
        """Connections closed at a deadline."""
        self.turned_away = 0
        """Connections closed, and bodies refused, for lack of room."""

    def connection(self, **options: Any) -> LimitedConnection:
        """A connection: the option `http` of `uvicorn.Config`."""
        return LimitedConnection(self, **options)

    def opened(self, connection: LimitedConnection) -> None:
        self._open.add(connection)
        if len(self._open) > self._max_connections:
            self._make_room()

    def waits(self, connection: LimitedConnection) -> None:
        """The connection waits for a request or for the rest of one."""
        self._unfinished[connection] = None

    def received(self, connection: LimitedConnection) -> None:
        """The connection has a whole request, so it is not closed to make room."""
        self._unfinished.pop(connection, None)

    def closed(self, connection: LimitedConnection) -> None:
        self._open.discard(connection)
        self._unfinished.pop(connection, None)

    def hold(self, address: str, size_bytes: int) -> bool:
        """Count bytes of a body. False: the address has no room for them."""
        free_bytes = self._max_bytes - self._bytes_of.total() - size_bytes
        if self._bytes_of[address] + size_bytes > free_bytes:
            self.turned_away += 1
            return False
        self._bytes_of[address] += size_bytes
        return True

    def release(self, address: str, size_bytes: int) -> None:
        self._bytes_of[address] -= size_bytes
        if not self._bytes_of[address]:
            del self._bytes_of[address]

    def _make_room(self) -> None:
        ((busiest, _),) = Counter(c.address for c in self._unfinished).most_common(1)
        oldest = next(c for c in self._unfinished if c.address == busiest)
        self.closed(oldest)
        self.turned_away += 1
        oldest.transport.abort()


class AddressSlots:
    """Slots for work on whole bodies. However many requests of one address wait, others find slots."""

    def __init__(self, count: int) -> None:
        self._share = max(1, count // 2)
        self._all = asyncio.Semaphore(count)
        self._of: dict[str, asyncio.Semaphore] = {}
        self._users_of: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def slot(self, address: str) -> AsyncIterator[None]:
        """Wait for a slot, and hold it."""
        own = self._of.setdefault(address, asyncio.Semaphore(self._share))
        self._users_of[address] += 1
        try:
            async with own, self._all:
                yield
        finally:
            self._users_of[address] -= 1
            if not self._users_of[address]:
                del self._users_of[address], self._of[address]


class LimitedConnection(HttpToolsProtocol):
    """A connection with deadlines that only whole headers and whole bodies meet."""

    def __init__(self, limits: ReceiverLimits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._held_bytes = 0
        self.address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._wait(HEADERS_WITHIN_S)
        self._limits.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._release()
        self._limits.closed(self)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait(HEADERS_WITHIN_S)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._wait(BODY_WITHIN_S)

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            return
        if self._limits.hold(self.address, len(body)):
            self._held_bytes += len(body)
            super().on_body(body)
        else:
            self._refuse(b"503 Service Unavailable", b"Retry-After: %d\r\n" % RETRY_AFTER_S)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._stop_timer()
        self._limits.received(self)

    def on_response_complete(self) -> None:
        self._release()
        if self._timer is None:  # the request is whole
            self._wait(HEADERS_WITHIN_S)
        super().on_response_complete()

    def _wait(self, limit_s: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(limit_s, self._is_late)
        self._limits.waits(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_late(self) -> None:
        self._limits.too_late += 1
        self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes, fields: bytes = b"") -> None:
        """Close. The client gets a response, unless it has one or has sent no request."""
        if not self.transport.is_closing():
            if self.scope is not None and (self.cycle is None or not self.cycle.response_started):
                self.transport.write(
                    b"HTTP/1.1 %b\r\nContent-Length: 0\r\n%bConnection: close\r\n\r\n" % (status, fields)
                )
            self.transport.close()

    def _release(self) -> None:
        self._limits.release(self.address, self._held_bytes)
        self._held_bytes = 0

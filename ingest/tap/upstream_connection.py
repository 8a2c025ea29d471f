"""The tap's side towards the upstreams: one connection, and the pool of idle ones.

The rules: a connection serves one exchange at a time. An idle one is watched, and left as soon as the server says
anything on it or closes it; it is looked at once more before it is used again, and not kept for longer than servers are
known to keep theirs (5 s is a common default), because a request on a connection that the server has just closed may
only be repeated when that is safe. The pool is bounded; the oldest goes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import time
from collections import deque
from typing import TYPE_CHECKING, cast

from ingest.tap.sockets import FULL_READ_BYTES

if TYPE_CHECKING:
    import ssl

    from ingest.tap.exchange import Exchange
    from ingest.tap.upstreams import Upstream
    from ingest.tap.worker import TapWorker

_READABLE = select.POLLIN | getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_monotonic_ns = time.monotonic_ns


class UpstreamConnection(asyncio.Protocol):
    """One connection to an upstream."""

    transport: asyncio.Transport

    def __init__(self, pool: UpstreamPool) -> None:
        self._pool = pool
        self.exchange: Exchange | None = None
        self.reused = False
        self.write_paused = False
        self.idle_since_s = 0.0
        self._read_paused = False
        self._gone = False
        self._poll: select.poll | None = None

    # --- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=self._pool.worker.options.write_buffer_bytes)

    def data_received(self, data: bytes) -> None:
        now_ns = _monotonic_ns()
        exchange = self.exchange
        if exchange is None:
            self.leave()
            return
        exchange.upstream_data(data, now_ns)
        if len(data) >= FULL_READ_BYTES and self.exchange is exchange and not self._read_paused:
            self.transport.pause_reading()
            self._pool.worker.after_turn(self._read_on)

    def eof_received(self) -> bool:
        exchange = self.exchange
        if exchange is None:
            return False
        if exchange.tunnel is not None:
            return exchange.tunnel.upstream_half_closed()
        exchange.upstream_eof(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        self._pool.forget(self)
        exchange = self.exchange
        if exchange is not None:
            exchange.upstream_eof(exc or ConnectionResetError())

    def pause_writing(self) -> None:
        self.write_paused = True
        if self.exchange is not None:
            self.exchange.upstream_write_paused()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.exchange is not None:
            self.exchange.upstream_write_resumed()

    # --- called by the exchange and the pool

    def pause_reading(self) -> None:
        """The client is slower than the upstream."""
        if not self._read_paused and not self._gone:
            self._read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """The client has caught up."""
        if self._read_paused and not self._gone:
            self._read_paused = False
            self.transport.resume_reading()

    def _read_on(self) -> None:
        """The others have had their turn."""
        if not self._read_paused and self.is_open():
            self.transport.resume_reading()

    def end_writing(self) -> None:
        """No more bytes from the client (tunnels)."""
        with contextlib.suppress(OSError, RuntimeError, NotImplementedError):
            if self.transport.can_write_eof():
                self.transport.write_eof()

    def leave(self) -> None:
        """Close at once, whatever is under way: nobody is interested any more."""
        self.exchange = None
        if not self._gone:
            self.transport.abort()

    def is_open(self) -> bool:
        """It was not closed, as far as the loop has seen."""
        return not self._gone and not self.transport.is_closing()

    def is_quiet(self) -> bool:
        """Nothing has come on an idle connection: neither an end nor bytes that nobody asked for."""
        if not self.is_open():
            return False
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.transport.get_extra_info("socket").fileno(), _READABLE)
        return not self._poll.poll(0)


class UpstreamPool:
    """The connections to one upstream."""

    def __init__(
        self,
        worker: TapWorker,
        upstream: Upstream,
        tls: ssl.SSLContext | None,
        *,
        max_idle: int,
        max_idle_s: float,
    ) -> None:
        self.worker = worker
        self._upstream = upstream
        self._tls = tls
        self._idle: deque[UpstreamConnection] = deque()
        self._max_idle = max_idle
        self._max_idle_s = max_idle_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None

    def take(self, *, look: bool) -> UpstreamConnection | None:
        """The idle connection that was used last, if one is good. `look`: the request could not be sent again, so ask
        the kernel whether the server has closed it since the loop last did."""
        idle = self._idle
        if not idle:
            return None
        oldest_s = self.worker.loop.time() - self._max_idle_s
        while idle:
            connection = idle.pop()
            if connection.idle_since_s >= oldest_s and (
                connection.is_quiet() if look else connection.is_open()
            ):
                connection.reused = True
                return connection
            connection.leave()
        return None

    def give(self, connection: UpstreamConnection) -> None:
        """A connection that may be used again."""
        if self._max_idle <= 0 or connection.write_paused or self.worker.stopping:
            connection.leave()
            return
        connection.idle_since_s = self.worker.loop.time()
        self._idle.append(connection)
        if len(self._idle) > self._max_idle:
            self._idle.popleft().leave()
        if self._sweep is None:
            self._sweep = self.worker.loop.call_later(self._max_idle_s, self._leave_old)

    def forget(self, connection: UpstreamConnection) -> None:
        """The connection is closed."""
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def connect(self, exchange: Exchange) -> asyncio.Task[None]:
        """Open a connection for `exchange`; cancel the task to give up."""
        task = self.worker.loop.create_task(self._connect(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        """Leave every idle connection."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        while self._idle:
            self._idle.pop().leave()

    async def _connect(self, exchange: Exchange) -> None:
        upstream = self._upstream
        limit_s = self.worker.options.connect_timeout_s
        connection = UpstreamConnection(self)
        try:
            async with asyncio.timeout(limit_s or None):
                await self.worker.loop.create_connection(
                    lambda: connection,
                    upstream.host,
                    upstream.port,
                    ssl=self._tls,
                    server_hostname=upstream.host if self._tls is not None else None,
                )
        except OSError as e:  # TimeoutError, gaierror and ssl.SSLError among them
            exchange.connect_failed(e)
        else:
            self.worker.counters.upstream_connections += 1
            if exchange.ended:
                connection.leave()
            else:
                exchange.upstream_connected(connection, _monotonic_ns())

    def _leave_old(self) -> None:
        self._sweep = None
        oldest_s = self.worker.loop.time() - self._max_idle_s
        while self._idle and self._idle[0].idle_since_s <= oldest_s:
            self._idle.popleft().leave()
        if self._idle:
            self._sweep = self.worker.loop.call_later(self._max_idle_s / 2, self._leave_old)

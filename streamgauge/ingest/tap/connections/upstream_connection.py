"""Connections to the upstreams and the pool of idle ones.

Contract:
- A connection serves one exchange at a time.
- An idle connection is closed when the server sends anything on it, closes it, or after `pool_idle_s`. Many servers close idle
  connections after 5 s, so the limit is lower: a request sent to a closing server may only be repeated if that is safe.
- A connection with unread bytes is never reused: they would be taken for the response to the next request.
- The pool is bounded; the connection that has been idle longest is closed first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import ssl
from collections import deque
from typing import cast

from streamgauge.ingest.http1.upstreams import Upstream
from streamgauge.ingest.tap.connections.sockets import FULL_READ_BYTES, close_when_sent, limit_silence, unread
from streamgauge.ingest.tap.connections.tls import connect
from streamgauge.ingest.tap.exchanges.context import TapContext
from streamgauge.ingest.tap.exchanges.exchange import Exchange
from streamgauge.ingest.tap.exchanges.sides import Pool, UpstreamSide

logger = logging.getLogger("streamgauge.tap")

_READABLE = select.POLLIN | getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class UpstreamConnection(UpstreamSide):
    """One connection to an upstream, an `asyncio.Protocol`."""

    def __init__(self, pool: UpstreamPool) -> None:
        super().__init__()
        self._pool = pool
        self._context = pool.context
        self._clock_ns = pool.context.clock_ns
        self.idle_since_s = 0.0
        self._ending = False
        self._poll: select.poll | None = None

    # --- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._pool.tls is None:
            self.reading = self.transport
        self.transport.set_write_buffer_limits(high=self._context.options.write_buffer_bytes)
        with contextlib.suppress(OSError):  # the connection is broken already
            limit_silence(self.transport.get_extra_info("socket"), self._context.options.peer_timeout_s)

    def data_received(self, data: bytes) -> None:
        # First of all: this is the arrival time of the read, from which TTFT and every gap are computed. Work before it
        # would be measured as the upstream's.
        now_ns = self._clock_ns()
        exchange = self.exchange
        if exchange is None:
            # Nothing was asked. A connection with such bytes must never get a request, see `is_quiet`.
            if not self._ending:
                self.abort()
            return
        exchange.on_upstream_bytes(data, now_ns)
        if len(data) >= FULL_READ_BYTES and self.exchange is not None and not self.read_paused:
            # libuv would read this socket up to 32 times in a row; one fast upstream would hold up all other streams
            # for 8 MB (`sockets.FULL_READ_BYTES`).
            self.reading.pause_reading()
            self._context.call_next_iteration(self.resume_after_full_read)

    def eof_received(self) -> bool:
        return self.exchange is not None and self.exchange.on_end(self)

    def connection_lost(self, exc: Exception | None) -> None:
        try:
            if self.exchange is not None and self.reading is self.transport:
                self.exchange.take_back()
                # A peer that sends its last bytes and closes is not a failure, even if our write failed first. Below
                # TLS the bytes are not readable.
                for data in unread(self.transport, exc):
                    if self.exchange is not None:
                        self.exchange.on_upstream_bytes(data, self._clock_ns())
        finally:
            self.closed = True
            self._pool.remove(self)
            if self.exchange is not None:
                self.exchange.on_lost(self, exc or ConnectionResetError())

    # --- called by the exchange and the pool

    def close(self) -> None:
        self._ending = True
        if not self.closed:
            self.resume_reading()  # TLS ends after the peer's closing alert
            close_when_sent(self._context.loop, self.transport, self.reading)

    def release(self) -> None:
        self._pool.put(self)

    def is_quiet(self) -> bool:
        """The kernel has neither an end of file nor unexpected bytes for this idle connection."""
        if self.closed or self.transport.is_closing():
            return False
        # Created for the first request that finds the connection idle, and kept: to create it costs more than to ask it.
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.transport.get_extra_info("socket").fileno(), _READABLE)
        return not self._poll.poll(0)


class UpstreamPool(Pool):
    """The connections to one upstream. `tls` is None for plain HTTP."""

    def __init__(self, context: TapContext, upstream: Upstream, tls: ssl.SSLContext | None) -> None:
        self.context = context
        self._upstream = upstream
        self.tls = tls
        self._time_s = context.loop.time
        self._idle: deque[UpstreamConnection] = deque()
        self._max_idle = context.options.pool_idle
        self._max_idle_s = context.options.pool_idle_s
        self._expiry_timer: asyncio.TimerHandle | None = None

    def acquire(self) -> UpstreamConnection | None:
        idle = self._idle
        if not idle:
            return None
        oldest_s = self._time_s() - self._max_idle_s
        while idle:
            # The one used last, from the right: it is the least likely to be closed by its server, and the others
            # become old enough to be closed.
            connection = idle.pop()
            # Asking the kernel costs a system call for each request. Without it, a close or a surplus response that the
            # loop has not read yet would belong to the next request.
            if connection.idle_since_s >= oldest_s and connection.is_quiet():
                connection.reused = True
                return connection
            connection.abort()
        return None

    def put(self, connection: UpstreamConnection) -> None:
        """Keep a connection for later exchanges."""
        if self._max_idle <= 0 or connection.write_paused or self.context.stopping:
            connection.abort()
            return
        connection.idle_since_s = self._time_s()
        self._idle.append(connection)
        if len(self._idle) > self._max_idle:
            self._idle.popleft().abort()
        if self._expiry_timer is None:
            self._expiry_timer = self.context.loop.call_later(self._max_idle_s, self._close_expired)

    def remove(self, connection: UpstreamConnection) -> None:
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def connect(self, exchange: Exchange) -> asyncio.Task[None]:
        return self.context.loop.create_task(self._connect(exchange))

    def close(self) -> None:
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        while self._idle:
            self._idle.pop().abort()

    async def _connect(self, exchange: Exchange) -> None:
        upstream, context = self._upstream, self.context
        connection = UpstreamConnection(self)
        try:
            async with asyncio.timeout(context.timeouts.connect_s):
                user = cast(asyncio.Protocol, connection)
                await connect(context.loop, user, upstream.host, upstream.port, self.tls)
            context.counters.upstream_connections += 1
            if connection.closed:  # nothing else would report it to the exchange
                exchange.on_connect_failed(ConnectionResetError())
            else:
                exchange.on_connected(connection, context.clock_ns())
        # OSError, TimeoutError and ssl.SSLError, but also a bug: the client must not wait for ever.
        except Exception as e:
            if not isinstance(e, OSError):
                logger.exception("cannot connect to upstream %s", upstream.name)
            exchange.on_connect_failed(e)

    def _close_expired(self) -> None:
        self._expiry_timer = None
        oldest_s = self._time_s() - self._max_idle_s
        while self._idle and self._idle[0].idle_since_s <= oldest_s:
            self._idle.popleft().abort()
        if self._idle:
            self._expiry_timer = self.context.loop.call_later(self._max_idle_s / 2, self._close_expired)

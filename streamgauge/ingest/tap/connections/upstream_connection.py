"""Connections to the upstreams: what their transports call, and how they are opened. `sides` has the rest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl

from streamgauge.ingest.http1.upstreams import Upstream
from streamgauge.ingest.tap.connections.tls import connect
from streamgauge.ingest.tap.exchanges.context import TapContext
from streamgauge.ingest.tap.exchanges.exchange import Exchange
from streamgauge.ingest.tap.exchanges.sides import Pool, UpstreamSide
from streamgauge.ingest.tap.sockets import FULL_READ_BYTES, limit_silence, unread

logger = logging.getLogger("streamgauge.tap")


class UpstreamConnection(UpstreamSide):
    """One connection to an upstream, an `asyncio.Protocol`."""

    exchange: Exchange | None

    def __init__(self, pool: UpstreamPool) -> None:
        super().__init__(pool)
        self._opener = pool
        self._context = pool.context
        self._clock_ns = pool.context.clock_ns

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        if self._opener.tls is None:
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
            if not self.ending:
                self.abort()
            return
        exchange.on_upstream_bytes(data, now_ns)
        if len(data) >= FULL_READ_BYTES and self.exchange is not None and not self.read_paused:
            # libuv would read this socket up to 32 times in a row; one fast upstream would hold up all other streams
            # for 8 MB (`sockets.FULL_READ_BYTES`).
            self.reading.pause_reading()
            self._context.call_next_iteration(self.resume_after_full_read)

    def eof_received(self) -> bool:
        exchange = self.exchange
        half_closed = exchange is not None and exchange.on_end(self)
        self._opener.connect_again(exchange)
        return half_closed

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
            exchange = self.exchange
            if exchange is not None:
                exchange.on_lost(self, exc or ConnectionResetError())
                self._opener.connect_again(exchange)


class UpstreamPool(Pool):
    """The connections to one upstream. `tls` is None for plain HTTP."""

    def __init__(self, context: TapContext, upstream: Upstream, tls: ssl.SSLContext | None) -> None:
        super().__init__(context)
        self._upstream = upstream
        self.tls = tls

    def serve(self, exchange: Exchange, now_ns: int) -> None:
        """Give it an idle connection, or open one."""
        # Synchronously: a request over a pooled connection is on its way before the loop runs anything else.
        connection = self.acquire()
        if connection is None:
            self.connect(exchange)
        else:
            self.context.counters.upstream_reuses += 1
            exchange.on_connected(connection, now_ns)

    def connect_again(self, exchange: Exchange | None) -> None:
        """Open a connection if the end of the last one has left the exchange without."""
        if exchange is not None and exchange.needs_connection:
            self.connect(exchange)

    def connect(self, exchange: Exchange) -> None:
        """Open a connection for `exchange`."""
        exchange.connecting = self.context.loop.create_task(self._connect(exchange))

    async def _connect(self, exchange: Exchange) -> None:
        upstream, context = self._upstream, self.context
        connection = UpstreamConnection(self)
        try:
            async with asyncio.timeout(context.timeouts.connect_s):
                await connect(context.loop, connection, upstream.host, upstream.port, self.tls)
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

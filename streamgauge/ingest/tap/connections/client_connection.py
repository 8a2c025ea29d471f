"""One client connection and the requests on it, one at a time. `client_side` has what follows a response.

Contract:
- A request's head is read completely, strictly and within limits before anything goes upstream.
- Pipelined requests wait in a bounded buffer.
- One timer per connection checks all limits in `timeouts`; a request creates none.
"""

from __future__ import annotations

import asyncio
from functools import partial

from streamgauge.ingest.http1.heads import (
    BadRequest,
    RequestHead,
    check_partial_head,
    other_protocol,
    read_request_head,
)
from streamgauge.ingest.http1.receive_buffer import BLANK_LINE, ReceiveBuffer
from streamgauge.ingest.http1.trace_context import join_trace
from streamgauge.ingest.tap import sockets
from streamgauge.ingest.tap.connections.upstream_connection import UpstreamPool
from streamgauge.ingest.tap.exchanges.client_side import ClientSide
from streamgauge.ingest.tap.exchanges.context import TapContext
from streamgauge.ingest.tap.exchanges.exchange import Exchange
from streamgauge.ingest.tap.exchanges.states import (
    ABORT,
    BYTES,
    CLOSE,
    EXCHANGING,
    HEAD_PART,
    LINGER,
    LINGERING,
    LOST,
    REQUEST_HEAD,
    TUNNELING,
)  # fmt: skip
from streamgauge.ingest.tap.exchanges.timeouts import expired
from streamgauge.ingest.tap.http.error_responses import ErrorResponse

_MAX_BUFFERED_BYTES = 262_144
_PIECE_BYTES = 65_536
_CR = ord("\r")
_MAX_LINGER_BYTES = 4 * 2**20


class ClientConnection(ClientSide):
    """One connection of a client, an `asyncio.Protocol`. `pools` are in the order of the configured upstreams."""

    exchange: Exchange | None
    draining: Exchange | None

    def __init__(self, context: TapContext, pools: list[UpstreamPool], hangups: sockets.HangupWatch) -> None:
        super().__init__(context, hangups)
        self._pools = pools
        self._buffer_since_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._lingered_bytes = 0

    # --- called by the transport

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        context = self._context
        self.transport.set_write_buffer_limits(high=context.options.write_buffer_bytes)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.address = str(peer[0])
        if context.options.tls_cert is not None:
            self.scheme = "https"
        else:
            self.reading = self.transport
        context.clients.add(self)
        context.counters.client_connections += 1
        self.last_byte_ns = self._clock_ns()
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        now_ns = self.last_byte_ns = self._clock_ns()
        exchange = self.exchange
        if exchange is not None and exchange.takes_client_bytes:
            full = len(data) >= sockets.FULL_READ_BYTES
            data = exchange.on_client_bytes(data)
            if full and self.exchange is exchange and not self.read_paused:
                self.reading.pause_reading()
                self._context.call_next_iteration(self.resume_after_full_read)
            exchange = self.exchange
            if not data:
                return
        if self.state >= LINGERING:
            self._lingered_bytes += len(data)
            if self._lingered_bytes > _MAX_LINGER_BYTES:
                self._apply(ABORT)
                self.transport.abort()
            return
        buffer = self._buffer
        if not buffer:
            self._buffer_since_ns = now_ns
            if exchange is None and data[0] != _CR:
                head, blank_line, rest = data.partition(BLANK_LINE)
                if blank_line:  # most heads arrive in one read
                    self._start_request(head + BLANK_LINE, rest, now_ns)
                    return
        buffer = self._keep(data)
        if exchange is None:
            self._next_request(buffer, now_ns)
        elif len(buffer) > _MAX_BUFFERED_BYTES:
            self.pause_reading()

    def eof_received(self) -> bool:
        self.tcp_ends()
        half_closed = self.exchange is not None and self.exchange.on_end(self)
        if half_closed:
            self.pause_reading()  # the loop does not read any more: watch for a reset
        return half_closed

    def connection_lost(self, exc: Exception | None) -> None:
        """The exchange ends even if a step raises."""
        self.closed = True
        self._apply(LOST)
        self._context.clients.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        guard = self._context.guards.guard("ends of client connections")
        guard.attempt(self._hangups.unwatch, self._watched, self._hangup_while_paused)
        guard.attempt(self._last_response_undelivered)
        guard.attempt(self._take_unread, exc)
        if self.exchange is not None:
            guard.attempt(self.exchange.on_lost, self, exc)

    def _take_unread(self, exc: Exception | None) -> None:
        """The last bytes of a tunnel's client that left without reading."""
        if self.reading is self.transport and self._tunneling:
            for data in sockets.unread(self.transport, exc):
                self.data_received(data)

    # --- requests

    def _keep(self, data: bytes) -> ReceiveBuffer:
        """Add bytes to the buffer."""
        buffer = self._buffer
        if buffer is None:
            check = partial(check_partial_head, self._context.head_limits)
            buffer = self._buffer = ReceiveBuffer(check, skip_empty_line=True)
        buffer.add(data)
        return buffer

    def _next_request(self, buffer: ReceiveBuffer, now_ns: int) -> None:
        """Start an exchange if the buffer has a complete request head."""
        try:
            received = buffer.head()
        except BadRequest as e:
            self._refuse_malformed(e, buffer.take(), now_ns)
            return
        if received is not None:
            buffer.skip(len(received))
            self._start_request(received, b"", now_ns)
        elif buffer:
            self._apply(BYTES)

    def _start_request(self, received: bytes, rest: bytes, now_ns: int) -> None:
        """Start an exchange. `received`: its head. `rest`: bytes after it that are not in the buffer, which then is empty."""
        context = self._context
        try:
            head = read_request_head(received, context.head_limits)
        except BadRequest as e:
            self._refuse_malformed(e, received + rest, now_ns)
            return
        route = context.router.route(head)
        if route is None:
            self._refuse(ErrorResponse.unknown_upstream(context.router.names), head, now_ns)
            return
        if (
            head.upgrade is not None
            and head.upgrade.lower() == b"websocket"
            and context.options.websockets == "refuse"
        ):
            self._refuse(ErrorResponse.websocket(), head, now_ns)
            return
        self._settle()
        pool, trace = self._pools[route.upstream_index], join_trace(head.known.get(b"traceparent"))
        recorder = None
        if context.recorders is not None:
            try:
                recorder = context.recorders.new(head, route, trace, self._buffer_since_ns, now_ns)
            except Exception as e:
                context.failures.not_started(e)
        buffer = self._buffer
        if buffer and len(buffer) == head.length:
            rest = buffer.take()
        exchange = Exchange(context, self, head, route, trace, recorder, now_ns)
        self._apply(REQUEST_HEAD)
        exchange.attach()
        if rest and head.length >= len(rest):  # nothing of a next request
            rest = exchange.on_client_bytes(rest)
            if exchange.ended:
                return
        if rest:
            buffer = self._keep(rest)
        if buffer:
            # A piece at a time, because the next requests may follow a short body.
            while buffer and exchange.takes_client_bytes:
                buffer.put_back(exchange.on_client_bytes(buffer.take(head.length or _PIECE_BYTES)))
                if exchange.ended:
                    return
            self._buffer_since_ns = self.last_byte_ns
        exchange.start(now_ns)
        pool.serve(exchange, now_ns)

    def waiting_stream(self, relay_blocks: bool) -> str | None:
        """As `Exchange.stream_waiting_for_client`, also while a response is being delivered."""
        exchange = self.exchange or self.draining
        return exchange.stream_waiting_for_client(relay_blocks) if exchange is not None else None

    def after_response(self) -> None:
        """Also start a pipelined request."""
        super().after_response()
        if self._buffer and self.state < EXCHANGING and not self.transport.is_closing():
            self._next_request(self._buffer, self._clock_ns())

    # --- back-pressure

    @property
    def _tunneling(self) -> bool:
        return self.exchange is not None and self.exchange.response == TUNNELING

    def pause_reading(self) -> None:
        if not self.read_paused and not self.closed:
            super().pause_reading()
            self._watched = self._hangups.watch(self._socket, self._hangup_while_paused)

    def resume_reading(self) -> None:
        if self.read_paused and not self.closed:
            self.read_paused = False
            self.ready_ns = self._clock_ns()
            self._hangups.unwatch(self._watched, self._hangup_while_paused)
            self.reading.resume_reading()

    def _hangup_while_paused(self, broken: bool) -> None:
        """In a tunnel the client may end its direction: what it sent before is still to be read."""
        if self.exchange is not None and (broken or not self._tunneling):
            self.exchange.on_lost(self, ConnectionResetError() if broken else None)

    # --- refusals

    def _refuse(self, response: ErrorResponse, received: RequestHead | bytes, now_ns: int) -> None:
        """Answer a request that has no exchange, and close. `received`: its head, or the bytes of an invalid one."""
        refusals, attempt = self._context.refusals, self._context.failures.attempt
        attempt(refusals.count, response.code, now_ns)
        attempt(refusals.record, response, received, self._buffer_since_ns, now_ns)
        self._buffer = None
        without_body = isinstance(received, RequestHead) and received.method == "HEAD"
        self.transport.write(response.encode(without_body=without_body))
        self._close(LINGER)

    def _refuse_malformed(self, error: BadRequest, received: bytes, now_ns: int) -> None:
        self._refuse(ErrorResponse.bad_request(other_protocol(received) or error), received, now_ns)

    # --- time limits

    def _start_timer(self) -> None:
        interval_s = self._context.timeouts.check_interval_s
        if interval_s:
            self._timer = self._context.loop.call_later(interval_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.state < LINGERING:
            self._start_timer()
            self.check_timeouts(self._clock_ns())

    def check_timeouts(self, now_ns: int) -> None:
        """Close the connection or end its exchange if the client or the upstream has exceeded a time limit."""
        timeouts, exchange = self._context.timeouts, self.exchange
        if self.state == HEAD_PART:
            if expired(timeouts.request_head_ns, now_ns, self._buffer_since_ns, self.ready_ns):
                error = BadRequest(408, "the request's head did not arrive in time")
                self._refuse_malformed(error, self.take_buffered(), now_ns)
        elif exchange is None:
            if expired(timeouts.keep_alive_ns, now_ns, self.last_byte_ns, self.ready_ns):
                self._close(CLOSE)
        else:
            exchange.on_deadline(now_ns)

"""One client connection and the requests on it, one at a time.

Contract:
- A request's head is read completely, strictly and within limits before anything goes upstream.
- Pipelined requests wait in a bounded buffer.
- After its own error responses the tap ends writing but reads on for `LINGER_S`: closing at once could reset the connection
  before the client has read the response.
- The kernel accepts up to megabytes for a client that does not read. If bytes of a response are unsent at its end, the connection
  polls the kernel until the client's kernel has acknowledged them, the next request comes, either side closes, or nothing was
  acknowledged for `sockets.STUCK_S`. Only then is the connection closed, if it is to be closed.
- One timer per connection checks all limits in `timeouts`; a request creates none.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from typing import cast

from streamgauge.ingest.http1.heads import (
    BadRequest,
    RequestHead,
    check_partial_head,
    other_protocol,
    read_request_head,
)
from streamgauge.ingest.http1.receive_buffer import ReceiveBuffer
from streamgauge.ingest.http1.trace_context import join_trace
from streamgauge.ingest.tap.connections import sockets
from streamgauge.ingest.tap.connections.upstream_connection import UpstreamPool
from streamgauge.ingest.tap.exchanges.context import TapContext
from streamgauge.ingest.tap.exchanges.exchange import Exchange
from streamgauge.ingest.tap.exchanges.sides import ClientSide
from streamgauge.ingest.tap.exchanges.states import ABORT, KEEP_OPEN, LINGER, RESET, TUNNELING
from streamgauge.ingest.tap.exchanges.timeouts import LINGER_S, RESET_CHECK_S, RESET_PATIENCE_S, expired
from streamgauge.ingest.tap.http.error_responses import ErrorResponse

_MAX_BUFFERED_BYTES = 262_144
_PIECE_BYTES = 65_536
_CR = ord("\r")
_MAX_LINGER_BYTES = 4 * 2**20
_DELIVERY_CHECK_S = 0.16
# A response below this size leaves at once: the first packets of a connection (10 since RFC 6928) may hold 14 KB, and even clients
# on small devices accept 4 KiB unread. Its delivery costs no system call.
_MIN_FOLLOWED_BYTES = 4096


class ClientConnection(ClientSide):
    """One connection of a client, an `asyncio.Protocol`. `pools` are in the order of the configured upstreams."""

    def __init__(self, context: TapContext, pools: list[UpstreamPool], hangups: sockets.HangupWatch) -> None:
        super().__init__()
        self._context = context
        self._hangups = hangups
        self._clock_ns = context.clock_ns
        self._pools = pools
        self._watched = -1  # descriptor while reading is paused
        self._buffer: ReceiveBuffer | None = None  # received, but not processed yet
        self._buffer_since_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._lingering = False
        self._lingered_bytes = 0
        self._watching_drain = False
        self._drained_ns = 0  # when the socket had accepted the response of `draining`; 0: not yet
        self._close_when_delivered = False
        self._ended_exchanges_bytes = 0  # bytes written for exchanges that have ended

    # --- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
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
        if self._lingering:
            self._lingered_bytes += len(data)
            if self._lingered_bytes > _MAX_LINGER_BYTES:
                self.transport.abort()
            return
        buffer = self._buffer
        if not buffer:
            self._buffer_since_ns = now_ns
            if exchange is None and data[0] != _CR:
                end = data.find(b"\r\n\r\n") + 4
                if end >= 4:  # most heads arrive in one read
                    self._start_request(data[:end], data[end:], now_ns)
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
        """Whatever one step raises, the exchange ends."""
        self.closed = True
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

    def _last_response_undelivered(self) -> None:
        self.tcp_ends()
        if self.draining is not None:
            self.draining.on_drained(None, None, self._clock_ns(), self._undelivered_bytes())

    def tcp_ends(self) -> None:
        """The client leaves. It may have received the last response since the last poll."""
        if self._drained_ns and self._queued_bytes() == 0:
            self._end_draining(self._clock_ns())

    def _take_unread(self, exc: Exception | None) -> None:
        """The last bytes of a tunnel's client that left without reading."""
        if self.reading is self.transport and self._tunneling:
            for data in sockets.unread(self.transport, exc):
                self.data_received(data)

    def resume_writing(self) -> None:
        if self.draining is not None:
            self._check_drained()
        super().resume_writing()

    # --- requests

    def _keep(self, data: bytes) -> ReceiveBuffer:
        """Add bytes to the buffer."""
        buffer = self._buffer
        if buffer is None:
            check = partial(check_partial_head, self._context.options.head_limits)
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

    def _start_request(self, received: bytes, rest: bytes, now_ns: int) -> None:
        """Start an exchange. `received`: its head. `rest`: bytes after it that are not in the buffer, which then is empty."""
        context = self._context
        try:
            head = read_request_head(received, context.options.head_limits)
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
        exchange = Exchange(context, self, pool, head, route, trace, recorder, now_ns)
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

    def waiting_stream(self, relay_blocks: bool) -> str | None:
        """As `Exchange.stream_waiting_for_client`, also while a response is being delivered."""
        exchange = self.exchange or self.draining
        return exchange.stream_waiting_for_client(relay_blocks) if exchange is not None else None

    def take_buffered(self) -> bytes:
        return self._buffer.take() if self._buffer else b""

    def exchange_ended(self, exchange: Exchange, now_ns: int, error: ErrorResponse | None, then: int) -> None:
        self.ready_ns = now_ns
        context = self._context
        self._ended_exchanges_bytes += exchange.written_bytes
        if self.closed or then == ABORT:
            if self.draining is not None:
                self.draining.on_drained(None, None, now_ns, self._undelivered_bytes())
            if not self.closed:
                self.transport.abort()
            return
        if error is not None:
            self.transport.write(error.encode(without_body=exchange.method == "HEAD"))
        if then == KEEP_OPEN and (context.handed_over or not context.stopping):
            if self.read_paused:
                self.resume_reading()
            # Mostly the socket has accepted the response in `write`.
            if (self.draining is not None and not self._check_drained()) or self._buffer:
                context.call_next_iteration(self._after_response)
        elif then == RESET:
            self._reset_when_sent()
        else:
            context.call_next_iteration(self._after_response)
            self._close(linger=then == LINGER)

    def _after_response(self) -> None:
        """End the draining if the response is delivered, else follow it, and start a pipelined request."""
        self._watch_drain()
        if self._buffer and self.exchange is None and not self._lingering and not self.transport.is_closing():
            self._next_request(self._buffer, self._clock_ns())

    # --- progress of written bytes

    @property
    def _socket(self) -> socket.socket | None:
        found: socket.socket | None = self.reading.get_extra_info("socket")
        return found

    def _unwritten_bytes(self) -> int:
        try:
            return self.transport.get_write_buffer_size()
        except (RuntimeError, AttributeError):
            return 0

    def _undelivered_bytes(self) -> int:
        """Bytes written that the client's kernel has not acknowledged, or an underestimate if the kernel cannot say."""
        if self._context.options.tls_cert is not None:
            return self._unwritten_bytes()  # the kernel counts TLS records, not our bytes
        acknowledged = sockets.acknowledged_bytes(self._socket)
        if acknowledged is None:
            return self._unwritten_bytes()
        return max(0, self._ended_exchanges_bytes - acknowledged)

    def _queued_bytes(self, unsent: bool = False) -> int | None:
        """Bytes written that the client's kernel has not acknowledged; with `unsent`, those that have not left this machine. With
        TLS, the size of its records. None: the kernel cannot tell."""
        queued = sockets.queued_bytes(self._socket, unsent)
        if queued is None:
            return None
        below_tls = 0 if self.reading is self.transport else self.reading.get_write_buffer_size()
        return self._unwritten_bytes() + below_tls + queued

    def _watch_drain(self) -> None:
        """Follow the last exchange's response if it is not delivered."""
        if self.draining is None or self._check_drained():
            return
        if self._unwritten_bytes():
            # With a limit of 0 the transport calls resume_writing once the kernel has everything.
            self._watching_drain = True
            self.transport.set_write_buffer_limits(high=0)
        if self._close_when_delivered:
            self.end_writing()
        left, then = partial(self._left_bytes, self.draining), partial(self._followed, self.draining)
        sockets.follow(self._context.loop, left, sockets.STUCK_S, _DELIVERY_CHECK_S, then)

    def _left_bytes(self, exchange: Exchange) -> int:
        if self.draining is not exchange:
            return 0
        return self._queued_bytes() or self._unwritten_bytes()

    def _followed(self, exchange: Exchange, left_bytes: int) -> None:
        if self.draining is exchange:
            self._end_draining(self._clock_ns() if self._queued_bytes() == 0 else None, left_bytes)

    def _check_drained(self) -> bool:
        """End the draining if the last exchange's response has left for the client. False: it has not."""
        if self._unwritten_bytes():
            return False
        if self._watching_drain:
            self._watching_drain = False
            self.transport.set_write_buffer_limits(high=self._context.options.write_buffer_bytes)
        exchange = self.draining
        if exchange is not None:
            now_ns = self._clock_ns()
            if not self._drained_ns:
                self._drained_ns = now_ns
            unsent = self._queued_bytes(True) if exchange.written_bytes >= _MIN_FOLLOWED_BYTES else 0
            if unsent and not self.transport.is_closing():
                return False
            self._end_draining(now_ns if unsent == 0 else None)
        return True

    def _end_draining(self, delivered_ns: int | None, left_bytes: int = 0) -> None:
        """`delivered_ns`: when the client's kernel had the response, None if that is unknown. `left_bytes`: what it does not have."""
        exchange, drained_ns = self.draining, self._drained_ns
        self._drained_ns = 0
        if exchange is not None:
            exchange.on_drained(drained_ns or delivered_ns, delivered_ns, None, left_bytes)
        if self._close_when_delivered:
            self._close_when_delivered = False
            if left_bytes:
                self.transport.abort()
            else:
                self._close_now()

    def _settle(self) -> None:
        """End the draining of the last exchange before the next one begins."""
        if self.draining is not None and not self._check_drained():
            self._end_draining(None)

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

    # --- closing

    def close_if_idle(self) -> None:
        """Close unless a request is in progress, because the tap is stopping."""
        if self._close_when_delivered:
            self._settle()
        elif self.exchange is None and not self._lingering and not self.closed:
            self._close_transport()

    def _close_transport(self) -> None:
        """Close; the kernel sends what it has accepted, but it can no longer tell when."""
        self.transport.close()
        if self._drained_ns:
            self._check_drained()

    def _refuse(self, response: ErrorResponse, received: RequestHead | bytes, now_ns: int) -> None:
        """Answer a request that has no exchange, and close. `received`: its head, or the bytes of an invalid one."""
        refusals, attempt = self._context.refusals, self._context.failures.attempt
        attempt(refusals.count, response.code, now_ns)
        attempt(refusals.record, response, received, self._buffer_since_ns, now_ns)
        self._buffer = None
        without_body = isinstance(received, RequestHead) and received.method == "HEAD"
        self.transport.write(response.encode(without_body=without_body))
        self._close(linger=True)

    def _refuse_malformed(self, error: BadRequest, received: bytes, now_ns: int) -> None:
        self._refuse(ErrorResponse.bad_request(other_protocol(received) or error), received, now_ns)

    def _close(self, *, linger: bool) -> None:
        """Close after the written bytes are sent. `linger`: read on for a while, because the client may still be sending."""
        if self.closed:
            return
        self._buffer = None
        self._lingering = True
        self.resume_reading()  # TLS ends after the client's closing alert
        if not linger or not self.transport.can_write_eof():
            self._close_now()
            return
        self.end_writing()
        self._context.loop.call_later(LINGER_S, self._close_now)

    def _close_now(self) -> None:
        if self.draining is not None and not self._context.stopping:
            self._close_when_delivered = True
        elif not self.closed:
            sockets.close_when_sent(self._context.loop, self.transport, self.reading)
            if self._drained_ns:
                self._check_drained()

    def _reset_when_sent(self) -> None:
        """Reset the connection after the kernel has delivered what was written.

        Used for an incomplete body without a length: a FIN would make it look complete.
        """
        self._lingering = True
        self._watch_drain()
        sockets.follow(
            self._context.loop,
            lambda: 0 if self.closed else self._queued_bytes() or self._unwritten_bytes(),
            RESET_PATIENCE_S,
            RESET_CHECK_S,
            self._reset,
        )

    def _reset(self, left_bytes: int) -> None:
        if not self.closed:
            if self.draining is not None:
                self._followed(self.draining, left_bytes)
            with contextlib.suppress(OSError):
                sockets.reset_on_close(self._socket)
            self.transport.abort()

    # --- time limits

    def _start_timer(self) -> None:
        interval_s = self._context.timeouts.check_interval_s
        if interval_s:
            self._timer = self._context.loop.call_later(interval_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self.closed and not self._lingering:
            self._start_timer()
            self.check_timeouts(self._clock_ns())

    def check_timeouts(self, now_ns: int) -> None:
        """Close the connection or end its exchange if the client or the upstream has exceeded a time limit."""
        timeouts, exchange = self._context.timeouts, self.exchange
        if exchange is None and self._buffer:
            if expired(timeouts.request_head_ns, now_ns, self._buffer_since_ns, self.ready_ns):
                error = BadRequest(408, "the request's head did not arrive in time")
                self._refuse_malformed(error, self._buffer.take(), now_ns)
        elif exchange is None:
            if expired(timeouts.keep_alive_ns, now_ns, self.last_byte_ns, self.ready_ns):
                self._close_transport()
        else:
            exchange.on_deadline(now_ns)

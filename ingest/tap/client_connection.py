"""The tap's side towards its clients: one connection, its requests one after the other.

The rules: a request's head is read whole (bounded) and strictly before anything goes upstream. Requests that come ahead
of their turn wait here, bounded. A head or body that dawdles is answered 408. Whatever the tap refuses, it closes the
connection after; it then goes on reading for a moment, so that the answer is not lost in a reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, cast

from ingest.tap import sockets
from ingest.tap.error_responses import Answer
from ingest.tap.exchange import Exchange
from ingest.tap.http_head import Refused, read_request_head, refuse_unfinished_head

if TYPE_CHECKING:
    import socket

    from ingest.tap.stream_recorder import StreamRecorder
    from ingest.tap.worker import TapWorker

_MAX_AHEAD_BYTES = 262_144
_LINGER_S = 2.0
_MAX_LINGER_BYTES = 4 * 2**20
_RESET_CHECK_S = 0.01
_RESET_PATIENCE_S = 2.0
_monotonic_ns = time.monotonic_ns


class ClientConnection(asyncio.Protocol):
    """One connection of a client."""

    transport: asyncio.Transport

    def __init__(self, worker: TapWorker) -> None:
        self._worker = worker
        self.address = "unknown"
        self.scheme = "http"
        self.write_paused = False
        self.transport_paused_by_us = False
        self._exchange: Exchange | None = None
        self._ending: StreamRecorder | None = None
        """The last exchange's recorder, until the socket has drained."""
        self._ahead = b""
        self._ahead_since_ns = 0
        self._searched = 0
        self._last_ns = 0
        self._turn_ns = 0
        """Since when it is the client's turn: before, the tap was answering it, or was not reading what it sends."""
        self._timer: asyncio.TimerHandle | None = None
        self._lingering_bytes = -1
        self._watching_drain = False
        self._gone = False
        self._written_before = 0
        """Bytes written for exchanges that have ended."""

    # --- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        worker = self._worker
        self.transport.set_write_buffer_limits(high=worker.options.write_buffer_bytes)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.address = str(peer[0])
        if worker.options.tls_cert is not None:
            self.scheme = "https"
        worker.clients.add(self)
        worker.counters.client_connections += 1
        self._last_ns = _monotonic_ns()
        self._arm_timer()

    def data_received(self, data: bytes) -> None:
        now_ns = self._last_ns = _monotonic_ns()
        exchange = self._exchange
        if exchange is not None and exchange.request_open:
            full = len(data) >= sockets.FULL_READ_BYTES
            data = exchange.client_data(data)
            if full and self._exchange is exchange and not self.transport_paused_by_us:
                self.transport.pause_reading()
                self._worker.after_turn(self._read_on)
            exchange = self._exchange
            if not data:
                return
        if self._lingering_bytes >= 0:
            self._lingering_bytes += len(data)
            if self._lingering_bytes > _MAX_LINGER_BYTES:
                self.transport.abort()
            return
        if self._ahead:
            self._ahead += data
        else:
            self._ahead = data
            self._ahead_since_ns = now_ns
        if exchange is None:
            self._next_request(now_ns)
        elif len(self._ahead) > _MAX_AHEAD_BYTES:
            self.pause_reading()

    def eof_received(self) -> bool:
        exchange = self._exchange
        if exchange is not None:
            if exchange.tunnel is not None:
                exchange.tunnel.client_half_closed()
                return True
            # As nginx does: a client that closes its side is one that left. It may only have half-closed, but no
            # LLM client does, and a stream that nobody reads must stop costing at once.
            exchange.client_left(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        if self.transport_paused_by_us:
            self._worker.hangups.forget(self._socket)
        self._worker.clients.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ending is not None:
            ending, self._ending = self._ending, None
            ending.left(_monotonic_ns(), self._undelivered_bytes())
        if self._exchange is not None:
            self._exchange.client_left(exc)

    def pause_writing(self) -> None:
        self.write_paused = True
        if self._exchange is not None:
            self._exchange.client_write_paused()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._ending is not None:
            self._check_drained()
        if self._exchange is not None:
            self._exchange.client_write_resumed()

    # --- requests

    def _next_request(self, now_ns: int) -> None:
        """Begin the next request if its head is there."""
        worker = self._worker
        data = self._ahead
        if self._searched == 0 and data[:2] == b"\r\n":
            data = self._ahead = data[2:]  # RFC 9112 §2.2: one empty line before a request is forgiven
        limits = worker.options.head_limits
        try:
            end = data.find(b"\r\n\r\n", max(0, self._searched - 3)) + 4
            if end < 4:
                refuse_unfinished_head(data, limits)
                self._searched = len(data)
                return
            head = read_request_head(data[:end], limits)
        except Refused as e:
            worker.counters.requests_refused += 1
            self._answer_and_close(Answer.refusal(e))
            return
        self._searched = 0
        self._ahead = data[end:]
        route = worker.router.route(head)
        if route is None:
            worker.counters.requests_unrouted += 1
            self._answer_and_close(
                Answer.unknown_upstream(worker.router.names), without_body=head.method == "HEAD"
            )
            return
        if self._ending is not None:
            self._drained_or_not()
        exchange = self._exchange = Exchange(worker, self, head, route, self._ahead_since_ns, now_ns)
        worker.exchanges.add(exchange)
        if self._ahead:
            if exchange.request_open:
                data, self._ahead = self._ahead, b""
                self._ahead = exchange.client_data(data)
                if exchange.ended:
                    return
            self._ahead_since_ns = self._last_ns
        exchange.start(now_ns)

    def take_ahead(self) -> bytes:
        """Bytes that came after the request: a tunnel's first ones."""
        data, self._ahead = self._ahead, b""
        return data

    def exchange_over(
        self,
        exchange: Exchange,
        recorder: StreamRecorder | None,
        now_ns: int,
        *,
        answer: Answer | None,
        left: bool,
        keep_alive: bool,
        abort: bool,
    ) -> None:
        """The exchange has ended: answer if it has not been, then go on or close."""
        self._exchange = None
        self._turn_ns = now_ns
        worker = self._worker
        worker.exchanges.discard(exchange)
        self._written_before += exchange.written_bytes
        if self._ending is not None:
            self._drained_or_not()
        if self._gone or left:
            if recorder is not None:
                recorder.left(0, self._undelivered_bytes())
            if not self._gone:
                self.transport.abort()
            return
        self._ending = recorder
        if answer is not None:
            without_body = exchange.method == "HEAD"
            self.transport.write(answer.encode(keep_alive=False, without_body=without_body))
        if keep_alive and not worker.stopping:
            self.resume_reading()
            if recorder is not None or self._ahead:
                worker.after_turn(self.turn_over)
        elif abort:
            self._reset_once_sent()
        else:
            worker.after_turn(self.turn_over)
            self._close_lingering(request_open=exchange.request_open)

    def turn_over(self) -> None:
        """One turn of the loop after the response: has the socket taken it, and is there another request?"""
        if self._ending is not None:
            self._watch_drain()
        if self._ahead and self._exchange is None and not self._gone and self._lingering_bytes < 0:
            self._next_request(_monotonic_ns())

    # --- what the socket has taken

    @property
    def _socket(self) -> socket.socket:
        found: socket.socket = self.transport.get_extra_info("socket")
        return found

    def _unwritten_bytes(self) -> int:
        try:
            return self.transport.get_write_buffer_size()
        except (RuntimeError, AttributeError):
            return 0

    def _undelivered_bytes(self) -> int:
        """What was written and the client's kernel has not acknowledged, as far as can be known."""
        if self._worker.options.tls_cert is not None:
            return self._unwritten_bytes()  # the kernel counts records of TLS, not our bytes
        acknowledged = sockets.acknowledged_bytes(self._socket)
        if acknowledged is None:
            return self._unwritten_bytes()
        return max(0, self._written_before - acknowledged)

    def _watch_drain(self) -> None:
        if self._ending is not None and not self._check_drained():
            # The limits at 0 make the transport call resume_writing once everything is with the kernel.
            self._watching_drain = True
            self.transport.set_write_buffer_limits(high=0)

    def _check_drained(self) -> bool:
        if self._unwritten_bytes():
            return False
        if self._watching_drain:
            self._watching_drain = False
            self.transport.set_write_buffer_limits(high=self._worker.options.write_buffer_bytes)
        self._drained_or_not()
        return True

    def _drained_or_not(self) -> None:
        """Close the record of the last exchange with what is known of the socket now."""
        ending, self._ending = self._ending, None
        if ending is not None:
            ending.drained(None if self._gone or self._unwritten_bytes() else _monotonic_ns())

    # --- back-pressure

    def pause_reading(self) -> None:
        if not self.transport_paused_by_us and not self._gone:
            self.transport_paused_by_us = True
            self.transport.pause_reading()
            self._worker.hangups.watch(self._socket, self._hung_up)

    def resume_reading(self) -> None:
        if self.transport_paused_by_us and not self._gone:
            self.transport_paused_by_us = False
            self._turn_ns = _monotonic_ns()
            self._worker.hangups.forget(self._socket)
            self.transport.resume_reading()

    def _read_on(self) -> None:
        """The others have had their turn."""
        if not self.transport_paused_by_us and not self._gone and not self.transport.is_closing():
            self.transport.resume_reading()

    def _hung_up(self) -> None:
        """The client has gone while it was not being read."""
        if self._exchange is not None:
            self._exchange.client_left(None)

    # --- closing

    def end_writing(self) -> None:
        """No more bytes from the upstream (tunnels)."""
        with contextlib.suppress(OSError, RuntimeError, NotImplementedError):
            if self.transport.can_write_eof():
                self.transport.write_eof()

    def close_if_idle(self) -> None:
        """The tap stops: a connection without a request has no reason to stay."""
        if self._exchange is None and self._lingering_bytes < 0 and not self._gone:
            self.transport.close()

    def _answer_and_close(self, answer: Answer, *, without_body: bool = False) -> None:
        self._ahead = b""
        self.transport.write(answer.encode(keep_alive=False, without_body=without_body))
        self._close_lingering(request_open=True)

    def _close_lingering(self, *, request_open: bool) -> None:
        """Close once what was written is sent; while the client is still sending, listen on for a moment."""
        if self._gone:
            return
        self._ahead = b""
        if not request_open or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._lingering_bytes = 0
        self.resume_reading()
        with contextlib.suppress(OSError, RuntimeError):
            self.transport.write_eof()
        self._worker.loop.call_later(_LINGER_S, self._close_now)

    def _close_now(self) -> None:
        if not self._gone:
            self.transport.close()

    def _reset_once_sent(self) -> None:
        """End a body that only the connection's end delimits, and that was cut short: a FIN would make it look whole,
        so reset, but not before the kernel has delivered what came."""
        self._lingering_bytes = 0
        self._watch_drain()
        self._reset_when_delivered(self._worker.loop.time() + _RESET_PATIENCE_S)

    def _reset_when_delivered(self, until_s: float) -> None:
        if self._gone:
            return
        unsent = self._unwritten_bytes() or sockets.unsent_bytes(self._socket)
        if unsent and self._worker.loop.time() < until_s:
            self._worker.loop.call_later(_RESET_CHECK_S, self._reset_when_delivered, until_s)
            return
        with contextlib.suppress(OSError):
            sockets.reset_on_close(self._socket)
        self.transport.abort()

    # --- limits of time

    def _arm_timer(self) -> None:
        look_every_s = self._worker.look_every_s
        if look_every_s:
            self._timer = self._worker.loop.call_later(look_every_s, self._look)

    def _look(self) -> None:
        """One lazy timer for each connection, for the limits of its exchanges too: none is made for a request."""
        self._timer = None
        if not self._gone and self._lingering_bytes < 0:
            self.check_time(_monotonic_ns())
            self._arm_timer()

    def check_time(self, now_ns: int) -> None:
        """End what has waited for the client, or for the upstream, for too long. Called now and then."""
        options = self._worker.options
        exchange = self._exchange
        silent_ns = now_ns - max(self._last_ns, self._turn_ns)
        if exchange is None and self._ahead:
            waited_ns = now_ns - max(self._ahead_since_ns, self._turn_ns)
            if options.head_timeout_s and waited_ns > options.head_timeout_s * 1e9:
                self._worker.counters.requests_refused += 1
                self._answer_and_close(
                    Answer(408, "request_timeout", "the request's head did not come in time")
                )
        elif exchange is None:
            if options.keep_alive_timeout_s and silent_ns > options.keep_alive_timeout_s * 1e9:
                self.transport.close()
        elif (
            exchange.request_open
            and exchange.tunnel is None
            and not self.transport_paused_by_us
            and options.body_timeout_s
            and silent_ns > options.body_timeout_s * 1e9
        ):
            exchange.request_timed_out()
        else:
            exchange.check_time(now_ns)

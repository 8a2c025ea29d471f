"""The client's connection after an exchange: delivery of the response, next request or close.

Contract:
- `states.CLIENT` has the effect of each event.
- After its own error responses the tap ends writing but reads on for `LINGER_S`: closing at once could reset the connection
  before the client has read the response.
- The kernel accepts up to megabytes for a client that does not read. If bytes of a response are unsent at its end, the connection
  polls the kernel until the client's kernel has acknowledged them, the next request comes, either side closes, or nothing was
  acknowledged for `sockets.STUCK_S`. Only then is the connection closed, if it is to be closed.
"""

from __future__ import annotations

import contextlib
import socket
from functools import partial
from typing import Protocol

from streamgauge.ingest.http1.receive_buffer import ReceiveBuffer
from streamgauge.ingest.tap import sockets
from streamgauge.ingest.tap.exchanges.context import TapContext
from streamgauge.ingest.tap.exchanges.sides import Side
from streamgauge.ingest.tap.exchanges.states import (
    ABORT,
    CLIENT,
    CLIENT_STATES,
    CLOSE,
    CLOSED,
    DELIVERED,
    DELIVERING,
    EXCHANGING,
    IDLE,
    KEEP_OPEN,
    LINGER,
    RESET,
    after,
)  # fmt: skip
from streamgauge.ingest.tap.exchanges.timeouts import LINGER_S, RESET_CHECK_S, RESET_PATIENCE_S
from streamgauge.ingest.tap.http.error_responses import ErrorResponse

_DELIVERY_CHECK_S = 0.16
# A response below this size leaves at once: the first packets of a connection (10 since RFC 6928) may hold 14 KB, and even clients
# on small devices accept 4 KiB unread. Its delivery costs no system call.
_MIN_FOLLOWED_BYTES = 4096


class Ended(Protocol):
    """An exchange that has ended."""

    @property
    def method(self) -> str: ...
    @property
    def written_bytes(self) -> int: ...
    def on_drained(
        self, drained_ns: int | None, delivered_ns: int | None, left_ns: int | None, undelivered_bytes: int
    ) -> None: ...


class ClientSide(Side):
    """The connection of a client."""

    def __init__(self, context: TapContext, hangups: sockets.HangupWatch) -> None:
        super().__init__()
        self._context = context
        self._clock_ns = context.clock_ns
        self._hangups = hangups
        self.state = IDLE
        """State of the table `states.CLIENT`."""
        self.address = "unknown"
        self.scheme = "http"
        self.draining: Ended | None = None
        """The last exchange, until its response is delivered."""
        self.last_byte_ns = 0
        self.ready_ns = 0
        """Since when the tap has been ready for the client's next byte."""
        self._watched = -1  # descriptor while reading is paused
        self._buffer: ReceiveBuffer | None = None  # received, but not processed yet
        self._watching_drain = False
        self._drained_ns = 0  # when the socket had accepted the response of `draining`; 0: not yet
        self._written_bytes = 0  # for the last exchange that has ended
        self._ended_exchanges_bytes = 0  # for all of them

    def __repr__(self) -> str:
        exchange = self.exchange or self.draining
        return f"<{type(self).__name__} of {self.address}: {CLIENT_STATES[self.state]}, {exchange}>"

    def _apply(self, event: int) -> None:
        state = after(CLIENT, self.state, event)
        if isinstance(state, int):
            self.state = state

    def exchange_ended(self, exchange: Ended, now_ns: int, error: ErrorResponse | None, then: int) -> None:
        """Send the error response, if any. `then`: an event of `states.CLIENT`."""
        self.ready_ns = now_ns
        context = self._context
        self._written_bytes = exchange.written_bytes
        self._ended_exchanges_bytes += self._written_bytes
        if self.closed or then == ABORT:
            self._apply(ABORT)
            if self.draining is not None:
                self.draining.on_drained(None, None, now_ns, self._undelivered_bytes())
            if not self.closed:
                self.transport.abort()
            return
        if error is not None:
            self.transport.write(error.encode(without_body=exchange.method == "HEAD"))
        if then == KEEP_OPEN and (context.handed_over or not context.stopping):
            self._apply(KEEP_OPEN)
            if self.read_paused:
                self.resume_reading()
            # Mostly the socket has accepted the response in `write`.
            if (self.draining is not None and not self._check_drained()) or self._buffer:
                context.call_next_iteration(self.after_response)
        elif then == RESET:
            self._reset_when_sent()
        else:
            context.call_next_iteration(self.after_response)
            self._close(then)

    def after_response(self) -> None:
        """Called in the loop's next iteration, unless the response is delivered and no other request has come."""
        self._watch_drain()

    def take_buffered(self) -> bytes:
        """Remove and return the bytes after the request: they belong to a tunnel."""
        return self._buffer.take() if self._buffer else b""

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
        """Bytes written that the client's kernel has not acknowledged, or an underestimate if the kernel does not report it."""
        if self._context.options.tls_cert is not None:
            return self._unwritten_bytes()  # the kernel counts TLS records, not our bytes
        acknowledged = sockets.acknowledged_bytes(self._socket)
        if acknowledged is None:
            return self._unwritten_bytes()
        return max(0, self._ended_exchanges_bytes - acknowledged)

    def _queued_bytes(self, unsent: bool = False) -> int | None:
        """Bytes written that the client's kernel has not acknowledged; with `unsent`, those that have not left this machine. With
        TLS, the size of its records. None: the kernel does not report it."""
        queued = sockets.queued_bytes(self._socket, unsent)
        if queued is None:
            return None
        below_tls = 0 if self.reading is self.transport else self.reading.get_write_buffer_size()
        return self._unwritten_bytes() + below_tls + queued

    def _left_bytes(self) -> int:
        return self._queued_bytes() or self._unwritten_bytes()

    def _watch_drain(self) -> None:
        """Follow the last exchange's response if it is not delivered."""
        exchange = self.draining
        if exchange is None or self._check_drained():
            return
        if self._unwritten_bytes():
            # With a limit of 0 the transport calls resume_writing once the kernel has everything.
            self._watching_drain = True
            self.transport.set_write_buffer_limits(high=0)
        if self.state == DELIVERING:
            self.end_writing()
        sockets.follow(
            self._context.loop, lambda: self._left_bytes() if self.draining is exchange else 0, sockets.STUCK_S, _DELIVERY_CHECK_S,
            partial(self._followed, exchange),
        )  # fmt: skip

    def _followed(self, exchange: Ended, left_bytes: int) -> None:
        if self.draining is exchange:
            self._end_draining(self._clock_ns() if self._queued_bytes() == 0 else None, left_bytes)

    def _check_drained(self) -> bool:
        """End the draining if the last exchange's response has left for the client. False: it has not."""
        if self._unwritten_bytes():
            return False
        if self._watching_drain:
            self._watching_drain = False
            self.transport.set_write_buffer_limits(high=self._context.options.write_buffer_bytes)
        if self.draining is not None:
            now_ns = self._clock_ns()
            if not self._drained_ns:
                self._drained_ns = now_ns
            unsent = self._queued_bytes(True) if self._written_bytes >= _MIN_FOLLOWED_BYTES else 0
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
        if self.state == DELIVERING:
            if left_bytes:
                self._apply(ABORT)
                self.transport.abort()
            else:
                self._close_now()

    def _settle(self) -> None:
        """End the draining of the last exchange before the next one begins."""
        if self.draining is not None and not self._check_drained():
            self._end_draining(None)

    def _last_response_undelivered(self) -> None:
        self.tcp_ends()
        if self.draining is not None:
            self.draining.on_drained(None, None, self._clock_ns(), self._undelivered_bytes())

    def tcp_ends(self) -> None:
        """The client leaves. It may have received the last response since the last poll."""
        if self._drained_ns and self._queued_bytes() == 0:
            self._end_draining(self._clock_ns())

    def resume_writing(self) -> None:
        if self.draining is not None:
            self._check_drained()
        super().resume_writing()

    # --- closing

    def close_if_idle(self) -> None:
        """Close unless a request is in progress, because the tap is stopping."""
        if self.state == DELIVERING:
            self._settle()
        elif self.state < EXCHANGING:
            self._close(CLOSE)

    def _close(self, then: int) -> None:
        """`CLOSE` or `LINGER` after the written bytes are sent."""
        if self.closed:
            return
        self._buffer = None
        self.resume_reading()  # TLS ends after the client's closing alert
        if then == LINGER and self.transport.can_write_eof():
            self._apply(LINGER)
            self.end_writing()
            self._context.loop.call_later(LINGER_S, self._close_when_delivered)
        else:
            self._close_when_delivered()

    def _close_when_delivered(self) -> None:
        self._apply(CLOSE)
        if self.state == DELIVERING and (self.draining is None or self._context.stopping):
            self._close_now()

    def _close_now(self) -> None:
        if not self.closed:
            self._apply(DELIVERED)
            sockets.close_when_sent(self._context.loop, self.transport, self.reading)
            if self._drained_ns:
                self._check_drained()

    def _reset_when_sent(self) -> None:
        """Reset the connection after the kernel has delivered what was written.

        Used for an incomplete body without a length: a FIN would make it look complete.
        """
        self._apply(RESET)
        self._watch_drain()
        sockets.follow(
            self._context.loop, lambda: 0 if self.closed else self._left_bytes(), RESET_PATIENCE_S, RESET_CHECK_S, self._reset
        )  # fmt: skip

    def _reset(self, left_bytes: int) -> None:
        if self.state != CLOSED:
            if self.draining is not None:
                self._followed(self.draining, left_bytes)
            with contextlib.suppress(OSError):
                sockets.reset_on_close(self._socket)
            self._apply(ABORT)
            self.transport.abort()

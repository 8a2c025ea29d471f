"""The two connections of an exchange, as it uses them, and the idle ones to an upstream. `connections` adds what the transports call.

Contract of the pool:
- An idle connection is closed when the server sends anything on it, closes it, or after `pool_idle_s`. Many servers close idle
  connections after 5 s, so the limit is lower: a request that is sent to a closing server can be repeated only if it is safe.
- A connection with unread bytes is never reused: they would be taken for the response to the next request.
- The pool is bounded; the connection that has been idle longest is closed first.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from typing import Protocol

from streamgauge.ingest.tap.exchanges.context import TapContext
from streamgauge.ingest.tap.sockets import close_when_sent

_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


class Attached(Protocol):
    """What a connection reports to: its exchange."""

    def on_full(self, side: Side) -> None: ...
    def on_writable(self, side: Side) -> None: ...


class Side:
    """A connection. Only `exchange.py` and `ending.py` write `exchange`."""

    transport: asyncio.Transport
    reading: asyncio.Transport
    """The TCP transport: reading is paused below TLS (see `tls`)."""

    def __init__(self) -> None:
        self.exchange: Attached | None = None
        self.read_paused = False
        self.write_paused = False
        self.closed = False
        """The event loop has reported its end."""

    def pause_writing(self) -> None:
        """Called by the transport."""
        self.write_paused = True
        if self.exchange is not None:
            self.exchange.on_full(self)

    def resume_writing(self) -> None:
        """Called by the transport."""
        self.write_paused = False
        if self.exchange is not None:
            self.exchange.on_writable(self)

    def resume_after_full_read(self) -> None:
        """Read on, in the iteration after a read that filled the loop's buffer."""
        if not self.read_paused and not self.closed:
            self.reading.resume_reading()

    def pause_reading(self) -> None:
        if not self.read_paused and not self.closed:
            self.read_paused = True
            self.reading.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused and not self.closed:
            self.read_paused = False
            self.reading.resume_reading()

    def tcp_ends(self) -> None:
        """The peer has ended its direction or broken the connection. TLS, if it is used, has not reacted to it."""

    def end_writing(self) -> None:
        """Half-close (tunnels). Does nothing if the transport cannot."""
        # uvloop raises RuntimeError for a transport that is closing.
        with contextlib.suppress(OSError, RuntimeError, NotImplementedError):
            if self.transport.can_write_eof():
                self.transport.write_eof()


class UpstreamSide(Side):
    """A connection to an upstream. It serves one exchange at a time. `reused`: it has served another one before."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool
        self.reused = False
        self.idle_since_s = 0.0
        self.ending = False
        """The tap sends what is buffered, and closes."""
        self._poll: select.poll | None = None

    def abort(self) -> None:
        """Close at once and drop what is buffered."""
        if not self.closed:
            self.transport.abort()

    def close(self) -> None:
        """Close once the peer's kernel has what is buffered."""
        self.ending = True
        if not self.closed:
            self.resume_reading()  # TLS ends after the peer's closing alert
            close_when_sent(self._pool.context.loop, self.transport, self.reading)

    def release(self) -> None:
        """Return the connection to its pool after a complete exchange."""
        self._pool.put(self)

    def is_quiet(self) -> bool:
        """The kernel has neither an end of file nor unexpected bytes for this idle connection."""
        if self.closed or self.transport.is_closing():
            return False
        # Created for the first request that uses the idle connection, and kept, because creation costs more than a poll.
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.transport.get_extra_info("socket").fileno(), _READABLE)
        return not self._poll.poll(0)


class Pool:
    """The idle connections to one upstream."""

    def __init__(self, context: TapContext) -> None:
        self.context = context
        self._time_s = context.loop.time
        self._idle: list[UpstreamSide] = []
        self._max_idle = context.options.pool_idle
        self._max_idle_s = context.options.pool_idle_s
        self._expiry_timer: asyncio.TimerHandle | None = None

    def acquire(self) -> UpstreamSide | None:
        """The connection that was used last, if one is usable."""
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

    def put(self, connection: UpstreamSide) -> None:
        """Keep a connection for later exchanges."""
        if self._max_idle <= 0 or connection.write_paused or self.context.stopping:
            connection.abort()
            return
        connection.idle_since_s = self._time_s()
        self._idle.append(connection)
        if len(self._idle) > self._max_idle:
            self._idle.pop(0).abort()
        if self._expiry_timer is None:
            self._expiry_timer = self.context.loop.call_later(self._max_idle_s, self._close_expired)

    def remove(self, connection: UpstreamSide) -> None:
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def close(self) -> None:
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        while self._idle:
            self._idle.pop().abort()

    def _close_expired(self) -> None:
        self._expiry_timer = None
        oldest_s = self._time_s() - self._max_idle_s
        while self._idle and self._idle[0].idle_since_s <= oldest_s:
            self._idle.pop(0).abort()
        if self._idle:
            self._expiry_timer = self.context.loop.call_later(self._max_idle_s / 2, self._close_expired)

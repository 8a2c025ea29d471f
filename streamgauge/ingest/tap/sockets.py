"""What the kernel reports about a TCP connection. Linux reports all of it, other systems a part."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import socket
import struct
import sys
import termios
from collections.abc import Callable, Iterator
from math import isfinite

from streamgauge.ingest.guards import Guard

FULL_READ_BYTES = 250_000
"""A read of at least this size has filled the loop's buffer (256,000 bytes). libuv then reads the same socket again, up to 32
times (8 MB) before it serves any other. A connection with such a read pauses reading until the loop's next iteration."""
STUCK_S = 30.0
"""How long a connection may take nothing of what was written before its close."""
CLOSE_CHECK_S = 0.1
_FIRST_CHECK_S = 0.01
_SIOCOUTQNSD = 0x894B  # linux/sockios.h
_SO_NWRITE = 0x1024  # sys/socket.h of macOS
_TCP_INFO_BYTES, _TCPI_BYTES_ACKED_OFFSET = 128, 120


def acknowledged_bytes(sock: socket.socket | None) -> int | None:
    """Bytes that the peer's kernel has acknowledged on this connection (tcpi_bytes_acked); None if unavailable, as for a `sock` of
    None: the transport has closed it."""
    if sys.platform == "linux" and sock is not None:
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            return int(struct.unpack_from("Q", info, _TCPI_BYTES_ACKED_OFFSET)[0])
        except (OSError, struct.error, TypeError):
            return None
    return None


def queued_bytes(sock: socket.socket | None, unsent: bool = False) -> int | None:
    """Bytes written that the peer's kernel has not acknowledged; with `unsent`, those that have not left this kernel, because the
    peer's receive window is full or for congestion. None if unavailable, as in `acknowledged_bytes`."""
    if sock is None or (unsent and sys.platform != "linux"):
        return None
    request = _SIOCOUTQNSD if unsent else termios.TIOCOUTQ
    try:
        if sys.platform == "darwin":
            return sock.getsockopt(socket.SOL_SOCKET, _SO_NWRITE)
        else:
            return int.from_bytes(fcntl.ioctl(sock.fileno(), request, b"\0\0\0\0"), sys.byteorder)
    except (OSError, ValueError):  # ValueError: the socket was closed
        return None


def unread(transport: asyncio.Transport, error: Exception | None) -> Iterator[bytes]:
    """What the kernel has received on a connection that broke with `error` and that the event loop will not read.

    A peer may send its last bytes and close while bytes for it are on their way. To the event loop the first write that fails
    breaks the connection, even if reading is paused.
    """
    if isinstance(error, OSError):  # after an exception of the tap itself, earlier bytes may be missing
        descriptor = transport.get_extra_info("socket").fileno()
        with contextlib.suppress(OSError):
            # From the descriptor, because the transport is closed for reading. Its socket is open until
            # `connection_lost` returns.
            while data := os.read(descriptor, 65_536):
                yield data


def reset_on_close(sock: socket.socket | None) -> None:
    """Make closing this socket send a RST. Raises OSError."""
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def limit_silence(sock: socket.socket, limit_s: float) -> None:
    """Let the kernel reset connections whose peer acknowledges nothing for `limit_s`, because its machine is down or it does not read.
    macOS has the limit only for connections on which nothing is being sent.

    Accepted sockets inherit this from the listening one. 0: no limit.
    """
    if limit_s and isfinite(limit_s):
        # For a peer to which nothing is being sent.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        limit_ms = int(limit_s * 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, limit_ms // 10_000))
        if sys.platform == "darwin":
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPALIVE, max(1, limit_ms // 2000))
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, limit_ms // 2000))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)


def follow(
    loop: asyncio.AbstractEventLoop,
    left: Callable[[], int],
    patience_s: float,
    check_s: float,
    then: Callable[[int], None],
) -> None:
    """Call `then` with 0 once no bytes are left, or with their number after `patience_s` without progress. `check_s`: longest time
    between two checks."""

    def check(before_bytes: int, deadline_s: float, wait_s: float) -> None:
        left_bytes, now_s = left(), loop.time()
        # Any byte is progress, however slow the peer is. The deadline is for one that takes nothing.
        if left_bytes != before_bytes:
            deadline_s = now_s + patience_s
        if left_bytes and now_s < deadline_s:
            loop.call_later(wait_s, check, left_bytes, deadline_s, min(2 * wait_s, check_s))
        else:
            then(left_bytes)

    check(0, 0.0, _FIRST_CHECK_S)


def close_when_sent(
    loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, tcp: asyncio.Transport
) -> None:
    """Close once the kernel has accepted what was written; abort if the peer accepts nothing for `STUCK_S`.

    `tcp`: `transport` itself, or the one below TLS. uvloop closes TCP when its bytes are sent, but TLS after 30 s at the latest.
    """

    def left() -> int:
        unwritten = transport.get_write_buffer_size() + tcp.get_write_buffer_size()
        return unwritten and unwritten + (queued_bytes(sock) or 0)

    sock = tcp.get_extra_info("socket")
    # A close of the plain transport sends what is buffered first. One of TLS is called only when nothing is left, because
    # uvloop would drop the rest after 30 s.
    if transport is tcp:
        transport.close()
    follow(
        loop, left, STUCK_S, CLOSE_CHECK_S, lambda stuck: transport.abort() if stuck else transport.close()
    )


class HangupWatch:
    """Detects that a peer hangs up while its connection is not being read, which the event loop does not report."""

    def __init__(self, loop: asyncio.AbstractEventLoop, guard: Guard) -> None:
        self._loop, self._guard = loop, guard
        self._events = _Events()
        self._callbacks: dict[int, Callable[[bool], None]] = {}
        loop.add_reader(self._events.fileno(), self._dispatch)

    def watch(self, sock: socket.socket | None, on_hangup: Callable[[bool], None]) -> int:
        """Call `on_hangup` when the peer of `sock` ends its direction (False) or breaks the connection (True). Returns the
        descriptor."""
        descriptor = sock.fileno() if sock is not None else -1
        if descriptor >= 0:
            self._events.add(descriptor)
            self._callbacks[descriptor] = on_hangup
        return descriptor

    def unwatch(self, descriptor: int, on_hangup: Callable[[bool], None]) -> None:
        """Call before the socket is read again, or once it is lost. Its descriptor may belong to another connection by then."""
        if self._callbacks.get(descriptor) == on_hangup:
            del self._callbacks[descriptor]
            with contextlib.suppress(OSError):  # the kernel removes closed sockets itself
                self._events.remove(descriptor)

    def close(self) -> None:
        self._loop.remove_reader(self._events.fileno())
        self._events.close()

    def _dispatch(self) -> None:
        # Each event is reported once, so one error must not lose the others.
        for descriptor, is_broken in self._events.hangups():
            callback = self._callbacks.get(descriptor)
            if callback is not None:
                self._guard.attempt(callback, is_broken)


# Edge-triggered: a peer that has closed its direction would otherwise be reported in every iteration of the loop.

if sys.platform == "linux":

    class _Events:
        """Hang-ups by epoll. EPOLLIN is not asked for: unread data is the reason why the connection is not read."""

        def __init__(self) -> None:
            epoll = self._epoll = select.epoll()
            self.fileno, self.close, self.remove = epoll.fileno, epoll.close, epoll.unregister

        def add(self, descriptor: int) -> None:
            events = select.EPOLLRDHUP | select.EPOLLET
            try:
                self._epoll.register(descriptor, events)
            except FileExistsError:
                self._epoll.modify(descriptor, events)

        def hangups(self) -> list[tuple[int, bool]]:
            """Descriptors, and whether their connections are broken."""
            return [(fd, bool(events & select.EPOLLERR)) for fd, events in self._epoll.poll(0)]

else:

    class _Events:
        """As on Linux, by kqueue."""

        def __init__(self) -> None:
            self._queue = select.kqueue()
            self.fileno, self.close = self._queue.fileno, self._queue.close

        def add(self, descriptor: int) -> None:
            self._change(descriptor, select.KQ_EV_ADD | select.KQ_EV_CLEAR)

        def remove(self, descriptor: int) -> None:
            self._change(descriptor, select.KQ_EV_DELETE)

        def hangups(self) -> list[tuple[int, bool]]:
            events = self._queue.control(None, 64, 0)
            # `fflags` has the error of the socket.
            return [(e.ident, bool(e.fflags)) for e in events if e.flags & select.KQ_EV_EOF]

        def _change(self, descriptor: int, flags: int) -> None:
            self._queue.control([select.kevent(descriptor, select.KQ_FILTER_READ, flags)], 0)

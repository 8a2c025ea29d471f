"""TCP sockets: binding, and what the Linux kernel reports about a connection."""

from __future__ import annotations

import asyncio
import fcntl
import select
import socket
import struct
import termios
from collections.abc import Callable
from math import isfinite

from ingest.guards import Guard
from ingest.tap.options import split_address

FULL_READ_BYTES = 250_000
"""A read of at least this size has filled the loop's buffer (256,000 bytes). libuv then reads the same socket again, up to 32
times (8 MB) before it serves any other. A connection with such a read pauses reading until the loop's next iteration."""
_TCP_INFO_BYTES, _TCPI_BYTES_ACKED_OFFSET = 128, 120


def bind(address: str, *, shared: bool) -> socket.socket:
    """A TCP socket bound to HOST:PORT. `shared`: several workers bind the same address. Raises OSError with one line."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # Prefer IPv4 when a name such as "localhost" has both: every client can connect to 127.0.0.1.
        family, _, _, _, socket_address = min(found, key=lambda a: a[0] != socket.AF_INET)
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as e:
        raise OSError(f"cannot listen on {address}: {e.strerror or e}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(socket_address)
        sock.setblocking(False)
    except OSError as e:
        sock.close()
        raise OSError(f"cannot listen on {address}: {e.strerror}. Choose another address") from None
    return sock


def acknowledged_bytes(sock: socket.socket) -> int | None:
    """Bytes that the peer's kernel has acknowledged on this connection (tcpi_bytes_acked); None if unavailable."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return int(struct.unpack_from("Q", info, _TCPI_BYTES_ACKED_OFFSET)[0])
    except (OSError, struct.error, TypeError):
        return None


def unsent_bytes(sock: socket.socket) -> int:
    """Bytes written that the peer's kernel has not acknowledged."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    except (OSError, ValueError):  # ValueError: the socket was closed
        return 0


def reset_on_close(sock: socket.socket) -> None:
    """Make closing this socket send a RST. Raises OSError."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def limit_silence(sock: socket.socket, limit_s: float) -> None:
    """Let the kernel break connections whose peer acknowledges nothing for so long: its machine is gone, or it does not read.

    Accepted sockets inherit this from the listening one. 0: no limit.
    """
    if limit_s and isfinite(limit_s):
        sock.setsockopt(
            socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
        )  # for a peer to which nothing is being sent
        limit_ms = int(limit_s * 1000)
        for name, value in (
            ("TCP_KEEPIDLE", max(1, limit_ms // 2000)),
            ("TCP_KEEPINTVL", max(1, limit_ms // 10_000)),
            ("TCP_USER_TIMEOUT", limit_ms),
        ):
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


class HangupWatch:
    """Detects that a peer hangs up while its connection is not being read, which the event loop does not report."""

    def __init__(self, loop: asyncio.AbstractEventLoop, guard: Guard) -> None:
        self._loop, self._guard = loop, guard
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._dispatch)

    def watch(self, sock: socket.socket, on_hangup: Callable[[], None]) -> None:
        """Call `on_hangup` once when the peer of `sock` hangs up."""
        descriptor = sock.fileno()
        if descriptor >= 0 and descriptor not in self._callbacks:
            self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLONESHOT)
            self._callbacks[descriptor] = on_hangup

    def unwatch(self, sock: socket.socket) -> None:
        """Call before the socket is read again or closed."""
        descriptor = sock.fileno()
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _dispatch(self) -> None:
        for descriptor, _ in self._epoll.poll(
            0
        ):  # each event is reported once, so one error must not lose the others
            callback = self._callbacks.get(descriptor)
            if callback is not None:
                self._guard.attempt(callback)

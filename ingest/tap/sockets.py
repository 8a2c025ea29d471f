"""What the kernel knows of a TCP connection: what the peer has acknowledged, and whether it has gone. Linux."""

from __future__ import annotations

import asyncio
import fcntl
import select
import socket
import struct
import termios
from collections.abc import Callable

FULL_READ_BYTES = 250_000
"""A read of so many bytes has filled the loop's buffer (256,000). libuv then reads on from the same socket, up to 32 times
before it looks at any other: 8 MB of one stream. Whoever got such a read pauses it until the loop's next turn."""
_TCP_INFO_BYTES = 128
_TCPI_BYTES_ACKED_AT = 120


def acknowledged_bytes(sock: socket.socket) -> int | None:
    """Bytes that the peer's kernel has acknowledged on this connection (tcpi_bytes_acked), None if it is not told."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return int(struct.unpack_from("Q", info, _TCPI_BYTES_ACKED_AT)[0])
    except (OSError, struct.error, TypeError):
        return None


def unsent_bytes(sock: socket.socket) -> int:
    """Bytes that the peer's kernel has not acknowledged."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    except (OSError, ValueError):  # ValueError: closed meanwhile
        return 0


def reset_on_close(sock: socket.socket) -> None:
    """Let closing this socket be a RST. Raises OSError."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class HangupWatch:
    """Tells at once when a peer hangs up on a connection that is not being read: the event loop does not see that."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._told: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._look)

    def watch(self, sock: socket.socket, tell: Callable[[], None]) -> None:
        """Call `tell`, once, when the peer of `sock` hangs up."""
        descriptor = sock.fileno()
        if descriptor >= 0 and descriptor not in self._told:
            self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLONESHOT)
            self._told[descriptor] = tell

    def forget(self, sock: socket.socket) -> None:
        """It is read again, or about to be closed."""
        descriptor = sock.fileno()
        if self._told.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Watch nothing any more."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _look(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            tell = self._told.get(descriptor)
            if tell is not None:
                tell()

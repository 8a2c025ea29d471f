"""Free ports of loopback, for processes that must be told theirs before they start."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """So many different ports that nobody listens on now. Another process may take one before it is used."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def free_port() -> int:
    """One of `free_ports`."""
    return free_ports(1)[0]

"""Free loopback ports, for processes that take their port as an argument."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """`count` different unused ports. Another process may take one before the caller uses it."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def free_port() -> int:
    """One unused port."""
    return free_ports(1)[0]

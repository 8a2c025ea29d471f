"""Free loopback ports, for processes that take their port as an argument."""

from __future__ import annotations

import random
import socket

# Below the range from which Linux and macOS take the ports of outgoing connections: one of those could take the port first.
_LOWEST, _HIGHEST = 10_240, 32_767
_random = random.SystemRandom()  # not seeded by pytest: parallel workers must choose different ports


def free_ports(count: int) -> list[int]:
    """`count` different unused ports. Another process may take one before the caller uses it, which is unlikely."""
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            one = socket.socket()
            try:
                one.bind(("127.0.0.1", _random.randint(_LOWEST, _HIGHEST)))
            except OSError:  # in use
                one.close()
            else:
                sockets.append(one)
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def free_port() -> int:
    """One unused port."""
    return free_ports(1)[0]

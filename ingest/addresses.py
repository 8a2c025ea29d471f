"""Addresses that parts listen at: HOST:PORT, an IPv6 host in brackets; port 0 lets the OS choose."""

from __future__ import annotations

import ipaddress
import socket

_ALL_INTERFACES = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound


def split_address(address: str) -> tuple[str, int]:
    """("::1", 4100) from "[::1]:4100". Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{address!r} is not HOST:PORT, such as 127.0.0.1:4100 or [::1]:4100")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """ "[::1]:4100" from "::1" and 4100."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def same_address(one: str, other: str) -> bool:
    """Whether two processes cannot both listen there. Port 0 is any free port."""
    (host, port), (other_host, other_port) = split_address(one), split_address(other)
    hosts = {"127.0.0.1" if h == "localhost" else h for h in (host, other_host)}
    return port == other_port != 0 and (len(hosts) == 1 or bool(hosts & _ALL_INTERFACES))


def is_loopback(host: str) -> bool:
    """Whether only this machine connects to this address, or under this name."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def bind(address: str, *, shared: bool = False, flag: str | None = None) -> socket.socket:
    """A TCP socket bound to HOST:PORT. `shared`: several workers bind the same address. `flag` sets the address.

    Raises OSError with one line.
    """
    host, port = split_address(address)
    with_flag = f" with {flag}" if flag else ""
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
        raise OSError(
            f"cannot listen on {address}: {e.strerror}. Choose another address{with_flag}"
        ) from None
    return sock

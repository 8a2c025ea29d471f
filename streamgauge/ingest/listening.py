"""Ports that the parts listen at: the address HOST:PORT, who may connect, and with which token.

An IPv6 host is in brackets; port 0 lets the OS choose.

A page of a foreign site can let its own host name resolve to 127.0.0.1 (DNS rebinding). The browser then sends the page's requests
to our port and lets the page read the responses. Their Host header still has the foreign name, so `AllowedHosts` requires:

- Host must be an IP address, a loopback name, this machine's short or full name, the name in the listen address or a
  configured name.
  Rebinding needs a name, so probes and scrapes by IP address need no configuration.
- Origin, if sent, must be such a name, a loopback address or the origin of the request itself. Other IP addresses are foreign
  sites here.
- Requests without Host (HTTP/1.0) pass, because browsers always send it.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
import re
import signal
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from functools import cached_property
from typing import Any

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
    """A TCP socket bound to HOST:PORT. `shared`: several sockets have the same address. `flag` sets the address.

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


SOCKETS_VARIABLE = "_STREAMGAUGE_SOCKETS"
"""Environment variable with the descriptors of the bound sockets that `up` passes to the tap."""
REPLACED = signal.SIGUSR2
"""Tells a tap that another one has its sockets, and `up` to start another one."""
_passed = os.environ.pop(SOCKETS_VARIABLE, "")  # processes that the tap starts do not have the descriptors


def bind_tap(listen: str, admin: str, workers: int) -> list[socket.socket]:
    """A listening socket per worker, then that of the admin port. Raises OSError with one line.

    Who keeps them open can start another tap with them: no connection is refused, and none that waits is reset.
    """
    with contextlib.ExitStack() as undo:
        sockets = [undo.enter_context(bind(listen, flag="--listen"))]
        if workers > 1:
            # The first one was not shared: a shared one would silently join another tap's address.
            address = join_address(*sockets[0].getsockname()[:2])
            sockets[0].close()
            sockets = [undo.enter_context(bind(address, shared=True)) for _ in range(workers)]
        sockets.append(undo.enter_context(bind(admin, flag="--admin")))
        undo.pop_all()
    return sockets


def passed_sockets() -> list[socket.socket]:
    """The sockets that `up` has bound by `bind_tap` for this process. Empty without `up`."""
    return [socket.socket(fileno=int(descriptor)) for descriptor in _passed.split()]


MIN_TOKEN_CHARS = 16


def check_token(flag: str, token: str | None) -> None:
    """Raise ValueError for a token that is too short. `flag` names the setting."""
    if token is not None and len(token) < MIN_TOKEN_CHARS:
        raise ValueError(
            f"cannot use the token: it must have at least {MIN_TOKEN_CHARS} characters. Pass a longer one with {flag}"
        )


def check_listener(flag: str, address: str, token_flag: str, token: str | None) -> None:
    """As `check_token`. Also raise ValueError if other machines could connect to HOST:PORT without a token."""
    check_token(token_flag, token)
    if token is None and not is_loopback(split_address(address)[0]):
        raise ValueError(f"{flag} {address} is not a loopback address. Set {token_flag}")


STATUS = 403
"""Status of the response to a refused request. Its body is the refusal's reason."""

_NAME = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*")
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+(?:%[a-z0-9._~%-]+)?\]|[a-z0-9._-]+)(?::[0-9]*)?", re.IGNORECASE)
_MAX_NAME_CHARS = 253
_LOOPBACK_NAMES = {"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Message, Receive, Send], Awaitable[None]]


def parse_allowed_host(text: str) -> str:
    """A name such as `gauge.example.com`, `*.example.com` for all names below it, or an IP address. Raises ValueError."""
    name = _bare(text)
    if _is_address(name):
        return name
    if len(name) > _MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise ValueError(
            f"{text!r} is not a host name such as gauge.example.com or *.example.com. Leave out scheme, port and path."
        )
    return name


def has_token(authorization: bytes, token: str) -> bool:
    """Whether a request with this Authorization header has the token."""
    # In constant time: a comparison that ends at the first difference shows how much of a guess is right.
    return hmac.compare_digest(authorization, f"Bearer {token}".encode())


class AllowedHosts:
    """The hosts that one port accepts. `--allowed-host` sets `names`; `listen_host` is the host that the port listens on."""

    def __init__(self, names: Iterable[str] = (), *, listen_host: str = "") -> None:
        allowed = {parse_allowed_host(name) for name in names}
        suffixes = (name.removeprefix("*") for name in allowed if name.startswith("*."))
        self._suffixes = (".localhost", *suffixes)  # RFC 6761 reserves .localhost for the loopback
        self._machine = _bare(socket.gethostname())
        own = {_bare(listen_host), self._machine} - {""}
        self._names = frozenset(allowed | own | _LOOPBACK_NAMES)

    def refusal(self, hosts: Sequence[str], origins: Sequence[str]) -> str | None:
        """Why a request with these values of Host and Origin is refused, in one line; None if it is allowed."""
        for host in hosts:
            name = _name_of(host)
            if name is None or not (_is_address(name) or self._has(name)):
                return self._reason("host", name)
        for origin in origins:
            scheme, separator, authority = origin.partition("://")
            name = _name_of(authority) if separator else None
            same = len(hosts) == 1 and authority.lower() == hosts[0].lower()
            if not scheme or name is None or not (same or is_loopback(name) or self._has(name)):
                return self._reason("origin", name)
        return None

    def _has(self, name: str) -> bool:
        if name in self._names or name.endswith(self._suffixes):
            return True
        return name.startswith(f"{self._machine}.") and name == self._full_name

    @cached_property
    def _full_name(self) -> str:
        """This machine's full name. Finding it may ask a DNS server, so we do it only for a request that may use it."""
        return _bare(socket.getfqdn())

    def _reason(self, header: str, name: str | None) -> str:
        if name is None:
            return f"request refused: its {header} is not a host name. --allowed-host NAME allows a name."
        return f"request refused: the {header} {name} is not allowed. Allow it with --allowed-host {name}."


class HostGate:
    """ASGI middleware that refuses HTTP requests and WebSockets with other hosts."""

    def __init__(self, app: AsgiApp, hosts: AllowedHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            reason = self._hosts.refusal(_values(scope, b"host"), _values(scope, b"origin"))
            if reason is not None:
                await refuse(scope, send, reason)
                return
        await self._app(scope, receive, send)


def _values(scope: Message, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


async def refuse(
    scope: Message, send: Send, reason: str, status: int = STATUS, *fields: tuple[bytes, bytes]
) -> None:
    """Answer a request with the reason, and close a WebSocket."""
    kind = "http"
    if scope["type"] == "websocket":
        kind = "websocket.http"
        if f"{kind}.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": 1008})
            return
    body = reason.encode() + b"\n"
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
        *fields,
    ]
    await send({"type": f"{kind}.response.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": body})


def _bare(host: str) -> str:
    return host.strip("[]").lower().removesuffix(".")


def _name_of(authority: str) -> str | None:
    """The host of HOST or HOST:PORT in lower case, an IPv6 address without brackets; None if malformed."""
    match = _AUTHORITY.fullmatch(authority)
    name = _bare(match[1]) if match is not None else ""
    return name if 0 < len(name) <= _MAX_NAME_CHARS else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

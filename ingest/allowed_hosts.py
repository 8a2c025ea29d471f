"""The Host and Origin headers that a port of Streamgauge accepts: protection against DNS rebinding.

A page of a foreign site can let its own host name resolve to 127.0.0.1. The browser then sends the page's requests to our port
and lets the page read the responses. Their Host header still has the foreign name, so:

- Host must be an IP address, a loopback name, this machine's short or full name, the name in the listen address or a
  configured name.
  Rebinding needs a name, so probes and scrapes by IP address need no configuration.
- Origin, if sent, must be such a name, a loopback address or the origin of the request itself. Other IP addresses are foreign
  sites here.
- Requests without Host (HTTP/1.0) pass, because browsers always send it.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from functools import cached_property
from typing import Any

from streamgauge.ingest.addresses import is_loopback

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

"""The upstreams of a tap: names and URLs."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit

from streamgauge.ingest.listening import join_address

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST_NAME = re.compile(r"(?=.{1,254}\Z)(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_PATH = re.compile(r"[\x21-\x7e]*")
PRESETS = {
    "anthropic": "https://api.anthropic.com",
    "chatgpt": "https://chatgpt.com",
    "codeassist": "https://cloudcode-pa.googleapis.com",
    "deepseek": "https://api.deepseek.com",
    "gemini": "https://generativelanguage.googleapis.com",
    "groq": "https://api.groq.com",
    "mistral": "https://api.mistral.ai",
    "openai": "https://api.openai.com",
    "openrouter": "https://openrouter.ai",
    "xai": "https://api.x.ai",
}
"""Name of a hosted provider → URL. Without a path, so that a client's base URL has the provider's own path after /NAME."""
_PRIVATE_NAMES = (
    ".cluster.local", ".corp", ".home", ".home.arpa", ".internal", ".intranet", ".invalid", ".lan", ".local", ".localdomain",
    ".localhost", ".private", ".svc", ".test",
)  # fmt: skip
"""Ends of host names that no public name server has (RFC 6762, RFC 8375, ICANN's `.internal`, Kubernetes)."""


@dataclass(frozen=True)
class Upstream:
    """One gateway or inference server. `base_path` ("" or "/x/y") is prepended to the path of each request."""

    name: str
    scheme: str
    host: str
    port: int
    base_path: str

    def __str__(self) -> str:
        """As `parse_upstream` accepts it."""
        return f"{self.name}={self.url}"

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return join_address(self.host, self.port)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}{self.base_path}"

    @cached_property
    def is_public(self) -> bool:
        """Whether it is reached over https under a name or address of the Internet."""
        if self.scheme != "https":
            return False
        try:
            return ipaddress.ip_address(self.host).is_global
        except ValueError:  # a name
            return "." in self.host and not self.host.endswith(_PRIVATE_NAMES)

    @cached_property
    def host_line(self) -> bytes:
        """The `Host` field of requests to it."""
        return f"Host: {self.address.removesuffix(f':{_DEFAULT_PORTS[self.scheme]}')}\r\n".encode()


def parse_upstream(text: str) -> Upstream:
    """Parse `URL` (named after its host), `NAME=URL`, or a name of `PRESETS`. Raises ValueError."""
    if text in PRESETS:
        text = f"{text}={PRESETS[text]}"
    head, sep, tail = text.partition("=")
    named = bool(sep) and "://" not in head
    name, url = (head, tail) if named else ("", text)
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as e:
        raise ValueError(f"{text!r}: {e}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"{text!r} is not a URL such as http://localhost:4000 or litellm=http://localhost:4000, and not one of {', '.join(PRESETS)}"
        )
    if parts.query or parts.fragment or parts.username:
        raise ValueError(f"{text!r}: the URL of an upstream cannot have a query, fragment or user name")
    if not _PATH.fullmatch(parts.path):
        raise ValueError(f"{text!r}: the path has a space or another character that a URL must escape")
    host = _host(parts.hostname, text)
    name = name if named else host.replace(":", "-").strip("-")  # "::1" is named "1"
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid upstream name: use letters, digits, '.', '_' and '-'")
    return Upstream(
        name=name,
        scheme=parts.scheme,
        host=host,
        port=port if port is not None else _DEFAULT_PORTS[parts.scheme],
        base_path=parts.path.rstrip("/"),
    )


def _host(host: str, text: str) -> str:
    """An IP address, or a host name in its ASCII form. Raises ValueError for anything else: no connection could be opened."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            host = ""
        if not _HOST_NAME.fullmatch(host):
            raise ValueError(
                f"{text!r} has no valid host name. Each part between dots needs 1 to 63 letters, digits, '-' or '_'."
            ) from None
    return host


def parse_upstreams(items: Iterable[str | Upstream]) -> tuple[Upstream, ...]:
    """Parse several upstreams. Raises ValueError also if two have the same name."""
    upstreams = tuple(i if isinstance(i, Upstream) else parse_upstream(i) for i in items)
    names = [u.name for u in upstreams]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two upstreams are named {name!r}. Give them different names with NAME=URL.")
    return upstreams

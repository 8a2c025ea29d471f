"""Choose the upstream of a request and the target of the forwarded request.

The header `x-streamgauge-upstream` or else the path prefix /NAME/ selects an upstream; the prefix is removed. A single upstream
also serves every other path. With several, requests that name none go to the upstream whose host is their Host, as of clients
that use the tap as an HTTP proxy, else to the first, with three exceptions that get a 404:

- the first upstream is a provider on the Internet: the request, with its API key, may be meant for another one;
- an unknown name in the header;
- a path that begins with an unknown name: its API key is meant for another upstream. That is a segment before an API path
  (`/claude/v1/messages`), unless it belongs to an API path itself (`/openai/v1/responses`), or a configured name in another
  spelling (`/OpenAI/x`). We compare the path as a server may read it: decoded, without empty and dot segments.
"""

from __future__ import annotations

import posixpath
import re
from urllib.parse import unquote

from streamgauge.ingest.facts import RouteFacts
from streamgauge.ingest.http1.fields import UPSTREAM
from streamgauge.ingest.http1.heads import RequestHead
from streamgauge.ingest.http1.upstreams import Upstream

_API_SEGMENT = re.compile(
    r"v\d[\w.]*|api|openai|model|models|chat|completions|embeddings|messages|responses|inference|engines|compatible-mode"
)
"""First segment of the API paths of gateways and providers, in lower case."""


class Route(RouteFacts):
    """Where a request goes. `upstream_index` is the position of `upstream` among the configured ones."""

    __slots__ = ("upstream_index",)
    upstream: Upstream
    upstream_index: int


def _route(upstream_index: int, upstream: Upstream, target: str) -> Route:
    found = Route.__new__(Route)
    found.upstream_index, found.upstream, found.target = upstream_index, upstream, target
    return found


class Router:
    """Chooses one of the configured upstreams."""

    def __init__(self, upstreams: tuple[Upstream, ...]) -> None:
        self._upstreams = upstreams
        self._default = None if upstreams[0].is_public else 0
        self._by_name = {u.name: i for i, u in enumerate(upstreams)}
        self._by_host = {u.host_line: i for i, u in reversed(list(enumerate(upstreams)))}
        self.names = list(self._by_name)
        self._only = upstreams[0] if len(upstreams) == 1 and not upstreams[0].base_path else None
        self._only_prefix = "/" + upstreams[0].name
        self._lower_names = frozenset(name.lower() for name in self._by_name)

    def route(self, head: RequestHead) -> Route | None:
        """The route of a request, None if it names an upstream that is not configured."""
        target = head.target
        header = head.known.get(UPSTREAM)
        if header is None and self._only is not None and not target.startswith(self._only_prefix):
            return _route(0, self._only, target)
        # A request with the header may also have the prefix of the same upstream.
        name, sep, rest = target.lstrip("/").partition("/")
        if not sep:
            name, query_sep, query = name.partition("?")
            rest = query_sep + query
        by_path = self._by_name.get(unquote(name))
        if header is not None:
            index = self._by_name.get(header.decode("latin-1"))
        elif by_path is not None:
            index = by_path
        else:
            index = 0 if len(self._upstreams) == 1 else self._without_name(head)
        if by_path is not None and by_path == index:
            target = "/" + rest
        if index is None:
            return None
        upstream = self._upstreams[index]
        if upstream.base_path and target != "*":
            target = upstream.base_path + target
        return _route(index, upstream, target)

    def _without_name(self, head: RequestHead) -> int | None:
        """The upstream of a target that does not begin with a configured name."""
        by_host = self._by_host.get(b"Host: %b\r\n" % head.host.lower())
        if by_host is not None:
            return by_host
        path = posixpath.normpath(unquote(head.target.partition("?")[0]).lower()).lstrip("/")
        first, _, rest = path.partition("/")
        second = rest.partition("/")[0]
        if first in self._lower_names or (
            _API_SEGMENT.fullmatch(second) and not _API_SEGMENT.fullmatch(first)
        ):
            return None
        return self._default

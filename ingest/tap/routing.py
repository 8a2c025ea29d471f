"""Choose the upstream of a request and the target of the forwarded request.

A single upstream serves every path. With several, the header `x-streamgauge-upstream` or else the path prefix /NAME/
selects one; the prefix is removed. The tap answers an unknown name with 404.
"""

from __future__ import annotations

from typing import NamedTuple

from ingest.tap.http_head import RequestHead
from ingest.tap.upstreams import Upstream

_HEADER = b"x-streamgauge-upstream"


class Route(NamedTuple):
    """Where a request goes. `upstream_index` is the position of `upstream` among the configured ones."""

    upstream_index: int
    upstream: Upstream
    target: str


class Router:
    """Chooses one of the configured upstreams."""

    def __init__(self, upstreams: tuple[Upstream, ...]) -> None:
        if not upstreams:
            raise ValueError("no upstream is configured. Pass one with --upstream URL.")
        self._upstreams = upstreams
        self._by_name = {u.name: i for i, u in enumerate(upstreams)}

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    def route(self, head: RequestHead) -> Route | None:
        """The route of a request, None if it does not name a configured upstream."""
        target = head.target
        header = head.known.get(_HEADER)
        if header is not None:
            index = self._by_name.get(header.decode("latin-1"))
        elif len(self._upstreams) == 1:
            index = 0
        else:
            index = None
        if len(self._upstreams) > 1 and (index is None or header is not None):
            # A request with the header may also have the prefix of the same upstream.
            name, sep, rest = target[1:].partition("/")
            if not sep:
                name, query_sep, query = name.partition("?")
                rest = query_sep + query
            by_path = self._by_name.get(name)
            if header is None:
                index = by_path
            if by_path is not None and by_path == index:
                target = "/" + rest
        if index is None:
            return None
        upstream = self._upstreams[index]
        if upstream.base_path and target != "*":
            target = upstream.base_path + target
        return Route(index, upstream, target)

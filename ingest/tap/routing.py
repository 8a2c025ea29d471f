"""Choose the upstream of a request and the target of the forwarded request.

A single upstream serves every path. With several, the header `x-streamgauge-upstream` or else the path prefix /NAME/
selects one; the prefix is removed. Requests that name none go to the default upstream. An unknown name in the header gets a
404, and so does a path that begins with a misspelled name: its API key is meant for another upstream.
"""

from __future__ import annotations

import difflib
from functools import lru_cache
from typing import NamedTuple

from ingest.tap.http_head import RequestHead
from ingest.tap.http_header_fields import UPSTREAM
from ingest.tap.upstreams import Upstream, default_index

_MAX_NAME_CHARS = 63
_MISSPELLED = 0.8  # similarity of a path segment to a name, as `difflib` measures it


class Route(NamedTuple):
    """Where a request goes. `upstream_index` is the position of `upstream` among the configured ones."""

    upstream_index: int
    upstream: Upstream
    target: str


class Router:
    """Chooses one of the configured upstreams. `default`: see `default_index`."""

    def __init__(self, upstreams: tuple[Upstream, ...], default: str | None = None) -> None:
        if not upstreams:
            raise ValueError("no upstream is configured. Pass one with --upstream URL.")
        self._upstreams = upstreams
        self._by_name = {u.name: i for i, u in enumerate(upstreams)}
        self._default = default_index(upstreams, default)
        lower = [name.lower() for name in self._by_name]
        self._is_misspelled = lru_cache(maxsize=1024)(
            lambda segment: bool(difflib.get_close_matches(segment.lower(), lower, 1, _MISSPELLED))
        )

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    def route(self, head: RequestHead) -> Route | None:
        """The route of a request, None if it names an upstream that is not configured."""
        target = head.target
        header = head.known.get(UPSTREAM)
        index: int | None = 0
        if header is not None:
            index = self._by_name.get(header.decode("latin-1"))
        if len(self._upstreams) > 1:
            # A request with the header may also have the prefix of the same upstream.
            name, sep, rest = target[1:].partition("/")
            if not sep:
                name, query_sep, query = name.partition("?")
                rest = query_sep + query
            by_path = self._by_name.get(name)
            if header is None:
                index = self._without_name(name) if by_path is None else by_path
            if by_path is not None and by_path == index:
                target = "/" + rest
        if index is None:
            return None
        upstream = self._upstreams[index]
        if upstream.base_path and target != "*":
            target = upstream.base_path + target
        return Route(index, upstream, target)

    def _without_name(self, segment: str) -> int | None:
        """The upstream of a path that begins with `segment`, which is not a name."""
        if self._default is None or (len(segment) <= _MAX_NAME_CHARS and self._is_misspelled(segment)):
            return None
        return self._default

"""What a recorder is given about an exchange: plain facts, and times.

Any source that sees exchanges can record them: the tap, a packet capture, an Envoy filter, a WebSocket. It needs `Recorders` and
objects of these classes, and nothing of HTTP/1.1. The tap's `RequestHead`, `ResponseHead`, `Field` and `Route` are subclasses, so
it converts nothing.

Calls
- `Recorders.new` when the request's head is complete, then the methods of `Recorder` in the order in which things happened.
  Every call is optional except `ended`, and `drained` as the last one.
- Bodies are passed without transfer coding and with their content coding, one call for each read.

Times are in ns, on one clock that never goes back. `Recorders.wall_ns` says which Unix time they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class FieldFacts:
    """A header field. Its name is in lower case."""

    __slots__ = ("name", "recorded", "value")

    def __init__(self, name: bytes, value: bytes, recorded: tuple[str, str] | None) -> None:
        self.name = name
        self.value = value
        self.recorded = recorded
        """Name and value to record (`streamgauge.ingest.header_fields`), None if the field may not be recorded."""


class RequestFacts:
    """A request's head."""

    __slots__ = ("fields", "known", "method", "size_bytes")

    def __init__(
        self, method: str, fields: Sequence[FieldFacts], known: dict[bytes, bytes], size_bytes: int
    ) -> None:
        self.method = method
        self.fields = fields
        self.known = known
        """The first values of `content-type`, `x-streamgauge-capture` and the fields with API keys, by name in lower case."""
        self.size_bytes = size_bytes
        """About the memory that it needs."""


class ResponseFacts:
    """A response's final (not 1xx) head."""

    __slots__ = ("content_type", "fields", "size_bytes", "status")

    def __init__(
        self, status: int, fields: Sequence[FieldFacts], content_type: bytes, size_bytes: int
    ) -> None:
        self.status = status
        self.fields = fields
        self.content_type = content_type
        """Empty: unknown."""
        self.size_bytes = size_bytes


class UpstreamFacts(Protocol):
    """A gateway or inference server."""

    @property
    def name(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class RouteFacts:
    """Where a request goes. `target`: path and query, as the upstream receives them."""

    __slots__ = ("target", "upstream")

    def __init__(self, upstream: UpstreamFacts, target: str) -> None:
        self.upstream = upstream
        self.target = target

"""What a recorder is given about an exchange: plain facts, and times.

Any source that sees exchanges can record them: the tap, a packet capture, an Envoy filter, a WebSocket. It needs `Recorders` and
objects with these attributes, and nothing of HTTP/1.1. The tap's `RequestHead`, `ResponseHead` and `Route` have them, so it
converts nothing.

Calls
- `Recorders.new` when the request's head is complete, then the methods of `Recorder` in the order in which things happened.
  Every call is optional except `ended`, and `drained` or `client_left` as the last one.
- Bodies are passed without transfer coding and with their content coding, one call for each read.

Times are in ns, on one clock that never goes back. `Recorders.wall_ns` says which Unix time they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class FieldFacts(Protocol):
    """A header field."""

    @property
    def name(self) -> bytes:
        """In lower case."""

    @property
    def value(self) -> bytes: ...

    @property
    def recorded(self) -> tuple[str, str] | None:
        """Name and value to record (`streamgauge.ingest.header_fields`), None if the field may not be recorded."""


class RequestFacts(Protocol):
    """A request's head."""

    @property
    def method(self) -> str: ...

    @property
    def fields(self) -> Sequence[FieldFacts]: ...

    @property
    def known(self) -> Mapping[bytes, bytes]:
        """The first values of `content-type`, `x-streamgauge-capture` and the fields with API keys, by name in lower case."""

    @property
    def size_bytes(self) -> int:
        """About the memory that it needs."""


class ResponseFacts(Protocol):
    """A response's final (not 1xx) head."""

    @property
    def status(self) -> int: ...

    @property
    def fields(self) -> Sequence[FieldFacts]: ...

    @property
    def content_type(self) -> bytes:
        """Empty: unknown."""

    @property
    def size_bytes(self) -> int: ...


class UpstreamFacts(Protocol):
    """A gateway or inference server."""

    @property
    def name(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class RouteFacts(Protocol):
    """Where a request goes."""

    @property
    def upstream(self) -> UpstreamFacts: ...

    @property
    def target(self) -> str:
        """Path and query, as the upstream receives them."""

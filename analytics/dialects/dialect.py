"""The interface of dialects, and the data of an exchange that they use."""

from __future__ import annotations

from typing import Protocol

import msgspec

from streamgauge.analytics.dialects.events import DecodedEvent, TextDelta


class ExchangeInfo(msgspec.Struct, frozen=True):
    """Request line, request headers and response headers of one exchange. Header names are in lower case."""

    method: str = "POST"
    path: str = ""
    status: int = 200
    content_type: str = ""
    request_headers: dict[str, str] = {}
    response_headers: dict[str, str] = {}
    host: str = ""
    """Host name of the upstream, "" when unknown. It distinguishes vendors with the same wire format."""
    stream_requested: bool = False
    """The request asked for a stream."""
    has_prompt: bool = False
    """The request carried messages of a user."""
    rpc_method: str = ""
    """Method of a JSON-RPC request, "" for other requests."""
    rpc_id: str = ""
    """Id of a JSON-RPC request as JSON, "" if it has none."""

    @property
    def route(self) -> str:
        """The path without query and trailing slashes."""
        return self.path.partition("?")[0].rstrip("/")


class DialectReader(Protocol):
    """Decodes the events of one stream. May keep state between events (tool names, indices). Never raises on bad data.

    A reader may also have `read_many(events)`, which returns one result per `RawEvent`; `operation`, if the request decides it;
    and `open_ended`: the stream has no terminal, and its end by either side is no failure.
    """

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        """Decode one event: its name ("" when there is none) and its data."""

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        """Decode a whole body that was not streamed."""


class Dialect(Protocol):
    """One wire format. A module of `streamgauge.analytics.dialects` that defines `DIALECT` is registered automatically."""

    name: str
    """Value of `streams.dialect`."""
    provider: str
    """Value of `streams.provider` unless the exchange identifies another vendor (values of the GenAI conventions)."""
    operation: str
    """gen_ai.operation.name: chat | text_completion | generate_content | embeddings …"""

    def claims(self, exchange: ExchangeInfo) -> int:
        """Score the request alone: 0 = not this dialect, 1 = possible, 5 = by path, 9 = by path and vendor header.

        Only method, path, host, `rpc_method` and header names are set (header values are empty), because results are cached.
        """

    def recognises(self, name: str, data: bytes) -> int:
        """Score one of the first events, on the same scale."""

    def reader(self, exchange: ExchangeInfo) -> DialectReader: ...

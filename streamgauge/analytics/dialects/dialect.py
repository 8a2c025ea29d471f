"""The interface of dialects, and the data of an exchange that they use."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from streamgauge.analytics.dialects.events import DecodedEvent, TextDelta, as_decoded_event


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

    @property
    def is_file(self) -> bool:
        """The response is a stored file, such as the results of a batch. It is no answer of a model, even if it looks like one."""
        return self.method == "GET" and _FILE.search(self.route) is not None


_FILE = re.compile(r"/batches/[^/]+/results$|/files/[^/]+/content$")


class DialectReader(Protocol):
    """Decodes the events of one stream. May keep state between events (tool names, indices). Never raises on bad data.

    A reader may also have `read_many(events)`, which returns one result per `RawEvent`; `operation`, if the request decides it;
    and `open_ended`: the stream has no terminal, and its end by either side is no failure.
    """

    def __init__(self, exchange: ExchangeInfo) -> None:
        """Most formats do not depend on the exchange."""

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        """Decode one event: its name ("" when there is none) and its data."""

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        """Decode a whole body that was not streamed. Unless overridden, it has the form of one event."""
        return [as_decoded_event(self.read("", body))]


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """One wire format."""

    name: str
    """Value of `streams.dialect`."""
    provider: str
    """Value of `streams.provider` unless the exchange identifies another vendor (values of the GenAI conventions)."""
    operation: str
    """gen_ai.operation.name: chat | text_completion | generate_content | embeddings …"""
    claims: Callable[[ExchangeInfo], int]
    """Score the request alone: 0 = not this dialect, 1 = possible, 5 = by path, 9 = by path and vendor header.

    Only method, path, host, `rpc_method` and header names are set (header values are empty), because results are cached.
    """
    recognises: Callable[[str, bytes], int]
    """Score one of the first events, by its name and data, on the same scale."""
    reader: Callable[[ExchangeInfo], DialectReader]
    """Start to decode the response of an exchange."""


def by_path(pattern: str, score: int = 5) -> Callable[[ExchangeInfo], int]:
    """`Dialect.claims` for a format that its path identifies: a regular expression for a part of `ExchangeInfo.route`."""
    search = re.compile(pattern).search
    return lambda exchange: score if search(exchange.route) else 0

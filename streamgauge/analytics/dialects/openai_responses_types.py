"""Types of Responses API objects, with only the members that are read."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.tolerant_json import decode_or_none

NOTHING = msgspec.Raw()
ABSENT = (b"", b"null")
"""Values of a member that has none."""


class Part(msgspec.Struct):
    """A part of a message or of reasoning."""

    type: Annotated[str, kept.TITLE] = ""
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct):
    """An output item; a custom tool has its arguments in `input`."""

    type: Annotated[str, kept.TITLE] = ""
    id: kept.Word = None
    call_id: kept.Id = None
    name: kept.Name = None
    arguments: kept.Content = None
    input: kept.Content = None
    result: Any = None
    """The image that a server tool generated."""
    status: kept.Term = None
    action: Any = None
    """Of a web search: a search, or a look at a page that it found."""
    content: msgspec.Raw = NOTHING
    summary: msgspec.Raw = NOTHING


class CacheDiagnostics(msgspec.Struct):
    """Requested with `prompt_cache_options.comparison_response_id`."""

    type: Annotated[str, kept.TITLE] = ""
    """cache_hit, cache_miss, comparison_response_not_found or unavailable."""
    reason: kept.Name = None
    """The reason of a cache_miss."""
    cache_missed_tokens: kept.Count = None


class Snapshot(msgspec.Struct):
    """A response object."""

    object: kept.Name = None
    id: kept.Word = None
    model: kept.Name = None
    status: kept.Name = None
    usage: kept.Report = None
    metrics: kept.Report = None
    error: Any = None
    service_tier: kept.Term = None
    tool_usage: kept.Report = None
    """Counts of the server's tools."""
    prompt_cache_diagnostics: CacheDiagnostics | None = None
    output: Annotated[msgspec.Raw, kept.OUTPUT] = NOTHING
    """Nearly always streamed before."""


class Event(msgspec.Struct, gc=False):
    """Any event. `text` is a str in events, and an object in a bare response."""

    type: kept.Title = None
    delta: str | dict[str, Any] | None = None
    output_index: int | None = None
    item_id: kept.Id = None
    content_index: int | None = None
    summary_index: int | None = None
    logprobs: list[msgspec.Raw] | None = None
    arguments: kept.Content = None
    input: kept.Content = None
    text: Any = None
    refusal: Any = None
    partial_image_b64: Any = None
    item: Item | None = None
    response: Snapshot | None = None
    error: Any = None


event_decoder = msgspec.json.Decoder(Event)
snapshot_decoder = msgspec.json.Decoder(Snapshot)
_items_decoder = msgspec.json.Decoder(list[Item])
_parts_decoder = msgspec.json.Decoder(list[Part] | str)


def items_of(response: Snapshot) -> list[Item] | None:
    """The output of a response; None if it has another form."""
    output = bytes(response.output)
    return [] if output in ABSENT else decode_or_none(_items_decoder, output)


def parts_of(content: msgspec.Raw, kind: str) -> list[Part] | None:
    """The parts of an item's content or summary, which may be a text alone; None if it has another form."""
    parts = bytes(content)
    found = [] if parts in ABSENT else decode_or_none(_parts_decoder, parts)
    return [Part(kind, found)] if isinstance(found, str) else found


class ToolCall:
    """One tool call: its key in deltas, and how its arguments arrived."""

    __slots__ = ("complete", "has_arguments", "key", "server_side")

    def __init__(self, key: int, *, server_side: bool) -> None:
        self.key = key
        self.server_side = server_side
        self.has_arguments = False
        self.complete = False
        """The arguments arrived whole: further ones are repeats."""


class ToolCalls:
    """Assigns the events of one stream to its calls: by item id, then call id, then output index.

    Copilot changes ids from event to event, and some proxies number every item 0.
    """

    def __init__(self) -> None:
        self.count = 0
        self._known: dict[str | int, ToolCall] = {}

    def begin(self, item: Item, index: int | None, *, server_side: bool) -> ToolCall:
        """Return the call of an item that starts; the same call if it starts again."""
        call = self._known.get(item.id) if item.id else None
        if call is None:
            call = ToolCall(self.count, server_side=server_side)
            self.count += 1
        for key in (item.id, item.call_id, index):
            if key is not None and key != "":
                self._known[key] = call
        return call

    def find(self, item_id: str | None, call_id: str | None, index: int | None) -> ToolCall | None:
        """The call of the first of these ids that is known."""
        known = self._known
        return next(
            (known[key] for key in (item_id, call_id, index) if key is not None and key in known), None
        )

    def of_delta(self, item_id: str | None, index: int | None, *, server_side: bool) -> ToolCall:
        """The call that a delta belongs to; started here if no event announced it."""
        return self.find(item_id, None, index) or self.begin(Item(id=item_id), index, server_side=server_side)

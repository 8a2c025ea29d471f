"""Types of Responses API objects, with only the members that are read."""

from __future__ import annotations

from typing import Any

import msgspec


class Part(msgspec.Struct):
    """A part of a message or of reasoning."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct):
    """An output item in an event; a custom tool has its arguments in `input`."""

    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: Any = None
    input: Any = None
    result: Any = None
    """The image that a server tool generated."""


class WholeItem(Item):
    """An output item with its content."""

    content: list[Part] | str | None = None
    summary: list[Part] | str | None = None


class Final(msgspec.Struct):
    """A whole response: a body that was not streamed, or the last event of a stream without deltas."""

    id: str | None = None
    object: str | None = None
    model: str | None = None
    status: str | None = None
    usage: Any = None
    metrics: Any = None
    error: Any = None
    output: list[WholeItem] | None = None


class Snapshot(msgspec.Struct):
    """A response object in an event, without its output, which was streamed."""

    id: str | None = None
    model: str | None = None
    status: str | None = None
    usage: Any = None
    metrics: Any = None
    error: Any = None


class Event(msgspec.Struct):
    """Any event. `text` is a str in events, and an object in a bare response."""

    type: str | None = None
    delta: str | dict[str, Any] | None = None
    output_index: int | None = None
    item_id: str | None = None
    content_index: int | None = None
    summary_index: int | None = None
    logprobs: list[msgspec.Raw] | None = None
    arguments: Any = None
    input: Any = None
    text: Any = None
    refusal: Any = None
    partial_image_b64: Any = None
    item: Item | None = None
    response: Snapshot | None = None
    error: Any = None


class ItemEvent(msgspec.Struct):
    """The end of an item, with its content."""

    item: WholeItem | None = None


class FinalEvent(msgspec.Struct):
    """The last event, with the output."""

    response: Final | None = None


event_decoder = msgspec.json.Decoder(Event)
item_event_decoder = msgspec.json.Decoder(ItemEvent)
final_event_decoder = msgspec.json.Decoder(FinalEvent)
final_decoder = msgspec.json.Decoder(Final)

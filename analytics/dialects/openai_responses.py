"""The Responses API: OpenAI, Azure, Bedrock, ChatGPT, Copilot, xAI, DeepSeek, OpenRouter, LM Studio, Fireworks, vLLM.

Every `….delta` family is output: text, refusals, reasoning and its summaries, arguments of functions, of custom tools and
of MCP calls, generated code, shell commands, patches, audio and its transcript. What a server tool printed is not.
The `….done` events repeat what the deltas said and are annotations, unless that part had no delta: then they are where it is
said (LM Studio's arguments), and the reading is `late`. What no such event says either is taken from the item's end, at last
from the response's.

Only function and custom tool calls are the client's to run; all built-in tools are marked as the server's.

The finish reason is the final status. `incomplete` is a finish; `failed` and `cancelled` are errors that also end the stream.
"""

from __future__ import annotations

import re
from typing import Any

from analytics.decoded.decoded_event import (
    ChoiceDelta,
    DecodedEvent,
    ErrorReport,
    EventKind,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from analytics.decoded.dialect import ExchangeInfo
from analytics.decoded.tolerant_json import arguments_of, compact, decode_or_none
from analytics.dialects.errors import error_from, error_in_event, malformed_event
from analytics.dialects.numbers import whole_number
from analytics.dialects.openai_responses_tool_calls import Call, Calls
from analytics.dialects.openai_responses_types import (
    Event,
    Final,
    Item,
    Part,
    Snapshot,
    WholeItem,
    event_decoder,
    final_decoder,
    final_event_decoder,
    item_event_decoder,
)

CLIENT_TOOLS = frozenset({"function_call", "custom_tool_call"})
_PATH = re.compile(r"/responses(/(?!input_tokens)[^/]+(/cancel)?)?/?$")
_FINAL = frozenset({"completed", "incomplete", "failed", "cancelled"})
_CHANNELS: dict[str, str] = {
    "response.output_text": "text",
    "response.text": "text",
    "response.refusal": "refusal",
    "response.reasoning_text": "reasoning",
    "response.reasoning_summary_text": "reasoning",
    "response.reasoning_summary": "reasoning",
    "response.reasoning": "reasoning",
    "response.function_call_arguments": "call",
    "response.custom_tool_call_input": "call",
    "response.mcp_call_arguments": "server_call",
    "response.mcp_call.arguments": "server_call",
    "response.code_interpreter_call_code": "server_call",
    "response.code_interpreter_call.code": "server_call",
    "response.shell_call_command": "server_call",
    "response.apply_patch_call_operation_diff": "server_call",
    "response.audio": "audio_data",
    "response.output_audio": "audio_data",
    "response.audio.transcript": "audio",
    "response.audio_transcript": "audio",
    "response.output_audio_transcript": "audio",
}
_FAMILY_OF_ITEM = {"message": "response.output_text", "reasoning": "response.reasoning_text"}
_BY_WORD: tuple[tuple[str, str], ...] = (  # for families that are not yet known; else it is a part of some call
    ("output_content", ""), ("result", ""), ("image", ""), ("audio", "audio"), ("reasoning", "reasoning"),
    ("refusal", "refusal"), ("_call", "server_call"), ("text", "text"),
)  # fmt: skip


class OpenAIResponses:
    name = "openai_responses"
    provider = "openai"
    operation = "chat"

    def claims(self, exchange: ExchangeInfo) -> int:
        return 5 if _PATH.search(exchange.path.partition("?")[0]) else 0

    def recognises(self, name: str, data: bytes) -> int:
        if name.startswith("response."):
            return 8
        if b'"type":"response.' in data or b'"type": "response.' in data:
            return 7
        if b'"object":"response"' in data or b'"object": "response"' in data:
            return 6
        return 1 if name in ("error", "keepalive") else 0

    def reader(self, exchange: ExchangeInfo) -> ResponsesReader:
        return ResponsesReader()


class ResponsesReader:
    """Reads one stream; keeps the open calls, and which parts of which items have been said."""

    def __init__(self) -> None:
        self._calls = Calls()
        self._deltas: dict[str, set[int | str | None]] = {}  # family → items and output indices that had some
        self._told: set[tuple[str, str | int | None, int | None]] = set()  # parts that only a `.done` told
        self._channels: set[str] = set()

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        event = decode_or_none(event_decoder, data)
        if event is None:
            return malformed_event(name, data)
        kind = event.type or name
        if kind[-6:] == ".delta":
            return self._delta(kind[:-6], event)
        if kind == "error" or event.error:
            return DecodedEvent(kind="error", error=error_in_event(data))
        if kind[-5:] == ".done":
            return self._done(kind[:-5], event, data)
        if kind == "response.output_item.added":
            return self._item_added(event)
        if event.response is not None or kind[9:] in _FINAL:
            reading = _snapshot(kind, event.response or Snapshot())
            if reading.terminal and not self._said_something():
                self._only_now(data, reading)
            return reading
        if kind == "keepalive":
            return DecodedEvent(kind="ping")
        if kind[-6:] == ".added":
            return DecodedEvent(kind="annotation" if "annotation" in kind else "start")
        if kind[:9] == "response.":
            image, failed = kind[-14:] == ".partial_image", kind[-12:] == "_call.failed"
            return DecodedEvent(kind="annotation" if image else "progress", tool_failure=failed)
        return self._untyped(data)

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        final = decode_or_none(final_decoder, body)
        if final is None:
            return [DecodedEvent(kind="malformed")]
        if final.output is None and final.status is None:
            return [
                DecodedEvent(kind="error", error=error_in_event(body))
                if final.error
                else DecodedEvent(kind="other")
            ]
        ending = _snapshot("", final)
        return [DecodedEvent(kind="text", deltas=[self._whole(final.output or [])]), ending]

    # -- deltas ------------------------------------------------------------------------------------------------------

    def _delta(self, family: str, event: Event) -> DecodedEvent | TextDelta:
        piece = event.delta
        if not piece:
            return DecodedEvent(kind="annotation")
        channel = _CHANNELS.get(family)
        if channel is None:
            channel = next((c for word, c in _BY_WORD if word in family), "server_call")
        if not isinstance(piece, str):
            piece = _piece_of(piece, channel)
        known = self._deltas.get(family)
        if known is None:
            known = self._deltas[family] = set()
            self._channels.add(channel)
        known.add(event.item_id)
        known.add(event.output_index)
        tokens = len(event.logprobs) if event.logprobs else None
        if channel == "text":
            return TextDelta("text", piece, 0, tokens)
        if channel == "reasoning":
            return TextDelta("reasoning", piece, 0, tokens)
        if not channel:
            return DecodedEvent(kind="annotation")
        if channel == "refusal":
            return DecodedEvent(kind="refusal", deltas=[ChoiceDelta(refusal=piece, tokens=tokens)])
        if channel == "audio":
            return DecodedEvent(kind="audio", deltas=[ChoiceDelta(audio_chars=len(piece))])
        if channel == "audio_data":
            return DecodedEvent(kind="audio", deltas=[ChoiceDelta(audio_data_chars=len(piece))])
        call = self._calls.of_delta(event.item_id, event.output_index, server_side=channel == "server_call")
        if call.whole:
            return DecodedEvent(kind="annotation")
        call.argued = True
        return _tool(ToolCallDelta(key=call.key, arguments=piece, server_side=call.server_side))

    # -- what is done ------------------------------------------------------------------------------------------------

    def _done(self, family: str, event: Event, data: bytes) -> DecodedEvent:
        if family == "response.output_item":
            return self._item_done(event, data)
        if family == "response":  # what the Realtime API calls the end, and some gateways with it
            return _snapshot("response.completed", event.response or Snapshot())
        channel = _CHANNELS.get(family)
        if channel == "call":
            call = self._calls.of_delta(event.item_id, event.output_index, server_side=False)
            return self._late_arguments(call, event.arguments or event.input, ToolCallDelta(key=call.key))
        whole = event.refusal if channel == "refusal" else event.text
        if channel in ("text", "reasoning", "refusal") and isinstance(whole, str) and whole:
            part = event.content_index if event.summary_index is None else event.summary_index
            place = (family, _first_known(event.item_id, event.output_index), part)
            if place not in self._told and not self._had_deltas(family, event.item_id, event.output_index):
                self._told.add(place)
                self._channels.add(channel)
                return _said_late(channel, whole)
        return DecodedEvent(kind="annotation")

    def _had_deltas(self, family: str, item_id: str | None, index: int | None) -> bool:
        """Of this item. Some servers change ids or number every item 0: one of the two is enough, and so is knowing neither."""
        known = self._deltas.get(family)
        if known is None:
            return False
        return item_id in known or index in known or index is None or item_id is None

    def _late_arguments(self, call: Call, arguments: Any, piece: ToolCallDelta) -> DecodedEvent:
        """The arguments of a call that had no deltas; of any other they are a repeat."""
        if call.argued or not arguments:
            return _tool(piece) if piece.name else DecodedEvent(kind="annotation")
        reading = self._whole_arguments(call, arguments, piece)
        reading.not_streamed = True
        return reading

    def _whole_arguments(self, call: Call, arguments: Any, piece: ToolCallDelta) -> DecodedEvent:
        call.argued = call.whole = True
        piece.arguments = arguments_of(arguments)
        return _tool(piece)

    # -- items -------------------------------------------------------------------------------------------------------

    def _item_added(self, event: Event) -> DecodedEvent:
        item = event.item
        if item is None:
            return DecodedEvent(kind="start")
        client = item.type in CLIENT_TOOLS
        if not client and not _is_call(item):
            return DecodedEvent(kind="annotation" if item.type.endswith("_output") else "start")
        call = self._calls.begin(item, event.output_index, server_side=not client)
        piece = ToolCallDelta(
            key=call.key, id=item.call_id or item.id or "", name=item.name or "", server_side=call.server_side
        )
        arguments = item.arguments or item.input
        if client and arguments:
            return self._whole_arguments(call, arguments, piece)
        return (
            _tool(piece)
            if piece.name
            else DecodedEvent(kind="progress", deltas=[ChoiceDelta(tool_calls=[piece])])
        )

    def _item_done(self, event: Event, data: bytes) -> DecodedEvent:
        item = event.item
        if item is None or item.type not in CLIENT_TOOLS:
            return self._item_told(item, event, data)
        known = self._calls.find(item.id, item.call_id, event.output_index)
        call = known or self._calls.begin(item, event.output_index, server_side=False)
        piece = ToolCallDelta(key=call.key)
        if known is None:
            piece.id, piece.name = item.call_id or item.id or "", item.name or ""
        return self._late_arguments(call, item.arguments or item.input, piece)

    def _item_told(self, item: Item | None, event: Event, data: bytes) -> DecodedEvent:
        """The end of a message or a reasoning: where it is said, if nothing before it did."""
        if item is None or item.type not in ("message", "reasoning"):
            return DecodedEvent(kind="annotation")
        index = event.output_index
        before = any(
            self._had_deltas(family, item.id, index) for family in self._deltas if _speaks(family, item.type)
        )
        told = any(_speaks(family, item.type) and at in (item.id, index) for family, at, _ in self._told)
        whole = None if before or told else decode_or_none(item_event_decoder, data)
        if whole is None or whole.item is None:
            return DecodedEvent(kind="annotation")
        choice_delta = self._whole([whole.item])
        kind = _kind_of(choice_delta)
        if kind is None:
            return DecodedEvent(kind="annotation")
        self._told.add((_FAMILY_OF_ITEM[item.type], _first_known(item.id, index), None))
        self._channels.add(kind)
        return DecodedEvent(kind=kind, deltas=[choice_delta], not_streamed=True)

    # -- whole responses ---------------------------------------------------------------------------------------------

    def _untyped(self, data: bytes) -> DecodedEvent:
        """A bare response object in place of an event: its status may be final (Fireworks documents no event names)."""
        final = decode_or_none(final_decoder, data)
        if final is None or final.object != "response":
            return DecodedEvent(kind="other")
        reading = _snapshot("", final)
        if reading.terminal and not self._said_something():
            self._late_output(final.output or [], reading)
        return reading

    def _only_now(self, data: bytes, reading: DecodedEvent) -> None:
        """The final event of a stream that had no output: what it made is in the response, if anywhere."""
        event = decode_or_none(final_event_decoder, data)
        if event is not None and event.response is not None:
            self._late_output(event.response.output or [], reading)

    def _said_something(self) -> bool:
        """More than reasoning: a response may tell its text in its last event only."""
        return bool(self._channels - {"reasoning"}) or self._calls.count > 0

    def _late_output(self, items: list[WholeItem], reading: DecodedEvent) -> None:
        whole = self._whole(items)
        if "reasoning" in self._channels:
            whole.reasoning = ""
        kind = _kind_of(whole)
        if kind is None:
            return
        reading.deltas, reading.not_streamed = [*(reading.deltas or []), whole], True
        if reading.kind == "finish":
            reading.kind = kind

    def _whole(self, items: list[WholeItem]) -> ChoiceDelta:
        whole = ChoiceDelta(tool_calls=[])
        for item in items:
            for part in [*_parts(item.content, "output_text"), *_parts(item.summary, "summary_text")]:
                if part.type in ("reasoning_text", "summary_text"):
                    whole.reasoning += part.text or ""
                else:
                    whole.text += part.text or ""
                whole.refusal += part.refusal or ""
            if item.type in CLIENT_TOOLS and whole.tool_calls is not None:
                arguments = arguments_of(item.arguments or item.input or "")
                call = self._calls.begin(item, None, server_side=False)
                tool_id, tool_name = item.call_id or item.id or "", item.name or ""
                whole.tool_calls.append(ToolCallDelta(call.key, tool_id, tool_name, arguments))
        return whole


def normalised(raw: dict[str, Any]) -> Usage:
    """The usage object in the common terms. Where the total shows that reasoning was left out of the output, it is put in."""
    inputs, outputs = raw.get("input_tokens_details"), raw.get("output_tokens_details")
    input_tokens = whole_number(raw.get("input_tokens", raw.get("prompt_tokens")))
    output_tokens = whole_number(raw.get("output_tokens", raw.get("completion_tokens")))
    reasoning = whole_number(outputs.get("reasoning_tokens")) if isinstance(outputs, dict) else None
    total = whole_number(raw.get("total_tokens"))
    known = input_tokens is not None and output_tokens is not None
    if reasoning and known and total == (input_tokens or 0) + (output_tokens or 0) + reasoning:
        output_tokens = (output_tokens or 0) + reasoning
    cached = whole_number(inputs.get("cached_tokens")) if isinstance(inputs, dict) else None
    return Usage(input_tokens, output_tokens, reasoning, cached, raw)


def _snapshot(kind: str, response: Snapshot | Final) -> DecodedEvent:
    """An event that carries the response as it now is; the last one says how it ended."""
    status = response.status or ""
    if kind[9:] in _FINAL and status not in _FINAL:
        status = kind[9:]
    reading = DecodedEvent(
        kind="start" if kind == "response.created" else "progress",
        usage=normalised(response.usage) if isinstance(response.usage, dict) else None,
        response_id=response.id or None,
        model=response.model or None,
    )
    if status not in _FINAL or kind in ("response.created", "response.in_progress", "response.queued"):
        return reading
    reading.kind, reading.terminal = "finish", True
    reading.deltas = [ChoiceDelta(finish_reason=status)]
    if status in ("failed", "cancelled") or response.error:
        error = error_from(response.error) if response.error else ErrorReport(None)
        error.type = error.type or status
        reading.kind, reading.error = "error", error
    return reading


def _speaks(family: str, item: str) -> bool:
    """Whether this family tells what such an item says."""
    reasoning = _CHANNELS.get(family) == "reasoning"
    return (
        reasoning
        if item == "reasoning"
        else _CHANNELS.get(family) in ("text", "refusal", "audio", "audio_data")
    )


def _first_known(item_id: str | None, index: int | None) -> str | int | None:
    return item_id if item_id is not None else index


def _parts(content: list[Part] | str | None, kind: str) -> list[Part]:
    return [Part(kind, content)] if isinstance(content, str) else content or []


def _is_call(item: Item) -> bool:
    return item.type.endswith("_call") or bool(item.name)


def _piece_of(delta: dict[str, Any], channel: str) -> str:
    """A delta that is an object: its text, or for arguments the object itself."""
    text = delta.get("text") or delta.get("content")
    return text if isinstance(text, str) and "call" not in channel else compact(delta)


def _tool(piece: ToolCallDelta) -> DecodedEvent:
    return DecodedEvent(kind="tool_call", deltas=[ChoiceDelta(tool_calls=[piece])])


def _said_late(channel: str, whole: str) -> DecodedEvent:
    if channel == "text":
        return DecodedEvent(kind="text", deltas=[ChoiceDelta(text=whole)], not_streamed=True)
    if channel == "refusal":
        return DecodedEvent(kind="refusal", deltas=[ChoiceDelta(refusal=whole)], not_streamed=True)
    return DecodedEvent(kind="reasoning", deltas=[ChoiceDelta(reasoning=whole)], not_streamed=True)


def _kind_of(choice_delta: ChoiceDelta) -> EventKind | None:
    if choice_delta.text:
        return "text"
    if choice_delta.tool_calls:
        return "tool_call"
    return "reasoning" if choice_delta.reasoning else "refusal" if choice_delta.refusal else None


DIALECT = OpenAIResponses()

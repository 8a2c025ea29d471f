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

from analytics.dialects.errors import error_event, error_from, unreadable
from analytics.dialects.numbers import count
from analytics.dialects.payload import arguments_of, compact, decode_or_none
from analytics.dialects.responses_calls import Call, Calls
from analytics.dialects.responses_wire import (
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
from analytics.dialects.shape import (
    Delta,
    ErrorSeen,
    Exchange,
    Fragment,
    Kind,
    Reading,
    ToolFragment,
    Usage,
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
    """The dialect; see `shape.Dialect`."""

    name = "openai_responses"
    provider = "openai"
    operation = "chat"

    def claims(self, exchange: Exchange) -> int:
        return 5 if _PATH.search(exchange.path.partition("?")[0]) else 0

    def recognises(self, name: str, data: bytes) -> int:
        if name.startswith("response."):
            return 8
        if b'"type":"response.' in data or b'"type": "response.' in data:
            return 7
        if b'"object":"response"' in data or b'"object": "response"' in data:
            return 6
        return 1 if name in ("error", "keepalive") else 0

    def reader(self, exchange: Exchange) -> ResponsesReader:
        return ResponsesReader()


class ResponsesReader:
    """Reads one stream; keeps the open calls, and which parts of which items have been said."""

    def __init__(self) -> None:
        self._calls = Calls()
        self._deltas: dict[str, set[int | str | None]] = {}  # family → items and output indices that had some
        self._told: set[tuple[str, str | int | None, int | None]] = set()  # parts that only a `.done` told
        self._channels: set[str] = set()

    def read(self, name: str, data: bytes) -> Reading | Delta:
        event = decode_or_none(event_decoder, data)
        if event is None:
            return unreadable(name, data)
        kind = event.type or name
        if kind[-6:] == ".delta":
            return self._delta(kind[:-6], event)
        if kind == "error" or event.error:
            return Reading(kind="error", error=error_event(data))
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
            return Reading(kind="ping")
        if kind[-6:] == ".added":
            return Reading(kind="annotation" if "annotation" in kind else "start")
        if kind[:9] == "response.":
            image, failed = kind[-14:] == ".partial_image", kind[-12:] == "_call.failed"
            return Reading(kind="annotation" if image else "progress", tool_failure=failed)
        return self._untyped(data)

    def read_body(self, body: bytes) -> list[Reading]:
        final = decode_or_none(final_decoder, body)
        if final is None:
            return [Reading(kind="malformed")]
        if final.output is None and final.status is None:
            return [Reading(kind="error", error=error_event(body)) if final.error else Reading(kind="other")]
        ending = _snapshot("", final)
        return [Reading(kind="text", fragments=[self._whole(final.output or [])]), ending]

    # -- deltas ------------------------------------------------------------------------------------------------------

    def _delta(self, family: str, event: Event) -> Reading | Delta:
        piece = event.delta
        if not piece:
            return Reading(kind="annotation")
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
            return Delta("text", piece, 0, tokens)
        if channel == "reasoning":
            return Delta("reasoning", piece, 0, tokens)
        if not channel:
            return Reading(kind="annotation")
        if channel == "refusal":
            return Reading(kind="refusal", fragments=[Fragment(refusal=piece, tokens=tokens)])
        if channel == "audio":
            return Reading(kind="audio", fragments=[Fragment(audio_chars=len(piece))])
        if channel == "audio_data":
            return Reading(kind="audio", fragments=[Fragment(audio_data_chars=len(piece))])
        call = self._calls.of_delta(event.item_id, event.output_index, server=channel == "server_call")
        if call.whole:
            return Reading(kind="annotation")
        call.argued = True
        return _tool(ToolFragment(key=call.key, arguments=piece, server=call.server))

    # -- what is done ------------------------------------------------------------------------------------------------

    def _done(self, family: str, event: Event, data: bytes) -> Reading:
        if family == "response.output_item":
            return self._item_done(event, data)
        if family == "response":  # what the Realtime API calls the end, and some gateways with it
            return _snapshot("response.completed", event.response or Snapshot())
        channel = _CHANNELS.get(family)
        if channel == "call":
            call = self._calls.of_delta(event.item_id, event.output_index, server=False)
            return self._late_arguments(call, event.arguments or event.input, ToolFragment(key=call.key))
        whole = event.refusal if channel == "refusal" else event.text
        if channel in ("text", "reasoning", "refusal") and isinstance(whole, str) and whole:
            part = event.content_index if event.summary_index is None else event.summary_index
            place = (family, _first_known(event.item_id, event.output_index), part)
            if place not in self._told and not self._had_deltas(family, event.item_id, event.output_index):
                self._told.add(place)
                self._channels.add(channel)
                return _said_late(channel, whole)
        return Reading(kind="annotation")

    def _had_deltas(self, family: str, item_id: str | None, index: int | None) -> bool:
        """Of this item. Some servers change ids or number every item 0: one of the two is enough, and so is knowing neither."""
        known = self._deltas.get(family)
        if known is None:
            return False
        return item_id in known or index in known or index is None or item_id is None

    def _late_arguments(self, call: Call, arguments: Any, piece: ToolFragment) -> Reading:
        """The arguments of a call that had no deltas; of any other they are a repeat."""
        if call.argued or not arguments:
            return _tool(piece) if piece.name else Reading(kind="annotation")
        reading = self._whole_arguments(call, arguments, piece)
        reading.late = True
        return reading

    def _whole_arguments(self, call: Call, arguments: Any, piece: ToolFragment) -> Reading:
        call.argued = call.whole = True
        piece.arguments = arguments_of(arguments)
        return _tool(piece)

    # -- items -------------------------------------------------------------------------------------------------------

    def _item_added(self, event: Event) -> Reading:
        item = event.item
        if item is None:
            return Reading(kind="start")
        client = item.type in CLIENT_TOOLS
        if not client and not _is_call(item):
            return Reading(kind="annotation" if item.type.endswith("_output") else "start")
        call = self._calls.begin(item, event.output_index, server=not client)
        piece = ToolFragment(
            key=call.key, id=item.call_id or item.id or "", name=item.name or "", server=call.server
        )
        arguments = item.arguments or item.input
        if client and arguments:
            return self._whole_arguments(call, arguments, piece)
        return _tool(piece) if piece.name else Reading(kind="progress", fragments=[Fragment(tools=[piece])])

    def _item_done(self, event: Event, data: bytes) -> Reading:
        item = event.item
        if item is None or item.type not in CLIENT_TOOLS:
            return self._item_told(item, event, data)
        known = self._calls.find(item.id, item.call_id, event.output_index)
        call = known or self._calls.begin(item, event.output_index, server=False)
        piece = ToolFragment(key=call.key)
        if known is None:
            piece.id, piece.name = item.call_id or item.id or "", item.name or ""
        return self._late_arguments(call, item.arguments or item.input, piece)

    def _item_told(self, item: Item | None, event: Event, data: bytes) -> Reading:
        """The end of a message or a reasoning: where it is said, if nothing before it did."""
        if item is None or item.type not in ("message", "reasoning"):
            return Reading(kind="annotation")
        index = event.output_index
        before = any(
            self._had_deltas(family, item.id, index) for family in self._deltas if _speaks(family, item.type)
        )
        told = any(_speaks(family, item.type) and at in (item.id, index) for family, at, _ in self._told)
        whole = None if before or told else decode_or_none(item_event_decoder, data)
        if whole is None or whole.item is None:
            return Reading(kind="annotation")
        fragment = self._whole([whole.item])
        kind = _kind_of(fragment)
        if kind is None:
            return Reading(kind="annotation")
        self._told.add((_FAMILY_OF_ITEM[item.type], _first_known(item.id, index), None))
        self._channels.add(kind)
        return Reading(kind=kind, fragments=[fragment], late=True)

    # -- whole responses ---------------------------------------------------------------------------------------------

    def _untyped(self, data: bytes) -> Reading:
        """A bare response object in place of an event: its status may be final (Fireworks documents no event names)."""
        final = decode_or_none(final_decoder, data)
        if final is None or final.object != "response":
            return Reading(kind="other")
        reading = _snapshot("", final)
        if reading.terminal and not self._said_something():
            self._late_output(final.output or [], reading)
        return reading

    def _only_now(self, data: bytes, reading: Reading) -> None:
        """The final event of a stream that had no output: what it made is in the response, if anywhere."""
        event = decode_or_none(final_event_decoder, data)
        if event is not None and event.response is not None:
            self._late_output(event.response.output or [], reading)

    def _said_something(self) -> bool:
        """More than reasoning: a response may tell its text in its last event only."""
        return bool(self._channels - {"reasoning"}) or self._calls.count > 0

    def _late_output(self, items: list[WholeItem], reading: Reading) -> None:
        whole = self._whole(items)
        if "reasoning" in self._channels:
            whole.reasoning = ""
        kind = _kind_of(whole)
        if kind is None:
            return
        reading.fragments, reading.late = [*(reading.fragments or []), whole], True
        if reading.kind == "finish":
            reading.kind = kind

    def _whole(self, items: list[WholeItem]) -> Fragment:
        whole = Fragment(tools=[])
        for item in items:
            for part in [*_parts(item.content, "output_text"), *_parts(item.summary, "summary_text")]:
                if part.type in ("reasoning_text", "summary_text"):
                    whole.reasoning += part.text or ""
                else:
                    whole.text += part.text or ""
                whole.refusal += part.refusal or ""
            if item.type in CLIENT_TOOLS and whole.tools is not None:
                arguments = arguments_of(item.arguments or item.input or "")
                call = self._calls.begin(item, None, server=False)
                tool_id, tool_name = item.call_id or item.id or "", item.name or ""
                whole.tools.append(ToolFragment(call.key, tool_id, tool_name, arguments))
        return whole


def normalised(raw: dict[str, Any]) -> Usage:
    """The usage object in the common terms. Where the total shows that reasoning was left out of the output, it is put in."""
    inputs, outputs = raw.get("input_tokens_details"), raw.get("output_tokens_details")
    input_tokens = count(raw.get("input_tokens", raw.get("prompt_tokens")))
    output_tokens = count(raw.get("output_tokens", raw.get("completion_tokens")))
    reasoning = count(outputs.get("reasoning_tokens")) if isinstance(outputs, dict) else None
    total = count(raw.get("total_tokens"))
    known = input_tokens is not None and output_tokens is not None
    if reasoning and known and total == (input_tokens or 0) + (output_tokens or 0) + reasoning:
        output_tokens = (output_tokens or 0) + reasoning
    cached = count(inputs.get("cached_tokens")) if isinstance(inputs, dict) else None
    return Usage(input_tokens, output_tokens, reasoning, cached, raw)


def _snapshot(kind: str, response: Snapshot | Final) -> Reading:
    """An event that carries the response as it now is; the last one says how it ended."""
    status = response.status or ""
    if kind[9:] in _FINAL and status not in _FINAL:
        status = kind[9:]
    reading = Reading(
        kind="start" if kind == "response.created" else "progress",
        usage=normalised(response.usage) if isinstance(response.usage, dict) else None,
        response_id=response.id or None,
        model=response.model or None,
    )
    if status not in _FINAL or kind in ("response.created", "response.in_progress", "response.queued"):
        return reading
    reading.kind, reading.terminal = "finish", True
    reading.fragments = [Fragment(finish_reason=status)]
    if status in ("failed", "cancelled") or response.error:
        error = error_from(response.error) if response.error else ErrorSeen(None)
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


def _tool(piece: ToolFragment) -> Reading:
    return Reading(kind="tool_call", fragments=[Fragment(tools=[piece])])


def _said_late(channel: str, whole: str) -> Reading:
    if channel == "text":
        return Reading(kind="text", fragments=[Fragment(text=whole)], late=True)
    if channel == "refusal":
        return Reading(kind="refusal", fragments=[Fragment(refusal=whole)], late=True)
    return Reading(kind="reasoning", fragments=[Fragment(reasoning=whole)], late=True)


def _kind_of(fragment: Fragment) -> Kind | None:
    if fragment.text:
        return "text"
    if fragment.tools:
        return "tool_call"
    return "reasoning" if fragment.reasoning else "refusal" if fragment.refusal else None


DIALECT = OpenAIResponses()

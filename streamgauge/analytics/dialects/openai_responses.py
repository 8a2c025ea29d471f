"""The Responses API: OpenAI, Azure, Bedrock, ChatGPT, Copilot, xAI, DeepSeek, OpenRouter, LM Studio, Fireworks, vLLM.

Every `….delta` family is output: text, refusals, reasoning and its summaries, arguments of functions, custom tools and MCP,
generated code, shell commands, patches, audio and its transcript, images and their previews. Other output of server tools
is not.

`….done` events repeat the deltas and are annotations. The output of a part without deltas is taken from its
`….done` event (LM Studio's arguments), else from the end of its item, else from the last event. It is marked `not_streamed`.

The client runs function and custom tool calls; all built-in tools are server-side. A completed web search is billed; opening a
page that it found, or a search within that page, is not. The finish reason is the final
status: `incomplete` is a finish, `failed` and `cancelled` are errors that also end the stream.

Systems:

| Fireworks | `fireworks` | `openai_responses` | `/inference/v1/responses` | final response | final status |
| OpenAI Responses and compatible | `openai` | `openai_responses` | `/v1/responses`, `/openai/responses`, `/backend-api/codex/responses` |
    final response | completed, incomplete; failed and cancelled are errors |
"""

from __future__ import annotations

from typing import Any

from streamgauge.analytics.dialects.dialect import Dialect, DialectReader, ExchangeInfo, by_path
from streamgauge.analytics.dialects.error_bodies import FINAL, add_final_status, error_event, failed_event
from streamgauge.analytics.dialects.events import (
    ChoiceDelta,
    DecodedEvent,
    EventKind,
    TextDelta,
    ToolCallDelta,
    tool_call_event,
)
from streamgauge.analytics.dialects.openai_responses_types import (
    ABSENT,
    CacheDiagnostics,
    Event,
    Item,
    Snapshot,
    ToolCall,
    ToolCalls,
    event_decoder,
    items_of,
    parts_of,
    snapshot_decoder,
)
from streamgauge.analytics.dialects.server_stats import stats_of
from streamgauge.analytics.dialects.tolerant_json import arguments_of, compact, decode_or_none, member_of
from streamgauge.analytics.dialects.usage import cache_miss, searches_in, term, usage_of, with_tools

CLIENT_TOOLS = frozenset({"function_call", "custom_tool_call"})
IMAGE_ITEM = "image_generation_call"
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
_CHANNEL_BY_WORD: tuple[tuple[str, str], ...] = (  # word in a family missing in `_CHANNELS` → channel; default: server_call
    ("output_content", ""), ("result", ""), ("image", ""), ("audio", "audio"), ("reasoning", "reasoning"),
    ("refusal", "refusal"), ("_call", "server_call"), ("text", "text"),
)  # fmt: skip


def _recognises(name: str, data: bytes) -> int:
    if name.startswith("response."):
        return 8
    if b'"type":"response.' in data or b'"type": "response.' in data:
        return 7
    if b'"object":"response"' in data or b'"object": "response"' in data:
        return 6
    return 1 if name in ("error", "keepalive") else 0


class ResponsesReader(DialectReader):
    """Decodes one stream; keeps the open calls, and the items and parts that had output."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self._calls = ToolCalls()
        self._deltas: dict[str, set[int | str | None]] = {}  # family → items and output indices with deltas
        self._done_parts: set[tuple[str, str | int | None, int | None]] = set()  # parts taken from a `.done`
        self._channels: set[str] = set()  # with output so far
        self._searches = 0

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        event = decode_or_none(event_decoder, data)
        if event is None:
            return failed_event(name, data)
        kind = event.type or name
        # Deltas first: they are nearly all events. A slice and a comparison cost less than `endswith`, which is a call.
        if kind[-6:] == ".delta":
            return self._delta(kind[:-6], event)
        if kind == "error" or event.error:
            return error_event(data)
        if kind[-5:] == ".done":
            return self._done(kind[:-5], event)
        if kind == "response.output_item.added":
            return self._item_added(event)
        if event.response is not None or kind[9:] in FINAL:
            # Some gateways send the members of the response beside the type of the event.
            return self._whole(kind, event.response or decode_or_none(snapshot_decoder, data) or Snapshot())
        if kind == "keepalive":
            return DecodedEvent(kind="ping")
        if kind[-6:] == ".added":
            return DecodedEvent(kind="annotation" if "annotation" in kind else "start")
        if kind[:9] == "response.":
            if event.partial_image_b64:
                return self._image()
            return DecodedEvent(kind="progress", tool_failure=kind[-12:] == "_call.failed")
        return self._untyped(data)

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        final = decode_or_none(snapshot_decoder, body)
        if final is None:
            return [DecodedEvent(kind="malformed")]
        if bytes(final.output) in ABSENT and final.status is None:
            return [error_event(body) if final.error else DecodedEvent(kind="other")]
        whole = self._join_items(items_of(final))
        if whole is None:
            return [DecodedEvent(kind="malformed")]
        ending = _snapshot("", final)
        self._count_searches(final, ending)
        return [DecodedEvent(kind="text", deltas=[whole]), ending]

    def _whole(self, kind: str, response: Snapshot) -> DecodedEvent:
        """Decode an event with the response object. The last one has the output, which some responses carry nowhere else."""
        decoded = _snapshot(kind, response)
        if decoded.terminal and not (self._channels - {"reasoning"} or self._calls.count):
            self._add_output(items_of(response), decoded)
        if decoded.terminal and not self._searches:
            self._count_searches(response, decoded)
        return decoded

    def _count_searches(self, response: Snapshot, decoded: DecodedEvent) -> None:
        """Count the searches in a whole output, unless the response object counts them itself."""
        if (
            decoded.billing
            and not decoded.billing["web_searches"]
            and b'"web_search_call"' in bytes(response.output)
        ):
            decoded.billing["web_searches"] = sum(map(_is_search, items_of(response) or ())) or None

    def _delta(self, family: str, event: Event) -> DecodedEvent | TextDelta:
        text = event.delta
        if not text:
            return DecodedEvent(kind="annotation")
        channel = _CHANNELS.get(family)
        if channel is None:
            channel = next((c for word, c in _CHANNEL_BY_WORD if word in family), "server_call")
        if not isinstance(text, str):
            text = _text_of(text, channel)
        known = self._deltas.get(family)
        if known is None:
            known = self._deltas[family] = set()
            self._channels.add(channel)
        known.add(event.item_id)
        known.add(event.output_index)
        tokens = len(event.logprobs) if event.logprobs else None
        if channel == "text":
            return TextDelta("text", text, 0, tokens)
        if channel == "reasoning":
            return TextDelta("reasoning", text, 0, tokens)
        if not channel:
            return DecodedEvent(kind="annotation")
        if channel == "refusal":
            return DecodedEvent(kind="refusal", deltas=[ChoiceDelta(refusal=text, tokens=tokens)])
        if channel == "audio":
            return DecodedEvent(kind="audio", deltas=[ChoiceDelta(audio_chars=len(text))])
        if channel == "audio_data":
            return DecodedEvent(kind="audio", deltas=[ChoiceDelta(audio_data_chars=len(text))])
        call = self._calls.of_delta(event.item_id, event.output_index, server_side=channel == "server_call")
        if call.complete:
            return DecodedEvent(kind="annotation")
        call.has_arguments = True
        return tool_call_event(ToolCallDelta(key=call.key, arguments=text, server_side=call.server_side))

    def _done(self, family: str, event: Event) -> DecodedEvent:
        if family == "response.output_item":
            return self._item_done(event)
        if family == "response":  # the last event of the Realtime API and of some gateways
            return _snapshot("response.completed", event.response or Snapshot())
        channel = _CHANNELS.get(family)
        if channel == "call":
            call = self._calls.of_delta(event.item_id, event.output_index, server_side=False)
            return self._late_arguments(call, event.arguments or event.input, ToolCallDelta(key=call.key))
        whole = event.refusal if channel == "refusal" else event.text
        if channel in ("text", "reasoning", "refusal") and isinstance(whole, str) and whole:
            part = event.content_index if event.summary_index is None else event.summary_index
            part_key = (family, _first_known(event.item_id, event.output_index), part)
            if part_key not in self._done_parts and not self._had_deltas(
                family, event.item_id, event.output_index
            ):
                self._done_parts.add(part_key)
                self._channels.add(channel)
                return _whole_part(channel, whole)
        return DecodedEvent(kind="annotation")

    def _had_deltas(self, family: str, item_id: str | None, index: int | None) -> bool:
        """Whether the item had deltas. A matching id or index is enough: some servers change ids or number every item 0."""
        known = self._deltas.get(family)
        if known is None:
            return False
        return item_id in known or index in known or index is None or item_id is None

    def _late_arguments(self, call: ToolCall, arguments: Any, tool_call: ToolCallDelta) -> DecodedEvent:
        """Add the arguments of a call that had no deltas. After deltas they are a repeat."""
        if call.has_arguments or not arguments:
            return tool_call_event(tool_call) if tool_call.name else DecodedEvent(kind="annotation")
        decoded = self._whole_arguments(call, arguments, tool_call)
        decoded.not_streamed = True
        return decoded

    def _whole_arguments(self, call: ToolCall, arguments: Any, tool_call: ToolCallDelta) -> DecodedEvent:
        call.has_arguments = call.complete = True
        tool_call.arguments = arguments_of(arguments)
        return tool_call_event(tool_call)

    def _item_added(self, event: Event) -> DecodedEvent:
        item = event.item
        if item is None:
            return DecodedEvent(kind="start")
        client = item.type in CLIENT_TOOLS
        if not client and not item.type.endswith("_call") and not item.name:
            return DecodedEvent(kind="annotation" if item.type.endswith("_output") else "start")
        call = self._calls.begin(item, event.output_index, server_side=not client)
        tool_call = ToolCallDelta(
            key=call.key, id=item.call_id or item.id or "", name=item.name or "", server_side=call.server_side
        )
        arguments = item.arguments or item.input
        if client and arguments:
            return self._whole_arguments(call, arguments, tool_call)
        if tool_call.name:
            return tool_call_event(tool_call)
        return DecodedEvent(kind="progress", deltas=[ChoiceDelta(tool_calls=[tool_call])])

    def _item_done(self, event: Event) -> DecodedEvent:
        item = event.item
        if item is not None and _is_search(item):
            self._searches += 1
            return DecodedEvent(kind="annotation", billing={"web_searches": self._searches})
        if item is None or item.type not in CLIENT_TOOLS:
            return self._message_done(item, event.output_index)
        known = self._calls.find(item.id, item.call_id, event.output_index)
        call = known or self._calls.begin(item, event.output_index, server_side=False)
        tool_call = ToolCallDelta(key=call.key)
        if known is None:
            tool_call.id, tool_call.name = item.call_id or item.id or "", item.name or ""
        return self._late_arguments(call, item.arguments or item.input, tool_call)

    def _message_done(self, item: Item | None, index: int | None) -> DecodedEvent:
        """Decode the end of an image, a message or reasoning, and the output of the latter unless it arrived earlier."""
        if item is not None and item.type == IMAGE_ITEM and item.result:
            return self._image()
        if item is None or item.type not in ("message", "reasoning"):
            return DecodedEvent(kind="annotation")
        before = any(
            self._had_deltas(family, item.id, index) for family in self._deltas if _carries(family, item.type)
        )
        done = any(
            _carries(family, item.type) and at in (item.id, index) for family, at, _ in self._done_parts
        )
        whole = None if before or done else self._join_items([item])
        choice_delta = whole or ChoiceDelta()
        kind = _kind_of(choice_delta)
        if kind is None:
            return DecodedEvent(kind="annotation")
        self._done_parts.add((_FAMILY_OF_ITEM[item.type], _first_known(item.id, index), None))
        self._channels.add(kind)
        return DecodedEvent(kind=kind, deltas=[choice_delta], not_streamed=True)

    def _image(self) -> DecodedEvent:
        """An image or a preview of it; the image is no repeat of its previews."""
        self._channels.add("image")
        return DecodedEvent(kind="image", deltas=[ChoiceDelta(images=1)])

    def _untyped(self, data: bytes) -> DecodedEvent:
        """A bare response object in place of an event, as Fireworks documents it. Its status may be final."""
        response = decode_or_none(snapshot_decoder, data)
        if response is None or response.object != "response":
            return DecodedEvent(kind="other")
        return self._whole("", response)

    def _add_output(self, items: list[Item] | None, decoded: DecodedEvent) -> None:
        whole = self._join_items(items) or ChoiceDelta()
        if "reasoning" in self._channels:
            whole.reasoning = ""
        kind = _kind_of(whole)
        if kind is None:
            return
        decoded.deltas, decoded.not_streamed = [whole, *(decoded.deltas or [])], True
        if decoded.kind == "finish":
            decoded.kind = kind

    def _join_items(self, items: list[Item] | None) -> ChoiceDelta | None:
        """The whole output; None if an item or a part has another form."""
        if items is None:
            return None
        whole = ChoiceDelta(tool_calls=[])
        for item in items:
            content, summary = parts_of(item.content, "output_text"), parts_of(item.summary, "summary_text")
            if content is None or summary is None:
                return None
            for part in [*content, *summary]:
                if part.type in ("reasoning_text", "summary_text"):
                    whole.reasoning += part.text or ""
                else:
                    whole.text += part.text or ""
                whole.refusal += part.refusal or ""
            whole.images += item.type == IMAGE_ITEM and bool(item.result)
            if item.type in CLIENT_TOOLS and whole.tool_calls is not None:
                arguments = arguments_of(item.arguments or item.input or "")
                call = self._calls.begin(item, None, server_side=False)
                tool_id, tool_name = item.call_id or item.id or "", item.name or ""
                whole.tool_calls.append(ToolCallDelta(call.key, tool_id, tool_name, arguments))
        return whole


def _snapshot(kind: str, response: Snapshot) -> DecodedEvent:
    """Decode an event that carries the response object; the last one has the final status."""
    status = response.status or ""
    if kind[9:] in FINAL and status not in FINAL:
        status = kind[9:]
    decoded = DecodedEvent(
        kind="start" if kind == "response.created" else "progress",
        usage=usage_of(with_tools(response.usage, response.tool_usage)),
        server_stats=stats_of("metrics", response.metrics) or None,
        response_id=response.id,
        model=response.model,
        billing={
            "service_tier": term(response.service_tier),
            "web_searches": searches_in(response.tool_usage),
            **(_cache_miss(response.prompt_cache_diagnostics) or {}),
        },
    )
    if kind not in ("response.created", "response.in_progress", "response.queued"):
        add_final_status(decoded, status, response.error, failed=bool(response.error))
    return decoded


def _cache_miss(found: CacheDiagnostics | None) -> dict[str, Any] | None:
    is_miss = found is not None and found.type == "cache_miss"
    return cache_miss(found.reason, found.cache_missed_tokens) if found is not None and is_miss else None


def _is_search(item: Item) -> bool:
    """Whether the item is a completed web search. Its models without `open_page` send no action."""
    kind = member_of(item.action, "type")
    return item.type == "web_search_call" and item.status in (None, "completed") and kind in (None, "search")


def _carries(family: str, item: str) -> bool:
    """Whether deltas of this family belong to items of this type."""
    expected = ("reasoning",) if item == "reasoning" else ("text", "refusal", "audio", "audio_data")
    return _CHANNELS.get(family) in expected


def _first_known(item_id: str | None, index: int | None) -> str | int | None:
    return item_id if item_id is not None else index


def _text_of(delta: dict[str, Any], channel: str) -> str:
    """The text of a delta that is an object; for arguments, the object itself."""
    text = delta.get("text") or delta.get("content")
    return text if isinstance(text, str) and "call" not in channel else compact(delta)


def _whole_part(channel: str, text: str) -> DecodedEvent:
    """A part that had no deltas; `channel` is text, refusal or reasoning."""
    delta = ChoiceDelta()
    setattr(delta, channel, text)
    return DecodedEvent(kind=_kind_of(delta) or "other", deltas=[delta], not_streamed=True)


def _kind_of(choice_delta: ChoiceDelta) -> EventKind | None:
    if choice_delta.text:
        return "text"
    if choice_delta.tool_calls:
        return "tool_call"
    if choice_delta.images:
        return "image"
    return "reasoning" if choice_delta.reasoning else "refusal" if choice_delta.refusal else None


_claims = by_path(r"/responses(/(?!input_tokens)[^/]+(/cancel)?)?/?$")
DIALECT = Dialect("openai_responses", "openai", "chat", _claims, _recognises, ResponsesReader)

"""Anthropic's Messages, also as served by Friendli, Fireworks, Vertex AI, Bedrock, OpenRouter, vLLM and others.

message_start · (content_block_start · content_block_delta… · content_block_stop)… · message_delta · message_stop, with pings
anywhere and `error` in place of the rest.

Output: text_delta, thinking_delta, input_json_delta (of client and server tools), tool names, and the content of a
content_block_start. Not output: signatures, citations, redacted thinking, server tool results, compaction summaries.

Usage is cumulative. Each report is message_start's overlaid with every message_delta so far, so a caller overwrites; null never
overwrites a number. message_start counts only the output tokens of its own moment (about 1): they stay in `raw`, and
`output_tokens` is unknown until a message_delta reports it. Input tokens = input + cache_read + cache_creation.
"""

from __future__ import annotations

from typing import Any

import msgspec

from analytics.decoded.dialect import ExchangeInfo
from analytics.decoded.event import ChoiceDelta, DecodedEvent, EventKind, TextDelta, ToolCallDelta
from analytics.decoded.reports import ServerStat, Usage
from analytics.decoded.tolerant_json import arguments_of, compact, decode_or_none
from analytics.dialects.errors import error_event, failed_event
from analytics.dialects.numbers import finite_number, whole_number

SERVER_TOOLS = frozenset({"server_tool_use", "mcp_tool_use"})
_EVENT_NAMES = frozenset({
    "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop",
})  # fmt: skip


class _DeltaPart(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    is_error: bool | None = None


class _Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    usage: Any = None


class _Body(_Message):
    type: str | None = None
    content: list[_Block] | None = None
    stop_reason: str | None = None
    error: Any = None


class _Event(msgspec.Struct):
    type: str | None = None
    index: int | None = None
    delta: _DeltaPart | None = None
    content_block: _Block | None = None
    message: _Message | None = None
    usage: Any = None
    error: Any = None
    bedrock: dict[str, Any] | None = msgspec.field(default=None, name="amazon-bedrock-invocationMetrics")


_event = msgspec.json.Decoder(_Event)
_body = msgspec.json.Decoder(_Body)


class AnthropicMessages:
    name = "anthropic_messages"
    provider = "anthropic"
    operation = "chat"

    def claims(self, exchange: ExchangeInfo) -> int:
        path = exchange.route
        if path.endswith("/messages") and "/threads/" not in path:
            return 9 if "anthropic-version" in exchange.request_headers else 5
        if path.endswith(("rawPredict", "streamRawPredict", "RawPredict")):
            return 9 if "/publishers/anthropic/" in path else 1
        return 0

    def recognises(self, name: str, data: bytes) -> int:
        if name in _EVENT_NAMES:
            return 8
        head = data[:200].replace(b" ", b"")
        if b'"type":"message_start"' in head:
            return 8
        if b'"type":"content_block_' in head or b'"type":"message_delta"' in head:
            return 7
        if b'"stop_reason"' in data and (b'"type":"message"' in data or b'"type": "message"' in data):
            return 6  # a whole body
        return 1 if name == "ping" else 0

    def reader(self, exchange: ExchangeInfo) -> AnthropicReader:
        return AnthropicReader()


class AnthropicReader:
    """Decodes one stream; keeps which blocks are server tools or came whole, and the usage so far."""

    def __init__(self) -> None:
        self._server_blocks: set[int] = set()
        self._whole_inputs: set[int] = set()
        self._usage: dict[str, Any] = {}
        self._output_reported = False

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        event = decode_or_none(_event, data)
        if event is None:
            return failed_event(None, data, name)
        kind = event.type or name
        if kind == "content_block_delta":
            return self._delta(event)
        if kind == "content_block_start":
            return self._block_start(event)
        if kind == "message_start":
            return self._message_start(event.message or _Message())
        if kind == "message_delta":
            return self._message_delta(event)
        if kind == "message_stop":
            return DecodedEvent(kind="terminal", terminal=True, server_stats=_bedrock_stats(event.bedrock))
        if kind == "ping":
            return DecodedEvent(kind="ping")
        if kind == "error" or event.error:
            return error_event(data)
        return DecodedEvent(kind="annotation" if kind == "content_block_stop" else "other")

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        message = decode_or_none(_body, body)
        if message is None or message.error or message.type == "error":
            return [failed_event(message, body)]
        if message.content is None:
            return [DecodedEvent(kind="other")]
        choice_delta, kind = _join_blocks(message.content)
        choice_delta.finish_reason = message.stop_reason
        return [
            DecodedEvent(
                kind=kind,
                deltas=[choice_delta],
                usage=self._overlay(message.usage, final=True),
                terminal=True,
                response_id=message.id or None,
                model=message.model or None,
            )
        ]

    def _delta(self, event: _Event) -> DecodedEvent | TextDelta:
        delta = event.delta
        if delta is None:
            return DecodedEvent(kind="other")
        if delta.text:
            return TextDelta("text", delta.text)
        if delta.thinking:
            return TextDelta("reasoning", delta.thinking)
        index = event.index or 0
        if delta.partial_json and index not in self._whole_inputs:
            tool = ToolCallDelta(
                key=index, arguments=delta.partial_json, server_side=index in self._server_blocks
            )
            return DecodedEvent(kind="tool_call", deltas=[ChoiceDelta(tool_calls=[tool])])
        return DecodedEvent(kind="annotation")

    def _block_start(self, event: _Event) -> DecodedEvent:
        block, index = event.content_block, event.index or 0
        if block is None:
            return DecodedEvent(kind="other")
        self._server_blocks.discard(index)
        self._whole_inputs.discard(index)
        if block.type in SERVER_TOOLS:
            self._server_blocks.add(index)
        choice_delta, kind = _block(block, index)
        if choice_delta is None:
            result = block.type.endswith("_result")
            return DecodedEvent(kind="annotation" if result else "start", tool_failure=bool(block.is_error))
        if choice_delta.tool_calls and choice_delta.tool_calls[0].arguments:
            self._whole_inputs.add(index)
        return DecodedEvent(kind=kind, deltas=[choice_delta])

    def _message_start(self, message: _Message) -> DecodedEvent:
        return DecodedEvent(
            kind="start",
            usage=self._overlay(message.usage, final=False),
            response_id=message.id or None,
            model=message.model or None,
        )

    def _message_delta(self, event: _Event) -> DecodedEvent:
        usage = self._overlay(event.usage, final=True)
        reason = event.delta.stop_reason if event.delta else None
        if not reason:
            return DecodedEvent(kind="usage" if usage else "other", usage=usage)
        return DecodedEvent(kind="finish", deltas=[ChoiceDelta(finish_reason=reason)], usage=usage)

    def _overlay(self, reported: Any, *, final: bool) -> Usage | None:
        if not isinstance(reported, dict):
            return None
        seen = self._usage
        for key, value in reported.items():
            if value is not None or key not in seen:
                seen[key] = value
        self._output_reported |= final and reported.get("output_tokens") is not None
        usage = normalised(dict(seen))
        if not self._output_reported:
            usage.output_tokens = None
        return usage


def normalised(raw: dict[str, Any]) -> Usage:
    """Normalise Anthropic's usage object."""
    parts = [
        whole_number(raw.get(k))
        for k in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    ]
    known = [part for part in parts if part is not None]
    details = raw.get("output_tokens_details")
    return Usage(
        input_tokens=sum(known) if known else None,
        output_tokens=whole_number(raw.get("output_tokens")),
        reasoning_tokens=whole_number(details.get("thinking_tokens")) if isinstance(details, dict) else None,
        cached_input_tokens=parts[1],
        raw=raw,
    )


def _block(block: _Block, key: int) -> tuple[ChoiceDelta | None, EventKind]:
    """The content of a block at its start, or in a whole body."""
    if block.type == "tool_use" or block.type in SERVER_TOOLS:
        tool = ToolCallDelta(
            key=key, id=block.id or "", name=block.name or "", server_side=block.type in SERVER_TOOLS
        )  # fmt: skip
        if block.input:
            tool.arguments = arguments_of(block.input)
        return ChoiceDelta(tool_calls=[tool]), "tool_call" if tool.name or tool.arguments else "start"
    if block.type == "thinking" and block.thinking:
        return ChoiceDelta(reasoning=block.thinking), "reasoning"
    if block.type == "text" and block.text:
        return ChoiceDelta(text=block.text), "text"
    return None, "start"


def _join_blocks(blocks: list[_Block]) -> tuple[ChoiceDelta, EventKind]:
    """Join the blocks of a whole body; the kind is that of the first output."""
    whole, first = ChoiceDelta(), None
    for index, block in enumerate(blocks):
        choice_delta, kind = _block(block, index)
        if choice_delta is None:
            continue
        first = first or kind
        whole.text += choice_delta.text
        whole.reasoning += choice_delta.reasoning
        if choice_delta.tool_calls:
            whole.tool_calls = (whole.tool_calls or []) + choice_delta.tool_calls
            tool = choice_delta.tool_calls[0]
            if not tool.arguments:  # without arguments a whole body has {}
                tool.arguments = "{}"
    return whole, first or "finish"


def _bedrock_stats(metrics: dict[str, Any] | None) -> list[ServerStat] | None:
    """Bedrock adds its own measurements to message_stop: counts, and latencies in ms."""
    if not metrics:
        return None
    source = "amazon-bedrock-invocationMetrics"
    stats = []
    for name, raw in metrics.items():
        unit, factor = ("ns", 1e6) if name.endswith("Latency") else ("tokens", 1.0)
        number = finite_number(raw)
        stats.append(
            ServerStat(source, name, None if number is None else number * factor, unit, compact(raw)[:200])
        )
    return stats


DIALECT = AnthropicMessages()

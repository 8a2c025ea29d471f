"""Anthropic's Messages, also as Friendli, Fireworks, Vertex AI, Bedrock, OpenRouter, vLLM and others serve them.

message_start · (content_block_start · content_block_delta… · content_block_stop)… · message_delta · message_stop, with pings
anywhere and `error` instead of the rest.

Output: text_delta, thinking_delta, input_json_delta (of the client's tools and of the provider's own), a tool's name, and
what a content_block_start already holds. Not output: signatures, citations, redacted thinking, server tool results, summaries
of a compaction.

Usage is cumulative. Each report given out is message_start's overlaid with every message_delta so far, so the last one is the
whole truth and a caller just overwrites; null never overwrites a number. message_start counts the output tokens of its own
moment only (1 or so): they are in `raw`, and `output_tokens` stays unknown until a message_delta has said it.
Input tokens = input + cache_read + cache_creation.
"""

from __future__ import annotations

from typing import Any

import msgspec

from analytics.dialects.errors import error_event, unreadable
from analytics.dialects.numbers import count, measure
from analytics.dialects.payload import arguments_of, compact, decode_or_none
from analytics.dialects.shape import (
    Delta,
    Exchange,
    Fragment,
    Kind,
    Reading,
    ServerStat,
    ToolFragment,
    Usage,
)

SERVER_TOOLS = frozenset({"server_tool_use", "mcp_tool_use"})
_OWN_EVENTS = frozenset({
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
    """The dialect; see `shape.Dialect`."""

    name = "anthropic_messages"
    provider = "anthropic"
    operation = "chat"

    def claims(self, exchange: Exchange) -> int:
        path = exchange.path.partition("?")[0].rstrip("/")
        if path.endswith("/messages") and "/threads/" not in path:
            return 9 if "anthropic-version" in exchange.request_headers else 5
        if path.endswith(("rawPredict", "streamRawPredict", "RawPredict")):
            return 9 if "/publishers/anthropic/" in path else 1
        return 0

    def recognises(self, name: str, data: bytes) -> int:
        if name in _OWN_EVENTS:
            return 8
        head = data[:200].replace(b" ", b"")
        if b'"type":"message_start"' in head:
            return 8
        if b'"type":"content_block_' in head or b'"type":"message_delta"' in head:
            return 7
        if b'"stop_reason"' in data and (b'"type":"message"' in data or b'"type": "message"' in data):
            return 6  # a whole body
        return 1 if name == "ping" else 0

    def reader(self, exchange: Exchange) -> AnthropicReader:
        return AnthropicReader()


class AnthropicReader:
    """Reads one stream; keeps the kind of each open block and the usage so far."""

    def __init__(self) -> None:
        self._server_blocks: set[int] = set()
        self._whole_inputs: set[int] = set()
        self._usage: dict[str, Any] = {}
        self._output_reported = False

    def read(self, name: str, data: bytes) -> Reading | Delta:
        event = decode_or_none(_event, data)
        if event is None:
            return unreadable(name, data)
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
            return Reading(kind="terminal", terminal=True, server_stats=_bedrock_stats(event.bedrock))
        if kind == "ping":
            return Reading(kind="ping")
        if kind == "error" or event.error:
            return Reading(kind="error", error=error_event(data))
        return Reading(kind="annotation" if kind == "content_block_stop" else "other")

    def read_body(self, body: bytes) -> list[Reading]:
        message = decode_or_none(_body, body)
        if message is None:
            return [Reading(kind="malformed")]
        if message.error or message.type == "error":
            return [Reading(kind="error", error=error_event(body))]
        if message.content is None:
            return [Reading(kind="other")]
        fragment, kind = _whole(message.content)
        fragment.finish_reason = message.stop_reason
        return [
            Reading(
                kind=kind,
                fragments=[fragment],
                usage=self._overlay(message.usage, final=True),
                terminal=True,
                response_id=message.id or None,
                model=message.model or None,
            )
        ]

    def _delta(self, event: _Event) -> Reading | Delta:
        delta = event.delta
        if delta is None:
            return Reading(kind="other")
        if delta.text:
            return Delta("text", delta.text)
        if delta.thinking:
            return Delta("reasoning", delta.thinking)
        index = event.index or 0
        if delta.partial_json and index not in self._whole_inputs:
            tool = ToolFragment(key=index, arguments=delta.partial_json, server=index in self._server_blocks)
            return Reading(kind="tool_call", fragments=[Fragment(tools=[tool])])
        return Reading(kind="annotation")

    def _block_start(self, event: _Event) -> Reading:
        block, index = event.content_block, event.index or 0
        if block is None:
            return Reading(kind="other")
        self._server_blocks.discard(index)
        self._whole_inputs.discard(index)
        if block.type in SERVER_TOOLS:
            self._server_blocks.add(index)
        fragment, kind = _block(block, index)
        if fragment is None:
            result = block.type.endswith("_result")
            return Reading(kind="annotation" if result else "start", tool_failure=bool(block.is_error))
        if fragment.tools and fragment.tools[0].arguments:
            self._whole_inputs.add(index)
        return Reading(kind=kind, fragments=[fragment])

    def _message_start(self, message: _Message) -> Reading:
        return Reading(
            kind="start",
            usage=self._overlay(message.usage, final=False),
            response_id=message.id or None,
            model=message.model or None,
        )

    def _message_delta(self, event: _Event) -> Reading:
        usage = self._overlay(event.usage, final=True)
        reason = event.delta.stop_reason if event.delta else None
        if not reason:
            return Reading(kind="usage" if usage else "other", usage=usage)
        return Reading(kind="finish", fragments=[Fragment(finish_reason=reason)], usage=usage)

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
    """Anthropic's usage object in the common terms."""
    parts = [
        count(raw.get(k)) for k in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    ]
    known = [part for part in parts if part is not None]
    details = raw.get("output_tokens_details")
    return Usage(
        input_tokens=sum(known) if known else None,
        output_tokens=count(raw.get("output_tokens")),
        reasoning_tokens=count(details.get("thinking_tokens")) if isinstance(details, dict) else None,
        cached_input_tokens=parts[1],
        raw=raw,
    )


def _block(block: _Block, key: int) -> tuple[Fragment | None, Kind]:
    """What a content block already holds when it starts (or in a whole body)."""
    if block.type == "tool_use" or block.type in SERVER_TOOLS:
        tool = ToolFragment(
            key=key, id=block.id or "", name=block.name or "", server=block.type in SERVER_TOOLS
        )  # fmt: skip
        if block.input:
            tool.arguments = arguments_of(block.input)
        return Fragment(tools=[tool]), "tool_call" if tool.name or tool.arguments else "start"
    if block.type == "thinking" and block.thinking:
        return Fragment(reasoning=block.thinking), "reasoning"
    if block.type == "text" and block.text:
        return Fragment(text=block.text), "text"
    return None, "start"


def _whole(blocks: list[_Block]) -> tuple[Fragment, Kind]:
    """All blocks of a whole body as one fragment; the kind is that of the first output."""
    whole, first = Fragment(), None
    for index, block in enumerate(blocks):
        fragment, kind = _block(block, index)
        if fragment is None:
            continue
        first = first or kind
        whole.text += fragment.text
        whole.reasoning += fragment.reasoning
        if fragment.tools:
            whole.tools = (whole.tools or []) + fragment.tools
            tool = fragment.tools[0]
            if not tool.arguments:  # a whole body says {} for "no arguments"
                tool.arguments = "{}"
    return whole, first or "finish"


def _bedrock_stats(metrics: dict[str, Any] | None) -> list[ServerStat] | None:
    """Bedrock adds its own clock to message_stop: counts, and latencies in ms."""
    if not metrics:
        return None
    source = "amazon-bedrock-invocationMetrics"
    stats = []
    for name, raw in metrics.items():
        unit, factor = ("ns", 1e6) if name.endswith("Latency") else ("tokens", 1.0)
        number = measure(raw)
        stats.append(
            ServerStat(source, name, None if number is None else number * factor, unit, compact(raw)[:200])
        )
    return stats


DIALECT = AnthropicMessages()

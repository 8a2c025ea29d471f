"""Bedrock's Converse and ConverseStream, as named events of a binary event stream.

messageStart · (contentBlockStart · contentBlockDelta… · contentBlockStop)… · messageStop · metadata

Output: text, reasoning, tool names and their input. Not output: signatures. `metadata` has usage and the server's latency.
Input tokens = `inputTokens` + those read from the cache and written to it, unless the total shows that `inputTokens` contains them.

Bedrock's InvokeModelWithResponseStream: events of the model's vendor. Those of Anthropic select their own dialect.

Bedrock adds `amazon-bedrock-invocationMetrics` to the last event of every model: the terminal, and usage. Text is decoded of
models whose event has it in one member: `generation` (Llama), `outputText` (Titan).
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects.anthropic import BEDROCK_METRICS, bedrock_stats
from streamgauge.analytics.dialects.dialect import Dialect, DialectReader, by_path
from streamgauge.analytics.dialects.errors import failed_event
from streamgauge.analytics.dialects.events import (
    ChoiceDelta,
    DecodedEvent,
    ServerStat,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from streamgauge.analytics.dialects.server_stats import stat_of
from streamgauge.analytics.dialects.tolerant_json import (
    arguments_of,
    decode_or_none,
    member_of,
    string_of,
    whole_number,
)
from streamgauge.analytics.dialects.usage import term, usage_in

_EVENT_NAMES = frozenset((
    "messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata",
))  # fmt: skip


class _Reasoning(msgspec.Struct):
    text: str | None = None
    reasoningText: Any = None


class _Block(msgspec.Struct):
    text: str | None = None
    toolUse: dict[str, Any] | None = None
    reasoningContent: _Reasoning | None = None
    image: Any = None


class _Message(msgspec.Struct):
    content: list[_Block] | None = None


class _Output(msgspec.Struct):
    message: _Message | None = None


class _Event(msgspec.Struct):
    contentBlockIndex: int | None = None
    start: _Block | None = None
    delta: _Block | None = None
    stopReason: str | None = None
    usage: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    serviceTier: Any = None
    output: _Output | None = None
    error: Any = None


_event = msgspec.json.Decoder(_Event)


def _recognises(name: str, data: bytes) -> int:
    if name in _EVENT_NAMES - {"metadata"}:
        return 8
    whole_body = not name and b'"stopReason"' in data and b'"output"' in data and b'"message"' in data
    return 6 if whole_body else 0


class BedrockConverseReader(DialectReader):
    """Decodes one stream."""

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        event = decode_or_none(_event, data)
        if event is None or event.error:
            return failed_event(event, data, name)
        if event.delta is not None or event.start is not None:
            return _block_event(event)
        if name == "messageStop":
            delta = ChoiceDelta(finish_reason=event.stopReason)
            return DecodedEvent(kind="finish", deltas=[delta], terminal=True)
        if name == "metadata":
            return DecodedEvent(
                kind="usage",
                usage=_usage(event.usage),
                server_stats=_stats(event.metrics),
                billing={"service_tier": term(event.serviceTier)},
            )
        return DecodedEvent(kind="start" if name == "messageStart" else "other")

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        event = decode_or_none(_event, body)
        if event is None or event.error:
            return [failed_event(event, body)]
        message = event.output.message if event.output is not None else None
        whole = ChoiceDelta(finish_reason=event.stopReason)
        for index, block in enumerate((message.content if message is not None else None) or ()):
            delta = _delta(block, index)
            whole.text += delta.text
            whole.reasoning += delta.reasoning
            whole.images += delta.images
            whole.tool_calls = [*(whole.tool_calls or ()), *(delta.tool_calls or ())]
        return [
            DecodedEvent(
                kind="finish",
                deltas=[whole],
                usage=_usage(event.usage),
                server_stats=_stats(event.metrics),
                terminal=True,
                billing={"service_tier": term(event.serviceTier)},
            )
        ]


def _block_event(event: _Event) -> DecodedEvent | TextDelta:
    index = event.contentBlockIndex or 0
    block = event.delta or event.start or _Block()
    if block.text:
        return TextDelta("text", block.text)
    delta = _delta(block, index)
    if delta.reasoning:
        return TextDelta("reasoning", delta.reasoning)
    if delta.images or delta.tool_calls:
        return DecodedEvent("annotation", [delta])
    return DecodedEvent(kind="annotation" if event.delta is not None else "start")


def _delta(block: _Block, index: int) -> ChoiceDelta:
    delta = ChoiceDelta(text=block.text or "", images=int(bool(block.image)))
    if block.reasoningContent is not None:
        whole = block.reasoningContent.reasoningText
        delta.reasoning = string_of(
            whole.get("text") if isinstance(whole, dict) else block.reasoningContent.text
        )
    if block.toolUse is not None:
        delta.tool_calls = [
            ToolCallDelta(
                key=index,
                id=string_of(block.toolUse.get("toolUseId")),
                name=string_of(block.toolUse.get("name")),
                arguments=arguments_of(block.toolUse.get("input")),
            )
        ]
    return delta


def _usage(raw: dict[str, Any] | None) -> Usage | None:
    usage = usage_in(raw, "inputTokens", "outputTokens", cached_input_tokens="cacheReadInputTokens")
    if usage is None or raw is None or usage.input_tokens is None:
        return usage
    cached = (usage.cached_input_tokens or 0) + (whole_number(raw.get("cacheWriteInputTokens")) or 0)
    total_leaves_out_cache = raw.get("totalTokens") == usage.input_tokens + (usage.output_tokens or 0)
    if not total_leaves_out_cache or cached > usage.input_tokens:
        usage.input_tokens += cached
        usage.beyond_total = cached if total_leaves_out_cache else 0
    return usage


def _stats(metrics: dict[str, Any] | None) -> list[ServerStat] | None:
    latency_ms = member_of(metrics, "latencyMs")
    return None if latency_ms is None else [stat_of("metrics", "latencyMs", latency_ms, "ns", 1e6)]


_claims = by_path(r"/converse(-stream)?$")
CONVERSE = Dialect("bedrock_converse", "aws.bedrock", "chat", _claims, _recognises, BedrockConverseReader)


class _Chunk(msgspec.Struct):
    generation: str | None = None
    outputText: str | None = None
    stop_reason: str | None = None
    completionReason: str | None = None
    error: Any = None
    metrics: dict[str, Any] | None = msgspec.field(default=None, name=BEDROCK_METRICS)


_chunk = msgspec.json.Decoder(_Chunk)


class BedrockInvokeReader(DialectReader):
    """Decodes one stream."""

    def read(self, name: str, data: bytes) -> DecodedEvent:
        event = decode_or_none(_chunk, data)
        if event is None or event.error:
            return failed_event(event, data, name)
        text = event.generation or event.outputText or ""
        reason = event.stop_reason or event.completionReason
        delta = ChoiceDelta(text=text, finish_reason=reason) if text or reason else None
        found = DecodedEvent(deltas=[delta] if delta is not None else None)
        if event.metrics is not None:
            found.terminal = True
            found.server_stats = bedrock_stats(event.metrics)
            found.usage = usage_in(event.metrics, "inputTokenCount", "outputTokenCount")
            if delta is None:
                found.kind = "terminal"
        return found


_claims_invoke = by_path(r"/invoke-with-response-stream$")
INVOKE = Dialect(
    "bedrock_invoke", "aws.bedrock", "chat", _claims_invoke, lambda name, data: 0, BedrockInvokeReader
)

"""Bedrock's Converse and ConverseStream, as named events of a binary event stream.

messageStart · (contentBlockStart · contentBlockDelta… · contentBlockStop)… · messageStop · metadata

Output: text, reasoning, tool names and their input. Not output: signatures. `metadata` has usage and the server's latency.
Input tokens = `inputTokens` + those read from the cache and written to it, unless the total shows that `inputTokens` contains them.

Bedrock's InvokeModelWithResponseStream: events of the model's vendor. Those of Anthropic select their own dialect.

Bedrock adds `amazon-bedrock-invocationMetrics` to the last event of every model: the terminal, and usage. Text is decoded of
models whose event has it in one member: `generation` (Llama), `outputText` (Titan).

Systems:

| Bedrock Converse | `aws.bedrock` | `bedrock_converse` | `/model/m/converse-stream`, `/model/m/converse` | metadata | messageStop |
| Bedrock, model's own events | `aws.bedrock` | `bedrock_invoke` | `/model/m/invoke-with-response-stream` | invocation metrics |
    invocation metrics |
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.anthropic import BEDROCK_METRICS, bedrock_stats
from streamgauge.analytics.dialects.dialect import Dialect, by_path
from streamgauge.analytics.dialects.events import (
    ChoiceDelta,
    DecodedEvent,
    ServerStat,
    TextDelta,
    ToolCallDelta,
    Usage,
    joined,
)
from streamgauge.analytics.dialects.json_reader import Event, JSONReader
from streamgauge.analytics.dialects.server_stats import stat_of
from streamgauge.analytics.dialects.tolerant_json import (
    arguments_of,
    member_of,
    string_of,
    whole_number,
)
from streamgauge.analytics.dialects.usage import bedrock_metrics, term, usage_in

LOOKED_UP = kept.members(id="toolUseId", name="name", content="input", text="text")
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


class _Event(Event):
    contentBlockIndex: int | None = None
    start: _Block | None = None
    delta: _Block | None = None
    stopReason: kept.Name = None
    usage: Annotated[dict[str, Any] | None, kept.NUMBERS] = None
    metrics: Annotated[dict[str, Any] | None, kept.NUMBERS] = None
    serviceTier: kept.Term = None
    output: Annotated[_Output | None, kept.OUTPUT] = None


def _recognises(name: str, data: bytes) -> int:
    if name in _EVENT_NAMES - {"metadata"}:
        return 8
    whole_body = not name and b'"stopReason"' in data and b'"output"' in data and b'"message"' in data
    return 6 if whole_body else 0


class BedrockConverseReader(JSONReader, event=_Event):
    """Decodes one stream."""

    def event(self, event: _Event, kind: str) -> DecodedEvent | TextDelta:
        if event.delta is not None or event.start is not None:
            return _block_event(event)
        if kind == "messageStop":
            delta = ChoiceDelta(finish_reason=event.stopReason)
            return DecodedEvent(kind="finish", deltas=[delta], terminal=True)
        if kind == "metadata":
            return DecodedEvent(
                kind="usage",
                usage=_usage(event.usage),
                server_stats=_stats(event.metrics),
                billing={"service_tier": term(event.serviceTier)},
            )
        return DecodedEvent(kind="start" if kind == "messageStart" else "other")

    def body(self, whole: _Event) -> list[DecodedEvent]:
        message = whole.output.message if whole.output is not None else None
        blocks = (message.content if message is not None else None) or ()
        delta = joined(_delta(block, index) for index, block in enumerate(blocks))
        delta.finish_reason = whole.stopReason
        return [
            DecodedEvent(
                kind="finish",
                deltas=[delta],
                usage=_usage(whole.usage),
                server_stats=_stats(whole.metrics),
                terminal=True,
                billing={"service_tier": term(whole.serviceTier)},
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


class _Chunk(Event):
    generation: str | None = None
    outputText: str | None = None
    stop_reason: kept.Name = None
    completionReason: kept.Name = None
    metrics: Annotated[dict[str, Any] | None, kept.NUMBERS] = msgspec.field(
        default=None, name=BEDROCK_METRICS
    )


class BedrockInvokeReader(JSONReader, event=_Chunk):
    """Decodes one stream."""

    def event(self, event: _Chunk, kind: str) -> DecodedEvent:
        text = event.generation or event.outputText or ""
        reason = event.stop_reason or event.completionReason
        delta = ChoiceDelta(text=text, finish_reason=reason) if text or reason else None
        found = DecodedEvent(deltas=[delta] if delta is not None else None)
        if event.metrics is not None:
            found.terminal = True
            found.server_stats = bedrock_stats(event.metrics)
            found.usage = bedrock_metrics(event.metrics)
            if delta is None:
                found.kind = "terminal"
        return found


_claims_invoke = by_path(r"/invoke-with-response-stream$")
INVOKE = Dialect(
    "bedrock_invoke", "aws.bedrock", "chat", _claims_invoke, lambda name, data: 0, BedrockInvokeReader
)

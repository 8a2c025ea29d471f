"""Bedrock's Converse and ConverseStream, as named events of a binary event stream.

messageStart · (contentBlockStart · contentBlockDelta… · contentBlockStop)… · messageStop · metadata

Output: text, reasoning, tool names and their input. Not output: signatures. `metadata` has usage and the server's latency.
Input tokens are all tokens that are not output, because `inputTokens` lacks those read from or written to the cache.
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.errors import failed_event
from streamgauge.analytics.dialects.events import (
    ChoiceDelta,
    DecodedEvent,
    ServerStat,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from streamgauge.analytics.dialects.tolerant_json import (
    arguments_of,
    compact,
    decode_or_none,
    finite_number,
    whole_number,
)

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
    output: _Output | None = None
    error: Any = None


_event = msgspec.json.Decoder(_Event)


class BedrockConverse:
    name = "bedrock_converse"
    provider = "aws.bedrock"
    operation = "chat"

    def claims(self, exchange: ExchangeInfo) -> int:
        return 5 if exchange.route.endswith(("/converse-stream", "/converse")) else 0

    def recognises(self, name: str, data: bytes) -> int:
        if name in _EVENT_NAMES - {"metadata"}:
            return 8
        whole_body = not name and b'"stopReason"' in data and b'"output"' in data and b'"message"' in data
        return 6 if whole_body else 0

    def reader(self, exchange: ExchangeInfo) -> BedrockConverseReader:
        return BedrockConverseReader()


class BedrockConverseReader:
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
            return DecodedEvent(kind="usage", usage=_usage(event.usage), server_stats=_stats(event.metrics))
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
    if delta.images:
        return DecodedEvent("image", [delta])
    if delta.tool_calls:
        call = delta.tool_calls[0]
        return DecodedEvent("tool_call" if call.name or call.arguments else "annotation", [delta])
    return DecodedEvent(kind="annotation" if event.delta is not None else "start")


def _delta(block: _Block, index: int) -> ChoiceDelta:
    delta = ChoiceDelta(text=block.text or "", images=int(bool(block.image)))
    if block.reasoningContent is not None:
        whole = block.reasoningContent.reasoningText
        text = whole.get("text") if isinstance(whole, dict) else block.reasoningContent.text
        delta.reasoning = text if isinstance(text, str) else ""
    if block.toolUse is not None:
        tool_id, name = block.toolUse.get("toolUseId"), block.toolUse.get("name")
        delta.tool_calls = [
            ToolCallDelta(
                key=index,
                id=tool_id if isinstance(tool_id, str) else "",
                name=name if isinstance(name, str) else "",
                arguments=arguments_of(block.toolUse.get("input")),
            )
        ]
    return delta


def _usage(raw: dict[str, Any] | None) -> Usage | None:
    if raw is None:
        return None
    output, total = whole_number(raw.get("outputTokens")), whole_number(raw.get("totalTokens"))
    known = output is not None and total is not None and total >= output
    return Usage(
        input_tokens=total - output if known else whole_number(raw.get("inputTokens")),  # type: ignore[operator]
        output_tokens=output,
        cached_input_tokens=whole_number(raw.get("cacheReadInputTokens")),
        raw=raw,
    )


def _stats(metrics: dict[str, Any] | None) -> list[ServerStat] | None:
    latency_ms = (metrics or {}).get("latencyMs")
    number = finite_number(latency_ms)
    if number is None:
        return None
    return [ServerStat("metrics", "latencyMs", number * 1e6, "ns", compact(latency_ms)[:200])]


DIALECT = BedrockConverse()

"""Cohere's chat v2: message-start, content-*, tool-plan-delta, tool-call-*, citation-*, message-end.

Text, thinking and the tool plan are output. A tool's name comes with tool-call-start, its arguments in pieces. message-end is
the terminal and carries the finish reason, the usage, and the error text if the finish reason is ERROR. Token counts come
from `usage.tokens`, because `billed_units` excludes tokens that Cohere adds.
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.errors import error_event, error_from, error_in_event, failed_event
from streamgauge.analytics.dialects.events import (
    ChoiceDelta,
    DecodedEvent,
    ErrorReport,
    TextDelta,
    ToolCallDelta,
    Usage,
    tool_call_event,
)
from streamgauge.analytics.dialects.tolerant_json import decode_or_none, whole_number

_EVENT_NAMES = frozenset({
    "message-start", "content-start", "content-delta", "content-end", "tool-plan-delta", "tool-call-start",
    "tool-call-delta", "tool-call-end", "citation-start", "citation-end", "message-end",
})  # fmt: skip
_FAILED = ("ERROR", "TIMEOUT")
_NOT_ERRORS = frozenset({"ERROR_TOXIC", "ERROR_LIMIT"})
"""Finish reasons for a content filter and a length limit."""


class _Content(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    id: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: _Content | list[_Content] | str | None = None
    tool_calls: _Call | list[_Call] | None = None
    tool_plan: str | None = None


class _Ending(msgspec.Struct):
    message: _Message | None = None
    finish_reason: str | None = None
    usage: Any = None
    error: Any = None


class _Event(msgspec.Struct):
    type: str | None = None
    id: str | None = None
    index: int | None = None
    delta: _Ending | None = None
    error: Any = None


class _Body(_Ending):
    id: str | None = None


_event = msgspec.json.Decoder(_Event)
_body = msgspec.json.Decoder(_Body)


class CohereV2:
    name = "cohere_v2"
    provider = "cohere"
    operation = "chat"

    def claims(self, exchange: ExchangeInfo) -> int:
        return 5 if exchange.route.endswith("/v2/chat") else 0

    def recognises(self, name: str, data: bytes) -> int:
        if name in _EVENT_NAMES:
            return 8
        kind = data.partition(b'"type"')[2].lstrip(b" :")[1:20].partition(b'"')[0]
        if b'"type":"message-start"' in data or b'"type": "message-start"' in data:
            return 8
        if kind.decode("ascii", "replace") in _EVENT_NAMES:
            return 6
        return 6 if b'"billed_units"' in data and b'"message"' in data else 0

    def reader(self, exchange: ExchangeInfo) -> CohereReader:
        return CohereReader()


class CohereReader:
    """Decodes one stream; identifies calls by their index."""

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        event = decode_or_none(_event, data)
        if event is None:
            return failed_event(None, data, name)
        kind, delta = event.type or name, event.delta
        message = (delta.message if delta else None) or _Message()
        if kind in ("content-delta", "content-start"):
            return _content(message) or DecodedEvent(
                kind="start" if kind == "content-start" else "annotation"
            )
        if kind == "tool-plan-delta":
            if not message.tool_plan:
                return DecodedEvent(kind="annotation")
            return DecodedEvent(kind="reasoning", deltas=[ChoiceDelta(tool_plan=message.tool_plan)])
        if kind in ("tool-call-start", "tool-call-delta"):
            return _tool_call_event(message, event.index or 0)
        if kind == "message-start":
            return DecodedEvent(kind="start", response_id=event.id or None)
        if kind == "message-end":
            return _ended(delta or _Ending())
        if kind == "error" or event.error:
            return error_event(data)
        return DecodedEvent(kind="annotation" if kind in _EVENT_NAMES else "other")

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        whole = decode_or_none(_body, body)
        if whole is None:
            return [DecodedEvent(kind="malformed")]
        if whole.message is None and not whole.finish_reason:
            return [
                DecodedEvent(
                    kind="error" if whole.error else "other",
                    error=error_in_event(body) if whole.error else None,
                )
            ]
        message = whole.message or _Message()
        choice_delta = ChoiceDelta(tool_plan=message.tool_plan or "", tool_calls=[])
        contents = message.content if isinstance(message.content, list) else [message.content]
        for content in contents:
            choice_delta.text += content if isinstance(content, str) else (content and content.text) or ""
            choice_delta.reasoning += "" if isinstance(content, str) else (content and content.thinking) or ""
        calls = message.tool_calls if isinstance(message.tool_calls, list) else []
        choice_delta.tool_calls = [_tool_call(call, index) for index, call in enumerate(calls)]
        ending = _ended(whole)
        ending.response_id = whole.id or None
        return [DecodedEvent(kind="text", deltas=[choice_delta]), ending]


def normalised(raw: dict[str, Any]) -> Usage:
    """Normalise Cohere's usage object."""
    billed, tokens = raw.get("billed_units"), raw.get("tokens")
    counts = {**(billed if isinstance(billed, dict) else {}), **(tokens if isinstance(tokens, dict) else {})}
    return Usage(
        input_tokens=whole_number(counts.get("input_tokens")),
        output_tokens=whole_number(counts.get("output_tokens")),
        reasoning_tokens=whole_number(counts.get("reasoning_tokens")),
        cached_input_tokens=whole_number(raw.get("cached_tokens")),
        raw=raw,
    )


def finish_error(reason: str | None, error: Any) -> ErrorReport | None:
    """The error that a finish reports, if any."""
    if error:
        report = error_from(error)
    elif reason and reason.startswith(_FAILED) and reason not in _NOT_ERRORS:
        report = ErrorReport(None)
    else:
        return None
    if report.type is None and reason and reason != "ERROR":
        report.type = reason
    return report


def _content(message: _Message) -> DecodedEvent | TextDelta | None:
    content = message.content
    if isinstance(content, _Content):
        if content.text:
            return TextDelta("text", content.text)
        if content.thinking:
            return TextDelta("reasoning", content.thinking)
    elif isinstance(content, str) and content:
        return TextDelta("text", content)
    return None


def _tool_call_event(message: _Message, index: int) -> DecodedEvent:
    call = message.tool_calls
    if isinstance(call, list):
        call = call[0] if call else None
    if call is None:
        return DecodedEvent(kind="annotation")
    return tool_call_event(_tool_call(call, index))


def _tool_call(call: _Call, index: int) -> ToolCallDelta:
    function = call.function or _Function()
    return ToolCallDelta(index, call.id or "", function.name or "", function.arguments or "")


def _ended(ending: _Ending) -> DecodedEvent:
    reason = ending.finish_reason or None
    error = finish_error(reason, ending.error)
    return DecodedEvent(
        kind="error" if error else "finish",
        deltas=[ChoiceDelta(finish_reason=reason)],
        usage=normalised(ending.usage) if isinstance(ending.usage, dict) else None,
        error=error,
        terminal=True,
    )


DIALECT = CohereV2()

"""Cohere's chat v2: message-start, content-*, tool-plan-delta, tool-call-*, citation-*, message-end.

Text, thinking and the tool plan are output. A tool's name comes with tool-call-start, its arguments in pieces. message-end is
the terminal and carries the finish reason, the usage, and the error text if the finish reason is ERROR. Token counts come
from `usage.tokens`, because `billed_units` excludes tokens that Cohere adds. Its `search_units` are no web searches.

v1 chat and generate are JSON lines or SSE; `event_type` names the event. `tool-calls-generation` and the answer in `stream-end`
repeat what was streamed. Usage is in the `meta` of stream-end: `tokens` takes precedence over `billed_units`.

Systems:

| Cohere v2 | `cohere` | `cohere_v2` | `/v2/chat` | message-end | message-end; finish `ERROR` is an error |
| Cohere v1 | `cohere` | `cohere_v1` | `/v1/chat`, `/v1/generate` | stream-end | stream-end |
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo, by_path
from streamgauge.analytics.dialects.error_bodies import error_event, error_from
from streamgauge.analytics.dialects.events import (
    ChoiceDelta,
    DecodedEvent,
    ErrorReport,
    EventKind,
    TextDelta,
    ToolCallDelta,
    Usage,
    joined,
    tool_call_event,
)
from streamgauge.analytics.dialects.json_reader import Event, JSONReader
from streamgauge.analytics.dialects.openai_delta import Call, Function
from streamgauge.analytics.dialects.tolerant_json import arguments_of, decode_or_none, whole_number
from streamgauge.analytics.dialects.usage import details_in

_KINDS: dict[str, EventKind] = {
    "message-start": "start", "content-start": "start", "content-delta": "annotation", "content-end": "annotation",
    "tool-plan-delta": "annotation", "tool-call-start": "annotation", "tool-call-delta": "annotation",
    "tool-call-end": "annotation", "citation-start": "annotation", "citation-end": "annotation", "message-end": "annotation",
}  # fmt: skip
"""Event → its kind without output."""
LOOKED_UP = kept.members(numbers="billed_units", text="tokens", count="input_tokens")
_FAILED = ("ERROR", "TIMEOUT")
_NOT_ERRORS = frozenset({"ERROR_TOXIC", "ERROR_LIMIT"})
"""Finish reasons for a content filter and a length limit."""


class _Content(msgspec.Struct):
    type: kept.Title = None
    text: str | None = None
    thinking: str | None = None


class _Message(msgspec.Struct):
    content: _Content | list[_Content] | str | None = None
    tool_calls: Call | list[Call] | None = None
    tool_plan: str | None = None


class _Ending(msgspec.Struct):
    message: _Message | None = None
    finish_reason: kept.Name = None
    usage: kept.Report = None
    error: Any = None


class _Event(Event):
    id: kept.Word = None
    index: int | None = None
    delta: _Ending | None = None


class _Body(_Ending):
    id: kept.Word = None


def _recognises(name: str, data: bytes) -> int:
    if name in _KINDS:
        return 8
    kind = data.partition(b'"type"')[2].lstrip(b" :")[1:20].partition(b'"')[0]
    if b'"type":"message-start"' in data or b'"type": "message-start"' in data:
        return 8
    if kind.decode("ascii", "replace") in _KINDS:
        return 6
    return 6 if b'"billed_units"' in data and b'"message"' in data else 0


class CohereReader(JSONReader, event=_Event):
    """Decodes one stream; identifies calls by their index."""

    def event(self, event: _Event, kind: str) -> DecodedEvent | TextDelta:
        delta = event.delta or _Ending()
        message = delta.message or _Message()
        if kind in ("content-delta", "content-start"):
            return _content(message) or DecodedEvent(_KINDS[kind])
        if kind == "tool-plan-delta" and message.tool_plan:
            return DecodedEvent(kind="reasoning", deltas=[ChoiceDelta(tool_plan=message.tool_plan)])
        if kind in ("tool-call-start", "tool-call-delta"):
            return _tool_call_event(message, event.index or 0)
        if kind == "message-end":
            return _ended(delta)
        return DecodedEvent(
            _KINDS.get(kind, "other"), response_id=event.id if kind == "message-start" else None
        )

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        whole = decode_or_none(_body, body)
        if whole is None:
            return [DecodedEvent(kind="malformed")]
        if whole.message is None and not whole.finish_reason:
            return [error_event(body) if whole.error else DecodedEvent()]
        message = whole.message or _Message()
        parts = message.content if isinstance(message.content, list) else [message.content]
        calls = message.tool_calls if isinstance(message.tool_calls, list) else []
        delta = joined(map(_part, parts))
        delta.tool_plan = message.tool_plan or ""
        delta.tool_calls = [_tool_call(call, index) for index, call in enumerate(calls)]
        ending = _ended(whole)
        ending.response_id = whole.id or None
        return [DecodedEvent(kind="text", deltas=[delta]), ending]


def _part(content: _Content | str | None) -> ChoiceDelta:
    if isinstance(content, _Content):
        return ChoiceDelta(text=content.text or "", reasoning=content.thinking or "")
    return ChoiceDelta(text=content or "")


_body = msgspec.json.Decoder(_Body)


def _usage(raw: Any) -> Usage | None:
    if not isinstance(raw, dict):
        return None
    usage = _merged(raw.get("billed_units"), raw.get("tokens"))
    usage.cached_input_tokens, usage.raw = whole_number(raw.get("cached_tokens")), raw
    return usage


def _merged(billed: Any, tokens: Any) -> Usage:
    """The counts of `tokens`, and of `billed_units` where it has none."""
    # `billed_units` lacks the tokens that Cohere adds itself, so `tokens` comes last.
    counts = {**(billed if isinstance(billed, dict) else {}), **(tokens if isinstance(tokens, dict) else {})}
    inputs, outputs, reasoning = (
        whole_number(counts.get(name)) for name in ("input_tokens", "output_tokens", "reasoning_tokens")
    )
    return Usage(inputs, outputs, reasoning)


def finish_error(reason: str | None, error: Any) -> ErrorReport | None:
    """The error that a finish reports, if any."""
    failed = reason is not None and reason.startswith(_FAILED) and reason not in _NOT_ERRORS
    if not error and not failed:
        return None
    report = error_from(error) if error else ErrorReport(None)
    if report.type is None and reason and reason != "ERROR":
        report.type = reason
    return report


def _content(message: _Message) -> DecodedEvent | TextDelta | None:
    content = message.content
    if isinstance(content, _Content):
        if content.text or not content.thinking:
            return TextDelta("text", content.text) if content.text else None
        return TextDelta("reasoning", content.thinking)
    return TextDelta("text", content) if isinstance(content, str) and content else None


def _tool_call_event(message: _Message, index: int) -> DecodedEvent:
    call = message.tool_calls
    if isinstance(call, list):
        call = call[0] if call else None
    if call is None:
        return DecodedEvent(kind="annotation")
    return tool_call_event(_tool_call(call, index))


def _tool_call(call: Call, index: int) -> ToolCallDelta:
    function = call.function or Function()
    return ToolCallDelta(index, call.id or "", function.name or "", function.arguments or "")


def _ended(ending: _Ending) -> DecodedEvent:
    reason = ending.finish_reason or None
    error = finish_error(reason, ending.error)
    return DecodedEvent(
        kind="finish",
        deltas=[ChoiceDelta(finish_reason=reason)],
        usage=_usage(ending.usage),
        error=error,
        terminal=True,
    )


CHAT_V2 = Dialect("cohere_v2", "cohere", "chat", by_path(r"/v2/chat$"), _recognises, CohereReader)


class _Meta(msgspec.Struct):
    billed_units: Annotated[dict[str, Any] | None, kept.NUMBERS] = None
    tokens: dict[str, Any] | None = None


class _V1Call(msgspec.Struct):
    index: int | None = None
    name: kept.Name = None
    parameters: kept.Content = None


class _Answer(msgspec.Struct):
    meta: Annotated[_Meta | None, kept.NUMBERS] = None


class _V1Event(Event):
    type: kept.Name = msgspec.field(default=None, name="event_type")
    is_finished: bool | None = None
    index: int | None = None
    generation_id: kept.Id = None
    text: str | None = None
    tool_call_delta: _V1Call | None = None
    tool_calls: list[_V1Call] | None = None
    finish_reason: kept.Name = None
    response: _Answer | None = None
    error: Any = None
    """Also of an ending, which has a finish reason and usage as well."""


class _Generation(msgspec.Struct):
    text: str | None = None
    finish_reason: kept.Name = None


class _V1Body(Event):
    text: str | None = None
    generation_id: kept.Id = None
    id: kept.Word = None
    finish_reason: kept.Name = None
    generations: list[_Generation] | None = None
    tool_calls: list[_V1Call] | None = None
    meta: Annotated[_Meta | None, kept.NUMBERS] = None
    message: str | None = None


def _claims(exchange: ExchangeInfo) -> int:
    path = exchange.route
    return 3 if path.endswith(("/v1/chat", "/v1/generate")) and "/api/v1/" not in path else 0


def _recognises_v1(name: str, data: bytes) -> int:
    if b'"event_type"' in data and b'"is_finished"' in data:
        return 8
    return 6 if b'"generation_id"' in data and b'"meta"' in data else 0


class CohereV1Reader(JSONReader, event=_V1Event, body=_V1Body):
    """Decodes one stream; remembers whether its tool calls were streamed."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self._calls_streamed = False

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        event = super().read(name, data)
        return error_event(data) if event.kind == "error" else event

    def event(self, event: _V1Event, kind: str) -> DecodedEvent | TextDelta:
        if kind == "text-generation":
            return (
                TextDelta("text", event.text, event.index or 0) if event.text else DecodedEvent("annotation")
            )
        if kind == "stream-end" or (event.is_finished and event.finish_reason):
            return _v1_ended(event)
        if kind == "stream-start":
            return DecodedEvent(kind="start", response_id=event.generation_id)
        if kind == "tool-calls-chunk":
            return self._chunk(event)
        if kind == "tool-calls-generation":
            return self._whole_calls(event.tool_calls or [])
        return DecodedEvent(kind="error" if event.error else "annotation" if kind else "other")

    def body(self, whole: _V1Body) -> list[DecodedEvent]:
        if whole.text is None and whole.generations is None:
            error = error_from({"message": whole.message}) if whole.message else None
            return [DecodedEvent(error=error)]
        generations = whole.generations or [_Generation(whole.text, whole.finish_reason)]
        deltas = [
            ChoiceDelta(choice=index, text=generation.text or "", finish_reason=generation.finish_reason)
            for index, generation in enumerate(generations)
        ]
        if whole.tool_calls:
            deltas[0].tool_calls = [_v1_tool_call(call, index) for index, call in enumerate(whole.tool_calls)]
        response_id = whole.generation_id or whole.id or None
        return [
            DecodedEvent(
                kind="text",
                deltas=deltas,
                usage=_v1_usage(whole.meta),
                response_id=response_id,
                billing=details_in(msgspec.to_builtins(whole.meta)),
            )
        ]

    def _chunk(self, event: _V1Event) -> DecodedEvent:
        call = event.tool_call_delta
        if call is None:
            if not event.text:
                return DecodedEvent(kind="annotation")
            return DecodedEvent(kind="reasoning", deltas=[ChoiceDelta(tool_plan=event.text)])
        self._calls_streamed = True
        return tool_call_event(_v1_tool_call(call, call.index or 0))

    def _whole_calls(self, calls: list[_V1Call]) -> DecodedEvent:
        if self._calls_streamed or not calls:
            return DecodedEvent(kind="annotation")
        deltas = [_v1_tool_call(call, index) for index, call in enumerate(calls)]
        return DecodedEvent(kind="tool_call", deltas=[ChoiceDelta(tool_calls=deltas)])


def _v1_tool_call(call: _V1Call, index: int) -> ToolCallDelta:
    return ToolCallDelta(index, "", call.name or "", arguments_of(call.parameters))


def _v1_usage(meta: _Meta | None) -> Usage | None:
    if meta is None or not (meta.billed_units or meta.tokens):
        return None
    usage = _merged(meta.billed_units, meta.tokens)
    usage.reasoning_tokens, usage.raw = None, meta.billed_units or meta.tokens
    return usage


def _v1_ended(event: _V1Event) -> DecodedEvent:
    reason = event.finish_reason or None
    error = finish_error(reason, event.error)
    meta = event.response.meta if event.response else None
    return DecodedEvent(
        kind="finish",
        deltas=[ChoiceDelta(choice=event.index or 0, finish_reason=reason)],
        usage=_v1_usage(meta),
        billing=details_in(msgspec.to_builtins(meta)),
        error=error,
        terminal=event.type == "stream-end",
    )


CHAT_V1 = Dialect("cohere_v1", "cohere", "chat", _claims, _recognises_v1, CohereV1Reader)

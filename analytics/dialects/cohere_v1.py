"""Cohere's v1 chat and generate, as JSON lines or SSE; `event_type` names the event.

`tool-calls-generation` and the answer in `stream-end` repeat what was streamed. Usage is in the `meta` of stream-end:
`tokens` takes precedence over `billed_units`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects.cohere_v2 import finish_error
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.errors import error_event, error_from, failed_event
from streamgauge.analytics.dialects.events import (
    ChoiceDelta,
    DecodedEvent,
    TextDelta,
    ToolCallDelta,
    Usage,
    tool_call_event,
)
from streamgauge.analytics.dialects.tolerant_json import arguments_of, decode_or_none, whole_number


class _Meta(msgspec.Struct):
    billed_units: dict[str, Any] | None = None
    tokens: dict[str, Any] | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    name: str | None = None
    parameters: Any = None


class _Answer(msgspec.Struct):
    meta: _Meta | None = None


class _Event(msgspec.Struct):
    event_type: str | None = None
    is_finished: bool | None = None
    index: int | None = None
    generation_id: str | None = None
    text: str | None = None
    tool_call_delta: _Call | None = None
    tool_calls: list[_Call] | None = None
    finish_reason: str | None = None
    response: _Answer | None = None
    error: Any = None


class _Generation(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None


class _Body(msgspec.Struct):
    text: str | None = None
    generation_id: str | None = None
    id: str | None = None
    finish_reason: str | None = None
    generations: list[_Generation] | None = None
    tool_calls: list[_Call] | None = None
    meta: _Meta | None = None
    message: str | None = None


_event = msgspec.json.Decoder(_Event)
_body = msgspec.json.Decoder(_Body)


class CohereV1:
    name = "cohere_v1"
    provider = "cohere"
    operation = "chat"

    def claims(self, exchange: ExchangeInfo) -> int:
        path = exchange.route
        return 3 if path.endswith(("/v1/chat", "/v1/generate")) and "/api/v1/" not in path else 0

    def recognises(self, name: str, data: bytes) -> int:
        if b'"event_type"' in data and b'"is_finished"' in data:
            return 8
        return 6 if b'"generation_id"' in data and b'"meta"' in data else 0

    def reader(self, exchange: ExchangeInfo) -> CohereV1Reader:
        return CohereV1Reader()


class CohereV1Reader:
    """Decodes one stream; remembers whether its tool calls were streamed."""

    def __init__(self) -> None:
        self._calls_streamed = False

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        event = decode_or_none(_event, data)
        if event is None:
            return failed_event(None, data, name)
        kind = event.event_type or name
        if kind == "text-generation":
            return (
                TextDelta("text", event.text, event.index or 0)
                if event.text
                else DecodedEvent(kind="annotation")
            )
        if kind == "stream-end" or (event.is_finished and event.finish_reason):
            return _ended(event)
        if kind == "stream-start":
            return DecodedEvent(kind="start", response_id=event.generation_id or None)
        if kind == "tool-calls-chunk":
            return self._chunk(event)
        if kind == "tool-calls-generation":
            return self._whole_calls(event.tool_calls or [])
        if event.error or kind == "stream-error":
            return error_event(data)
        return DecodedEvent(kind="annotation" if kind else "other")

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        whole = decode_or_none(_body, body)
        if whole is None:
            return [DecodedEvent(kind="malformed")]
        if whole.text is None and whole.generations is None:
            error = error_from({"message": whole.message}) if whole.message else None
            return [DecodedEvent(kind="error" if error else "other", error=error)]
        generations = whole.generations or [_Generation(whole.text, whole.finish_reason)]
        deltas = [
            ChoiceDelta(
                choice=index, text=generation.text or "", finish_reason=generation.finish_reason or None
            )
            for index, generation in enumerate(generations)
        ]
        if whole.tool_calls:
            deltas[0].tool_calls = [_tool_call(call, index) for index, call in enumerate(whole.tool_calls)]
        response_id = whole.generation_id or whole.id or None
        return [DecodedEvent(kind="text", deltas=deltas, usage=_usage(whole.meta), response_id=response_id)]

    def _chunk(self, event: _Event) -> DecodedEvent:
        call = event.tool_call_delta
        if call is None:
            if not event.text:
                return DecodedEvent(kind="annotation")
            return DecodedEvent(kind="reasoning", deltas=[ChoiceDelta(tool_plan=event.text)])
        self._calls_streamed = True
        return tool_call_event(_tool_call(call, call.index or 0))

    def _whole_calls(self, calls: list[_Call]) -> DecodedEvent:
        if self._calls_streamed or not calls:
            return DecodedEvent(kind="annotation")
        deltas = [_tool_call(call, index) for index, call in enumerate(calls)]
        return DecodedEvent(kind="tool_call", deltas=[ChoiceDelta(tool_calls=deltas)])


def _tool_call(call: _Call, index: int) -> ToolCallDelta:
    return ToolCallDelta(index, "", call.name or "", arguments_of(call.parameters))


def _usage(meta: _Meta | None) -> Usage | None:
    if meta is None or not (meta.billed_units or meta.tokens):
        return None
    counts = {**(meta.billed_units or {}), **(meta.tokens or {})}
    return Usage(
        input_tokens=whole_number(counts.get("input_tokens")),
        output_tokens=whole_number(counts.get("output_tokens")),
        raw=meta.billed_units or meta.tokens,
    )


def _ended(event: _Event) -> DecodedEvent:
    reason = event.finish_reason or None
    error = finish_error(reason, event.error)
    return DecodedEvent(
        kind="error" if error else "finish",
        deltas=[ChoiceDelta(choice=event.index or 0, finish_reason=reason)],
        usage=_usage(event.response.meta if event.response else None),
        error=error,
        terminal=event.event_type == "stream-end",
    )


DIALECT = CohereV1()

"""Alibaba's native DashScope API (`/api/v1/services/aigc/…/generation`): events named `result`, the answer under `output`.

Each event repeats the text so far, unless the client requested increments. An event that does not begin with the previous
text shows that they are increments. Usage is on every event. The finish reason is "null" until the last. Errors are flat,
in events named `error`. Endpoints under `/compatible-mode/` send OpenAI's chunks and are decoded by `openai_chat`.

Systems:

| DashScope, native | `alibaba` | `dashscope` | `/api/v1/services/aigc/text-generation/generation`,
    `/api/v1/services/aigc/multimodal-generation/generation` | every event | finish reason |
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, DialectReader, ExchangeInfo, by_path
from streamgauge.analytics.dialects.error_bodies import error_event, failed_event
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, EventKind, TextDelta, TextSoFar
from streamgauge.analytics.dialects.openai_delta import ToolCallKeys, read_delta
from streamgauge.analytics.dialects.tolerant_json import FAULTS, decode_or_none, string_of
from streamgauge.analytics.dialects.usage import usage_of

_NO_REASON = ("", "null")
_PLAIN_REASONS = (None, *_NO_REASON)


class _Message(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None


class _PlainChoice(msgspec.Struct, gc=False):
    message: _Message | None = None
    index: int = 0
    finish_reason: kept.Name = None


class _PlainOutput(msgspec.Struct, gc=False):
    choices: list[_PlainChoice] | None = None


class _PlainEvent(msgspec.Struct, gc=False):
    """The most frequent event, strictly typed."""

    output: Annotated[_PlainOutput | None, kept.OUTPUT] = None
    usage: Annotated[dict[str, Any] | None, kept.NUMBERS] = None
    code: kept.Name = None


class _Event(msgspec.Struct):
    output: Annotated[dict[str, Any] | None, kept.OUTPUT] = None
    usage: Annotated[dict[str, Any] | None, kept.NUMBERS] = None
    request_id: kept.Id = None
    code: kept.Name = None


_decoder = msgspec.json.Decoder(_Event)
_decode_plain = msgspec.json.Decoder(_PlainEvent).decode


def _recognises(name: str, data: bytes) -> int:
    if b'"output"' not in data or b'"request_id"' not in data:
        return 0
    return 7 if name == "result" else 3


class DashScopeReader(DialectReader):
    """Decodes one stream; keeps the text so far of each choice, which the next event may repeat."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self._calls = ToolCallKeys()
        self._id_known = False
        self._texts = TextSoFar()

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        if self._id_known and name == "result":
            text_delta = self._text_delta(data)
            if text_delta is not None:
                return text_delta
        event = decode_or_none(_decoder, data)
        if event is None:
            return failed_event(name, data)
        if name == "error" or event.code:
            failed = error_event(data)
            failed.response_id = event.request_id
            return failed
        self._id_known = bool(event.request_id)
        output = event.output or {}
        choices = output.get("choices")
        if not isinstance(choices, list):
            choices = [
                {"message": {"content": output.get("text")}, "finish_reason": output.get("finish_reason")}
            ]
        deltas = [self._choice(c, position) for position, c in enumerate(choices) if isinstance(c, dict)]
        return DecodedEvent(deltas=deltas or None, usage=usage_of(event.usage), response_id=event.request_id)

    def _text_delta(self, data: bytes) -> TextDelta | None:
        """Decode an event with text or reasoning of one choice and at most usage; None if there is more."""
        try:
            event = _decode_plain(data)
        except FAULTS:
            return None
        choices = event.output.choices if event.output is not None else None
        if event.code or not choices or len(choices) != 1 or choices[0].finish_reason not in _PLAIN_REASONS:
            return None
        index, message = choices[0].index, choices[0].message
        if message is None or not 0 <= index < 2**15:
            return None
        if not (message.tool_calls is message.function_call is message.audio is None):
            return None
        if bool(message.content) == bool(message.reasoning_content):
            return None
        kind: EventKind = "text" if message.content else "reasoning"
        text = self._texts.added((index, kind), message.content or message.reasoning_content or "")
        return TextDelta(kind, text, index, None, usage_of(event.usage)) if text else None

    def _choice(self, choice: dict[str, Any], position: int) -> ChoiceDelta:
        index = choice.get("index")
        delta = ChoiceDelta(choice=index if type(index) is int and 0 <= index < 2**15 else position)
        message = choice.get("message")
        if isinstance(message, dict):
            read_delta(message, delta, self._calls)
        delta.text = self._texts.added((delta.choice, "text"), delta.text)
        delta.reasoning = self._texts.added((delta.choice, "reasoning"), delta.reasoning)
        for call in delta.tool_calls or ():
            call.arguments = self._texts.added((delta.choice, "call", call.key), call.arguments)
        reason = string_of(choice.get("finish_reason"))
        delta.finish_reason = None if reason in _NO_REASON else reason
        return delta


DIALECT = Dialect("dashscope", "alibaba", "chat", by_path(r"/services/aigc/"), _recognises, DashScopeReader)

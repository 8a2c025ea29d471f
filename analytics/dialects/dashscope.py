"""Alibaba's DashScope in its own way (`/api/v1/services/aigc/…/generation`): events named `result`, the answer under `output`.

Each event repeats the text so far, unless the client asked for increments: both are told by whether an event begins with what
was said before. Usage is on every event. The finish reason is "null" until the last. Errors are flat, in events named `error`.
The endpoints under `/compatible-mode/` speak OpenAI's chunks and are read by `openai_chat`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from analytics.decoded.decoded_event import ChoiceDelta, DecodedEvent, EventKind, TextDelta, as_decoded_event
from analytics.decoded.dialect import ExchangeInfo
from analytics.decoded.tolerant_json import FAULTS, decode_or_none
from analytics.dialects.errors import error_in_event, malformed_event
from analytics.dialects.openai_delta import read_delta
from analytics.dialects.openai_tool_calls import Calls, text_of
from analytics.dialects.openai_usage import usage_of

_NO_REASON = ("", "null")
_PLAIN_REASONS = (None, *_NO_REASON)


class _Said(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None


class _PlainChoice(msgspec.Struct, gc=False):
    message: _Said | None = None
    index: int = 0
    finish_reason: str | None = None


class _PlainOutput(msgspec.Struct, gc=False):
    choices: list[_PlainChoice] | None = None


class _PlainEvent(msgspec.Struct, gc=False):
    """The most frequent event, typed as it usually is."""

    output: _PlainOutput | None = None
    usage: dict[str, Any] | None = None
    code: str | None = None


class _Event(msgspec.Struct):
    output: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    request_id: str | None = None
    code: str | None = None
    message: str | None = None


_decoder = msgspec.json.Decoder(_Event)
_decode_plain = msgspec.json.Decoder(_PlainEvent).decode


class DashScope:
    name = "dashscope"
    provider = "alibaba"
    operation = "chat"

    def claims(self, exchange: ExchangeInfo) -> int:
        return 5 if "/services/aigc/" in exchange.path else 0

    def recognises(self, name: str, data: bytes) -> int:
        if b'"output"' not in data or b'"request_id"' not in data:
            return 0
        return 7 if name == "result" else 3

    def reader(self, exchange: ExchangeInfo) -> DashScopeReader:
        return DashScopeReader()


class DashScopeReader:
    """Reads one stream; keeps what was said of each choice, which the next event may repeat."""

    def __init__(self) -> None:
        self._calls = Calls()
        self._known = False  # the id has been told
        self._increments = False  # some event did not repeat what was said before
        self._so_far: dict[tuple[int, str], str] = {}

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        if self._known and name == "result":
            plain = self._plain(data)
            if plain is not None:
                return plain
        event = decode_or_none(_decoder, data)
        if event is None:
            return malformed_event(name, data)
        if name == "error" or event.code:
            return DecodedEvent(
                kind="error", error=error_in_event(data), response_id=event.request_id or None
            )
        self._known = bool(event.request_id)
        output = event.output or {}
        choices = output.get("choices")
        if not isinstance(choices, list):
            choices = [
                {"message": {"content": output.get("text")}, "finish_reason": output.get("finish_reason")}
            ]
        deltas = [self._choice(c, place) for place, c in enumerate(choices) if isinstance(c, dict)]
        return DecodedEvent(
            kind=_kind(deltas),
            deltas=deltas or None,
            usage=usage_of(event.usage),
            response_id=event.request_id or None,
        )

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        return [as_decoded_event(self.read("", body))]

    def _plain(self, data: bytes) -> TextDelta | None:
        """A piece of text or of reasoning of one choice, and the usage so far."""
        try:
            event = _decode_plain(data)
        except FAULTS:
            return None
        choices = event.output.choices if event.output is not None else None
        if event.code or not choices or len(choices) != 1 or choices[0].finish_reason not in _PLAIN_REASONS:
            return None
        index, said = choices[0].index, choices[0].message
        if said is None or not 0 <= index < 2**15:
            return None
        if not (said.tool_calls is said.function_call is said.audio is None):
            return None
        if bool(said.content) == bool(said.reasoning_content):
            return None
        kind: EventKind = "text" if said.content else "reasoning"
        piece = self._new(index, kind, said.content or said.reasoning_content or "")
        return TextDelta(kind, piece, index, None, usage_of(event.usage)) if piece else None

    def _choice(self, choice: dict[str, Any], place: int) -> ChoiceDelta:
        index = choice.get("index")
        choice_delta = ChoiceDelta(choice=index if type(index) is int and 0 <= index < 2**15 else place)
        message = choice.get("message")
        if isinstance(message, dict):
            read_delta(message, choice_delta, self._calls)
        choice_delta.text = self._new(choice_delta.choice, "text", choice_delta.text)
        choice_delta.reasoning = self._new(choice_delta.choice, "reasoning", choice_delta.reasoning)
        for piece in choice_delta.tool_calls or ():
            piece.arguments = self._new(choice_delta.choice, f"call {piece.key}", piece.arguments)
        reason = text_of(choice.get("finish_reason"))
        choice_delta.finish_reason = None if reason in _NO_REASON else reason
        return choice_delta

    def _new(self, choice: int, channel: str, said: str) -> str:
        """What this event adds to what a channel has said."""
        if self._increments or not said:
            return said
        before = self._so_far.get((choice, channel), "")
        if said.startswith(before):
            self._so_far[choice, channel] = said
            return said[len(before) :]
        self._increments = True
        return said


def _kind(deltas: list[ChoiceDelta]) -> EventKind:
    for choice_delta in deltas:
        if choice_delta.text or choice_delta.reasoning:
            return "text" if choice_delta.text else "reasoning"
        if choice_delta.tool_calls:
            return "tool_call"
    return "finish" if any(f.finish_reason for f in deltas) else "other"


DIALECT = DashScope()

"""Text Generation Inference's own `/generate_stream`: one token per event; the last event repeats the text.

A token flagged `special` (</s>) is not output. The event with `generated_text` ends the stream; its `details`, if any, hold the
finish reason and the usage.

Systems:

| TGI, native | `huggingface` | `tgi_generate` | `/generate_stream` | details of the last event | the event with the whole text |
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, TextDelta
from streamgauge.analytics.dialects.json_reader import Event, JSONReader
from streamgauge.analytics.dialects.tolerant_json import member_of, string_of
from streamgauge.analytics.dialects.usage import usage_in


class _Token(msgspec.Struct, gc=False):
    text: str | None = None
    special: bool | None = None


class _Event(Event):
    token: _Token | None = None
    generated_text: str | None = None
    details: Any = None


LOOKED_UP = kept.members(name="finish_reason", count="input_length generated_tokens")


def _claims(exchange: ExchangeInfo) -> int:
    path = exchange.route
    return 5 if path.endswith("/generate_stream") else 3 if path.endswith("/generate") else 0


def _recognises(name: str, data: bytes) -> int:
    if b'"generated_text"' not in data:
        return 0
    return 8 if b'"token"' in data else 4


class TGIReader(JSONReader, event=_Event, lists=True):
    """Decodes one stream."""

    def event(self, event: _Event, kind: str) -> DecodedEvent | TextDelta:
        token = event.token
        text = None if token is None or token.special else token.text
        if event.generated_text is None and not event.details:
            if text:
                return TextDelta("text", text, 0, 1)
            return DecodedEvent(kind="other" if token is None else "annotation")
        ended = _ended(ChoiceDelta(text=text or "", tokens=1 if text else None), event.details)
        ended.terminal = True
        return ended

    def body(self, whole: _Event) -> list[DecodedEvent]:
        return [_ended(ChoiceDelta(text=whole.generated_text or ""), whole.details)]


def _ended(delta: ChoiceDelta, details: Any) -> DecodedEvent:
    delta.finish_reason = string_of(member_of(details, "finish_reason")) or None
    counted = member_of(details, "generated_tokens") is not None
    usage = usage_in(details, "input_length", "generated_tokens") if counted else None
    return DecodedEvent(kind="finish", deltas=[delta], usage=usage)


DIALECT = Dialect("tgi_generate", "huggingface", "text_completion", _claims, _recognises, TGIReader)

"""Text Generation Inference's own `/generate_stream`: one token per event; the last event repeats the text.

A token flagged `special` (</s>) is not output. The event with `generated_text` ends the stream; its `details`, if any, hold the
finish reason and the usage.
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects.dialect import Dialect, DialectReader, ExchangeInfo
from streamgauge.analytics.dialects.errors import error_event, failed_event
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, TextDelta, Usage
from streamgauge.analytics.dialects.tolerant_json import decode_or_none, json_or_none, member_of, string_of
from streamgauge.analytics.dialects.usage import usage_in


class _Token(msgspec.Struct):
    text: str | None = None
    special: bool | None = None


class _Event(msgspec.Struct):
    token: _Token | None = None
    generated_text: str | None = None
    details: Any = None
    error: Any = None


_event = msgspec.json.Decoder(_Event)


def _claims(exchange: ExchangeInfo) -> int:
    path = exchange.route
    return 5 if path.endswith("/generate_stream") else 3 if path.endswith("/generate") else 0


def _recognises(name: str, data: bytes) -> int:
    if b'"generated_text"' not in data:
        return 0
    return 8 if b'"token"' in data else 4


class TGIReader(DialectReader):
    """Decodes one stream."""

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        event = decode_or_none(_event, data)
        if event is None or event.error:
            return failed_event(event, data, name)
        token = event.token
        text = token.text if token and token.text and not token.special else ""
        if event.generated_text is None and not event.details:
            if token is None:
                return DecodedEvent()
            return TextDelta("text", text, 0, 1) if text else DecodedEvent(kind="annotation")
        delta = ChoiceDelta(text=text, tokens=1 if text else None, finish_reason=_finish(event.details))
        return DecodedEvent(kind="finish", deltas=[delta], usage=_usage(event.details), terminal=True)

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        whole = json_or_none(body)
        if isinstance(whole, list) and whole:
            whole = whole[0]
        if not isinstance(whole, dict):
            return [DecodedEvent(kind="malformed" if whole is None else "other")]
        if whole.get("error"):
            return [error_event(body)]
        text, details = whole.get("generated_text"), whole.get("details")
        delta = ChoiceDelta(text=string_of(text), finish_reason=_finish(details))
        return [DecodedEvent(kind="text", deltas=[delta], usage=_usage(details))]


def _finish(details: Any) -> str | None:
    return string_of(member_of(details, "finish_reason")) or None


def _usage(details: Any) -> Usage | None:
    if member_of(details, "generated_tokens") is None:
        return None
    return usage_in(details, "input_length", "generated_tokens")


DIALECT = Dialect("tgi_generate", "huggingface", "text_completion", _claims, _recognises, TGIReader)

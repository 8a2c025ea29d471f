"""Writer's text completions (`/v1/completions` of api.writer.com): events {"value": "…"}, without a terminal."""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects.dialect import Dialect, DialectReader, ExchangeInfo
from streamgauge.analytics.dialects.errors import failed_event
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, TextDelta
from streamgauge.analytics.dialects.tolerant_json import decode_or_none


class _Choice(msgspec.Struct):
    text: str | None = None


class _Event(msgspec.Struct):
    value: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    error: Any = None


_event = msgspec.json.Decoder(_Event)


def _claims(exchange: ExchangeInfo) -> int:
    is_writer = exchange.host.endswith("writer.com")
    return 6 if is_writer and exchange.path.partition("?")[0].endswith("/v1/completions") else 0


def _recognises(name: str, data: bytes) -> int:
    return 6 if data.lstrip()[1:].lstrip().startswith(b'"value"') and b'"choices"' not in data else 0


class WriterReader(DialectReader):
    """Decodes one stream."""

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        event = decode_or_none(_event, data)
        if event is None or event.error:
            return failed_event(event, data, name)
        return TextDelta("text", event.value) if event.value else DecodedEvent(kind="other")

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        whole = decode_or_none(_event, body)
        if whole is None or whole.error:
            return [failed_event(whole, body)]
        texts = [choice.text or "" for choice in whole.choices or []]
        deltas = [ChoiceDelta(choice=index, text=text) for index, text in enumerate(texts)]
        return [DecodedEvent(kind="text", deltas=deltas, model=whole.model)]


DIALECT = Dialect("writer_completion", "writer", "text_completion", _claims, _recognises, WriterReader)

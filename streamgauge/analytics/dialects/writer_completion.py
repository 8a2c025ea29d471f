"""Writer's text completions (`/v1/completions` of api.writer.com): events {"value": "…"}, without a terminal.

Systems:

| Writer completions | `writer` | `writer_completion` | `/v1/completions` | none | end of connection |
"""

from __future__ import annotations

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, TextDelta, text_event
from streamgauge.analytics.dialects.json_reader import Event, JSONReader


class _Choice(msgspec.Struct):
    text: str | None = None


class _Event(Event):
    value: str | None = None
    model: kept.Name = None
    choices: list[_Choice] | None = None


def _claims(exchange: ExchangeInfo) -> int:
    return 6 if exchange.host.endswith("writer.com") and exchange.route.endswith("/v1/completions") else 0


def _recognises(name: str, data: bytes) -> int:
    return 6 if data.lstrip()[1:].lstrip().startswith(b'"value"') and b'"choices"' not in data else 0


class WriterReader(JSONReader, event=_Event):
    """Decodes one stream."""

    def event(self, event: _Event, kind: str) -> DecodedEvent | TextDelta:
        return text_event(event.value, empty="other")

    def body(self, whole: _Event) -> list[DecodedEvent]:
        deltas = [ChoiceDelta(index, choice.text or "") for index, choice in enumerate(whole.choices or ())]
        return [DecodedEvent("text", deltas, model=whole.model)]


DIALECT = Dialect("writer_completion", "writer", "text_completion", _claims, _recognises, WriterReader)

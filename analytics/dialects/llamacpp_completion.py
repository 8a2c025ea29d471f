"""llama.cpp's own `/completion` and `/infill`: one text per event, the last one with `stop: true`, counts and times."""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.errors import error_event, failed_event
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, TextDelta, Usage
from streamgauge.analytics.dialects.server_stats import stats_of
from streamgauge.analytics.dialects.tolerant_json import decode_or_none, whole_number

_PATHS = ("/completion", "/infill")


class _Event(msgspec.Struct):
    index: int | None = None
    content: str | None = None
    tokens: list[int] | None = None
    stop: bool | None = None
    stop_type: str | None = None
    stopped_eos: bool | None = None
    stopped_limit: bool | None = None
    model: str | None = None
    tokens_predicted: Any = None
    tokens_evaluated: Any = None
    timings: Any = None
    error: Any = None


_event = msgspec.json.Decoder(_Event)


class LlamaCppCompletion:
    name = "llamacpp_completion"
    provider = "llama.cpp"
    operation = "text_completion"

    def claims(self, exchange: ExchangeInfo) -> int:
        return 5 if exchange.route.endswith(_PATHS) else 0

    def recognises(self, name: str, data: bytes) -> int:
        if b'"content"' not in data or b'"stop"' not in data or b'"choices"' in data:
            return 0
        return 7 if b'"tokens_predicted"' in data or b'"id_slot"' in data else 4

    def reader(self, exchange: ExchangeInfo) -> LlamaCppReader:
        return LlamaCppReader()


class LlamaCppReader:
    """Decodes one stream."""

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        event = decode_or_none(_event, data)
        if event is None or event.error or name == "error":
            return failed_event(event, data, name)
        if event.stop:
            return _ended(event)
        if not event.content:
            return DecodedEvent(kind="other")
        return TextDelta("text", event.content, event.index or 0, len(event.tokens) if event.tokens else None)

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        event = decode_or_none(_event, body)
        if event is None:
            return [DecodedEvent(kind="malformed")]
        return [error_event(body) if event.error else _ended(event)]


def _ended(event: _Event) -> DecodedEvent:
    reason = event.stop_type if event.stop_type not in (None, "none", "") else None
    if reason is None:  # older servers
        reason = "limit" if event.stopped_limit else "eos" if event.stopped_eos else "stop"
    inputs, outputs = event.tokens_evaluated, event.tokens_predicted
    raw = {"tokens_evaluated": inputs, "tokens_predicted": outputs}
    delta = ChoiceDelta(choice=event.index or 0, text=event.content or "", finish_reason=reason)
    return DecodedEvent(
        kind="text" if event.content else "finish",
        deltas=[delta],
        usage=Usage(whole_number(inputs), whole_number(outputs), raw=raw)
        if (inputs, outputs) != (None, None)
        else None,
        server_stats=stats_of("timings", event.timings) or None,
        model=event.model or None,
    )


DIALECT = LlamaCppCompletion()

"""llama.cpp's own `/completion` and `/infill`: one text per event, the last one with `stop: true`, counts and times."""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects.dialect import Dialect, DialectReader, by_path
from streamgauge.analytics.dialects.errors import error_event, failed_event
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, TextDelta
from streamgauge.analytics.dialects.server_stats import stats_of
from streamgauge.analytics.dialects.tolerant_json import decode_or_none
from streamgauge.analytics.dialects.usage import usage_in


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


def _recognises(name: str, data: bytes) -> int:
    if b'"content"' not in data or b'"stop"' not in data or b'"choices"' in data:
        return 0
    return 7 if b'"tokens_predicted"' in data or b'"id_slot"' in data else 4


class LlamaCppReader(DialectReader):
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
    counts = {"tokens_evaluated": event.tokens_evaluated, "tokens_predicted": event.tokens_predicted}
    is_counted = any(count is not None for count in counts.values())
    return DecodedEvent(
        deltas=[ChoiceDelta(choice=event.index or 0, text=event.content or "", finish_reason=reason)],
        usage=usage_in(counts, "tokens_evaluated", "tokens_predicted") if is_counted else None,
        server_stats=stats_of("timings", event.timings) or None,
        model=event.model,
    )


_claims = by_path(r"/(completion|infill)$")
DIALECT = Dialect("llamacpp_completion", "llama.cpp", "text_completion", _claims, _recognises, LlamaCppReader)

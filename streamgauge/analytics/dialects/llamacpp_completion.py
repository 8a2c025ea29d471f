"""llama.cpp's own `/completion` and `/infill`: one text per event, the last one with `stop: true`, counts and times.

Systems:

| llama.cpp, native | `llama.cpp` | `llamacpp_completion` | `/completion`, `/infill` | last event | `stop: true` |
"""

from __future__ import annotations

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, by_path
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, TextDelta
from streamgauge.analytics.dialects.json_reader import Event, JSONReader
from streamgauge.analytics.dialects.server_stats import stats_of
from streamgauge.analytics.dialects.usage import usage_in


class _Event(Event):
    index: int | None = None
    content: str | None = None
    tokens: list[int] | None = None
    stop: bool | None = None
    stop_type: kept.Name = None
    stopped_eos: bool | None = None
    stopped_limit: bool | None = None
    model: kept.Name = None
    tokens_predicted: kept.Count = None
    tokens_evaluated: kept.Count = None
    timings: kept.Report = None


LOOKED_UP = kept.members(count="id_slot")


def _recognises(name: str, data: bytes) -> int:
    if b'"content"' not in data or b'"stop"' not in data or b'"choices"' in data:
        return 0
    return 7 if b'"tokens_predicted"' in data or b'"id_slot"' in data else 4


class LlamaCppReader(JSONReader, event=_Event):
    """Decodes one stream."""

    def event(self, event: _Event, kind: str) -> DecodedEvent | TextDelta:
        if event.stop:
            return self.body(event)[0]
        text, tokens = event.content, event.tokens
        if text:
            return TextDelta("text", text, event.index or 0, len(tokens) if tokens else None)
        return DecodedEvent(kind="other")

    def body(self, whole: _Event) -> list[DecodedEvent]:
        reason = whole.stop_type if whole.stop_type not in (None, "none", "") else None
        if reason is None:  # older servers
            reason = "limit" if whole.stopped_limit else "eos" if whole.stopped_eos else "stop"
        counts = {"tokens_evaluated": whole.tokens_evaluated, "tokens_predicted": whole.tokens_predicted}
        return [
            DecodedEvent(
                deltas=[ChoiceDelta(whole.index or 0, whole.content or "", finish_reason=reason)],
                usage=usage_in(counts, *counts) if any(c is not None for c in counts.values()) else None,
                server_stats=stats_of("timings", whole.timings) or None,
                model=whole.model,
            )
        ]


_claims = by_path(r"/(completion|infill)$")
DIALECT = Dialect("llamacpp_completion", "llama.cpp", "text_completion", _claims, _recognises, LlamaCppReader)

"""IBM watsonx.ai's text generation (`/ml/v1/text/generation_stream`): events whose `results` hold a piece of text.

`stop_reason` is "not_finished" until the last event; token counts are running totals. Its chat endpoint sends OpenAI's
chunks and is decoded by `openai_chat`.

Systems:

| IBM watsonx.ai, native | `ibm.watsonx.ai` | `watsonx_generate` | `/ml/v1/text/generation_stream` | running counts | stop reason |
"""

from __future__ import annotations

from typing import Any

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo, by_path
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, TextDelta
from streamgauge.analytics.dialects.json_reader import Event, JSONReader
from streamgauge.analytics.dialects.tolerant_json import string_of
from streamgauge.analytics.dialects.usage import usage_in

LOOKED_UP = kept.members(
    text="generated_text", name="stop_reason", count="input_token_count generated_token_count"
)
_NOT_FINISHED = ("", "not_finished")


class _Event(Event):
    errors: None = None
    results: list[dict[str, Any]] | None = None
    model_id: kept.Name = None


def _recognises(name: str, data: bytes) -> int:
    return 7 if b'"results"' in data and b'"generated_text"' in data else 0


class WatsonxReader(JSONReader, event=_Event):
    """Decodes one stream."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self._model_known = False

    def event(self, event: _Event, kind: str) -> DecodedEvent | TextDelta:
        if not event.results:
            return DecodedEvent(model=event.model_id)
        raw = event.results[0]
        text, reason = string_of(raw.pop("generated_text", None)), raw.get("stop_reason")
        finish = reason if isinstance(reason, str) and reason not in _NOT_FINISHED else None
        usage = usage_in(raw, "input_token_count", "generated_token_count")
        if usage is not None:
            usage.input_tokens = usage.input_tokens or None
            usage = usage if usage.input_tokens or usage.output_tokens else None
        if self._model_known and text and finish is None and usage is not None:
            return TextDelta("text", text, 0, None, usage)
        self._model_known = bool(event.model_id)
        return DecodedEvent(
            deltas=[ChoiceDelta(text=text, finish_reason=finish)], usage=usage, model=event.model_id
        )


_claims = by_path(r"/text/generation(_stream)?$")
DIALECT = Dialect(
    "watsonx_generate", "ibm.watsonx.ai", "text_completion", _claims, _recognises, WatsonxReader
)

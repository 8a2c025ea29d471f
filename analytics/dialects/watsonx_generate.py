"""IBM watsonx.ai's text generation (`/ml/v1/text/generation_stream`): events whose `results` hold a piece of text.

`stop_reason` is "not_finished" until the last event; token counts are running totals. Its chat endpoint sends OpenAI's
chunks and is decoded by `openai_chat`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.errors import error_in_event, failed_event
from streamgauge.analytics.dialects.events import (
    ChoiceDelta,
    DecodedEvent,
    TextDelta,
    Usage,
    as_decoded_event,
)
from streamgauge.analytics.dialects.openai_tool_calls import text_of
from streamgauge.analytics.dialects.tolerant_json import decode_or_none, whole_number

_NOT_FINISHED = ("", "not_finished")


class _Event(msgspec.Struct, gc=False):
    results: list[dict[str, Any]] | None = None
    model_id: str | None = None


_decoder = msgspec.json.Decoder(_Event)


class WatsonxGenerate:
    name = "watsonx_generate"
    provider = "ibm.watsonx.ai"
    operation = "text_completion"

    def claims(self, exchange: ExchangeInfo) -> int:
        path = exchange.route
        return 5 if path.endswith(("/text/generation_stream", "/text/generation")) else 0

    def recognises(self, name: str, data: bytes) -> int:
        return 7 if b'"results"' in data and b'"generated_text"' in data else 0

    def reader(self, exchange: ExchangeInfo) -> WatsonxReader:
        return WatsonxReader()


class WatsonxReader:
    """Decodes one stream."""

    def __init__(self) -> None:
        self._model_known = False

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        event = decode_or_none(_decoder, data)
        if event is None:
            return failed_event(None, data, name)
        if not event.results:
            error = error_in_event(data) if name == "error" or b'"error' in data else None
            return DecodedEvent(kind="error" if error else "other", error=error, model=event.model_id)
        raw = event.results[0]
        text, reason = text_of(raw.pop("generated_text", None)), text_of(raw.get("stop_reason"))
        finish = None if reason in _NOT_FINISHED else reason
        input_tokens, output_tokens = (
            whole_number(raw.get("input_token_count")) or None,
            whole_number(raw.get("generated_token_count")),
        )
        usage = Usage(input_tokens, output_tokens, raw=raw) if input_tokens or output_tokens else None
        if self._model_known and text and finish is None and usage is not None:
            return TextDelta("text", text, 0, None, usage)
        self._model_known = bool(event.model_id)
        return DecodedEvent(
            kind="text" if text else "finish" if finish else "other",
            deltas=[ChoiceDelta(text=text, finish_reason=finish)],
            usage=usage,
            model=event.model_id,
        )

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        return [as_decoded_event(self.read("", body))]


DIALECT = WatsonxGenerate()

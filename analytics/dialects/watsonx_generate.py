"""IBM watsonx.ai's text generation (`/ml/v1/text/generation_stream`): `results` with a piece of text each.

`stop_reason` is "not_finished" until the last event; counts of tokens are running totals. Its chat endpoint speaks
OpenAI's chunks and is read by `openai_chat`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from analytics.dialects.errors import error_event, unreadable
from analytics.dialects.numbers import count
from analytics.dialects.openai_calls import text_of
from analytics.dialects.payload import decode_or_none
from analytics.dialects.shape import Delta, Exchange, Fragment, Reading, Usage, in_full

_NOT_FINISHED = ("", "not_finished")


class _Event(msgspec.Struct, gc=False):
    results: list[dict[str, Any]] | None = None
    model_id: str | None = None


_decoder = msgspec.json.Decoder(_Event)


class WatsonxGenerate:
    name = "watsonx_generate"
    provider = "ibm.watsonx.ai"
    operation = "text_completion"

    def claims(self, exchange: Exchange) -> int:
        path = exchange.path.partition("?")[0].rstrip("/")
        return 5 if path.endswith(("/text/generation_stream", "/text/generation")) else 0

    def recognises(self, name: str, data: bytes) -> int:
        return 7 if b'"results"' in data and b'"generated_text"' in data else 0

    def reader(self, exchange: Exchange) -> WatsonxReader:
        return WatsonxReader()


class WatsonxReader:
    """Reads one stream."""

    def __init__(self) -> None:
        self._known = False  # the model has been told

    def read(self, name: str, data: bytes) -> Reading | Delta:
        event = decode_or_none(_decoder, data)
        if event is None:
            return unreadable(name, data)
        if not event.results:
            error = error_event(data) if name == "error" or b'"error' in data else None
            return Reading(kind="error" if error else "other", error=error, model=event.model_id)
        raw = event.results[0]
        text, reason = text_of(raw.pop("generated_text", None)), text_of(raw.get("stop_reason"))
        finish = None if reason in _NOT_FINISHED else reason
        given, made = count(raw.get("input_token_count")) or None, count(raw.get("generated_token_count"))
        usage = Usage(given, made, raw=raw) if given or made else None
        if self._known and text and finish is None and usage is not None:
            return Delta("text", text, 0, None, usage)
        self._known = bool(event.model_id)
        return Reading(
            kind="text" if text else "finish" if finish else "other",
            fragments=[Fragment(text=text, finish_reason=finish)],
            usage=usage,
            model=event.model_id,
        )

    def read_body(self, body: bytes) -> list[Reading]:
        return [in_full(self.read("", body))]


DIALECT = WatsonxGenerate()

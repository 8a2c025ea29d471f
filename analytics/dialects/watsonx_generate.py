"""IBM watsonx.ai's text generation (`/ml/v1/text/generation_stream`): `results` with a piece of text each.

`stop_reason` is "not_finished" until the last event; counts of tokens are running totals. Its chat endpoint speaks
OpenAI's chunks and is read by `openai_chat`.
"""

from __future__ import annotations

import msgspec

from analytics.dialects.errors import error_event
from analytics.dialects.numbers import count
from analytics.dialects.payload import decode_or_none, json_or_none
from analytics.dialects.shape import Delta, Exchange, Fragment, Reading, Usage

_NOT_FINISHED = ("", "not_finished")


class _Result(msgspec.Struct, gc=False):
    generated_text: str | None = None
    generated_token_count: int | None = None
    input_token_count: int | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct, gc=False):
    results: list[_Result] | None = None
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

    def read(self, name: str, data: bytes) -> Reading | Delta:
        event = decode_or_none(_decoder, data)
        if event is None:
            return Reading(kind="malformed")
        if not event.results:
            error = error_event(data) if name == "error" or b'"error' in data else None
            return Reading(kind="error" if error else "other", error=error, model=event.model_id)
        result = event.results[0]
        finish = None if (result.stop_reason or "") in _NOT_FINISHED else result.stop_reason
        text = result.generated_text or ""
        raw = json_or_none(data)["results"][0]
        raw.pop("generated_text", None)
        given, made = count(result.input_token_count) or None, count(result.generated_token_count)
        return Reading(
            kind="text" if text else "finish" if finish else "other",
            fragments=[Fragment(text=text, finish_reason=finish)],
            usage=Usage(given, made, raw=raw) if given or made else None,
            model=event.model_id,
        )

    def read_body(self, body: bytes) -> list[Reading]:
        answer = self.read("", body)
        return [answer] if isinstance(answer, Reading) else []


DIALECT = WatsonxGenerate()

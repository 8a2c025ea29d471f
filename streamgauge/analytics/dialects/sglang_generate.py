"""SGLang's own `/generate`: each event repeats the text so far and the counts so far, then [DONE].

Only new text is output; a server configured to stream increments sends only new text. `meta_info` is a usage report on
every event, and its `finish_reason` an object: {"type": "stop" | "length" | "abort", …}; an abort is an error.

Systems:

| SGLang, native | `sglang` | `sglang_generate` | `/generate` | every event | finish reason |
"""

from __future__ import annotations

from typing import Annotated, Any

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo
from streamgauge.analytics.dialects.error_bodies import error_from
from streamgauge.analytics.dialects.events import (
    ChoiceDelta,
    DecodedEvent,
    ErrorReport,
    ServerStat,
    TextDelta,
    TextSoFar,
    finish_failed,
)
from streamgauge.analytics.dialects.json_reader import Event, JSONReader
from streamgauge.analytics.dialects.server_stats import stats_of
from streamgauge.analytics.dialects.tolerant_json import string_of
from streamgauge.analytics.dialects.usage import usage_in


class _Event(Event):
    text: str | None = None
    index: int | None = None
    meta_info: Annotated[dict[str, Any] | None, kept.NUMBERS] = None


LOOKED_UP = kept.members(text="output_ids", name="finish_reason", title="type", word="id")
_NOT_STATS = ("id", "finish_reason")
_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")


def _claims(exchange: ExchangeInfo) -> int:
    path = exchange.route
    return 3 if path.endswith("/generate") and not path.endswith(("/api/generate", "/v1/generate")) else 0


def _recognises(name: str, data: bytes) -> int:
    return 7 if b'"meta_info"' in data and (b'"text"' in data or b'"output_ids"' in data) else 0


class SGLangReader(JSONReader, event=_Event, lists=True):
    """Decodes one stream; keeps the text so far of each choice, which the next event repeats."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self._id_known = False
        self._texts = TextSoFar()

    def event(self, event: _Event, kind: str) -> DecodedEvent | TextDelta:
        index, text = event.index or 0, event.text or ""
        new = self._texts.added(index, text)
        meta = event.meta_info or {}
        reason, error = _finish(meta.get("finish_reason"))
        counts = {key: meta[key] for key in _COUNTS if meta.get(key) is not None}
        usage = usage_in(counts, *_COUNTS[:2], cached_input_tokens=_COUNTS[2]) if counts else None
        if self._id_known and new and reason is None:
            return TextDelta("text", new, index, None, usage)
        response_id = string_of(meta.get("id"))
        self._id_known |= bool(response_id)
        return DecodedEvent(
            deltas=[ChoiceDelta(choice=index, text=new, finish_reason=reason)],
            usage=usage,
            error=error,
            server_stats=_stats(meta) if reason else None,
            response_id=response_id,
        )


def _stats(meta: dict[str, Any]) -> list[ServerStat] | None:
    return stats_of("meta_info", {k: v for k, v in meta.items() if k not in _NOT_STATS}) or None


def _finish(finish: Any) -> tuple[str | None, ErrorReport | None]:
    reason = finish.get("type") if isinstance(finish, dict) else finish
    if not isinstance(reason, str) or not reason:
        return None, None
    if not finish_failed(reason):
        return reason, None
    error = error_from(finish)
    error.type = error.type or reason
    return reason, error


DIALECT = Dialect("sglang_generate", "sglang", "text_completion", _claims, _recognises, SGLangReader)

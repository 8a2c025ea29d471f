"""Anthropic's legacy text completions (`/v1/complete`): events `completion`, `ping`, `error`; no usage.

The last completion has the finish reason (`stop_reason`). Before version 2023-06-01 each event was unnamed and repeated the
whole text so far, and the stream ended with [DONE].
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.errors import error_event, failed_event
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, TextDelta
from streamgauge.analytics.dialects.tolerant_json import decode_or_none


class _Completion(msgspec.Struct):
    type: str | None = None
    id: str | None = None
    log_id: str | None = None
    completion: str | None = None
    stop_reason: str | None = None
    model: str | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Completion)


class AnthropicComplete:
    name = "anthropic_complete"
    provider = "anthropic"
    operation = "text_completion"

    def claims(self, exchange: ExchangeInfo) -> int:
        return 5 if exchange.route.endswith("/v1/complete") else 0

    def recognises(self, name: str, data: bytes) -> int:
        if b'"completion"' not in data[:200]:
            return 1 if name == "ping" else 0
        return 8 if name == "completion" else 6 if b'"stop_reason"' in data else 0

    def reader(self, exchange: ExchangeInfo) -> AnthropicCompleteReader:
        cumulative = exchange.request_headers.get("anthropic-version", "2023-06-01") < "2023-06-01"
        return AnthropicCompleteReader(cumulative=cumulative)


class AnthropicCompleteReader:
    """Decodes one stream."""

    def __init__(self, *, cumulative: bool = False) -> None:
        self._cumulative = cumulative
        self._so_far = ""

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        event = decode_or_none(_decoder, data)
        if event is None:
            return failed_event(None, data, name)
        kind = event.type or name
        if kind == "error" or event.error:
            return error_event(data)
        if kind == "ping":
            return DecodedEvent(kind="ping")
        return self._completion(event)

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        event = decode_or_none(_decoder, body)
        if event is None or event.error or event.type == "error":
            return [failed_event(event, body)]
        return [self._completion(event)]

    def _completion(self, event: _Completion) -> DecodedEvent:
        text = event.completion or ""
        if self._cumulative and text.startswith(self._so_far):
            text, self._so_far = text[len(self._so_far) :], text
        return DecodedEvent(
            kind="text" if text else "finish" if event.stop_reason else "other",
            deltas=[ChoiceDelta(text=text, finish_reason=event.stop_reason or None)],
            response_id=event.id or event.log_id or None,
            model=event.model or None,
        )


DIALECT = AnthropicComplete()

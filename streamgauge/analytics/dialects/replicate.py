"""Replicate's streams: `output` events whose data is the text itself, not JSON, then `done`; also `error` and `logs`.

`done` has a reason when the output did not end normally: {"reason": "canceled"} or {"reason": "error"}.

Systems:

| Replicate | `replicate` | `replicate` | `/v1/streams/s` | none | done |
"""

from __future__ import annotations

from typing import Any

from streamgauge.analytics.dialects.dialect import Dialect, DialectReader, ExchangeInfo
from streamgauge.analytics.dialects.error_bodies import error_event
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, ErrorReport, TextDelta
from streamgauge.analytics.dialects.tolerant_json import json_or_none, member_of, string_of

_NAMES = frozenset({"output", "done", "error", "logs"})


def _claims(exchange: ExchangeInfo) -> int:
    if exchange.path.startswith("/v1/streams/") or exchange.host.endswith(("replicate.com", "replicate.net")):
        return 5
    return 0


def _recognises(name: str, data: bytes) -> int:
    return 5 if name == "output" and data[:1] not in (b"{", b"[") else 3 if name == "output" else 0


class ReplicateReader(DialectReader):
    """Decodes one stream."""

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        if name == "output":
            return TextDelta("text", data.decode("utf-8", "replace")) if data else DecodedEvent(kind="start")
        if name == "done":
            reason = string_of(member_of(json_or_none(data), "reason")) or "done"
            return DecodedEvent(kind="terminal", deltas=[ChoiceDelta(finish_reason=reason)], terminal=True)
        if name == "error":
            return error_event(data)
        return DecodedEvent(kind="progress" if name in _NAMES else "other")

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        """Decode a prediction: status, output, error."""
        value = json_or_none(body)
        if not isinstance(value, dict):
            return [DecodedEvent(kind="malformed" if value is None else "other")]
        raw = value.get("error")
        error = ErrorReport(value.get("status"), str(raw), raw) if raw else None
        text, status = _joined(value.get("output")), string_of(value.get("status")) or None
        return [
            DecodedEvent(
                deltas=[ChoiceDelta(text=text, finish_reason=status)] if status else None,
                response_id=string_of(value.get("id")) or None,
                model=string_of(value.get("model")) or None,
                error=error,
            )
        ]


def _joined(output: Any) -> str:
    if isinstance(output, list):
        return "".join(part for part in output if isinstance(part, str))
    return output if isinstance(output, str) else ""


DIALECT = Dialect("replicate", "replicate", "text_completion", _claims, _recognises, ReplicateReader)

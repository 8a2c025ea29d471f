"""Replicate's streams: `output` events whose data is the text itself, not JSON, then `done`; also `error` and `logs`.

`done` has a reason when the output did not end normally: {"reason": "canceled"} or {"reason": "error"}.
"""

from __future__ import annotations

from typing import Any

from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.errors import error_event
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, ErrorReport, TextDelta
from streamgauge.analytics.dialects.tolerant_json import json_or_none

_NAMES = frozenset({"output", "done", "error", "logs"})


class Replicate:
    name = "replicate"
    provider = "replicate"
    operation = "text_completion"

    def claims(self, exchange: ExchangeInfo) -> int:
        if exchange.path.startswith("/v1/streams/") or exchange.host.endswith(
            ("replicate.com", "replicate.net")
        ):
            return 5
        return 0

    def recognises(self, name: str, data: bytes) -> int:
        return 5 if name == "output" and data[:1] not in (b"{", b"[") else 3 if name == "output" else 0

    def reader(self, exchange: ExchangeInfo) -> ReplicateReader:
        return ReplicateReader()


class ReplicateReader:
    """Decodes one stream."""

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        if name == "output":
            return TextDelta("text", data.decode("utf-8", "replace")) if data else DecodedEvent(kind="start")
        if name == "done":
            value = json_or_none(data)
            reason = value.get("reason") if isinstance(value, dict) else None
            return _done(reason if isinstance(reason, str) else None)
        if name == "error":
            return error_event(data)
        return DecodedEvent(kind="progress" if name in _NAMES else "other")

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        """Decode a prediction: status, output, error."""
        value = json_or_none(body)
        if not isinstance(value, dict):
            return [DecodedEvent(kind="malformed" if value is None else "other")]
        error = (
            ErrorReport(value.get("status"), str(value["error"]), value["error"])
            if value.get("error")
            else None
        )
        text, status = _joined(value.get("output")), _string(value.get("status"))
        return [
            DecodedEvent(
                kind="text",
                deltas=[ChoiceDelta(text=text, finish_reason=status)] if status else None,
                response_id=_string(value.get("id")),
                model=_string(value.get("model")),
                error=error,
            )
        ]


def _done(reason: str | None) -> DecodedEvent:
    return DecodedEvent(kind="terminal", deltas=[ChoiceDelta(finish_reason=reason or "done")], terminal=True)


def _joined(output: Any) -> str:
    if isinstance(output, list):
        return "".join(part for part in output if isinstance(part, str))
    return output if isinstance(output, str) else ""


DIALECT = Replicate()


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None

"""Replicate's streams: `output` events whose data is the text itself (no JSON), then `done`; `error` and `logs` beside them.

`done` says why where it was not the end of the output: {"reason": "canceled"} or {"reason": "error"}.
"""

from __future__ import annotations

from typing import Any

from analytics.dialects.errors import error_event
from analytics.dialects.payload import json_or_none
from analytics.dialects.shape import Delta, ErrorSeen, Exchange, Fragment, Reading

_NAMES = frozenset({"output", "done", "error", "logs"})


class Replicate:
    """The dialect; see `shape.Dialect`."""

    name = "replicate"
    provider = "replicate"
    operation = "text_completion"

    def claims(self, exchange: Exchange) -> int:
        if exchange.path.startswith("/v1/streams/") or exchange.host.endswith(
            ("replicate.com", "replicate.net")
        ):
            return 5
        return 0

    def recognises(self, name: str, data: bytes) -> int:
        return 5 if name == "output" and data[:1] not in (b"{", b"[") else 3 if name == "output" else 0

    def reader(self, exchange: Exchange) -> ReplicateReader:
        return ReplicateReader()


class ReplicateReader:
    """Reads one stream."""

    def read(self, name: str, data: bytes) -> Reading | Delta:
        if name == "output":
            return Delta("text", data.decode("utf-8", "replace")) if data else Reading(kind="start")
        if name == "done":
            said = json_or_none(data)
            reason = said.get("reason") if isinstance(said, dict) else None
            return _done(reason if isinstance(reason, str) else None)
        if name == "error":
            return Reading(kind="error", error=error_event(data))
        return Reading(kind="progress" if name in _NAMES else "other")

    def read_body(self, body: bytes) -> list[Reading]:
        """A prediction as the API answers it: status, output, error."""
        said = json_or_none(body)
        if not isinstance(said, dict):
            return [Reading(kind="malformed" if said is None else "other")]
        error = (
            ErrorSeen(said.get("status"), str(said["error"]), said["error"]) if said.get("error") else None
        )
        text = _joined(said.get("output"))
        return [
            Reading(
                kind="text",
                fragments=[Fragment(text=text, finish_reason=said.get("status"))]
                if said.get("status")
                else None,
                response_id=said.get("id"),
                model=said.get("model"),
                error=error,
            )
        ]


def _done(reason: str | None) -> Reading:
    reading = Reading(kind="terminal", fragments=[Fragment(finish_reason=reason or "done")], terminal=True)
    if reason == "error":
        reading.kind, reading.error = "error", ErrorSeen(None)
    return reading


def _joined(output: Any) -> str:
    if isinstance(output, list):
        return "".join(part for part in output if isinstance(part, str))
    return output if isinstance(output, str) else ""


DIALECT = Replicate()

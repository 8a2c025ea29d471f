"""OpenAI's GPT-Live over WebSocket: the spoken answers of a session.

The session is one stream of sound. `streamgauge.ingest.websockets.live` divides it into answers, and adds the events `answer.started` and
`answer.ended`. The finish reason is `silence` or `interrupted`. A delegation to the client is a call of a tool, `delegation`. That to the
Responses API is an answer of its own, of the dialect `openai_responses`.

Systems:

| OpenAI GPT-Live | `openai` | `openai_live` | `/v1/live/sessions` | delegated answers only | a silence |
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo, by_path
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, ToolCallDelta, tool_call_event
from streamgauge.analytics.dialects.json_reader import Event, JSONReader


class _Format(msgspec.Struct):
    type: kept.Title = None
    rate: int | None = None


class _Delegation(msgspec.Struct):
    id: kept.Word = None


class _Event(Event):
    model: kept.Name = None
    format: Annotated[_Format | None, kept.TEXT] = None
    delta: str | None = None
    delegation: _Delegation | None = None
    reason: kept.Name = None
    input: Annotated[msgspec.Raw, kept.TEXT] = msgspec.field(default=msgspec.Raw(), name="realtimeInput")


def _recognises(name: str, data: bytes) -> int:
    return 9 if data.startswith(b'{"type":"answer.') else 0


class LiveReader(JSONReader, event=_Event):
    """Decodes one answer."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self._bytes_per_s = 48_000

    def event(self, event: _Event, kind: str) -> DecodedEvent:
        if kind == "answer.started":
            found = event.format or _Format()
            self._bytes_per_s = (found.rate or 24_000) * (
                1 if found.type in ("audio/pcmu", "audio/pcma") else 2
            )
            return DecodedEvent("start", model=event.model)
        if kind == "session.output_audio.delta" and event.delta:
            size = len(event.delta) * 3 // 4 - event.delta.count("=", -2)
            length_ns = size * 1_000_000_000 // self._bytes_per_s
            return DecodedEvent("audio", [ChoiceDelta(audio_data_chars=len(event.delta), audio_ns=length_ns)])
        if kind == "session.output_transcript.delta":
            return DecodedEvent("audio", [ChoiceDelta(audio_chars=len(event.delta or ""))])
        if event.delegation is not None:
            key = event.delegation.id or ""
            return tool_call_event(ToolCallDelta(key, key, "delegation", inserted_json="{}"))
        if kind == "answer.ended":
            return DecodedEvent("terminal", [ChoiceDelta(finish_reason=event.reason)], terminal=True)
        is_speech = bool(bytes(event.input))
        return DecodedEvent("annotation" if is_speech else "other", interruption=is_speech)


DIALECT = Dialect(
    "openai_live", "openai", "generate_content", by_path(r"/live/sessions$"), _recognises, LiveReader
)

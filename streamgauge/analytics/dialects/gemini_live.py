"""Gemini Live over WebSocket: the messages of an answer in speech or text, calls of tools, and interruptions.

`streamgauge.ingest.websockets.live` divides a session into answers. The finish reason is that of the complete turn, `interrupted`, or
`tool_calls` if the answer waits for the result of a tool. Usage is that of the turn.

Systems:

| Gemini Live | `gcp.gemini` | `gemini_live` | `/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent` | the end |
    turnComplete, or a tool call |
| Gemini Live on Vertex AI | `gcp.vertex_ai` | `gemini_live` | `/ws/google.cloud.aiplatform.v1.LlmBidiService/BidiGenerateContent` | the
    same | the same |
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo, by_path
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent
from streamgauge.analytics.dialects.gemini import Call, Content, GeminiReader, normalised


class _Transcript(msgspec.Struct):
    text: str | None = None


class _ServerContent(msgspec.Struct):
    turn: Content | None = msgspec.field(default=None, name="modelTurn")
    transcript: _Transcript | None = msgspec.field(default=None, name="outputTranscription")
    is_complete: bool | None = msgspec.field(default=None, name="turnComplete")
    reason: kept.Name = msgspec.field(default=None, name="turnCompleteReason")
    is_interrupted: bool | None = msgspec.field(default=None, name="interrupted")


class _Calls(msgspec.Struct):
    calls: list[Call] | None = msgspec.field(default=None, name="functionCalls")


class _Activity(msgspec.Struct):
    kind: kept.Name = msgspec.field(default=None, name="voiceActivityType")
    signal: kept.Name = msgspec.field(default=None, name="vadSignalType")
    start: Annotated[Any, kept.CONTENT] = msgspec.field(default=None, name="activityStart")


class _Message(msgspec.Struct):
    type: kept.Title = None
    error: None = None
    content: _ServerContent | None = msgspec.field(default=None, name="serverContent")
    tool_call: _Calls | None = msgspec.field(default=None, name="toolCall")
    usage: kept.Report = msgspec.field(default=None, name="usageMetadata")
    activity: _Activity | None = msgspec.field(default=None, name="voiceActivity")
    detected: _Activity | None = msgspec.field(default=None, name="voiceActivityDetectionSignal")
    input: Annotated[_Activity | None, kept.TEXT] = msgspec.field(default=None, name="realtimeInput")


def _recognises(name: str, data: bytes) -> int:
    return 9 if data.startswith((b'{"serverContent"', b'{"toolCall"')) else 0


class GeminiLiveReader(GeminiReader, event=_Message):
    """Decodes one answer."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        super().__init__(exchange)
        self._has_speech = self._is_interrupted = False

    def event(self, event: _Message, kind: str) -> DecodedEvent:  # type: ignore[override]  # decodes another type
        if event.activity or event.detected or event.input:
            self._has_speech = True
            return DecodedEvent("annotation", interruption=True)
        content, delta = event.content or _ServerContent(), ChoiceDelta()
        for part in (content.turn.parts if content.turn else None) or ():
            self._part(part, delta)
        if content.transcript is not None:
            delta.audio_chars = len(content.transcript.text or "")
        for call in (event.tool_call.calls if event.tool_call else None) or ():
            self._function_call(call, delta)
            delta.finish_reason = "tool_calls"
        if content.is_interrupted:
            self._is_interrupted, delta.finish_reason = True, "interrupted"
        elif content.is_complete and not self._is_interrupted:
            delta.finish_reason = content.reason or "turn_complete"
        return DecodedEvent(
            "terminal"
            if content.is_complete
            else "usage"
            if event.usage
            else "progress"
            if event.content
            else "other",
            [delta],
            usage=normalised(event.usage) if isinstance(event.usage, dict) else None,
            terminal=bool(content.is_complete),
            interruption=bool(content.is_interrupted) and not self._has_speech,
        )


DIALECT = Dialect(
    "gemini_live", "gcp.gemini", "generate_content", by_path(r"BidiGenerateContent(Constrained)?$"), _recognises, GeminiLiveReader,
)  # fmt: skip

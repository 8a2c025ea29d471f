"""OpenAI's streamed audio endpoints: transcription (`transcript.text.*`) and speech (`speech.audio.*`).

Deltas are output. `*.done` repeats the text, carries the usage and finishes the stream (finish reason `done`). A segment of a
diarized transcript repeats its deltas.

Systems:

| OpenAI transcription and speech | `openai` | `openai_audio` | `/v1/audio/transcriptions`, `/v1/audio/speech` | the done event | the done
    event |
"""

from __future__ import annotations

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo, by_path
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, TextDelta
from streamgauge.analytics.dialects.json_reader import Event, JSONReader
from streamgauge.analytics.dialects.usage import usage_of


class _Event(Event):
    delta: str | None = None
    audio: str | None = None
    text: str | None = None
    logprobs: list[msgspec.Raw] | None = None
    usage: kept.Report = None


def _recognises(name: str, data: bytes) -> int:
    head = data[:200].replace(b" ", b"")
    return 8 if b'"type":"transcript.text.' in head or b'"type":"speech.audio.' in head else 0


class AudioReader(JSONReader, event=_Event):
    """Decodes one stream."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self._has_text = False
        self.operation = "generate_content" if exchange.route.endswith("/speech") else None

    def event(self, event: _Event, kind: str) -> DecodedEvent | TextDelta:
        if kind == "transcript.text.delta" and event.delta:
            self._has_text = True
            return TextDelta("text", event.delta, 0, len(event.logprobs) if event.logprobs else None)
        if kind == "speech.audio.delta" and event.audio:
            return DecodedEvent(kind="audio", deltas=[ChoiceDelta(audio_data_chars=len(event.audio))])
        if kind in ("transcript.text.done", "speech.audio.done"):
            delta = ChoiceDelta(text="" if self._has_text else event.text or "", finish_reason="done")
            return DecodedEvent(deltas=[delta], usage=usage_of(event.usage), terminal=True, not_streamed=True)
        return DecodedEvent(kind="annotation" if kind.startswith(("transcript.", "speech.")) else "other")

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        # Plain text, subtitles and audio are no JSON.
        return [DecodedEvent() if e.kind == "malformed" else e for e in super().read_body(body)]

    def body(self, whole: _Event) -> list[DecodedEvent]:
        return [DecodedEvent(deltas=[ChoiceDelta(text=whole.text or "")], usage=usage_of(whole.usage))]


_claims = by_path(r"/audio/(transcriptions|translations|speech)$")
DIALECT = Dialect("openai_audio", "openai", "transcription", _claims, _recognises, AudioReader)

"""OpenAI's streamed audio endpoints: transcription (`transcript.text.*`) and speech (`speech.audio.*`).

Deltas are output. `*.done` repeats the text, carries the usage and finishes the stream (finish reason `done`). A segment of a
diarized transcript repeats its deltas.
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects.dialect import Dialect, DialectReader, ExchangeInfo, by_path
from streamgauge.analytics.dialects.errors import error_event, failed_event
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, TextDelta
from streamgauge.analytics.dialects.tolerant_json import decode_or_none
from streamgauge.analytics.dialects.usage import usage_of


class _Event(msgspec.Struct):
    type: str | None = None
    delta: str | None = None
    audio: str | None = None
    text: str | None = None
    logprobs: list[msgspec.Raw] | None = None
    usage: Any = None
    error: Any = None


_event = msgspec.json.Decoder(_Event)


def _recognises(name: str, data: bytes) -> int:
    head = data[:200].replace(b" ", b"")
    return 8 if b'"type":"transcript.text.' in head or b'"type":"speech.audio.' in head else 0


class AudioReader(DialectReader):
    """Decodes one stream."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self._has_text = False

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        event = decode_or_none(_event, data)
        if event is None:
            return failed_event(None, data, name)
        kind = event.type or name
        if kind == "transcript.text.delta" and event.delta:
            self._has_text = True
            return TextDelta("text", event.delta, 0, len(event.logprobs) if event.logprobs else None)
        if kind == "speech.audio.delta" and event.audio:
            return DecodedEvent(kind="audio", deltas=[ChoiceDelta(audio_data_chars=len(event.audio))])
        if kind in ("transcript.text.done", "speech.audio.done"):
            text = "" if self._has_text else event.text or ""
            return DecodedEvent(
                deltas=[ChoiceDelta(text=text, finish_reason="done")],
                usage=usage_of(event.usage),
                terminal=True,
                not_streamed=True,
            )
        if kind == "error" or event.error:
            return error_event(data)
        return DecodedEvent(kind="annotation" if kind.startswith(("transcript.", "speech.")) else "other")

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        whole = decode_or_none(_event, body)
        if whole is None:  # plain text, subtitles or audio
            return [DecodedEvent(kind="other")]
        if whole.error:
            return [error_event(body)]
        usage = usage_of(whole.usage)
        return [DecodedEvent(deltas=[ChoiceDelta(text=whole.text or "")], usage=usage)]


_claims = by_path(r"/audio/(transcriptions|translations|speech)$")
DIALECT = Dialect("openai_audio", "openai", "transcription", _claims, _recognises, AudioReader)

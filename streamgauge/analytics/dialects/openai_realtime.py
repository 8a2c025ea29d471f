"""OpenAI's Realtime API over WebSocket: the events of Responses, speech, rate limits, and interruptions.

A response that the user or the client interrupts is complete: its finish reason is `turn_detected` or `client_cancelled`.
`streamgauge.ingest.websockets` adds the interruption to the events of the answer. The length of audio follows from its format.

Systems:

| OpenAI Realtime | `openai` | `openai_realtime` | `/v1/realtime` | response.done | response.done; failed is an error |
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo, by_path
from streamgauge.analytics.dialects.error_bodies import error_from
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, TextDelta
from streamgauge.analytics.dialects.openai_responses import ResponsesReader
from streamgauge.analytics.dialects.server_stats import stats_of
from streamgauge.analytics.dialects.tolerant_json import decode_or_none, member_of

LOOKED_UP = kept.members(
    name="output_audio_format status reason name",
    title="type",
    text="audio format status_details error",
    output="output",
)
_PCM = 48_000
_BYTES_PER_S = {"audio/pcmu": 8_000, "audio/pcma": 8_000, "g711_ulaw": 8_000, "g711_alaw": 8_000}
"""Format of audio → bytes of one second. Others are PCM of 16 bits at 24 kHz."""
_INTERRUPTIONS = frozenset({"input_audio_buffer.speech_started", "response.cancel"})
_EVENTS = (b'"type":"response.', b'"type": "response.')


class _Event(msgspec.Struct):
    type: Annotated[str, kept.TITLE] = ""
    response: dict[str, Any] | None = None
    rate_limits: Annotated[list[dict[str, Any]] | None, kept.NUMBERS] = None


_decoder = msgspec.json.Decoder(_Event)


def _recognises(name: str, data: bytes) -> int:
    if b'"realtime.response"' in data or (b'"event_id"' in data and any(mark in data for mark in _EVENTS)):
        return 9
    return 0


class RealtimeReader(ResponsesReader):
    """Decodes one answer."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        super().__init__(exchange)
        self._bytes_per_s = _PCM

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        decoded = super().read(name, data)
        if isinstance(decoded, TextDelta):
            return decoded
        delta = decoded.deltas[0] if decoded.deltas else None
        if delta is not None and delta.audio_data_chars:
            size = delta.audio_data_chars * 3 // 4 - min(2, data.count(b"="))
            delta.audio_ns = size * 1_000_000_000 // self._bytes_per_s
        elif decoded.kind in ("start", "finish", "error", "progress", "other"):
            event = decode_or_none(_decoder, data)
            if event is not None:
                self._add_details(decoded, event)
        return decoded

    def _add_details(self, decoded: DecodedEvent, event: _Event) -> None:
        if event.rate_limits is not None:
            limits = {str(limit.pop("name", "")): limit for limit in event.rate_limits}
            decoded.kind, decoded.server_stats = "progress", stats_of("rate_limits", limits)
        elif event.type in _INTERRUPTIONS:
            decoded.kind, decoded.interruption = "annotation", True
        elif event.response is not None:
            self._add_response(decoded, event.response)

    def _add_response(self, decoded: DecodedEvent, response: dict[str, Any]) -> None:
        kind = response.get("output_audio_format") or member_of(response, "audio", "output", "format", "type")
        self._bytes_per_s = _BYTES_PER_S.get(str(kind), _PCM)
        if response.get("status") == "cancelled":
            reason = member_of(response, "status_details", "reason")
            decoded.kind, decoded.error = "finish", None
            decoded.deltas = [ChoiceDelta(finish_reason=reason if isinstance(reason, str) else "cancelled")]
        elif decoded.error is not None and (error := member_of(response, "status_details", "error")):
            decoded.error = error_from(error)


DIALECT = Dialect(
    "openai_realtime", "openai", "generate_content", by_path(r"/realtime/?$"), _recognises, RealtimeReader
)

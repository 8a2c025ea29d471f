"""Response writers by vendor: each encodes a response in one vendor's format."""

from __future__ import annotations

from streamgauge.simulator.response_writers.chat import CHAT_WRITERS
from streamgauge.simulator.response_writers.messages import Anthropic, FireworksMessages, Friendli
from streamgauge.simulator.response_writers.other_formats import (
    Cohere,
    Completions,
    FireworksCompletions,
    Gemini,
    LMStudio,
)
from streamgauge.simulator.response_writers.realtime import Realtime
from streamgauge.simulator.response_writers.response_writer import ResponseWriter
from streamgauge.simulator.response_writers.responses import Responses

RESPONSE_WRITERS: dict[str, type[ResponseWriter]] = {
    writer.vendor: writer
    for writer in (
        *CHAT_WRITERS, Completions, FireworksCompletions, Anthropic, Friendli, FireworksMessages, Responses, Realtime,
        LMStudio, Cohere, Gemini,
    )
}  # fmt: skip

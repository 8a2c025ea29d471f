"""Response writers by vendor: each encodes a response in one vendor's format."""

from __future__ import annotations

from streamgauge.simulator.response_writers.chat_vendors import CHAT_WRITERS
from streamgauge.simulator.response_writers.cohere import Cohere
from streamgauge.simulator.response_writers.completions import Completions, FireworksCompletions
from streamgauge.simulator.response_writers.gemini import Gemini
from streamgauge.simulator.response_writers.lmstudio import LMStudio
from streamgauge.simulator.response_writers.messages import Anthropic, FireworksMessages, Friendli
from streamgauge.simulator.response_writers.response_writer import ResponseWriter
from streamgauge.simulator.response_writers.responses import Responses

RESPONSE_WRITERS: dict[str, type[ResponseWriter]] = {
    writer.vendor: writer
    for writer in (
        *CHAT_WRITERS, Completions, FireworksCompletions, Anthropic, Friendli, FireworksMessages, Responses, LMStudio,
        Cohere, Gemini,
    )
}  # fmt: skip

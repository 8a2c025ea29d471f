"""The vendors that the simulator speaks like, by name."""

from __future__ import annotations

from streamgauge.simulator.speakers.cohere import COHERE_SPEAKERS
from streamgauge.simulator.speakers.completions import COMPLETION_SPEAKERS
from streamgauge.simulator.speakers.gemini import GEMINI_SPEAKERS
from streamgauge.simulator.speakers.lmstudio import LMSTUDIO_SPEAKERS
from streamgauge.simulator.speakers.messages import MESSAGE_SPEAKERS
from streamgauge.simulator.speakers.responses import RESPONSE_SPEAKERS
from streamgauge.simulator.speakers.speaker import Speaker
from streamgauge.simulator.speakers.vendors import CHAT_SPEAKERS

SPEAKERS: dict[str, type[Speaker]] = {
    speaker.name: speaker
    for speaker in (
        *CHAT_SPEAKERS,
        *COMPLETION_SPEAKERS,
        *MESSAGE_SPEAKERS,
        *RESPONSE_SPEAKERS,
        *LMSTUDIO_SPEAKERS,
        *COHERE_SPEAKERS,
        *GEMINI_SPEAKERS,
    )
}

"""Protocols of live audio without an event for the end of the user's speech: Gemini Live and GPT-Live.

Time zero of an answer to speech is then the client's last loud message before the answer (`SpeechEnd` "audio"). Signals of the server or
of the client take precedence.

Speech that begins within an answer may interrupt it, so it is an event of the answer: `SPEECH`, if no message signals it.
"""

from __future__ import annotations

from array import array
from base64 import b64decode
from functools import cache
from typing import Any, TypeVar

import msgspec

from streamgauge.ingest.records import SpeechEnd
from streamgauge.ingest.websockets.messages import Message
from streamgauge.ingest.websockets.socket_protocol import Answer, Answers, SocketProtocol

LOUD = 1000
"""Least sample (of 16 bits) of the user's speech: −30 dBFS. Noise of a room is below it."""
AUDIBLE = 33
"""Least sample of GPT-Live's speech: −60 dBFS. Between answers it sends zeros."""
SPEECH_PAUSE_NS = 500_000_000
"""Loud audio after a longer pause begins new speech."""
ANSWER_PAUSE_NS = 1_000_000_000
"""A longer silence of GPT-Live ends its answer."""
TURN_PAUSE_NS = 200_000_000
"""So does one of this length in which the user has spoken."""
MAX_PAUSE_MESSAGES, MAX_PAUSE_BYTES = 64, 65_536
"""Messages that are kept of a pause, and the size of each. Others are only counted."""
SPEECH = b'{"realtimeInput":{"activityStart":{}}}'
"""An event that stands for the user's loud audio: the signal of a client of Gemini Live."""
ENDS = frozenset({"response.completed", "response.failed", "response.incomplete", "response.cancelled"})
"""Events that end a response of the Responses API."""
_G711 = {
    kind: bytes((code ^ inverted) & 0x7F for code in range(256))
    for kind, inverted in (("audio/pcmu", 0xFF), ("audio/pcma", 0x55))
}
"""Format → amplitudes of its codes, as segment and mantissa."""
_PCM = ("audio/pcm", "audio/l16")
_OF_USER = {"inputTranscription", "interimInputTranscription"}
_object_decoder = msgspec.json.Decoder(dict[str, Any])
T = TypeVar("T")


def loudness(audio: Any, kind: Any) -> int:
    """The largest sample of 16 bits in audio as base64. 0: there is none, or its format is unknown."""
    kind = str(kind).partition(";")[0].strip().lower()
    if not isinstance(audio, str) or (kind not in _PCM and kind not in _G711):
        return 0
    try:
        data = b64decode(audio)
    except ValueError:
        return 0
    if kind in _PCM:
        samples = array("h", data[: len(data) // 2 * 2])
        return max(max(samples), -min(samples)) if samples else 0
    code = max(data.translate(_G711[kind]), default=0)
    return (((code & 0x0F) << 3) + 0x84 << (code >> 4)) - 0x84


class Live(SocketProtocol):
    """State of both: the session, what the next answer answers, and when the user spoke."""

    model: str | None = None
    session: str | None = None
    asked: Message | None = None
    """What the next answer answers."""
    speech_end: SpeechEnd | None = None
    """`asked` is the end of the user's speech, from this source."""
    has_signals: bool = False
    """The server or the client signals speech, so loudness is ignored."""
    new_turn: bool = False
    """There was speech or text of the user since the last answer."""
    spoke_ns: int = -SPEECH_PAUSE_NS - 1
    """Time of the user's last loud audio."""
    output_ns: int = 0
    """Time of the last event of the open answer: of GPT-Live, of the spoken one."""

    def ask(self, message: Message, speech_end: SpeechEnd | None = None) -> None:
        self.asked, self.speech_end = message._replace(payload=b"", wire_bytes=0), speech_end

    def add_audio(self, message: Message, audio: Any, kind: Any) -> bool:
        """Whether speech of the user begins with this audio."""
        if self.has_signals or loudness(audio, kind) < LOUD:
            return False
        begins = message.at_ns - self.spoke_ns > SPEECH_PAUSE_NS
        self.spoke_ns = message.at_ns
        self.new_turn |= begins
        self.ask(message, "audio")
        return begins

    def add(self, answer: Answer, message: Message, answers: Answers) -> None:
        answers.add(answer, message)
        self.output_ns = message.at_ns

    def begin(self, message: Message, answers: Answers, key: str = "", model: str | None = None) -> Answer:
        """Begin the answer to `asked`. Without it, time zero is that of this message. The body has the form of a request."""
        body = {"model": model or self.model, "input": "" if self.new_turn else [], "stream": True,
                "conversation": self.session or answers.stream}  # fmt: skip
        asked, speech_end = self.asked or message, self.speech_end
        self.asked, self.speech_end, self.new_turn = None, None, False
        payload = msgspec.json.encode(body)
        return answers.begin(asked._replace(payload=payload, wire_bytes=0), key, speech_end)


# -- Gemini -----------------------------------------------------------------------------------------------------------


class GeminiLive(Live):
    """Gemini Live, of the Gemini API and Vertex AI.

    The first output begins an answer, `turnComplete` ends it. So does the result of a tool that it waits for: what follows is another
    answer. A turn that is complete without output is an answer to what has asked. Transcripts of the user belong to no answer.
    """

    awaits_result: bool = False
    """The last output of the open answer is a call of a tool."""

    def from_client(self, message: Message, answers: Answers) -> None:
        sent = json_object(message.payload)
        answer = answers.open[0] if answers.open else None
        if (setup := _member(sent, "setup")) is not None:
            self.model = str(_member(setup, "model") or "").rpartition("models/")[2] or None
        elif _member(sent, "toolResponse") is not None:
            if answer is not None and self.awaits_result:
                answers.end_answer(answer, self.output_ns)
            self.ask(message)
        elif (content := _member(sent, "clientContent")) is not None:
            self.new_turn = True
            if _member(content, "turnComplete"):
                self.ask(message)
        elif self._add_input(_member(sent, "realtimeInput"), message) and answer is not None:
            self.add(answer, message._replace(payload=SPEECH, wire_bytes=0), answers)

    def _add_input(self, spoken: Any, message: Message) -> bool:
        """Whether the user begins to speak."""
        if _member(spoken, "activityStart") is not None:
            self.has_signals = self.new_turn = True
            return True
        if _member(spoken, "activityEnd") is not None:
            self.ask(message, "client")
        elif _member(spoken, "text") is not None:
            self.new_turn = True
            self.ask(message)
        chunks, begins = _member(spoken, "mediaChunks"), False
        for blob in (_member(spoken, "audio"), *(chunks if isinstance(chunks, list) else ())):
            begins |= self.add_audio(message, _member(blob, "data"), _member(blob, "mimeType"))
        return begins

    def from_server(self, message: Message, answers: Answers) -> None:
        received = json_object(message.payload)
        answer = answers.open[0] if answers.open else None
        if received is None:
            if answer is not None:
                self.add(answer, message, answers)
            return
        self.session = _text(_member(received.get("setupComplete"), "sessionId")) or self.session
        activity = received.get("voiceActivity") or received.get("voiceActivityDetectionSignal")
        if activity:
            kind = _member(activity, "voiceActivityType") or _member(activity, "vadSignalType")
            self._signal(str(kind), message, answer, answers)
        content, call = received.get("serverContent"), received.get("toolCall")
        is_output = bool(call or _member(content, "modelTurn") or _member(content, "outputTranscription"))
        ends = bool(_member(content, "turnComplete"))
        if answer is None and (is_output or (ends and self.asked is not None)):
            answer = self.begin(message, answers)
        is_content = isinstance(content, dict) and not content.keys() <= _OF_USER
        others = call or received.get("toolCallCancellation") or received.get("usageMetadata")
        if answer is None or not (is_content or others):
            return
        self.add(answer, message, answers)
        self.awaits_result = bool(call) or (self.awaits_result and not is_output)
        if ends:
            answers.end_answer(answer, message.at_ns)

    def _signal(self, kind: str, message: Message, answer: Answer | None, answers: Answers) -> None:
        self.has_signals = self.new_turn = True
        if kind.endswith(("END", "EOS")):
            self.ask(message, "server")
        elif answer is not None:
            self.add(answer, message, answers)


# -- GPT-Live ---------------------------------------------------------------------------------------------------------


BACKEND = "delegation:"
"""Begin of the keys of delegated answers."""


class OpenAILive(Live):
    """OpenAI's GPT-Live. The server sends sound continuously, and no event begins or ends an answer.

    Audible sound, its transcript or a delegation to the client begins an answer, and a silence ends it. The events `answer.started` and
    `answer.ended` are added to it: they have the model, the format, and whether the user interrupted. A delegation to the Responses
    API is an answer of its own with the events of that API. The client's commentary and the end of a delegated answer ask for a spoken
    one.
    """

    format: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "audio/pcm", "rate": 24000})
    backend: str | None = None
    """Model of delegated answers."""
    pause: list[Message] = msgspec.field(default_factory=list)
    """Messages since the last output of the spoken answer, which are part of it only if more follows."""
    has_speech: bool = False
    """The user began to speak within the spoken answer."""
    is_spoken_over: bool = False
    """So they did at its last output."""

    def from_client(self, message: Message, answers: Answers) -> None:
        event = json_object(message.payload) or {}
        kind = event.get("type")
        if kind == "session.input_audio.append":
            if (
                self.add_audio(message, event.get("audio"), self.format.get("type"))
                and _spoken(answers) is not None
            ):
                self.pause.append(message._replace(payload=SPEECH, wire_bytes=0))
        elif kind in ("session.start", "session.update"):
            self._configure(event.get("session"))
        elif kind == "session.commentary.append":
            self.ask(message)
        elif kind == "response.create":
            self.ask(message)
            self.begin(message, answers, BACKEND, self.backend)

    def from_server(self, message: Message, answers: Answers) -> None:
        event = json_object(message.payload)
        spoken = _spoken(answers)
        if event is None:
            if spoken is not None:
                self._speak(spoken, message, answers)
            return
        kind = event.get("type")
        is_audio = kind == "session.output_audio.delta"
        is_audible = is_audio and loudness(event.get("delta"), self.format.get("type")) >= AUDIBLE
        is_output = is_audible or kind in ("session.output_transcript.delta", "session.delegation.created")
        if spoken is not None:
            silence_ns = message.at_ns - self.output_ns
            has_turn = is_output and self.spoke_ns > self.output_ns
            if kind == "session.closed" or silence_ns > (TURN_PAUSE_NS if has_turn else ANSWER_PAUSE_NS):
                self._end(spoken, answers)
                spoken = None
        if "session" in event:
            self._configure(event["session"])
        elif kind == "response.event":
            self._add_delegated(event, message, answers)
        elif (
            kind == "session.delegation.created" and _member(event.get("delegation"), "target") == "responses"
        ):
            key = BACKEND + str(_member(event["delegation"], "id"))
            self.begin(message, answers, key, self.backend)
        elif is_output:
            self._speak(spoken, message, answers)
        elif is_audio and spoken is not None:
            if len(self.pause) < MAX_PAUSE_MESSAGES and len(message.payload) <= MAX_PAUSE_BYTES:
                self.pause.append(message)
        elif kind == "error":
            answers.add(None, message)

    def _configure(self, session: Any) -> None:
        self.model = _text(_member(session, "model")) or self.model
        self.session = _text(_member(session, "id")) or self.session
        audio_format = _member(_member(session, "audio"), "format")
        self.format = audio_format if isinstance(audio_format, dict) else self.format
        self.backend = (
            _text(_member(_member(_member(session, "delegation"), "responses"), "model")) or self.backend
        )

    def _speak(self, spoken: Answer | None, message: Message, answers: Answers) -> None:
        if spoken is None:
            spoken = self.begin(message, answers)
            started = {"type": "answer.started", "model": self.model, "format": self.format}
            answers.add(spoken, message._replace(payload=msgspec.json.encode(started), wire_bytes=0))
        for before in self.pause:
            answers.add(spoken, before)
            self.has_speech |= before.payload == SPEECH
        self.pause = []
        self.is_spoken_over = self.has_speech and message.at_ns - self.spoke_ns <= SPEECH_PAUSE_NS
        self.add(spoken, message, answers)

    def _end(self, spoken: Answer, answers: Answers) -> None:
        """End the answer with its last output. The user has interrupted it if they spoke until then."""
        reason = b"interrupted" if self.is_spoken_over else b"silence"
        payload = b'{"type":"answer.ended","reason":"%b"}' % reason
        answers.add(spoken, Message(self.output_ns, self.output_ns, payload, 0))
        answers.end_answer(spoken, self.output_ns)
        self.pause, self.has_speech = [], False

    def _add_delegated(self, event: dict[str, Any], message: Message, answers: Answers) -> None:
        key = BACKEND + str(event.get("delegation_id") or "")
        delegated = [answer for answer in answers.open if answer.key.startswith(BACKEND)]
        answer = next((a for a in delegated if a.key == key), None)
        answer = answer or next((a for a in delegated if BACKEND in (a.key, key)), None)
        if answer is None:
            answer = self.begin(message, answers, key, self.backend)
        answer.key = max(answer.key, key)
        answers.add(answer, message._replace(payload=msgspec.json.encode(event.get("event"))))
        if _member(event.get("event"), "type") in (*ENDS, "error"):
            answers.end_answer(answer, message.at_ns)
            self.ask(message)


def _spoken(answers: Answers) -> Answer | None:
    return next((answer for answer in answers.open if not answer.key), None)


def _member(value: Any, name: str) -> Any:
    """A member of an object. Google's clients send names in both spellings."""
    if not isinstance(value, dict):
        return None
    found = value.get(name)
    return found if found is not None else value.get(_snake_case(name))


@cache
def _snake_case(name: str) -> str:
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def json_object(payload: bytes) -> dict[str, Any] | None:
    return decoded(_object_decoder, payload)


def decoded(decoder: msgspec.json.Decoder[T], payload: bytes) -> T | None:
    """None: no JSON object, or a member of another type."""
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None

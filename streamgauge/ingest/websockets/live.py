"""Live audio without turns on the wire: Gemini Live, and GPT-Live, which listens and speaks at the same time.

Neither has to say when the user stops to speak. Then the loudness of the client's audio does: time zero of an answer is the last
message of the client that is loud before it (`SpeechEnd` "audio"). Signals of the server or of the client take precedence.

An answer is interrupted by speech that begins within it. Where no message says so, `SPEECH` is an event of the answer.
"""

from __future__ import annotations

from array import array
from base64 import b64decode
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
"""Speech after a longer pause is new speech."""
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
_NOTHING = msgspec.Raw()
T = TypeVar("T")


def loudness(audio: str | None, kind: str | None) -> int:
    """The largest sample of 16 bits in audio as base64. 0: there is none, or its format is unknown."""
    kind = (kind or "").partition(";")[0].strip().lower()
    if not audio or (kind not in _PCM and kind not in _G711):
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
    """What both have: the session, who asked for the next answer, and when the user spoke."""

    model: str | None = None
    session: str | None = None
    asked: Message | None = None
    """What the next answer answers."""
    speech_end: SpeechEnd | None = None
    """It is the end of the user's speech."""
    has_signals: bool = False
    """The server or the client says when the user speaks, so loudness does not matter."""
    new_turn: bool = False
    """The user has said something since the last answer."""
    spoke_ns: int = -SPEECH_PAUSE_NS - 1
    """Time of the user's last loud audio."""
    output_ns: int = 0
    """Time of the last output of the open answer."""

    def ask(self, message: Message, speech_end: SpeechEnd | None = None) -> None:
        self.asked, self.speech_end = message._replace(payload=b"", wire_bytes=0), speech_end

    def hear(self, message: Message, audio: str | None, kind: str | None) -> bool:
        """Whether the user begins to speak with this audio."""
        if self.has_signals or loudness(audio, kind) < LOUD:
            return False
        begins = message.at_ns - self.spoke_ns > SPEECH_PAUSE_NS
        self.spoke_ns = message.at_ns
        self.new_turn |= begins
        self.ask(message, "audio")
        return begins

    def begin(self, message: Message, answers: Answers, key: str = "", model: str | None = None) -> Answer:
        """Begin the answer to what has asked, else one that begins with this message. The body is that of a request."""
        body = {"model": model or self.model, "input": "" if self.new_turn else [], "stream": True,
                "conversation": self.session or answers.stream}  # fmt: skip
        asked, speech_end = self.asked or message, self.speech_end
        self.asked, self.speech_end, self.new_turn = None, None, False
        payload = msgspec.json.encode(body)
        return answers.begin(asked._replace(payload=payload, wire_bytes=0), key, speech_end)


# -- Gemini -----------------------------------------------------------------------------------------------------------


# Google's clients send names in both spellings.
class _Blob(msgspec.Struct):
    data: str | None = None
    mimeType: str | None = None
    mime_type: str | None = None


class _Input(msgspec.Struct):
    audio: _Blob | None = None
    mediaChunks: list[_Blob] | None = None
    media_chunks: list[_Blob] | None = None
    text: str | None = None
    activityStart: Any = None
    activity_start: Any = None
    activityEnd: Any = None
    activity_end: Any = None


class _Turns(msgspec.Struct):
    turnComplete: bool | None = None
    turn_complete: bool | None = None


class _Setup(msgspec.Struct):
    model: str | None = None
    sessionId: str | None = None


class _Sent(msgspec.Struct):
    """A message of the client."""

    setup: _Setup | None = None
    realtimeInput: _Input | None = None
    realtime_input: _Input | None = None
    clientContent: _Turns | None = None
    client_content: _Turns | None = None
    toolResponse: Any = None
    tool_response: Any = None


class _Content(msgspec.Struct):
    modelTurn: Any = None
    outputTranscription: Any = None
    inputTranscription: Any = None
    interimInputTranscription: Any = None
    turnComplete: bool | None = None
    interrupted: bool | None = None
    generationComplete: bool | None = None

    @property
    def is_input(self) -> bool:
        """It has only what the user said."""
        others = (
            self.modelTurn,
            self.outputTranscription,
            self.turnComplete,
            self.interrupted,
            self.generationComplete,
        )
        return bool(self.inputTranscription or self.interimInputTranscription) and not any(others)


class _Activity(msgspec.Struct):
    voiceActivityType: str = ""
    vadSignalType: str = ""


class _Received(msgspec.Struct):
    """A message of the server."""

    setupComplete: _Setup | None = None
    serverContent: _Content | None = None
    toolCall: Any = None
    toolCallCancellation: Any = None
    usageMetadata: Any = None
    voiceActivity: _Activity | None = None
    voiceActivityDetectionSignal: _Activity | None = None


_sent_decoder, _received_decoder = msgspec.json.Decoder(_Sent), msgspec.json.Decoder(_Received)


class GeminiLive(Live):
    """Gemini Live, of the Gemini API and Vertex AI.

    The first output begins an answer, `turnComplete` ends it. So does the result of a tool that it waits for: what follows is another
    answer. A turn that is complete without output is an answer to what has asked. Transcripts of the user belong to no answer.
    """

    awaits_result: bool = False
    """The last output of the open answer is a call of a tool."""

    def from_client(self, message: Message, answers: Answers) -> None:
        sent = decoded(_sent_decoder, message.payload)
        if sent is None:
            return
        answer = answers.open[0] if answers.open else None
        content, spoken = sent.clientContent or sent.client_content, sent.realtimeInput or sent.realtime_input
        if sent.setup is not None:
            self.model = (sent.setup.model or "").rpartition("models/")[2] or None
        elif sent.toolResponse is not None or sent.tool_response is not None:
            if answer is not None and self.awaits_result:
                answers.end_answer(answer, self.output_ns)
            self.ask(message)
        elif content is not None:
            self.new_turn = True
            if content.turnComplete or content.turn_complete:
                self.ask(message)
        elif spoken is not None:
            self._hear(spoken, message, answer, answers)

    def _hear(self, spoken: _Input, message: Message, answer: Answer | None, answers: Answers) -> None:
        begins = False
        if spoken.activityStart is not None or spoken.activity_start is not None:
            self.has_signals = self.new_turn = begins = True
        elif spoken.activityEnd is not None or spoken.activity_end is not None:
            self.ask(message, "client")
        elif spoken.text is not None:
            self.new_turn = True
            self.ask(message)
        blobs = spoken.mediaChunks or spoken.media_chunks or ()
        for blob in (spoken.audio, *blobs) if spoken.audio is not None else blobs:
            begins |= self.hear(message, blob.data, blob.mimeType or blob.mime_type)
        if begins and answer is not None:
            answers.add(answer, message._replace(payload=SPEECH, wire_bytes=0))

    def from_server(self, message: Message, answers: Answers) -> None:
        received = decoded(_received_decoder, message.payload)
        answer = answers.open[0] if answers.open else None
        if received is None:
            if answer is not None:
                answers.add(answer, message)
            return
        if received.setupComplete is not None:
            self.session = received.setupComplete.sessionId
        if activity := received.voiceActivity or received.voiceActivityDetectionSignal:
            self._signal(activity.voiceActivityType or activity.vadSignalType, message, answer, answers)
        content, call = received.serverContent or _Content(), received.toolCall
        is_output = bool(call or content.modelTurn or content.outputTranscription)
        if answer is None and (is_output or (content.turnComplete and self.asked is not None)):
            answer = self.begin(message, answers)
        is_content = received.serverContent is not None and not content.is_input
        if answer is None or not (
            is_content or call or received.toolCallCancellation or received.usageMetadata
        ):
            return
        answers.add(answer, message)
        self.output_ns = message.at_ns
        self.awaits_result = bool(call) or (self.awaits_result and not is_output)
        if content.turnComplete:
            answers.end_answer(answer, message.at_ns)

    def _signal(self, kind: str, message: Message, answer: Answer | None, answers: Answers) -> None:
        self.has_signals = self.new_turn = True
        if kind.endswith(("END", "EOS")):
            self.ask(message, "server")
        elif answer is not None:
            answers.add(answer, message)


# -- GPT-Live ---------------------------------------------------------------------------------------------------------


class _Backend(msgspec.Struct):
    model: str | None = None


class _Delegation(msgspec.Struct):
    id: str | None = None
    target: str | None = None
    responses: _Backend | None = None


class _Audio(msgspec.Struct):
    format: dict[str, Any] | None = None


class _Session(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    audio: _Audio | None = None
    delegation: _Delegation | None = None


class _LiveEvent(msgspec.Struct):
    type: str = ""
    session: _Session | None = None
    audio: str | None = None
    delta: str | None = None
    delegation: _Delegation | None = None
    delegation_id: str | None = None
    event: msgspec.Raw = _NOTHING


class _Nested(msgspec.Struct):
    type: str = ""


_live_decoder, _nested_decoder = msgspec.json.Decoder(_LiveEvent), msgspec.json.Decoder(_Nested)
BACKEND = "delegation:"
"""Begin of the keys of delegated answers."""


class OpenAILive(Live):
    """OpenAI's GPT-Live. It sends sound all the time, and no event begins or ends an answer.

    Audible sound, its transcript or a delegation to the client begins an answer, and a silence ends it. The events `answer.started` and
    `answer.ended` are added to it: they have the model, the format, and whether the user interrupted. A delegation to the Responses
    API is an answer of its own with the events of that API. The model speaks what the client or the delegated response says.
    """

    format: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "audio/pcm", "rate": 24000})
    backend: str | None = None
    """Model of delegated answers."""
    pause: list[Message] = msgspec.field(default_factory=list)
    """Messages since the last output of the spoken answer, which are part of it only if more follows."""
    interrupted_ns: int | None = None
    """When the user began to speak within the spoken answer."""

    def from_client(self, message: Message, answers: Answers) -> None:
        event = decoded(_live_decoder, message.payload)
        if event is None:
            return
        if event.type == "session.input_audio.append":
            if self.hear(message, event.audio, self.format.get("type")) and _spoken(answers) is not None:
                self.pause.append(message._replace(payload=SPEECH, wire_bytes=0))
        elif event.type in ("session.start", "session.update"):
            self._configure(event.session or _Session())
        elif event.type == "session.commentary.append":
            self.ask(message)
        elif event.type == "response.create":
            self.ask(message)
            self.begin(message, answers, BACKEND, self.backend)

    def from_server(self, message: Message, answers: Answers) -> None:
        event = decoded(_live_decoder, message.payload)
        spoken = _spoken(answers)
        if event is None:
            if spoken is not None:
                answers.add(spoken, message)
            return
        kind = event.type
        is_audio = kind == "session.output_audio.delta"
        is_audible = is_audio and loudness(event.delta, self.format.get("type")) >= AUDIBLE
        if spoken is not None:
            silence_ns, has_turn = (
                message.at_ns - self.output_ns,
                is_audible and self.spoke_ns > self.output_ns,
            )
            if kind == "session.closed" or silence_ns > (TURN_PAUSE_NS if has_turn else ANSWER_PAUSE_NS):
                self._end(spoken, answers)
                spoken = None
        if event.session is not None:
            self._configure(event.session)
        elif kind == "response.event":
            self._add_delegated(event, message, answers)
        elif (
            kind == "session.delegation.created"
            and event.delegation
            and event.delegation.target == "responses"
        ):
            self.begin(message, answers, BACKEND + (event.delegation.id or ""), self.backend)
        elif is_audible or kind in ("session.output_transcript.delta", "session.delegation.created"):
            self._speak(spoken, message, answers)
        elif is_audio and spoken is not None:
            if len(self.pause) < MAX_PAUSE_MESSAGES and len(message.payload) <= MAX_PAUSE_BYTES:
                self.pause.append(message)
        elif kind == "error":
            answers.add(None, message)

    def _configure(self, session: _Session) -> None:
        self.model, self.session = session.model or self.model, session.id or self.session
        if session.audio is not None and session.audio.format is not None:
            self.format = session.audio.format
        if session.delegation is not None and session.delegation.responses is not None:
            self.backend = session.delegation.responses.model or self.backend

    def _speak(self, spoken: Answer | None, message: Message, answers: Answers) -> None:
        if spoken is None:
            spoken = self.begin(message, answers)
            started = {"type": "answer.started", "model": self.model, "format": self.format}
            answers.add(spoken, message._replace(payload=msgspec.json.encode(started), wire_bytes=0))
        for before in self.pause:
            answers.add(spoken, before)
            if before.payload == SPEECH:
                self.interrupted_ns = before.at_ns
        self.pause, self.output_ns = [], message.at_ns
        answers.add(spoken, message)

    def _end(self, spoken: Answer, answers: Answers) -> None:
        """End the answer with its last output. The user has interrupted it if they spoke until then."""
        interrupted = self.interrupted_ns is not None and self.output_ns - self.spoke_ns <= SPEECH_PAUSE_NS
        payload = b'{"type":"answer.ended","reason":"%b"}' % (b"interrupted" if interrupted else b"silence")
        answers.add(spoken, Message(self.output_ns, self.output_ns, payload, 0))
        answers.end_answer(spoken, self.output_ns)
        self.pause, self.interrupted_ns = [], None

    def _add_delegated(self, event: _LiveEvent, message: Message, answers: Answers) -> None:
        key = BACKEND + (event.delegation_id or "")
        delegated = [answer for answer in answers.open if answer.key.startswith(BACKEND)]
        answer = next((a for a in delegated if a.key == key), None)
        answer = answer or next((a for a in delegated if a.key == BACKEND or key == BACKEND), None)
        nested = decoded(_nested_decoder, bytes(event.event)) or _Nested()
        if answer is None:
            answer = self.begin(message, answers, key, self.backend)
        answer.key = max(answer.key, key)
        answers.add(answer, message._replace(payload=bytes(event.event)))
        if nested.type in ENDS or nested.type == "error":
            answers.end_answer(answer, message.at_ns)
            self.ask(message)


def _spoken(answers: Answers) -> Answer | None:
    return next((answer for answer in answers.open if not answer.key), None)


def decoded(decoder: msgspec.json.Decoder[T], payload: bytes) -> T | None:
    """None: no JSON object, or a member of another type."""
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None

"""Which messages of a WebSocket belong to which answer, for each protocol. No I/O, no clock.

A protocol is a `SocketProtocol`: it gets each message of either side, in order of arrival, and calls the methods of `Answers`. Its
fields are its whole state: `ship` stores them. A message that it does not add to an answer is only counted.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from streamgauge.ingest.websockets.live import ENDS, GeminiLive, OpenAILive, decoded
from streamgauge.ingest.websockets.messages import Message
from streamgauge.ingest.websockets.socket_protocol import Answer, Answers, SocketProtocol


class Responses(SocketProtocol):
    """OpenAI's Responses API.

    `response.create` begins an answer. A socket may carry several conversations (`stream_id`). The events of one conversation
    belong to its oldest open answer, unless their response id names another one.
    """

    def from_client(self, message: Message, answers: Answers) -> None:
        event = head_of(message.payload)
        if event is not None and event.type == "response.create":
            answers.begin(message, event.stream_id or "")

    def from_server(self, message: Message, answers: Answers) -> None:
        event = head_of(message.payload)
        if event is None:
            _add_malformed(message, answers)
            return
        kind, answer = event.type, None
        response_id = event.response.id if event.response is not None else None
        for one in answers.open:
            if event.stream_id is None or one.key == event.stream_id:
                if one.response_id is not None and one.response_id == response_id:
                    answer = one
                    break
                answer = answer or one
        failed = kind == "error"
        if answer is None:
            if failed:
                answers.add(None, message)
            return
        if kind == "response.created":
            if answer.response_id is not None:  # of an answer that begins before the one before it has ended
                waiting = (a for a in answers.open if a.key == answer.key and a.response_id is None)
                answer = next(waiting, answer)
            answer.response_id = response_id
        answers.add(answer, message)
        if failed or kind in ENDS:
            answers.end_answer(answer, message.at_ns)


class Realtime(SocketProtocol):
    """OpenAI's Realtime API. Its `error` ends an answer only if it refuses the request of one.

    `response.create` begins an answer, which `response.created` names. Without it the server began one: its time zero is the end
    of speech that the server detected. The user's speech and `response.cancel` are events of the open answers, because they may
    interrupt them. A function's result, unlike a message of the user, begins no turn.
    """

    model: str | None = None
    session: str | None = None
    asked: Message | None = None
    """The end of speech that no answer has followed so far."""
    answers_speech: bool = True
    """The server begins an answer at the end of speech."""
    new_turn: bool = False
    """The user has said something since the last answer."""

    def from_client(self, message: Message, answers: Answers) -> None:
        event = head_of(message.payload)
        if event is None:
            return
        if event.type == "response.create":
            self._begin(message, answers, event.event_id)
        elif event.type == "response.cancel":
            for answer in answers.open:
                answers.add(answer, message._replace(wire_bytes=0))
        elif event.type == "conversation.item.create" and event.item is not None:
            self.new_turn |= event.item.role == "user"

    def from_server(self, message: Message, answers: Answers) -> None:
        event = head_of(message.payload)
        if event is None:
            _add_malformed(message, answers)
            return
        kind = event.type
        if event.session is not None:
            self._configure(event.session)
        elif kind in ("input_audio_buffer.speech_stopped", "input_audio_buffer.timeout_triggered"):
            if self.answers_speech:
                self.asked = message._replace(payload=b"", wire_bytes=0)
        elif kind == "input_audio_buffer.committed":
            self.new_turn = True
        elif kind == "input_audio_buffer.speech_started":
            for answer in answers.open:
                if answer.response_id is not None:
                    answers.add(answer, message)
        elif kind == "error":
            refused = event.error.event_id if event.error is not None else None
            if event.error is not None and event.error.code == "response_cancel_not_active":
                return
            waiting = [a for a in answers.open if a.response_id is None and refused in (None, a.key)]
            if waiting:
                answers.add(waiting[-1], message)
                answers.end_answer(waiting[-1], message.at_ns)
            else:
                answers.add(None, message)
        elif kind == "rate_limits.updated" or kind.startswith("response."):
            self._add(kind, event, message, answers)

    def _configure(self, session: _Session) -> None:
        self.model, self.session = session.model or self.model, session.id or self.session
        audio = session.audio if isinstance(session.audio, dict) else {}
        inputs = audio.get("input")
        detection = session.turn_detection
        if isinstance(inputs, dict):
            detection = inputs.get("turn_detection", detection)
        if detection is not msgspec.UNSET:
            self.answers_speech = (
                isinstance(detection, dict) and detection.get("create_response") is not False
            )

    def _add(self, kind: str, event: Head, message: Message, answers: Answers) -> None:
        response_id = event.response_id or (event.response.id if event.response is not None else None)
        answer = next((a for a in answers.open if a.response_id == response_id), None)
        if kind == "response.created" and (answer is None or response_id is None):
            unnamed = [a for a in answers.open if a.response_id is None]
            asked = self.asked or message._replace(payload=b"", wire_bytes=0)
            is_asked = unnamed and (self.asked is None or unnamed[0].t0_ns < asked.at_ns)
            answer = unnamed[0] if is_asked else self._begin(asked, answers)
            answer.response_id, self.asked = response_id, None
        elif kind == "rate_limits.updated":
            answer = next((a for a in reversed(answers.open) if a.response_id is not None), None)
        if answer is not None:
            answers.add(answer, message)
            if kind == "response.done":
                answers.end_answer(answer, message.at_ns)

    def _begin(self, message: Message, answers: Answers, event_id: str | None = None) -> Answer:
        """The body is that of a request: `response.create` has the parameters in a member, and the session has the model."""
        found = _create_or_none(message.payload)
        asked = {} if found is None or found.response is None else found.response
        if asked.get("conversation") != "none":
            asked["conversation"] = self.session
        body = {"model": self.model, "input": "" if self.new_turn else [], "stream": True, **asked}
        self.new_turn = False
        payload = msgspec.json.encode(body)
        return answers.begin(
            message._replace(payload=payload),
            event_id or "",
            "server" if found is None and self.asked else None,
        )


class _Create(msgspec.Struct):
    response: dict[str, Any] | None = None


_create_decoder = msgspec.json.Decoder(_Create)


def _create_or_none(payload: bytes) -> _Create | None:
    return decoded(_create_decoder, payload) if payload else None


def _add_malformed(message: Message, answers: Answers) -> None:
    """What is no JSON object belongs to the newest answer, as its malformed event."""
    if answers.open:
        answers.add(answers.open[-1], message)


class UnknownJSON(SocketProtocol):
    """A protocol without a class of its own: one answer for the socket, with the server's messages."""

    def from_client(self, message: Message, answers: Answers) -> None:
        if not answers.open:
            answers.begin(message)

    def from_server(self, message: Message, answers: Answers) -> None:
        if not answers.open:
            answers.begin(message._replace(payload=b"", wire_bytes=0))
        answers.add(answers.open[0], message)


class NoJSON(SocketProtocol):
    """No messages are known."""


AnyConversation = Responses | Realtime | GeminiLive | OpenAILive | UnknownJSON | NoJSON


def protocol_of(path: str, message: Message, side: Literal["client", "server"]) -> AnyConversation:
    """The protocol of a socket, by its first message."""
    event = head_of(message.payload)
    if event is None:
        return NoJSON()
    route = path.partition("?")[0].rstrip("/")
    if route.endswith("/realtime"):
        return Realtime()
    if route.endswith("/responses") or event.type == "response.create":
        return Responses()
    if route.endswith(("BidiGenerateContent", "BidiGenerateContentConstrained")) or event.setup is not None:
        return GeminiLive()
    if route.endswith("/live/sessions") or event.type == "session.start":
        return OpenAILive()
    return UnknownJSON()


class _Named(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    role: str | None = None
    event_id: str | None = None
    code: str | None = None


class _Session(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    audio: Any = None
    turn_detection: Any = msgspec.UNSET


class Head(msgspec.Struct):
    """The members that a protocol reads from an event."""

    type: str = ""
    stream_id: str | None = None
    event_id: str | None = None
    response_id: str | None = None
    response: _Named | None = None
    session: _Session | None = None
    item: _Named | None = None
    error: _Named | None = None
    setup: Any = None


_decoder = msgspec.json.Decoder(Head)


def head_of(payload: bytes) -> Head | None:
    """None: no JSON object, or a member of another type."""
    return decoded(_decoder, payload)

"""Which messages of a WebSocket belong to which answer, for each protocol. No I/O, no clock.

A protocol is a `Conversation`: it gets each message of either side, in order of arrival, and calls the methods of `Answers`. Its
fields are its whole state: `ship` stores them. A message that it does not add to an answer is only counted.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeVar

import msgspec

from streamgauge.ingest.websockets.messages import Message

T = TypeVar("T")


class Answer(msgspec.Struct):
    """An open answer. A protocol reads it, and may set `response_id`."""

    stream: str
    t0_ns: int
    """Time zero, since the t0 of the WebSocket."""
    key: str = ""
    """Name of the conversation on this socket, as the protocol chooses it."""
    response_id: str | None = None
    next_seq: int = 0
    request_bytes: int = 0
    response_bytes: int = 0


class Answers(Protocol):
    """What a protocol can do."""

    open: list[Answer]
    """The oldest first."""

    def begin(self, request: Message, key: str = "") -> Answer:
        """Begin an answer. Its time zero is that of `request`, whose payload is recorded as the request's body."""
        ...

    def add(self, answer: Answer | None, message: Message) -> None:
        """Add a message as one event of the answer. None: it concerns the socket (an error)."""
        ...

    def end_answer(self, answer: Answer, at_ns: int) -> None:
        """The answer is complete."""
        ...


class Conversation(msgspec.Struct, tag=True):
    """State of one socket's protocol."""

    def from_client(self, message: Message, answers: Answers) -> None: ...

    def from_server(self, message: Message, answers: Answers) -> None: ...


class Responses(Conversation):
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
        if failed or kind in _ENDS:
            answers.end_answer(answer, message.at_ns)


_ENDS = frozenset({"response.completed", "response.failed", "response.incomplete", "response.cancelled"})


class UnknownJSON(Conversation):
    """A protocol without a class of its own: one answer for the socket, with the server's messages."""

    def from_client(self, message: Message, answers: Answers) -> None:
        if not answers.open:
            answers.begin(message)

    def from_server(self, message: Message, answers: Answers) -> None:
        if not answers.open:
            answers.begin(message._replace(payload=b"", wire_bytes=0))
        answers.add(answers.open[0], message)


class NoJSON(Conversation):
    """No messages are known."""


AnyConversation = Responses | UnknownJSON | NoJSON


def protocol_of(path: str, message: Message, side: Literal["client", "server"]) -> AnyConversation:
    """The protocol of a socket, by its first message."""
    event = head_of(message.payload)
    if event is None:
        return NoJSON()
    if path.partition("?")[0].rstrip("/").endswith("/responses") or event.type == "response.create":
        return Responses()
    return UnknownJSON()


class _Response(msgspec.Struct):
    id: str | None = None


class Head(msgspec.Struct):
    """The members that a protocol reads from an event."""

    type: str = ""
    stream_id: str | None = None
    response: _Response | None = None


_decoder = msgspec.json.Decoder(Head)


def head_of(payload: bytes) -> Head | None:
    """None: no JSON object, or a member of another type."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None

"""The interface of the protocols of WebSockets: what they get, and what they can do. No I/O, no clock."""

from __future__ import annotations

from typing import Protocol

import msgspec

from streamgauge.ingest.records import SpeechEnd
from streamgauge.ingest.websockets.messages import Message


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

    @property
    def stream(self) -> str:
        """Of the socket."""
        ...

    def begin(self, request: Message, key: str = "", speech_end: SpeechEnd | None = None) -> Answer:
        """Begin an answer. Its time zero is that of `request`, whose payload is recorded as the request's body. `speech_end`: it is
        the end of the user's speech, from this source."""
        ...

    def add(self, answer: Answer | None, message: Message) -> None:
        """Add a message as one event of the answer. None: it concerns the socket (an error)."""
        ...

    def end_answer(self, answer: Answer, at_ns: int) -> None:
        """The answer is complete."""
        ...


class SocketProtocol(msgspec.Struct, tag=True):
    """State of one socket's protocol."""

    def from_client(self, message: Message, answers: Answers) -> None: ...

    def from_server(self, message: Message, answers: Answers) -> None: ...

"""Split the records of one WebSocket into records of one stream for each answer. No I/O, no clock.

The client's message that asked is the `Request` of its answer and its time zero. Each message of the server is one read of an
event stream. So everything that reads streams of Server-Sent Events reads answers of a WebSocket. The socket keeps its own
records, without frames.

Guarantees
- The same messages give the same answers and times, however they are cut into frames, reads and records. The same records give
  the same ids and numbers.
- Answers that are open at a gap, or when the bytes can no longer be decoded, end with a `Lost`. So do those of a splitter that
  raises an exception: its caller only reports it.
- `state` continues the splitter between two records.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec

from streamgauge.ingest.condensed_body import CondensedBody
from streamgauge.ingest.identifiers import ANSWER_DIGIT
from streamgauge.ingest.records import (
    Cause,
    Closed,
    Frames,
    Lost,
    Opened,
    Request,
    ResponseHeaders,
    SpeechEnd,
    StreamRecord,
)
from streamgauge.ingest.websockets.messages import (
    DirectionState,
    Message,
    MessageDecoder,
    negotiated,
)
from streamgauge.ingest.websockets.protocols import AnyConversation, UnknownJSON, protocol_of
from streamgauge.ingest.websockets.socket_protocol import Answer

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 65_536
"""A longer message of the client is condensed, as bodies are."""
MAX_WINDOWS = 4096
"""WebSockets whose compression windows one process keeps, about 200 KiB each. The oldest one is not decoded any further."""
MAX_OPEN_ANSWERS = 64
"""Of one socket. The oldest is lost."""
MAX_UNKNOWN_MESSAGES = 10_000
"""Messages of a protocol that is not known. Further ones are only counted."""
_SSE = ("content-type", "text/event-stream")
SocketRecord = TypeVar("SocketRecord", Frames, Closed)
_OF_SOCKET = ("sec-websocket-extensions", "upgrade", "content-type", "content-length", "transfer-encoding")


class SplitterState(msgspec.Struct, array_like=True, tag="splitter"):
    """Stored state of a splitter."""

    opened: Opened
    response: ResponseHeaders
    client: DirectionState
    server: DirectionState
    answers: list[Answer]
    answer_count: int
    message_count: int
    protocol: AnyConversation | None
    closed_first: Cause | None
    fault: str | None
    last_ns: int = 0


class Windows:
    """The splitters of one process with compression windows, the oldest first."""

    def __init__(self, counters: Counter[str], key: bytes = b"") -> None:
        """Counts evicted_windows, undecodable_websockets. `key`: of the hashes in the anatomy of requests."""
        self.counters, self.key = counters, key
        # Weak: a splitter that its owner drops is freed with its windows.
        self._splitters: WeakValueDictionary[str, AnswerSplitter] = WeakValueDictionary()

    def add(self, splitter: AnswerSplitter) -> None:
        self._splitters[splitter.stream] = splitter
        if len(self._splitters) > MAX_WINDOWS:
            self.counters["evicted_windows"] += 1
            next(self._splitters.values()).give_up("too_many_windows")

    def remove(self, splitter: AnswerSplitter) -> None:
        self._splitters.pop(splitter.stream, None)


class _Pending:
    """Events that have no record yet."""

    def __init__(self, answer: Answer | None) -> None:
        self.answer = answer
        """None: the socket."""
        self.frames: list[tuple[int, bytes]] = []
        self.wire_bytes: list[int] = []
        self.uncaptured_bytes = 0


class AnswerSplitter:
    """Splits the records of one socket."""

    def __init__(
        self, opened: Opened, response: ResponseHeaders, windows: Windows, *, storable: bool = False
    ) -> None:
        self._opened, self._response, self._windows = opened, response, windows
        self._headers = [(name, value) for name, value in response.headers if name not in _OF_SOCKET]
        self._compression = negotiated(response.headers)
        self._storable = storable
        self._client, self._server = self._decoders()
        self.open: list[Answer] = []
        self.fault: str | None = None
        """Why nothing is decoded any more."""
        self._answer_count = self._message_count = self._last_ns = 0
        self._protocol: AnyConversation | None = None
        self._closed_first: Cause | None = None
        """The cause of the end for an answer, after a Close frame."""
        self._made: list[StreamRecord] = []
        """Records of answers that were not returned yet."""
        self._pending: dict[str | None, _Pending] = {}
        """By stream; None: the socket."""
        if self._compression is not None:
            windows.add(self)

    @property
    def stream(self) -> str:
        """Of the socket."""
        return self._opened.stream

    @property
    def state(self) -> SplitterState:
        return SplitterState(
            self._opened, self._response, self._client.state, self._server.state, self.open, self._answer_count,
            self._message_count, self._protocol, self._closed_first, self.fault, self._last_ns,
        )  # fmt: skip

    @classmethod
    def restored(cls, state: SplitterState, windows: Windows) -> AnswerSplitter:
        splitter = cls(state.opened, state.response, windows, storable=True)
        splitter._client, splitter._server = splitter._decoders(state.client, state.server)
        splitter.open, splitter._protocol = state.answers, state.protocol
        splitter._answer_count, splitter._message_count = state.answer_count, state.message_count
        splitter._closed_first, splitter._last_ns = state.closed_first, state.last_ns
        if state.fault is not None:
            splitter.stop(state.fault)
        return splitter

    def _decoders(
        self, client: DirectionState | None = None, server: DirectionState | None = None
    ) -> tuple[MessageDecoder, MessageDecoder]:
        compression, storable = self._compression, self._storable
        return (
            MessageDecoder(from_client=True, compression=compression, storable=storable, state=client),
            MessageDecoder(from_client=False, compression=compression, storable=storable, state=server),
        )

    # -- records of the socket -----------------------------------------------------------------------------------------

    def split(self, record: SocketRecord) -> tuple[SocketRecord, list[StreamRecord], Exception | None]:
        """The socket's own record without its frames, and the records of its answers. An exception loses only these answers."""
        own, error, had_fault = record, None, self.fault is not None
        try:
            own = self._frames(record) if isinstance(record, Frames) else self._end(record)  # type: ignore[assignment]
        except Exception as raised:
            own, error = without_frames(record), raised
            self.give_up("splitter_failed")
        if self.fault is not None and not had_fault:
            self._windows.counters["undecodable_websockets"] += 1
        return own, self._take_made(), error

    def lose(self, cause: str) -> list[StreamRecord]:
        """Stop decoding. The records of the answers, which end with this cause."""
        if self.fault is None or self.open:
            self.give_up(cause)
        return self._take_made()

    def stop(self, fault: str) -> None:
        """Stop decoding. The answers stay open until `lose`."""
        self.fault = self.fault or fault
        self._client, self._server = self._decoders()  # frees the windows
        self._windows.remove(self)

    def give_up(self, cause: str) -> None:
        """As `lose`. The next call returns the records."""
        self.stop(cause)
        self._made += [_lost(answer, cause, self._opened.wall_ns + self._last_ns) for answer in self.open]
        self.open, self._pending = [], {}

    def _take_made(self) -> list[StreamRecord]:
        made, self._made = self._made, []
        return made

    def _end(self, closed: Closed) -> Closed:
        """A client that leaves while no answer is open ends the socket cleanly."""
        self._last_ns = closed.end_ns
        if self.fault is not None:
            return closed
        if closed.cause == "client_left" and not self.open:
            closed = msgspec.structs.replace(closed, cause="complete", detail=None)
        cause = closed.cause
        if cause == "complete":
            cause = self._closed_first or cause
        for answer in list(self.open):
            self._close(answer, closed.end_ns, cause, closed.detail, closed.client_left_ns)
        return closed

    def _frames(self, record: Frames) -> Frames:
        from_client = frozenset(record.from_client or ())
        for index, (at_ns, data) in enumerate(record.frames):
            if self.fault is not None:
                break
            self._last_ns = at_ns
            is_client = index in from_client
            decoder = self._client if is_client else self._server
            for message in decoder.feed(at_ns, data):
                self._message(message, is_client)
            if decoder.closed and self._closed_first is None:
                # The server ends an answer by closing, as it ends a body. A client that closes within one aborts it.
                self._closed_first = "client_left" if is_client else "complete"
            if decoder.fault is not None:
                self._write_pending()
                self.give_up(decoder.fault)
        events = self._pending.pop(None, None)
        self._write_pending()
        own = without_frames(record)
        if events is not None:
            uncaptured_bytes = max(0, own.uncaptured_bytes - sum(events.wire_bytes))
            own = msgspec.structs.replace(
                own, frames=events.frames, wire_bytes=events.wire_bytes, uncaptured_bytes=uncaptured_bytes
            )
        return own

    def _message(self, message: Message, is_client: bool) -> None:
        if self._protocol is None:
            self._protocol = protocol_of(self._opened.path, message, "client" if is_client else "server")
        if is_client:
            self._protocol.from_client(message, self)
        else:
            self._protocol.from_server(message, self)

    # -- what protocols do (`Answers`) ---------------------------------------------------------------------------------

    def begin(self, request: Message, key: str = "", speech_end: SpeechEnd | None = None) -> Answer:
        if len(self.open) >= MAX_OPEN_ANSWERS:
            self._write_pending()
            at_wall_ns = self._opened.wall_ns + request.at_ns
            self._made.append(_lost(self.open.pop(0), "too_many_answers", at_wall_ns))
        socket, index, t0_ns = self._opened, self._answer_count, request.at_ns
        self._answer_count += 1
        digits = hashlib.blake2b(f"{socket.stream} {index}".encode(), digest_size=17).hexdigest()
        wall_ns = socket.wall_ns + t0_ns
        answer = Answer(_uuid7(wall_ns, digits), t0_ns, key, request_bytes=request.wire_bytes)
        self.open.append(answer)
        self._make(
            msgspec.structs.replace(
                socket,
                stream=answer.stream,
                wall_ns=wall_ns,
                mono_ns=socket.mono_ns + t0_ns,
                client_start_ns=request.began_ns - t0_ns,
                span_id=digits[18:],
                parent_span_id=socket.span_id,
                connection_id=socket.stream,
                response_index=index,
                speech_end=speech_end,
            ),
            answer,
        )
        if request.payload:
            body, anatomy, is_condensed = request.payload, None, False
            if len(body) > MAX_REQUEST_BYTES and body[:1] == b"{":
                condenser = CondensedBody(self._windows.key)
                body, is_condensed = condenser.feed(body), True
                anatomy = condenser.anatomy
                if condenser.error is not None:
                    log.error("cannot read the anatomy of a request", exc_info=condenser.error)
            body, truncated = body[:MAX_REQUEST_BYTES], len(body) > MAX_REQUEST_BYTES
            asked = Request(
                answer.stream,
                answer.next_seq,
                body,
                truncated,
                condensed=is_condensed,
                anatomy=anatomy,
            )
            self._make(asked, answer)
        response = ResponseHeaders(self._response.status, [*self._headers, _SSE], 0)
        self._make(Frames(answer.stream, answer.next_seq, [], response, wire_bytes=[]), answer)
        return answer

    def add(self, answer: Answer | None, message: Message) -> None:
        t0_ns, stream = 0, None
        if answer is not None:
            t0_ns, stream = answer.t0_ns, answer.stream
            answer.response_bytes += message.wire_bytes
        pending = self._pending.get(stream)
        if pending is None:
            pending = self._pending[stream] = _Pending(answer)
        if isinstance(self._protocol, UnknownJSON):
            self._message_count += 1
            if self._message_count > MAX_UNKNOWN_MESSAGES:
                pending.uncaptured_bytes += message.wire_bytes
                return
        payload = message.payload
        if b"\n" in payload or b"\r" in payload:  # JSON has them only between its tokens
            payload = payload.replace(b"\n", b" ").replace(b"\r", b" ")
        pending.frames.append((message.at_ns - t0_ns, b"data: " + payload + b"\n\n"))
        pending.wire_bytes.append(message.wire_bytes)

    def end_answer(self, answer: Answer, at_ns: int) -> None:
        self._close(answer, at_ns, "complete", None, None)

    # -- records of answers --------------------------------------------------------------------------------------------

    def _make(self, record: Opened | Request | Frames | Closed, answer: Answer) -> None:
        self._made.append(record)
        answer.next_seq = record.seq + 1

    def _write_pending(self) -> None:
        for stream in [stream for stream in self._pending if stream is not None]:
            self._write(stream)

    def _write(self, stream: str) -> None:
        pending = self._pending.pop(stream, None)
        if pending is not None and pending.answer is not None:
            frames = Frames(
                stream, pending.answer.next_seq, pending.frames, None, pending.uncaptured_bytes, wire_bytes=pending.wire_bytes
            )  # fmt: skip
            self._make(frames, pending.answer)

    def _close(
        self, answer: Answer, at_ns: int, cause: Cause, detail: str | None, client_left_ns: int | None
    ) -> None:
        self._write(answer.stream)
        self.open.remove(answer)
        t0_ns = answer.t0_ns
        closed = Closed(
            answer.stream, answer.next_seq, cause, detail, at_ns - t0_ns, 0, 0, answer.request_bytes, answer.response_bytes,
            answer.response_bytes, None, None if client_left_ns is None else client_left_ns - t0_ns, True,
        )  # fmt: skip
        self._make(closed, answer)


def _lost(answer: Answer, cause: str, at_wall_ns: int) -> Lost:
    return Lost(answer.stream, answer.next_seq, answer.next_seq, cause, at_wall_ns, 0, True)


def _uuid7(wall_ns: int, digits: str) -> str:
    """The UUIDv7 with this time and these random digits."""
    time = f"{wall_ns // 1_000_000 & 0xFFFFFFFFFFFF:012x}"
    return f"{time[:8]}-{time[8:]}-7{digits[:3]}-{ANSWER_DIGIT}{digits[3:6]}-{digits[6:18]}"


def without_frames(record: SocketRecord) -> SocketRecord:
    """A record of a socket without its bytes, which are counted as not captured."""
    if not isinstance(record, Frames):
        return record
    from_client: Sequence[int] = record.from_client or ()
    sent = sum(len(record.frames[index][1]) for index in from_client)
    size = sum(len(data) for _, data in record.frames) - sent
    return msgspec.structs.replace(
        record, frames=[], from_client=None, uncaptured_bytes=record.uncaptured_bytes + size
    )

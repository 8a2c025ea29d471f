"""Redact the records of streams, in the order of the log, and keep the state of each stream.

Rules
 1. Only `Request.body` and the bytes of `Frames` change. Everything else stays as the tap wrote it.
 2. A body with a content coding is passed on decoded. `Frames.wire_bytes` has the received size of each read and
    `Frames.coding_fault` a fault of the coding. So analytics gets the same counts as if it had decoded the body.
 3. A stream whose content is captured (`capture`, globs of paths) passes unchanged, unless its client opted out. In every
    request, `conversation` is read from the body before, so that sessions have the same id with and without text.
 4. After a gap, and in a stream whose beginning is unknown, text and structure cannot be separated: everything is filled. A
    gap that no record reports is reported by a `Lost`.
 5. The number of streams in memory is bounded. Above the bound the oldest stream becomes unknown.
 6. A WebSocket is split into its answers (`streamgauge.ingest.websockets`), which are redacted like streams. Its own records pass
    without frames.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from streamgauge.ingest.content_coding import BodyDecoder
from streamgauge.ingest.header_fields import recorded_value
from streamgauge.ingest.records import (
    PLAIN,
    Alive,
    AnyRecord,
    Closed,
    CodingFault,
    Conversation,
    Damaged,
    Frames,
    Lost,
    Opened,
    Request,
    RequestAnatomy,
    ResponseHeaders,
    StreamRecord,
    body_coding,
    captures,
    encode,
)
from streamgauge.ingest.redaction import filler
from streamgauge.ingest.redaction.body_redactor import BodyRedactor, BodyState
from streamgauge.ingest.websockets.splitter import (
    AnswerSplitter,
    SocketRecord,
    SplitterState,
    Windows,
    without_frames,
)

MAX_STREAMS = 100_000
MAX_CODED_BYTES = 16 * 2**20
"""Bytes of a compressed body kept to decode it again after a restart. A restart loses a larger body."""
MAX_PLAIN_BYTES = 16 * 2**20
"""Maximum decoded bytes of one record. Above it, the stream is recorded as tap_lost."""
MAX_REQUEST_BYTES = 2**20
"""Limit for the decoded size of a compressed request."""
CODED_SLICE_BYTES = 512
MAX_SOCKET_BYTES = 2**18
"""Stored bytes of a WebSocket since its last stored windows (64 KiB)."""
_decode_socket = msgspec.msgpack.Decoder(list[SplitterState | Frames]).decode


log = logging.getLogger(__name__)


class StreamState(msgspec.Struct):
    """Stored state of one stream."""

    next_seq: int = 1
    captured: bool = False
    request_coding: str = ""
    coding: str = ""
    """Content coding of the response; "" before its head."""
    unknown: bool = False
    """There was a gap: the state of the body is unknown."""
    reported: bool = msgspec.field(default=False, name="told")
    """The gap is reported. `name` fixes the stored format."""
    body: BodyState | None = None
    """None for a compressed body: a decoder cannot be stored, so the compressed bytes are stored instead."""
    coded_bytes: int = 0
    opened: Opened | None = None
    """Of a request for a WebSocket, and `response`: until the first bytes."""
    response: ResponseHeaders | None = None
    socket: bool = False
    """The stored bytes are those of a WebSocket: a `SplitterState`, then records."""


class _Stream:
    __slots__ = ("body", "coded", "decoding", "saved_bytes", "splitter", "state")

    def __init__(self, state: StreamState) -> None:
        self.state = state
        self.body = BodyRedactor(state=state.body)
        self.decoding: BodyDecoder | None = None
        self.coded: list[bytes] = []
        """Compressed bytes that are not stored yet; of a WebSocket, encoded items."""
        self.splitter: AnswerSplitter | None = None
        self.saved_bytes = 0
        """Stored bytes of a WebSocket."""


class Change(msgspec.Struct, frozen=True):
    """State of a changed stream, and its compressed bytes since the last change."""

    stream: str
    state: bytes
    coded: bytes
    replaces: bool = False
    """`coded` replaces the stored bytes."""


def _decoded_request(decoding: BodyDecoder, body: bytes) -> tuple[bytes, bool]:
    """The start of a compressed body, and whether it is cut. A slice of the input bounds the memory of one call."""
    plain, at = bytearray(), 0
    while at < len(body) and len(plain) < MAX_REQUEST_BYTES:
        plain += decoding.feed(body[at : at + CODED_SLICE_BYTES])
        at += CODED_SLICE_BYTES
    is_cut = at < len(body) or len(plain) > MAX_REQUEST_BYTES or decoding.broken or decoding.bomb
    return bytes(plain[:MAX_REQUEST_BYTES]), is_cut


class Redactor:
    """Redacts records, in the order of the log."""

    def __init__(
        self,
        *,
        capture: Sequence[str] = (),
        conversation: Callable[[bytes, bool, RequestAnatomy | None], Conversation | None] = lambda *_: None,
        key: bytes = b"",
        max_streams: int = MAX_STREAMS,
    ) -> None:
        """`conversation` reads a plain body, whether it is cut, and its anatomy if the tap read it. `key`: of the hashes in the anatomy
        of a WebSocket's requests."""
        self._conversation = conversation
        self._capture = tuple(capture)
        self._max_streams = max_streams
        self._streams: dict[str, _Stream] = {}
        self._changed: set[str] = set()
        self._ended: set[str] = set()
        self._answers: list[StreamRecord] = []
        """Records of answers that are to be redacted."""
        self.counters: Counter[str] = Counter()
        """redacted_bytes, captured_streams, unknown_streams, already_shipped_records, undecodable_websockets, evicted_windows."""
        self._windows = Windows(self.counters, key)

    def __len__(self) -> int:
        return len(self._streams)

    def redact(self, records: Iterable[AnyRecord]) -> list[AnyRecord]:
        """The records without text. Records that the stored state already covers are dropped: they were shipped before."""
        redacted: list[AnyRecord] = []
        for record in records:
            own = self._redact(record)
            if own is not None:
                redacted.append(own)
            if self._answers:
                answers, self._answers = self._answers, []
                redacted += self.redact(answers)
        return redacted

    def _redact(self, record: AnyRecord) -> AnyRecord | None:
        if isinstance(record, (Alive, Damaged)):
            return record
        stream = self._streams.get(record.stream)
        if isinstance(record, Opened) and stream is None:
            self._open(record)
            return msgspec.structs.replace(record, headers=_headers(record.headers))
        if stream is None:
            stream = self._unknown(record.stream)
        state = stream.state
        if record.last_seq < state.next_seq:
            if isinstance(record, Lost) and state.unknown:  # the cause of a gap before records that arrived
                self._lose_answers(stream, record.cause)
                return record
            # The start of a gap may have been shipped before it was dropped.
            self.counters["already_shipped_records"] += 1
            return None
        if record.seq > state.next_seq and not state.unknown:
            self._mark_unknown(stream, None)
        state.next_seq = record.last_seq + 1
        self._changed.add(record.stream)
        if record.ends_stream:
            if isinstance(record, Closed) and (splitter := stream.splitter) is not None:
                record = self._split(record, splitter)
            # Answers are still open if no record gave the cause of a gap.
            self._lose_answers(stream, record.cause if isinstance(record, Lost) else "redaction_state_lost")
            self._forget(record.stream)
        elif isinstance(record, Lost):
            self._mark_unknown(stream, record.cause)
        elif isinstance(record, Request):
            return self._request(record, state)
        elif isinstance(record, Frames):
            if record.from_client is not None:
                record = self._websocket(record, stream)
            elif state.opened is not None:
                state.response = record.response or state.response
            return record if state.captured else self._frames(record, stream)
        return record

    # -- WebSockets ----------------------------------------------------------------------------------------------------

    def _websocket(self, record: Frames, stream: _Stream) -> Frames:
        """The socket's own record. Those of its answers are redacted next."""
        state, response = stream.state, record.response or stream.state.response
        splitter = stream.splitter
        if splitter is None and state.opened is not None and response is not None:
            splitter = stream.splitter = AnswerSplitter(state.opened, response, self._windows, storable=True)
            state.opened, state.response, state.socket = None, None, True
            stream.coded = [msgspec.msgpack.encode(splitter.state)]
        if splitter is None:
            return without_frames(record)
        if splitter.fault is None:
            stream.coded.append(encode(record))
        return self._split(record, splitter)

    def _split(self, record: SocketRecord, splitter: AnswerSplitter) -> SocketRecord:
        own, answers, error = splitter.split(record)
        if error is not None:
            log.error("cannot split the answers of the WebSocket %s", record.stream, exc_info=error)
        self._answers += answers
        return own

    def _lose_answers(self, stream: _Stream, cause: str) -> None:
        if stream.splitter is not None:
            self._answers += stream.splitter.lose(cause)

    def _forget(self, stream_id: str) -> None:
        del self._streams[stream_id]
        self._changed.discard(stream_id)
        self._ended.add(stream_id)

    def _open(self, record: Opened) -> None:
        headers = dict(record.headers)
        captured = captures(record, self._capture)
        self.counters["captured_streams"] += captured
        state = StreamState(captured=captured, request_coding=headers.get("content-encoding", ""))
        if record.asks_for_websocket and record.connection_id is None:
            state.opened = record
        self._add(record.stream, state)

    def _add(self, stream_id: str, state: StreamState) -> _Stream:
        stream = self._streams[stream_id] = _Stream(state)
        self._changed.add(stream_id)
        self._ended.discard(stream_id)
        if len(self._streams) > self._max_streams:
            oldest = next(iter(self._streams))
            self._lose_answers(self._streams[oldest], "too_many_open_streams")
            self._forget(oldest)
        return stream

    def _unknown(self, stream_id: str) -> _Stream:
        self.counters["unknown_streams"] += 1
        return self._add(stream_id, StreamState(next_seq=0, unknown=True))

    def _mark_unknown(self, stream: _Stream, cause: str | None) -> None:
        """There is a gap: the state of the body after it is unknown, and analytics will not decode it either. `cause` None: a `Lost`
        record may still report it. Open answers wait for it."""
        stream.state.unknown = stream.state.reported = True
        stream.state.captured = False
        stream.coded = []
        if cause is not None:
            self._lose_answers(stream, cause)
        elif stream.splitter is not None:
            stream.splitter.stop("redaction_state_lost")
        stream.body, stream.decoding = BodyRedactor(), None

    # -- bodies --------------------------------------------------------------------------------------------------------

    def _request(self, record: Request, state: StreamState) -> AnyRecord:
        body, truncated, decoded = record.body, record.truncated, record.decoded
        if state.unknown:
            if not state.reported:
                return self._lost(record, state, 0)
            filled = filler.plain(body, filler.EVERY_BYTE)
            return msgspec.structs.replace(record, body=filled, conversation=None)
        decoding = BodyDecoder("" if decoded else state.request_coding)
        if not decoding.plain:
            body, is_cut = _decoded_request(decoding, body)
            decoded, truncated = True, truncated or is_cut
        conversation = record.conversation or self._conversation(body, truncated, record.anatomy)
        if state.captured:
            return msgspec.structs.replace(record, conversation=conversation)
        self.counters["redacted_bytes"] += len(body)
        redacted = BodyRedactor(request=True).feed(body)
        return msgspec.structs.replace(
            record, body=redacted, truncated=truncated, decoded=decoded, conversation=conversation
        )

    def _frames(self, record: Frames, stream: _Stream) -> AnyRecord:
        state = stream.state
        size = sum(len(data) for _, data in record.frames)
        if state.unknown:
            if not state.reported:
                return self._lost(record, state, size)
            filled = [(at_ns, filler.plain(data, filler.EVERY_BYTE)) for at_ns, data in record.frames]
            return msgspec.structs.replace(record, frames=filled)
        if record.response is not None:
            headers = dict(reversed(record.response.headers))
            state.coding = body_coding(headers.get("content-type", ""), headers.get("content-encoding", ""))
            stream.decoding = None
            response = record.response
            response = msgspec.structs.replace(response, headers=_headers(response.headers))
            record = msgspec.structs.replace(record, response=response)
        if state.coding and record.wire_bytes is None:
            return self._coded_frames(record, stream, size)
        self.counters["redacted_bytes"] += size
        feed = stream.body.feed
        frames = [(at_ns, feed(data)) for at_ns, data in record.frames]
        return msgspec.structs.replace(record, frames=frames)

    def _coded_frames(self, record: Frames, stream: _Stream, size: int) -> Frames | Lost:
        decoding, feed = stream.decoding, stream.body.feed
        if decoding is None:
            decoding = stream.decoding = BodyDecoder(stream.state.coding)
        if decoding.plain:  # "identity"
            frames = [(at_ns, feed(data)) for at_ns, data in record.frames]
            return msgspec.structs.replace(record, frames=frames)
        self._keep_coded(stream, record, size)
        frames, plain_bytes = [], 0
        for at_ns, data in record.frames:
            plain = decoding.feed(data)
            plain_bytes += len(plain)
            if plain_bytes > MAX_PLAIN_BYTES:
                self._mark_unknown(stream, "record_too_large")
                return Lost(record.stream, record.seq, record.seq, "record_too_large", time.time_ns(), size)
            frames.append((at_ns, feed(plain)))
        self.counters["redacted_bytes"] += sum(len(data) for _, data in frames)
        fault: CodingFault | None = "broken" if decoding.broken else "bomb" if decoding.bomb else None
        wire = [len(data) for _, data in record.frames]
        return msgspec.structs.replace(record, frames=frames, wire_bytes=wire, coding_fault=fault)

    def _lost(self, record: Frames | Request, state: StreamState, size: int) -> Lost:
        state.reported = True
        return Lost(record.stream, record.seq, record.seq, "redaction_state_lost", time.time_ns(), size)

    def _keep_coded(self, stream: _Stream, record: Frames, size: int) -> None:
        stream.state.coded_bytes += size
        if stream.state.coded_bytes <= MAX_CODED_BYTES:
            stream.coded.extend(data for _, data in record.frames)

    # -- state for a restart ---------------------------------------------------------------------------------------------

    def changes(self) -> tuple[list[Change], list[str]]:
        """Changed streams since the last `mark_saved`, and the ids of streams that ended."""
        changed = []
        for stream_id in self._changed:
            stream = self._streams[stream_id]
            is_socket, replaces = stream.state.socket, False
            if is_socket and stream.splitter is not None:
                coded = _encode_items(stream.coded) if stream.coded else b""
                # After a fault the records are incomplete, and the state says that nothing more is decoded.
                replaces = (
                    stream.splitter.fault is not None or stream.saved_bytes + len(coded) > MAX_SOCKET_BYTES
                )
                if replaces:
                    coded = _encode_items([msgspec.msgpack.encode(stream.splitter.state)])
                stream.state.coded_bytes = len(coded) + (0 if replaces else stream.saved_bytes)
            else:
                coded = b"".join(stream.coded)
            stream.state.body = stream.body.state if is_socket or not stream.state.coded_bytes else None
            state = msgspec.msgpack.encode(stream.state)
            changed.append(Change(stream_id, state, coded, replaces))
        return changed, list(self._ended)

    def mark_saved(self) -> None:
        """Clear the changes: the result of `changes` is stored."""
        for stream_id in self._changed:
            stream = self._streams[stream_id]
            stream.coded, stream.saved_bytes = [], stream.state.coded_bytes
        self._changed.clear()
        self._ended.clear()

    def restore(self, stream_id: str, stored: bytes, coded: Sequence[bytes] = ()) -> None:
        """Continue a stream from its stored state. An unreadable state makes the stream unknown."""
        try:
            state = msgspec.msgpack.decode(stored, type=StreamState)
        except msgspec.DecodeError:
            self._unknown(stream_id)
            return
        if state.coded_bytes != sum(map(len, coded)):
            state.unknown = True  # the body grew beyond MAX_CODED_BYTES
        stream = self._add(stream_id, state)
        stream.saved_bytes = state.coded_bytes
        if state.socket:
            self._restore_socket(stream, coded)
        elif state.coded_bytes and not state.unknown:
            stream.decoding = BodyDecoder(state.coding)
            for data in coded:
                stream.body.feed(stream.decoding.feed(data))
        self._changed.discard(stream_id)

    def _restore_socket(self, stream: _Stream, coded: Sequence[bytes]) -> None:
        try:
            first, *records = [item for part in coded for item in _decode_socket(part)]
            assert isinstance(first, SplitterState)
            splitter = AnswerSplitter.restored(first, self._windows)
            for record in records:
                assert isinstance(record, Frames)
                splitter.split(record)
        except Exception:  # damaged, or of another version
            stream.state.unknown = True
            return
        stream.splitter = splitter


def _encode_items(items: Sequence[bytes]) -> bytes:
    return msgspec.msgpack.encode([msgspec.Raw(item) for item in items])


def _headers(headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The header fields, with hashes of values and words that may not be stored."""
    return [(name, recorded_value(name, value)) for name, value in headers]


def filled_poison(payload: bytes) -> bytes:
    """Fill an entry that is not a record. It keeps its format and size, so it is rejected for the same reason."""
    form, inner = payload[:1], payload[1:]
    if form == PLAIN and inner[:1] == b"\x91":  # one element that is not a record
        size = max(0, len(inner) - 6)
        return PLAIN + b"\x91\xc6" + size.to_bytes(4, "big") + b"x" * size
    return form + b"\xc1" * len(inner)

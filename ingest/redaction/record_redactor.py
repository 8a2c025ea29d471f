"""Redact the records of streams, one after the other, and keep where each stream stands.

Rules
 1. What leaves is as the tap wrote it, but for `Request.body` and the bytes of `Frames`: same records, numbers and times.
 2. A body with a content coding is decoded here and handed on decoded; `Frames.wire_bytes` keeps what each read was on the
    wire, `Frames.coding_fault` what was wrong with the coding, so that analytics counts as if it had decoded it.
 3. A stream whose content the operator captures (`capture`, globs of paths) goes as it is, unless its client said no.
 4. Behind a hole, and in a stream whose beginning is not known here, nothing can be told apart: everything is filled, and
    where nobody else knows of the hole a `Lost` tells it.
 5. Streams in memory are bounded; beyond the bound the oldest becomes unknown.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from ingest.records import (
    PLAIN,
    Alive,
    AnyRecord,
    Closed,
    CodingFault,
    Damaged,
    Frames,
    Lost,
    Opened,
    Request,
    captures,
)
from ingest.redaction import filler
from ingest.redaction.body_redactor import BodyRedactor, BodyState

MAX_STREAMS = 100_000
MAX_CODED_BYTES = 16 * 2**20
"""Of a compressed body so much is kept, to begin anew after a restart; one that grows beyond is lost then."""
MAX_REQUEST_BYTES = 2**20
"""Of a compressed request no more is unpacked."""


class Decoding(Protocol):
    """Undoes the content coding of one body, read by read."""

    broken: bool
    bomb: bool

    @property
    def plain(self) -> bool: ...

    def feed(self, data: bytes) -> bytes: ...


class StreamState(msgspec.Struct):
    """What must be known of one stream to go on with it."""

    next_seq: int = 1
    captured: bool = False
    request_coding: str = ""
    coding: str = ""
    """The content coding of the response; "" also before its head."""
    unknown: bool = False
    """Where its text stands is not known: there is a hole."""
    told: bool = False
    """And analytics knows it."""
    body: BodyState | None = None
    """None where the body is compressed: no decoder can be stored, so the body so far is kept in its place."""
    coded_bytes: int = 0


class _Stream:
    __slots__ = ("body", "coded", "decoding", "state")

    def __init__(self, state: StreamState) -> None:
        self.state = state
        self.body = BodyRedactor(state=state.body)
        self.decoding: Decoding | None = None
        self.coded: list[bytes] = []
        """Compressed bytes that no state has yet."""


class Change(msgspec.Struct, frozen=True):
    """What is new of a stream: its state now, and the compressed bytes that came since the last one."""

    stream: str
    state: bytes
    coded: bytes


class Redactor:
    """Redacts records, in the order of the log."""

    def __init__(
        self,
        decoding: Callable[[str], Decoding],
        *,
        capture: Sequence[str] = (),
        max_streams: int = MAX_STREAMS,
    ) -> None:
        """`decoding` makes a decoder of what a content-encoding header says."""
        self._decoding = decoding
        self._capture = tuple(capture)
        self._max_streams = max_streams
        self._streams: dict[str, _Stream] = {}
        self._changed: set[str] = set()
        self._ended: set[str] = set()
        self.counters: Counter[str] = Counter()
        """redacted_bytes, captured_streams, unknown_streams, already_shipped_records."""

    def __len__(self) -> int:
        return len(self._streams)

    def redact(self, records: Iterable[AnyRecord]) -> list[AnyRecord]:
        """The records without text. Those that the state has seen already are left out: they had left before it was kept."""
        made: list[AnyRecord] = []
        for record in records:
            one = self._one(record)
            if one is not None:
                made.append(one)
        return made

    def _one(self, record: AnyRecord) -> AnyRecord | None:
        if isinstance(record, (Alive, Damaged)):
            return record
        stream = self._streams.get(record.stream)
        if isinstance(record, Opened) and stream is None:
            self._open(record)
            return record
        if stream is None:
            stream = self._unknown(record.stream)
        state = stream.state
        last_seq = record.last_seq if isinstance(record, Lost) else record.seq
        if last_seq < state.next_seq:  # of a hole the first part may have left before it was dropped
            self.counters["already_shipped_records"] += 1
            return None
        if record.seq > state.next_seq and not state.unknown:
            self._lose_sight(stream)
        state.next_seq = last_seq + 1
        self._changed.add(record.stream)
        if isinstance(record, Closed) or (isinstance(record, Lost) and record.last):
            del self._streams[record.stream]
            self._changed.discard(record.stream)
            self._ended.add(record.stream)
        elif isinstance(record, Lost):
            self._lose_sight(stream)
        elif isinstance(record, Request):
            return record if state.captured else self._request(record, state)
        elif isinstance(record, Frames):
            return record if state.captured else self._frames(record, stream)
        return record

    def _open(self, record: Opened) -> None:
        headers = dict(record.headers)
        captured = captures(record, self._capture)
        self.counters["captured_streams"] += captured
        state = StreamState(captured=captured, request_coding=headers.get("content-encoding", ""))
        self._add(record.stream, state)

    def _add(self, stream_id: str, state: StreamState) -> _Stream:
        stream = self._streams[stream_id] = _Stream(state)
        self._changed.add(stream_id)
        self._ended.discard(stream_id)
        if len(self._streams) > self._max_streams:
            oldest = next(iter(self._streams))
            del self._streams[oldest]
            self._changed.discard(oldest)
            self._ended.add(oldest)
        return stream

    def _unknown(self, stream_id: str) -> _Stream:
        self.counters["unknown_streams"] += 1
        return self._add(stream_id, StreamState(next_seq=0, unknown=True))

    def _lose_sight(self, stream: _Stream) -> None:
        """There is a hole: where the text goes on behind it cannot be known, and nobody will decode it."""
        stream.state.unknown = stream.state.told = True
        stream.state.captured = False
        stream.coded = []
        stream.body, stream.decoding = BodyRedactor(), None

    # -- bodies --------------------------------------------------------------------------------------------------------

    def _request(self, record: Request, state: StreamState) -> AnyRecord:
        body, truncated, decoded = record.body, record.truncated, record.decoded
        if state.unknown:
            if not state.told:
                return self._tell(record, state, 0)
            return Request(
                record.stream, record.seq, filler.plain(body, filler.EVERY_BYTE), truncated, decoded
            )
        decoding = self._decoding("" if decoded else state.request_coding)
        if not decoding.plain:
            body, decoded = decoding.feed(body)[:MAX_REQUEST_BYTES], True
            truncated = truncated or decoding.broken or decoding.bomb
        self.counters["redacted_bytes"] += len(body)
        redacted = BodyRedactor(request=True).feed(body)
        return Request(record.stream, record.seq, redacted, truncated, decoded)

    def _frames(self, record: Frames, stream: _Stream) -> AnyRecord:
        state = stream.state
        size = sum(len(data) for _, data in record.frames)
        if state.unknown:
            if not state.told:
                return self._tell(record, state, size)
            filled = [(at_ns, filler.plain(data, filler.EVERY_BYTE)) for at_ns, data in record.frames]
            return msgspec.structs.replace(record, frames=filled)
        if record.response is not None:
            state.coding = next((v for k, v in record.response.headers if k == "content-encoding"), "")
            stream.decoding = None
        if state.coding and record.wire_bytes is None:
            return self._coded_frames(record, stream, size)
        self.counters["redacted_bytes"] += size
        feed = stream.body.feed
        frames = [(at_ns, feed(data)) for at_ns, data in record.frames]
        return Frames(
            record.stream,
            record.seq,
            frames,
            record.response,
            record.uncaptured_bytes,
            record.wire_bytes,
            record.coding_fault,
        )

    def _coded_frames(self, record: Frames, stream: _Stream, size: int) -> Frames:
        decoding, feed = stream.decoding, stream.body.feed
        if decoding is None:
            decoding = stream.decoding = self._decoding(stream.state.coding)
        if decoding.plain:  # "identity"
            frames = [(at_ns, feed(data)) for at_ns, data in record.frames]
            return msgspec.structs.replace(record, frames=frames)
        self._keep_coded(stream, record, size)
        frames = [(at_ns, feed(decoding.feed(data))) for at_ns, data in record.frames]
        self.counters["redacted_bytes"] += sum(len(data) for _, data in frames)
        fault: CodingFault | None = "broken" if decoding.broken else "bomb" if decoding.bomb else None
        wire = [len(data) for _, data in record.frames]
        return Frames(
            record.stream, record.seq, frames, record.response, record.uncaptured_bytes, wire, fault
        )

    def _tell(self, record: Frames | Request, state: StreamState, size: int) -> Lost:
        state.told = True
        return Lost(record.stream, record.seq, record.seq, "redaction_state_lost", time.time_ns(), size)

    def _keep_coded(self, stream: _Stream, record: Frames, size: int) -> None:
        stream.state.coded_bytes += size
        if stream.state.coded_bytes <= MAX_CODED_BYTES:
            stream.coded.extend(data for _, data in record.frames)

    # -- over a restart --------------------------------------------------------------------------------------------------

    def changes(self) -> tuple[list[Change], list[str]]:
        """What to keep of the streams that have changed since `kept`, and the ids of those that ended."""
        changed = []
        for stream_id in self._changed:
            stream = self._streams[stream_id]
            stream.state.body = None if stream.state.coded_bytes else stream.body.state
            state = msgspec.msgpack.encode(stream.state)
            changed.append(Change(stream_id, state, b"".join(stream.coded)))
        return changed, list(self._ended)

    def kept(self) -> None:
        """What `changes` told is stored."""
        for stream_id in self._changed:
            self._streams[stream_id].coded = []
        self._changed.clear()
        self._ended.clear()

    def restore(self, stream_id: str, kept: bytes, coded: Sequence[bytes] = ()) -> None:
        """Go on with a stream from what was kept of it. What cannot be read makes the stream unknown."""
        try:
            state = msgspec.msgpack.decode(kept, type=StreamState)
        except msgspec.DecodeError:
            self._unknown(stream_id)
            return
        if state.coded_bytes != sum(map(len, coded)):
            state.unknown = True  # it has grown beyond what is kept
        stream = self._add(stream_id, state)
        if state.coded_bytes and not state.unknown:
            stream.decoding = self._decoding(state.coding)
            for data in coded:
                stream.body.feed(stream.decoding.feed(data))
        self._changed.discard(stream_id)


def filled_poison(payload: bytes) -> bytes:
    """What is no record, as filler that is refused for the same reason: its format and size stay."""
    form, inner = payload[:1], payload[1:]
    if form == PLAIN and inner[:1] == b"\x91":  # one element that is no record
        return (
            PLAIN
            + b"\x91"
            + b"\xc6"
            + max(0, len(inner) - 6).to_bytes(4, "big")
            + b"x" * max(0, len(inner) - 6)
        )
    return form + b"\xc1" * len(inner)

"""One stream while its records come in, and what is known of it when it is over. No I/O, no clock.

An `OpenStream` only ever reads the records that follow one another without a gap. At the first hole its decoder stops for
good: what came after a hole cannot be dated or counted, so a stream with one ends as `tap_lost` and keeps nothing but
who it was and what the transport itself counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from analytics.decoded.dialect import ExchangeInfo
from analytics.decoding.content_coding import BodyDecoder
from analytics.decoding.stream_decoder import StreamDecoder
from analytics.measures.outcome import LOST, NO_BODY, Transport, Verdict, facts_of, judge
from analytics.measures.request_fields import NOTHING, RequestRead, header, read_request
from ingest.records import (
    AnyRecord,
    Closed,
    CodingFault,
    Lost,
    Opened,
    Request,
    ResponseHeaders,
    captures,
)
from ingest.redaction.record_redactor import Redactor

MAX_HOLES = 64
"""A stream keeps no more holes than this apart; further ones widen the last."""


@dataclass(frozen=True, slots=True)
class Hole:
    """Records [first_seq, last_seq] of a stream that will never come. `bytes` None: unknown."""

    first_seq: int
    last_seq: int
    cause: str
    bytes: int | None
    at_wall_ns: int


@dataclass(slots=True, kw_only=True)
class FinishedStream:
    """All that is known of a stream that is over: what `analytics.measures.measure` makes rows of."""

    stream_id: str
    partition: str
    started_wall_ns: int
    verdict: Verdict
    opened: Opened | None
    """None when it was lost."""
    request: RequestRead
    """What was asked for; stop sequences, which are written by users, only where content is captured."""
    response: ResponseHeaders | None
    closed: Closed | None
    decoder: StreamDecoder | None
    """None when no body was seen and no path is known."""
    holes: Sequence[Hole] = ()
    lost_bytes: int | None = None
    """Body bytes that passed and were not mirrored, by loss. None: unknown."""
    uncaptured_bytes: int = 0
    """Body bytes that are not mirrored, by rule."""
    capture_content: bool = False
    request_body: bytes | None = None
    """The request as captured, where the text of this stream is kept and it was not cut."""

    @property
    def lost(self) -> bool:
        """Nothing may be measured: part of it is missing."""
        return self.verdict.outcome == "tap_lost"


@dataclass(slots=True, eq=False)
class OpenStream:
    """One stream in flight. The assembler drives it; `next_seq` is the record that it waits for."""

    stream_id: str
    started_wall_ns: int
    next_seq: int = 0
    opened: Opened | None = None
    request: RequestRead = NOTHING
    request_body: bytes | None = None
    """Until the response's body begins; longer only where text is kept."""
    response: ResponseHeaders | None = None
    decoder: StreamDecoder | None = None
    pending_ns: list[int] = field(default_factory=list)
    pending: list[bytes] = field(default_factory=list)
    """Frames that are still to be decoded, none from behind a hole: when they came, and their bytes."""
    pending_wire_bytes: int | None = None
    """Size of those frames as received, where their content coding was undone before they came here."""
    coding_fault: CodingFault | None = None
    broken: bool = False
    """It has a hole: nothing more is decoded."""
    holes: list[Hole] = field(default_factory=list)
    body_bytes: int = 0
    """Body bytes in frames that were seen, also behind a hole."""
    uncaptured_bytes: int = 0
    last_ns: int = 0
    """Time from t0 of the newest record."""
    last_log_ns: int = 0
    """Log time of the newest record."""
    # What the log must keep for it, see `Assembler.position`.
    held: list[AnyRecord] = field(default_factory=list)
    held_offset: int = -1
    """Offset of the oldest entry with a record that no checkpoint holds, -1 when there is none."""
    held_since_ns: int = 0
    held_bytes: int = 0
    only_in_log: bool = False
    """No checkpoint can hold it: its text must not be stored, and cannot be taken out of compressed bytes piece by piece."""
    redactor: Redactor | None = None
    """Takes the text out of what checkpoints hold."""

    @property
    def event_count(self) -> int:
        """What it has in memory: events, and frames that are still to be decoded."""
        return len(self.pending) + (len(self.decoder.events) if self.decoder is not None else 0)

    def read_opened(self, record: Opened) -> None:
        self.opened = record
        self.started_wall_ns = record.wall_ns

    def read_request(self, record: Request) -> None:
        opened = self.opened
        if opened is not None:
            self.request = read_request(
                record.body,
                truncated=record.truncated,
                path=opened.path,
                headers={k: v for k, v in opened.headers if not (record.decoded and k == "content-encoding")},
            )
            self.request_body = None if record.truncated else record.body

    def take_wire(self, wire_bytes: Sequence[int], fault: CodingFault | None) -> None:
        """What frames that are to be decoded were as received."""
        self.pending_wire_bytes = (self.pending_wire_bytes or 0) + sum(wire_bytes)
        self.coding_fault = fault

    def decode(self, *, capture: Sequence[str]) -> None:
        """Decode the frames that wait."""
        times, self.pending_ns = self.pending_ns, []
        reads, self.pending = self.pending, []
        decoder = self.decoder or self.begin_body(capture=capture)
        wire_bytes = self.pending_wire_bytes
        decoder.feed_reads(times, reads, wire_bytes=wire_bytes)
        if wire_bytes is not None:
            self.pending_wire_bytes = 0
        if self.coding_fault is not None:
            decoder.coding_failed(self.coding_fault)

    def without_text(self, records: Sequence[AnyRecord], *, capture: Sequence[str]) -> list[AnyRecord]:
        """The next records of this stream as they may be stored."""
        if self.redactor is None:
            self.redactor = Redactor(BodyDecoder, capture=capture)
        return self.redactor.redact(records)

    def begin_body(self, *, capture: Sequence[str]) -> StreamDecoder:
        """Make the decoder of the body, from all that is known before it."""
        opened, response = self.opened, self.response
        if not self.captures(capture):
            self.request_body = None
        headers = response.headers if response is not None else []
        exchange = ExchangeInfo(
            method=opened.method if opened is not None else "POST",
            path=opened.path if opened is not None else "",
            status=response.status if response is not None else 0,
            content_type=header(headers, "content-type") or "",
            request_headers=dict(opened.headers) if opened is not None else {},
            response_headers=dict(headers),
            host=opened.server_address if opened is not None else "",
        )
        self.decoder = StreamDecoder(
            exchange,
            keep_text=self.captures(capture),
            coding_undone=self.pending_wire_bytes is not None,
        )
        return self.decoder

    def captures(self, capture: Sequence[str]) -> bool:
        """Whether text may be kept: asked for this path here, and not forbidden by the client."""
        return self.opened is not None and captures(self.opened, capture)

    def add_hole(self, hole: Hole) -> None:
        self.broken = True
        if len(self.holes) < MAX_HOLES:
            self.holes.append(hole)
            return
        last = self.holes[-1]
        known = last.bytes is not None and hole.bytes is not None
        self.holes[-1] = Hole(
            min(last.first_seq, hole.first_seq),
            max(last.last_seq, hole.last_seq),
            last.cause,
            (last.bytes or 0) + (hole.bytes or 0) if known else None,
            hole.at_wall_ns,
        )

    def explain_hole(self, record: Lost) -> bool:
        """A hole that was seen before it was told of gets its cause. False if there is none at that place."""
        for i, hole in enumerate(self.holes):
            if hole.cause == "missing" and record.seq <= hole.last_seq and record.last_seq >= hole.first_seq:
                parts = [Hole(record.seq, record.last_seq, record.cause, record.bytes, record.at_wall_ns)]
                if hole.first_seq < record.seq:
                    parts.insert(0, Hole(hole.first_seq, record.seq - 1, "missing", None, hole.at_wall_ns))
                if hole.last_seq > record.last_seq:
                    parts.append(Hole(record.last_seq + 1, hole.last_seq, "missing", None, hole.at_wall_ns))
                self.holes[i : i + 1] = parts
                return True
        return False

    def finish(self, partition: str, closed: Closed | None, *, capture: Sequence[str]) -> FinishedStream:
        """It is over: by its `Closed`, or because nothing more will come (then it is lost)."""
        lost = self.broken or closed is None
        captured = self.captures(capture)
        decoder = self.decoder
        if decoder is None and self.opened is not None:
            decoder = self.begin_body(capture=capture)
        verdict = LOST
        if not lost and closed is not None:
            if decoder is not None:
                decoder.finish()
            verdict = judge(
                self._transport(closed),
                facts_of(decoder) if decoder is not None and self.response is not None else NO_BODY,
                capture_content=captured,
            )
        return FinishedStream(
            stream_id=self.stream_id,
            partition=partition,
            started_wall_ns=self.started_wall_ns,
            verdict=verdict,
            opened=self.opened,
            request=self.request if captured else msgspec.structs.replace(self.request, stop_sequences=None),
            response=self.response,
            closed=closed,
            decoder=decoder,
            holes=self.holes,
            lost_bytes=self._lost_bytes(closed),
            uncaptured_bytes=self.uncaptured_bytes,
            capture_content=captured,
            request_body=self.request_body if captured else None,
        )

    def _transport(self, closed: Closed) -> Transport:
        response = self.response
        return Transport(
            cause=closed.cause,
            detail=closed.detail,
            status=response.status if response is not None else None,
            headers_ns=response.headers_ns if response is not None else None,
            end_ns=closed.end_ns,
            client_left_ns=closed.client_left_ns,
            tunnel=closed.tunnel,
            partial=self.uncaptured_bytes > 0,
        )

    def _lost_bytes(self, closed: Closed | None) -> int | None:
        if not self.broken:
            return 0 if closed is not None else None
        told = [hole.bytes for hole in self.holes]
        if told and all(n is not None for n in told):
            return sum(n for n in told if n is not None)
        if closed is not None:
            return max(0, closed.response_bytes - self.body_bytes - self.uncaptured_bytes)
        return None

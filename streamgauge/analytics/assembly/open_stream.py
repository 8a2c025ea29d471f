"""One stream in flight: its decoder, its record gaps and the records held for checkpoints. No I/O, no clock.

Decoding stops at the first record gap, because later events can be neither dated nor counted. Such a stream ends incomplete
and keeps only its identity and the counts of the transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from streamgauge.analytics.assembly.finished_stream import MISSING, FinishedStream, RecordGap
from streamgauge.analytics.assembly.record_validation import Failure
from streamgauge.analytics.decoding.conversation import ConversationReader
from streamgauge.analytics.decoding.decoded_body import body_of
from streamgauge.analytics.decoding.request_body import (
    NO_PARAMETERS,
    RequestParameters,
    parse_request_body,
    plain_body,
)
from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.ingest import identifiers
from streamgauge.ingest.records import (
    AnyRecord,
    Closed,
    CodingFault,
    Conversation,
    Lost,
    Opened,
    Request,
    ResponseHeaders,
    captures,
)
from streamgauge.ingest.redaction.record_redactor import Redactor
from streamgauge.ingest.websockets.splitter import AnswerSplitter

MAX_RECORD_GAPS = 64
"""Gaps kept per stream. Further ones extend the last."""


# Identity, not equality: comparing two streams would compare their decoders.
@dataclass(slots=True, eq=False)
class OpenStream:
    """One stream in flight, driven by `Partition`. `next_seq` is the number of the next expected record."""

    stream_id: str
    started_wall_ns: int
    next_seq: int = 0
    opened: Opened | None = None
    request: RequestParameters = NO_PARAMETERS
    conversation: Conversation | None = None
    request_body: bytes | None = None
    """Dropped when the response's body begins, unless text is kept."""
    response: ResponseHeaders | None = None
    decoder: StreamDecoder | None = None
    pending_ns: list[int] = field(default_factory=list)
    pending: list[bytes] = field(default_factory=list)
    """Times and bytes of the frames not decoded yet. Frames after a record gap are not added."""
    pending_wire_bytes: int | None = None
    """Wire size of the pending frames if the tap removed their content coding."""
    coding_fault: CodingFault | None = None
    incomplete: bool = False
    """It has a record gap: nothing more is decoded."""
    record_gaps: list[RecordGap] = field(default_factory=list)
    body_bytes: int = 0
    """Body bytes of all frames received, including those after a record gap."""
    closed: Closed | None = None
    """Its last record, while a gap waits for its cause."""
    failure: Failure | None = None
    """Why it cannot be decoded."""
    uncaptured_bytes: int = 0
    last_ns: int = 0
    """Time of the newest record since t0."""
    last_log_ns: int = 0
    """Log time of the newest record."""
    # Records that the log or a checkpoint must keep, see `Assembler.position`.
    held: list[AnyRecord] = field(default_factory=list)
    held_offset: int = -1
    """Offset of the oldest entry with a record that no checkpoint holds, or -1."""
    held_since_ns: int = 0
    held_bytes: int = 0
    only_in_log: bool = False
    """No checkpoint can hold its records: its text must not be stored and cannot be removed from a compressed body."""
    splitter: AnswerSplitter | None = None
    """Of a WebSocket: makes the records of its answers."""
    redactor: Redactor | None = None
    """Removes text from checkpoints."""

    @property
    def event_count(self) -> int:
        """Events and undecoded frames in memory."""
        return len(self.pending) + (len(self.decoder.events) if self.decoder is not None else 0)

    @property
    def is_websocket(self) -> bool:
        """Whether its frames are those of a WebSocket, not of an answer on it."""
        opened, response = self.opened, self.response
        if opened is None or opened.connection_id is not None or not opened.asks_for_websocket:
            return False
        return response is not None and response.status == 101

    def read_opened(self, record: Opened) -> None:
        path, method = identifiers.path(record.path), identifiers.name(record.method) or ""
        if path != record.path or method != record.method:
            record = msgspec.structs.replace(record, path=path, method=method)
        self.opened = record
        self.started_wall_ns = record.wall_ns
        if record.query_model is not None:
            self.request = RequestParameters(model=identifiers.name(record.query_model))

    def read_request(self, record: Request, read_conversation: ConversationReader) -> None:
        opened = self.opened
        if opened is not None:
            by_query, headers = self.request.model, dict(opened.headers)
            body, truncated = record.body, record.truncated
            if not record.decoded:
                body, truncated = plain_body(body, truncated, headers)
            headers.pop("content-encoding", None)
            request = parse_request_body(body, truncated=truncated, path=opened.path, headers=headers)
            self.conversation = _without_entry(
                record.conversation or read_conversation(body, truncated, record.anatomy)
            )
            if request.model is None and by_query is not None:
                request = msgspec.structs.replace(request, model=by_query)
            self.request = request
            self.request_body = None if record.truncated or record.condensed else record.body

    def add_wire_bytes(self, wire_bytes: Sequence[int], fault: CodingFault | None) -> None:
        self.pending_wire_bytes = (self.pending_wire_bytes or 0) + sum(wire_bytes)
        self.coding_fault = fault

    def decode(self, *, capture: Sequence[str]) -> None:
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
        """The next records of this stream, redacted for storage."""
        if self.redactor is None:
            self.redactor = Redactor(capture=capture)
        return [
            msgspec.structs.replace(record, conversation=self.conversation)
            if isinstance(record, Request)
            else record
            for record in self.redactor.redact(records)
        ]

    def begin_body(self, *, capture: Sequence[str]) -> StreamDecoder:
        opened, response = self.opened, self.response
        if not self.captures(capture):
            self.request_body = None
        headers = response.headers if response is not None else []
        exchange = ExchangeInfo(
            method=opened.method if opened is not None else "POST",
            path=opened.path if opened is not None else "",
            status=response.status if response is not None else 0,
            content_type=next((value for name, value in headers if name == "content-type" and value), ""),
            request_headers=dict(opened.headers) if opened is not None else {},
            response_headers=dict(headers),
            host=opened.server_address if opened is not None else "",
            stream_requested=self.request.stream or False,
            has_prompt=bool(self.conversation and self.conversation.turns),
            rpc_method=self.request.rpc_method or "",
            rpc_id=self.request.rpc_id or "",
        )
        self.decoder = StreamDecoder(
            exchange, keep_text=self.captures(capture), coding_undone=self.pending_wire_bytes is not None
        )
        return self.decoder

    def captures(self, capture: Sequence[str]) -> bool:
        """Whether its text may be kept: configured for this path, and not forbidden by the client."""
        return self.opened is not None and captures(self.opened, capture)

    def add_gap(self, gap: RecordGap) -> None:
        self.incomplete = True
        if len(self.record_gaps) < MAX_RECORD_GAPS:
            self.record_gaps.append(gap)
            return
        last = self.record_gaps[-1]
        known = last.bytes is not None and gap.bytes is not None
        self.record_gaps[-1] = RecordGap(
            min(last.first_seq, gap.first_seq),
            max(last.last_seq, gap.last_seq),
            last.cause,
            (last.bytes or 0) + (gap.bytes or 0) if known else None,
            gap.at_wall_ns,
        )

    def explain_gap(self, record: Lost) -> bool:
        """Set the cause of gaps that were detected before their `Lost` record arrived. False if there are none."""
        gaps, size = list[RecordGap](), record.bytes
        for gap in self.record_gaps:
            first, last = max(record.seq, gap.first_seq), min(record.last_seq, gap.last_seq)
            if gap.cause != MISSING or first > last:
                gaps.append(gap)
                continue
            last = max(last, record.last_seq) if record.last_seq >= self.next_seq else last
            parts = (
                replace(gap, last_seq=first - 1),
                RecordGap(first, last, record.cause, size, record.at_wall_ns),
                replace(gap, first_seq=last + 1),
            )
            gaps += [part for part in parts if part.first_seq <= part.last_seq]
            size = 0  # the first part has the bytes of the whole loss
        explained, self.record_gaps = gaps != self.record_gaps, gaps
        return explained

    def finish(self, partition: str, closed: Closed | None, *, capture: Sequence[str]) -> FinishedStream:
        """End the stream. `closed` None: no more records will come."""
        complete = not self.incomplete and closed is not None
        captured = self.captures(capture)
        if self.decoder is None and self.opened is not None:
            self.begin_body(capture=capture)
        if complete and self.decoder is not None:
            self.decoder.is_partial = self.uncaptured_bytes > 0
            self.decoder.finish()
        return FinishedStream(
            stream_id=self.stream_id,
            partition=partition,
            started_wall_ns=self.started_wall_ns,
            complete=complete,
            opened=self.opened,
            request=self.request if captured else msgspec.structs.replace(self.request, stop_sequences=None),
            response=self.response,
            closed=closed,
            body=body_of(self.decoder) if self.decoder is not None else None,
            conversation=self.conversation,
            record_gaps=self.record_gaps,
            lost_bytes=self._lost_bytes(closed),
            uncaptured_bytes=self.uncaptured_bytes,
            capture_content=captured,
            request_body=self.request_body if captured else None,
        )

    def _lost_bytes(self, closed: Closed | None) -> int | None:
        if not self.incomplete:
            return 0 if closed is not None else None
        reported = [gap.bytes for gap in self.record_gaps]
        if reported and all(n is not None for n in reported):
            return sum(n for n in reported if n is not None)
        if closed is not None:
            return max(0, closed.response_bytes - self.body_bytes - self.uncaptured_bytes)
        return None


def _without_entry(conversation: Conversation | None) -> Conversation | None:
    """With a copy of the prompt's segments, because those of a decoded record keep its whole log entry in memory."""
    if conversation is None or conversation.anatomy is None:
        return conversation
    copied = conversation.anatomy.encoded_segments.copy()
    anatomy = msgspec.structs.replace(conversation.anatomy, encoded_segments=copied)
    return msgspec.structs.replace(conversation, anatomy=anatomy)

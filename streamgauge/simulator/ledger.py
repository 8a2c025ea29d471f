"""The ground truth of the simulator: one row per request. Measurements are compared with it.

A row (`LedgerRow`) is created when the request has been read and is complete when `end_ns` is set.

- `*_ns` is CLOCK_MONOTONIC of this machine, absolute. Times of writes are taken *before* the write,
  `received_ns` and `complete_ns` after the read. A proxy on the same machine therefore connects before
  `received_ns` and receives an output no earlier than its time here: `measured ttft >= first_output_ns - complete_ns`.
- Counts cover the bytes written to the socket. After the fault `reset` or a disconnect of the client, some bytes may not have
  arrived. Counts are then upper bounds (`exact` is false).
- The list of output times is bounded (`outputs_beyond` counts further outputs). The ledger is a ring (`dropped` counts evicted
  rows).
"""

from __future__ import annotations

import hashlib
import http.client
from collections import deque
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec

from streamgauge.simulator.response_plan import ResponsePlan
from streamgauge.simulator.response_writer import BodyPart, ResponseWriter, Usage

MAX_OUTPUT_TIMES = 1000


class LedgerRow(msgspec.Struct, kw_only=True):
    """The ground truth of one request."""

    seq: int
    """Index of the request, in order of arrival."""
    request_id: str
    """The client's `x-request-id`, else a generated id. The response repeats it in `x-request-id`."""
    client_request_id: bool
    """Whether the client sent the id."""
    trace_id: str | None = None
    span_id: str | None = None
    """Span of the sender (the tap), from the received `traceparent`."""
    method: str = ""
    path: str = ""
    model: str | None = None
    speaker: str | None = None
    """Vendor format of the response. None if no response was planned (404)."""
    streamed: bool = False
    status: int | None = None
    """HTTP status sent; None without a response."""
    fault: str = "none"
    fault_after: int | None = None
    """Output events before the fault; None when no fault occurred."""
    fault_ns: int | None = None
    expected_outcome: str | None = None
    """Expected `streams.outcome`; None while open."""
    error_type: str | None = None
    """Expected `streams.error_type`; None = not determined by the response."""
    error_phase: str | None = None
    exact: bool = True

    wall_ns: int
    """Wall-clock time of `received_ns`."""
    received_ns: int
    """Time when the first bytes of the request were read."""
    complete_ns: int
    """Time when the last byte of the request was read."""
    head_ns: int | None = None
    first_byte_ns: int | None = None
    first_event_ns: int | None = None
    first_output_ns: int | None = None
    first_answer_ns: int | None = None
    """Time of the first output that is not reasoning."""
    last_output_ns: int | None = None
    terminal_ns: int | None = None
    end_ns: int | None = None
    """End of the response: last write, reset, or detected disconnect of the client."""
    client_left_ns: int | None = None
    """Time when the client disconnected, if before the end of the response."""
    outputs_ns: list[int] = []
    """Times of the first MAX_OUTPUT_TIMES output events. Events of one write have the same time."""
    outputs_beyond: int = 0

    events: int = 0
    """SSE events with data, including `[DONE]` and malformed events."""
    output_events: int = 0
    unframed: int = 0
    """Messages outside SSE framing (Gemini's bare error object); a parser may count each as an event."""
    comments: int = 0
    malformed_events: int = 0
    writes: int = 0
    body_bytes: int = 0
    """Body bytes, after content coding, without chunk framing."""
    body_sha256: str | None = None
    first_output_end_byte: int | None = None
    """Body bytes up to the end of the write with the first output event."""
    text_chars: int = 0
    reasoning_chars: int = 0
    refusal_chars: int = 0
    tool_calls: int = 0
    choices: int = 1
    text: str | None = None
    reasoning: str | None = None
    """Generated text of choice 0; only with `keep_text`."""

    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    """Billed tokens so far, reasoning included."""
    reasoning_tokens: int | None = None
    visible_tokens: int | None = None
    """Output tokens without hidden reasoning."""
    usage: Usage | None = None
    """The last usage report sent, normalised."""
    usage_final: bool = False
    usage_reports: int = 0
    finish_reason: str | None = None
    """Finish reason of choice 0, as sent."""
    response_id: str | None = None
    coding: str = "identity"

    response_index: int | None = None
    """Index of the answer on its WebSocket; None for HTTP. Bytes are then those of the payloads of frames, and `body_sha256` is
    that of the messages."""
    asked_by_server: bool = False
    """Server VAD began the answer: `complete_ns` is the time before the write of `speech_stopped`."""
    warm_up: bool = False
    """The request asked for no output (`generate: false`)."""
    audio_ns: int = 0
    """Length of the generated audio."""
    first_audio_ns: int | None = None
    last_audio_ns: int | None = None
    interrupted_ns: int | None = None
    """Time of the user's speech or the cancellation that ended the answer."""

    @property
    def span_ns(self) -> int | None:
        """Time from the first to the last output. None if there are fewer than two, or several choices."""
        if self.first_output_ns is None or self.last_output_ns is None:
            return None
        return (
            None if self.output_events < 2 or self.choices > 1 else self.last_output_ns - self.first_output_ns
        )

    @property
    def itl_ns(self) -> float | None:
        """The inter-token latency of the sent response. None if it is undefined."""
        span_ns, tokens = self.span_ns, self.visible_tokens or 0
        return None if span_ns is None or tokens < 2 else span_ns / (tokens - 1)


_encode = msgspec.json.Encoder().encode


class RowBuilder:
    """Fills one row while its response is sent."""

    def __init__(self, row: LedgerRow, *, keep_text: bool) -> None:
        self.row = row
        self.keep_text = keep_text
        self._digest = hashlib.sha256()

    def copy_plan(self, plan: ResponsePlan, writer: ResponseWriter) -> None:
        row = self.row
        row.model, row.speaker, row.streamed = plan.model, plan.vendor, plan.streamed
        row.fault, row.choices, row.coding = plan.fault, plan.choices, plan.coding
        row.response_id = writer.id
        row.input_tokens, row.cached_input_tokens = plan.input_tokens, plan.cached_tokens

    def wrote(
        self, body_parts: list[BodyPart], body: bytes, at_ns: int, wire_bytes: int | None = None
    ) -> None:
        """Count a write of `body`, which consists of `body_parts`. `wire_bytes`: its size on the wire if that differs."""
        row = self.row
        row.writes += 1
        row.body_bytes += len(body) if wire_bytes is None else wire_bytes
        self._digest.update(body)
        if row.first_byte_ns is None:
            row.first_byte_ns = at_ns
        for body_part in body_parts:
            row.comments += body_part.comments
            row.unframed += body_part.unframed
            if body_part.events:
                row.events += body_part.events
                if row.first_event_ns is None:
                    row.first_event_ns = at_ns
            if body_part.piece is not None:
                self._output(body_part, at_ns)
            if body_part.audio_ns:
                row.audio_ns += body_part.audio_ns
                row.last_audio_ns = at_ns
                row.first_audio_ns = row.first_audio_ns or at_ns
            if body_part.usage is not None:
                row.usage, row.usage_final = body_part.usage, body_part.final_usage
                row.usage_reports += 1
            if body_part.finish_reason is not None and row.finish_reason is None:
                row.finish_reason = body_part.finish_reason
            if body_part.terminal and row.terminal_ns is None:
                row.terminal_ns = at_ns

    def _output(self, body_part: BodyPart, at_ns: int) -> None:
        row, piece = self.row, body_part.piece
        assert piece is not None
        row.output_events += 1
        row.last_output_ns = at_ns
        if row.first_output_ns is None:
            row.first_output_ns = at_ns
            row.first_output_end_byte = row.body_bytes
        if row.first_answer_ns is None and piece.kind != "reasoning":
            row.first_answer_ns = at_ns
        if len(row.outputs_ns) < MAX_OUTPUT_TIMES:
            row.outputs_ns.append(at_ns)
        else:
            row.outputs_beyond += 1
        if piece.kind == "text":
            row.text_chars += len(piece.text)
        elif piece.kind == "reasoning":
            row.reasoning_chars += len(piece.text)
        elif piece.kind == "refusal":
            row.refusal_chars += len(piece.text)

    def copy_totals(self, writer: ResponseWriter) -> None:
        row = self.row
        row.output_tokens, row.visible_tokens = writer.output_tokens, writer.visible_tokens
        row.reasoning_tokens, row.tool_calls = writer.reasoning_tokens, writer.tool_calls
        if self.keep_text:
            row.text, row.reasoning = writer.text_of("text", "audio"), writer.text_of("reasoning")

    def fault_occurred(self, at_ns: int) -> None:
        self.row.fault_ns, self.row.fault_after = at_ns, self.row.output_events

    def ended(self, at_ns: int) -> None:
        """Decide the expected outcome. Sets `end_ns` last, because a row with `end_ns` is complete for concurrent readers."""
        row = self.row
        row.body_sha256 = self._digest.hexdigest()
        row.exact = row.client_left_ns is None and row.fault != "reset"
        row.expected_outcome, row.error_phase = self._outcome()
        if row.expected_outcome == "ok":
            row.error_type = None
        elif row.expected_outcome in ("client_abort", "upstream_reset"):
            row.error_type = row.expected_outcome
        elif row.expected_outcome == "truncated":
            row.error_type = "stream_truncated"
        elif row.expected_outcome == "malformed":
            row.error_type = "malformed_stream"
        row.end_ns = at_ns

    def _outcome(self) -> tuple[str, str | None]:
        row = self.row
        phase = "pre_first_output" if row.first_output_ns is None else "mid_stream"
        if row.terminal_ns is not None:
            return "ok", None
        fault_occurred = row.fault_ns is not None
        if fault_occurred and row.fault == "inband_error":
            return "inband_error", phase
        if row.status is not None and row.status >= 400:
            return "http_error", "pre_headers"
        if row.client_left_ns is not None:
            return "client_abort", "pre_headers" if row.status is None else phase
        if fault_occurred and row.fault in ("truncate", "malformed"):
            return ("truncated" if row.fault == "truncate" else "malformed"), phase
        if fault_occurred and row.fault in ("reset", "cut", "reset_before_head"):
            return "upstream_reset", "pre_headers" if row.status is None else phase
        return ("truncated", phase) if row.streamed else ("ok", None)


class Ledger:
    """The last `limit` rows, oldest first."""

    def __init__(self, limit: int = 10_000) -> None:
        self._rows: deque[LedgerRow] = deque(maxlen=limit)
        self.total = 0
        self.dropped = 0
        """Evicted rows."""
        self.open = 0
        """Responses in progress."""

    def add(self, row: LedgerRow) -> None:
        if len(self._rows) == self._rows.maxlen:
            self.dropped += 1
        self._rows.append(row)

    def next_seq(self) -> int:
        self.total += 1
        return self.total - 1

    def rows(self, after: int = -1, request_id: str | None = None) -> Iterator[LedgerRow]:
        """Rows with `seq` above `after`, optionally of one request id."""
        for row in tuple(self._rows):
            if row.seq > after and request_id in (None, row.request_id):
                yield row

    def lines(self, after: int = -1, request_id: str | None = None) -> bytes:
        """The rows as JSON lines."""
        return b"".join(_encode(row) + b"\n" for row in self.rows(after, request_id))


def decode_lines(data: bytes) -> list[LedgerRow]:
    """Decode rows from JSON lines. Raises msgspec.DecodeError."""
    decoder = msgspec.json.Decoder(LedgerRow)
    return [decoder.decode(line) for line in data.splitlines() if line]


class RemoteLedger:
    """A copy of the ledger. `refresh` blocks: do not call it on an event loop."""

    def __init__(self, url: str, *, keep_times_of: int = 5_000, most_rows: int = 1_000_000) -> None:
        """`keep_times_of`: number of rows whose output times are kept. `most_rows`: rows that are kept, the newest."""
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._keep_times_of, self._most_rows = keep_times_of, most_rows
        self._rows: dict[int, LedgerRow] = {}
        self.dropped = 0
        """Rows that the simulator evicted before they were fetched."""
        self.forgotten = 0
        """Rows above `most_rows`."""

    def refresh(self, timeout_s: float = 20.0) -> None:
        """Fetch new rows and rows that were open. Raises OSError when the simulator does not respond."""
        open_rows = [seq for seq, row in self._rows.items() if row.end_ns is None]
        after = min(open_rows) - 1 if open_rows else max(self._rows, default=-1)
        connection = http.client.HTTPConnection(*self._address, timeout=timeout_s)
        try:
            connection.request("GET", f"/simulator/ledger?after={after}")
            data = connection.getresponse().read()
        except http.client.HTTPException as e:
            raise OSError(f"cannot read the simulator's ledger: {type(e).__name__}") from None
        finally:
            connection.close()
        for row in decode_lines(data):
            if len(self._rows) + self.forgotten > self._keep_times_of:
                row.outputs_ns = []
            self._rows[row.seq] = row
        while len(self._rows) > self._most_rows:
            del self._rows[next(iter(self._rows))]
            self.forgotten += 1
        if self._rows:
            self.dropped = max(self._rows) + 1 - len(self._rows) - self.forgotten

    def rows(self) -> list[LedgerRow]:
        """All rows, in order of arrival."""
        return [self._rows[seq] for seq in sorted(self._rows)]

    @property
    def open_rows(self) -> int:
        return sum(row.end_ns is None for row in self._rows.values())

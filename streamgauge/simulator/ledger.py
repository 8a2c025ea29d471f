"""The simulator's own account of every request: the truth that measurements are compared with.

One row (`LedgerRow`) per request, made when its head has been read and complete when `end_ns` is set. Rules:

- Every `*_ns` is CLOCK_MONOTONIC of this machine, absolute, and taken *before* the bytes in question are handed to the
  socket; `received_ns` and `complete_ns` are taken after the read returned. So for whoever sits between the client and
  the simulator, on the same machine: it turned to the simulator before `received_ns`, and saw an output no earlier than
  the time given here. `measured ttft ≥ first_output_ns - complete_ns` is physics, not tolerance.
- Counts are of what was handed to the socket. When `fault` is `reset`, or the client left, bytes may have been lost on
  the way: the counts are then upper bounds (`exact` is false).
- The list of output times is bounded (`outputs_beyond` counts the rest), the ledger is a ring (`dropped` counts the rows
  that fell out of it).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator

import msgspec

from streamgauge.simulator.plan import Plan
from streamgauge.simulator.speakers.speaker import Speaker, Usage, Wire

MAX_OUTPUT_TIMES = 1000


class LedgerRow(msgspec.Struct, kw_only=True):
    """The truth about one request."""

    seq: int
    """Number of the request, from 0, in order of arrival."""
    request_id: str
    """The client's `x-request-id`, else one made here and sent as the response's `x-request-id`."""
    client_request_id: bool
    """The client gave it."""
    trace_id: str | None = None
    span_id: str | None = None
    """From the `traceparent` received: the span of whoever sent the request (the tap)."""
    method: str = ""
    path: str = ""
    model: str | None = None
    speaker: str | None = None
    """Vendor that was spoken like; None for a request that is no generation (a model list, a 404)."""
    streamed: bool = False
    status: int | None = None
    """HTTP status sent; None when none was."""
    fault: str = "none"
    fault_after: int | None = None
    """Output events after which the fault came; None when it never came to it."""
    fault_ns: int | None = None
    expected_outcome: str | None = None
    """`streams.outcome` as definitions.md has it, decided at the end; None while open."""
    error_type: str | None = None
    """Expected `streams.error_type`; None = not decided by what was sent."""
    error_phase: str | None = None
    exact: bool = True

    wall_ns: int
    """Wall clock, read together with `received_ns`."""
    received_ns: int
    """First bytes of the request were read."""
    complete_ns: int
    """The request's last byte was read."""
    head_ns: int | None = None
    first_byte_ns: int | None = None
    first_event_ns: int | None = None
    first_output_ns: int | None = None
    first_answer_ns: int | None = None
    """First output that is not reasoning."""
    last_output_ns: int | None = None
    terminal_ns: int | None = None
    end_ns: int | None = None
    """The response was over: last write, reset, or the client seen gone."""
    client_left_ns: int | None = None
    """The client was seen to be gone before the response was over."""
    outputs_ns: list[int] = []
    """Time of each output event (several in one write share it), at most MAX_OUTPUT_TIMES."""
    outputs_beyond: int = 0

    events: int = 0
    """SSE events with data, `[DONE]` and malformed ones included."""
    output_events: int = 0
    unframed: int = 0
    """Messages outside SSE framing (Gemini's bare error object): a reader may count each as an event."""
    comments: int = 0
    malformed_events: int = 0
    writes: int = 0
    body_bytes: int = 0
    """Body bytes, after content coding, without chunk framing."""
    body_sha256: str | None = None
    first_output_end_byte: int | None = None
    """Body bytes up to the end of the write that held the first output event."""
    text_chars: int = 0
    reasoning_chars: int = 0
    refusal_chars: int = 0
    tool_calls: int = 0
    choices: int = 1
    text: str | None = None
    reasoning: str | None = None
    """What was said (choice 0); only with `keep_text`."""

    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    """Tokens said so far, reasoning included: what the vendor would bill."""
    reasoning_tokens: int | None = None
    visible_tokens: int | None = None
    """N of the definitions: output tokens without hidden reasoning."""
    usage: Usage | None = None
    """The last usage report sent, as a correct reader normalises it."""
    usage_final: bool = False
    usage_reports: int = 0
    finish_reason: str | None = None
    """As sent, choice 0."""
    response_id: str | None = None
    coding: str = "identity"


_encode = msgspec.json.Encoder().encode


class Account:
    """Keeps one row while its response is being written."""

    def __init__(self, row: LedgerRow, *, keep_text: bool) -> None:
        self.row = row
        self.keep_text = keep_text
        self._digest = hashlib.sha256()

    def planned(self, plan: Plan, speaker: Speaker) -> None:
        row = self.row
        row.model, row.speaker, row.streamed = plan.model, plan.speaker, plan.streamed
        row.fault, row.choices, row.coding = plan.fault, plan.choices, plan.coding
        row.response_id = getattr(speaker, "id", plan.token)
        row.input_tokens, row.cached_input_tokens = plan.input_tokens, plan.cached_tokens

    def wrote(self, wires: list[Wire], body: bytes, at_ns: int) -> None:
        """`body` holds `wires`, and is being handed to the socket now."""
        row = self.row
        row.writes += 1
        row.body_bytes += len(body)
        self._digest.update(body)
        if row.first_byte_ns is None:
            row.first_byte_ns = at_ns
        for wire in wires:
            row.comments += wire.comments
            row.unframed += wire.unframed
            if wire.events:
                row.events += wire.events
                if row.first_event_ns is None:
                    row.first_event_ns = at_ns
            if wire.piece is not None:
                self._output(wire, at_ns)
            if wire.usage is not None:
                row.usage, row.usage_final = wire.usage, wire.final_usage
                row.usage_reports += 1
            if wire.finish_reason is not None and row.finish_reason is None:
                row.finish_reason = wire.finish_reason
            if wire.terminal and row.terminal_ns is None:
                row.terminal_ns = at_ns

    def _output(self, wire: Wire, at_ns: int) -> None:
        row, piece = self.row, wire.piece
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

    def said(self, speaker: Speaker) -> None:
        """Take over the speaker's totals."""
        row = self.row
        row.output_tokens, row.visible_tokens = speaker.output_tokens, speaker.said_tokens
        row.reasoning_tokens, row.tool_calls = speaker.reasoning_tokens, len(speaker.tools)
        if self.keep_text:
            row.text, row.reasoning = speaker.text[0], speaker.reasoning

    def fault_came(self, at_ns: int) -> None:
        self.row.fault_ns, self.row.fault_after = at_ns, self.row.output_events

    def ended(self, at_ns: int) -> None:
        """The response is over: decide what a correct measurement must say of it. The end is noted last: a row that has one is
        whole, to whoever reads it meanwhile."""
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
        came = row.fault_ns is not None
        if came and row.fault == "inband_error":
            return "inband_error", phase
        if row.status is not None and row.status >= 400:
            return "http_error", "pre_headers"
        if row.client_left_ns is not None:
            return "client_abort", "pre_headers" if row.status is None else phase
        if came and row.fault in ("truncate", "malformed"):
            return ("truncated" if row.fault == "truncate" else "malformed"), phase
        if came and row.fault in ("reset", "cut", "reset_before_head"):
            return "upstream_reset", "pre_headers" if row.status is None else phase
        return ("truncated", phase) if row.streamed else ("ok", None)


class Ledger:
    """The last `limit` rows, oldest first."""

    def __init__(self, limit: int = 10_000) -> None:
        self._rows: deque[LedgerRow] = deque(maxlen=limit)
        self._next = 0
        self.dropped = 0
        """Rows that fell out of the ring."""
        self.open = 0
        """Responses under way."""

    def add(self, row: LedgerRow) -> None:
        if len(self._rows) == self._rows.maxlen:
            self.dropped += 1
        self._rows.append(row)

    def next_seq(self) -> int:
        self._next += 1
        return self._next - 1

    @property
    def total(self) -> int:
        return self._next

    def rows(self, after: int = -1, request_id: str | None = None) -> Iterator[LedgerRow]:
        """Rows with a number above `after`; of one request id, if given."""
        for row in tuple(self._rows):
            if row.seq > after and request_id in (None, row.request_id):
                yield row

    def lines(self, after: int = -1, request_id: str | None = None) -> bytes:
        """The rows as JSON lines."""
        return b"".join(_encode(row) + b"\n" for row in self.rows(after, request_id))


def read_lines(data: bytes) -> list[LedgerRow]:
    """Rows from JSON lines. Raises msgspec.DecodeError on anything else."""
    decoder = msgspec.json.Decoder(LedgerRow)
    return [decoder.decode(line) for line in data.splitlines() if line]

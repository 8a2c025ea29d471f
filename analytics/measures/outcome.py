"""Decide how a stream ended: one closed list, decided by the semantic terminal, never by EOF or `[DONE]` alone.

Rules that this file keeps (docs/explanation/measurement.md has them as a table):

- The first cause wins, by time: an error event before the client left is the upstream's error, a client that left before the
  error event is the client's abort. Of an error and a terminal of the same event, the error is told.
- After the semantic terminal (first finish reason of every choice, or a terminal event) nothing turns a stream into a
  failure: who leaves or errs then leaves it `ok`, with `aborted_after_terminal` (left, reset) and phase `post_finish`.
- A hole is never guessed over: `tap_lost`, whatever else is known.
- What the transport says of an unfinished stream beats bad JSON in it: `malformed` explains only a clean end.
- No text of a prompt or an answer gets out of here: the provider's own message only when content is captured.

Where there is no terminal to wait for, a clean end is `ok`: a non-streamed body (its end is its terminal), a tunnel, a body
that is not mirrored by rule, and an event stream of an `unknown` dialect: which event would end it is exactly what is not
known, so calling it truncated would be a guess. A known dialect without its terminal is `truncated`, empty bodies included.

No I/O, no clock.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from analytics.decoded.decoded_event import ErrorReport
from analytics.decoding.stream_decoder import StreamDecoder
from analytics.measures.timing import first_output_ns
from ingest.records import Cause
from ingest.redaction.stored_values import title

Outcome = Literal[
    "ok",
    "http_error",
    "connect_error",
    "inband_error",
    "truncated",
    "upstream_reset",
    "idle_timeout",
    "client_abort",
    "malformed",
    "tap_lost",
]
Phase = Literal["pre_headers", "pre_first_output", "mid_stream", "post_finish"]

MAX_TYPE_CHARS = 100
MAX_MESSAGE_CHARS = 500

_BY_CAUSE: dict[str, tuple[Outcome, str | None]] = {
    # cause of the transport → outcome, error_type (None: the detail, an exception's class)
    "client_left": ("client_abort", "client_abort"),
    "upstream_reset": ("upstream_reset", "upstream_reset"),
    "connect_error": ("connect_error", None),
    "connect_timeout": ("connect_error", None),
    "headers_timeout": ("idle_timeout", "idle_timeout"),
    "idle_bytes": ("idle_timeout", "idle_timeout"),
    "idle_output": ("idle_timeout", "idle_timeout"),
    "bad_upstream": ("malformed", "malformed_stream"),
    "bad_request": ("http_error", "bad_request"),
    "tap_stopped": ("tap_lost", "tap_lost"),  # the tap itself cut it: neither side's failure
}


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """What the tap saw of the exchange. Times in ns from t0, None = did not happen."""

    cause: Cause = "complete"
    detail: str | None = None
    status: int | None = 200
    """Of the upstream's response; None when no head came."""
    headers_ns: int | None = None
    end_ns: int | None = None
    client_left_ns: int | None = None
    tunnel: bool = False
    partial: bool = False
    """Part of the body was not mirrored, by rule: what is not seen says nothing."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the decoder saw in the body. Times in ns from t0, None = not seen."""

    dialect: str = "unknown"
    streamed: bool = True
    first_output_ns: int | None = None
    terminal_ns: int | None = None
    terminal_seq: int | None = None
    """The event that was the terminal, where it is known: orders it against an error of the same read."""
    error: ErrorReport | None = None
    error_ns: int | None = None
    error_seq: int | None = None
    finish_reason: str | None = None
    finish_ns: int | None = None
    malformed_events: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """How it ended: the columns of `streams` of the same names."""

    outcome: Outcome
    error_type: str | None = None
    error_phase: Phase | None = None
    error_message: str | None = None
    aborted_after_terminal: bool = False


def facts_of(decoder: StreamDecoder) -> Facts:
    """The facts of a decoder, as plain values."""
    facts = {name: getattr(decoder, name) for name in Facts.__struct_fields__ if name != "first_output_ns"}
    return Facts(first_output_ns=first_output_ns(decoder.events), **facts)


NO_BODY = Facts(streamed=False)
"""The facts of an exchange whose response had no body."""

LOST = Verdict("tap_lost", "tap_lost")
"""The verdict on a stream with a hole. Its phase is unknown, so it is None."""


def judge(transport: Transport, facts: Facts = NO_BODY, *, capture_content: bool = False) -> Verdict:
    """How the exchange ended. `capture_content`: the provider's message may be kept (it can quote the prompt)."""
    status = transport.status
    if status is None:
        return _without_head(transport)
    if status >= 400:
        return _http_error(transport, facts, status, capture_content)
    terminal_ns = _terminal_ns(transport, facts)
    error, error_ns = _in_band_error(facts)
    left_ns = transport.client_left_ns
    if left_ns is None and transport.cause == "client_left" and not transport.tunnel:
        left_ns = transport.end_ns
    if error is not None and _error_counts(facts, error_ns, terminal_ns):
        if left_ns is not None and error_ns is not None and left_ns < error_ns:
            return Verdict("client_abort", "client_abort", _phase(facts, left_ns), _word(transport.detail))
        return Verdict(
            "inband_error",
            _short_type(error.type) or "inband_error",
            _phase(facts, error_ns),
            _message(error, capture_content),
        )
    if left_ns is not None and (terminal_ns is None or left_ns < terminal_ns) and not transport.tunnel:
        return Verdict("client_abort", "client_abort", _phase(facts, left_ns), _word(transport.detail))
    if terminal_ns is not None:
        aborted = left_ns is not None or transport.cause not in ("complete", "client_left")
        return Verdict(
            "ok",
            None,
            "post_finish" if aborted or error is not None else None,
            None,
            aborted and facts.streamed,
        )
    if transport.cause != "complete" and not (transport.tunnel and transport.cause == "client_left"):
        outcome, error_type = _BY_CAUSE[transport.cause]
        if outcome == "tap_lost":
            return LOST
        return Verdict(
            outcome,
            error_type or _short_type(transport.detail) or transport.cause,
            _phase(facts, transport.end_ns),
            _word(transport.detail),
        )
    if facts.malformed_events:
        return Verdict("malformed", "malformed_stream", _phase(facts, transport.end_ns))
    if facts.streamed and facts.dialect != "unknown" and not transport.partial and not transport.tunnel:
        return Verdict("truncated", "stream_truncated", _phase(facts, transport.end_ns))
    return Verdict("ok")


def _without_head(transport: Transport) -> Verdict:
    """Nothing came from the upstream. A clean "end" without a head is a connection that was closed on us."""
    left = transport.client_left_ns
    if left is not None and (transport.end_ns is None or left < transport.end_ns):
        return Verdict("client_abort", "client_abort", "pre_headers", _word(transport.detail))
    cause = "upstream_reset" if transport.cause == "complete" else transport.cause
    outcome, error_type = _BY_CAUSE[cause]
    if outcome == "tap_lost":
        return LOST
    error_type = error_type or _short_type(transport.detail) or cause
    return Verdict(outcome, error_type, "pre_headers", _word(transport.detail))


def _http_error(transport: Transport, facts: Facts, status: int, capture_content: bool) -> Verdict:
    left, head = transport.client_left_ns, transport.headers_ns
    if left is not None and head is not None and left < head:
        return Verdict("client_abort", "client_abort", "pre_headers", _word(transport.detail))
    error = facts.error
    error_type = _short_type(error.type) if error is not None else None
    return Verdict("http_error", error_type or str(status), "pre_headers", _message(error, capture_content))


def _terminal_ns(transport: Transport, facts: Facts) -> int | None:
    """When the answer was whole: nothing later can fail it. A body that is read as one is whole at its clean end."""
    if facts.streamed:
        return facts.terminal_ns
    if transport.cause == "complete" and not facts.malformed_events:
        return transport.end_ns
    return None


def _in_band_error(facts: Facts) -> tuple[ErrorReport | None, int | None]:
    if facts.error is not None:
        return facts.error, facts.error_ns
    if (facts.finish_reason or "").lower() == "error":
        return ErrorReport(None), facts.finish_ns
    return None, None


def _error_counts(facts: Facts, error_ns: int | None, terminal_ns: int | None) -> bool:
    """Whether the error came before the terminal, or with it."""
    if not facts.streamed or terminal_ns is None or error_ns is None:
        return True
    if facts.error_seq is not None and facts.terminal_seq is not None:
        return facts.error_seq <= facts.terminal_seq
    return error_ns <= terminal_ns


def _phase(facts: Facts, at_ns: int | None) -> Phase:
    first = facts.first_output_ns
    return "pre_first_output" if first is None or (at_ns is not None and at_ns < first) else "mid_stream"


def _short_type(value: str | None) -> str | None:
    """A type or code as the provider sent it, on one short line; what is no word of a kind is filler."""
    line = _one_line(value, MAX_TYPE_CHARS) if value else None
    return title(line) if line else None


def _word(detail: str | None) -> str | None:
    """The tap's own detail (an exception's class): never text from the wire."""
    return _one_line(detail, MAX_TYPE_CHARS) if detail else None


def _message(error: ErrorReport | None, capture_content: bool) -> str | None:
    if error is None or not capture_content or not error.message:
        return None
    return _one_line(error.message, MAX_MESSAGE_CHARS)


def _one_line(text: str, limit: int) -> str | None:
    line = " ".join(text.split())
    line = "".join(c for c in line if c.isprintable())
    return line[:limit] or None

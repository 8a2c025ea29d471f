"""Decide how a stream ended: one value of a closed list of outcomes. No I/O, no clock.

Rules (docs/explanation/measurement.md has them as a table):

- The first cause by time wins. An error event before the client left is the upstream's error, and a client that left before the
  error event is a client abort. If one event is both an error and a terminal, it is an error.
- The semantic terminal is a terminal event, or the event after which each choice has a finish reason. Nothing after it
  makes a stream fail: it stays `ok`, with phase `post_finish`, and with `aborted_after_terminal` if a side left or reset.
  EOF or `[DONE]` alone is no terminal.
- If output followed a finish reason, finish reasons prove the end of the stream only together with a clean end.
- A stream with missing records is always `tap_lost`.
- In an unfinished stream, the transport's cause takes precedence over invalid JSON: `malformed` requires a clean end.
- An upgrade to WebSocket that the server does not have is refused, as if the tap had refused it: clients probe for it.
- The provider's message is kept only if content is captured, because it can quote the prompt.

A clean end is `ok` where no terminal is expected: a non-streamed body (its end is its terminal), a tunnel or an open-ended
stream (their client may leave too), a body that is not recorded by rule, and an event stream of the dialect `unknown`,
because we cannot know which event ends it. A known dialect without its terminal is `truncated`, even if the body is empty,
and so is an empty response to a request for a stream.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.decoding.decoded_body import DecodedBody
from streamgauge.analytics.dialects.events import ErrorReport
from streamgauge.ingest import identifiers
from streamgauge.ingest.records import Cause, Refusal

Outcome = Literal[
    "ok", "http_error", "connect_error", "inband_error", "truncated", "upstream_reset", "idle_timeout", "client_abort",
    "malformed", "tap_lost", "refused",
]  # fmt: skip
Phase = Literal["pre_headers", "pre_first_output", "mid_stream", "post_finish"]

REFUSALS: tuple[str, ...] = get_args(Refusal)
"""The values of `error_type` of a refused request."""
MAX_MESSAGE_CHARS = 500

NO_WEBSOCKET = (404, 405, 426, 501)
"""Statuses of a server that has no WebSocket at this path. Clients then use HTTP."""

_BY_CAUSE: dict[str, tuple[Outcome, str | None]] = {
    # transport cause → outcome, error_type (None: use the detail, an exception class)
    "client_left": ("client_abort", "client_abort"),
    "upstream_reset": ("upstream_reset", "upstream_reset"),
    "connect_error": ("connect_error", None),
    "connect_timeout": ("connect_error", None),
    "headers_timeout": ("idle_timeout", "idle_timeout"),
    "idle_bytes": ("idle_timeout", "idle_timeout"),
    "idle_output": ("idle_timeout", "idle_timeout"),
    "bad_upstream": ("malformed", "malformed_stream"),
    "bad_request": ("refused", None),
    "tap_stopped": ("tap_lost", "tap_lost"),  # ended by the tap: neither side failed
}


# Structs of msgspec, not frozen dataclasses, which set every field through `object.__setattr__`: one of each is made per stream.
class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """The exchange as the tap observed it. Times in ns since t0, None if it did not happen."""

    cause: Cause = "complete"
    detail: str | None = None
    status: int | None = 200
    """Status of the response, None without a response."""
    headers_ns: int | None = None
    end_ns: int | None = None
    client_left_ns: int | None = None
    tunnel: bool = False
    upgrade: bool = False
    """The client asked for a WebSocket."""
    partial: bool = False
    """Part of the body is not recorded, by rule."""
    first_byte_ns: int | None = None
    """First byte of a body that is not recorded. It stands for its first output."""


class Verdict(msgspec.Struct, frozen=True):
    """The columns of `streams` with the same names."""

    outcome: Outcome
    error_type: str | None = None
    error_phase: Phase | None = None
    error_message: str | None = None
    aborted_after_terminal: bool = False

    @property
    def is_lost(self) -> bool:
        """Records are missing: nothing else may be measured."""
        return self.outcome == "tap_lost"


NO_BODY = DecodedBody(streamed=False)
"""That of an exchange without a response body."""

LOST = Verdict("tap_lost", "tap_lost")
"""The verdict on a stream with missing records. Its phase is unknown."""


def verdict_of(stream: FinishedStream) -> Verdict:
    closed, response = stream.closed, stream.response
    if closed is None or not stream.complete:
        return LOST
    transport = Transport(
        cause=closed.cause,
        detail=closed.detail,
        status=response.status if response is not None else None,
        headers_ns=response.headers_ns if response is not None else None,
        end_ns=closed.end_ns,
        client_left_ns=closed.client_left_ns,
        tunnel=closed.tunnel,
        upgrade=stream.opened is not None and stream.opened.asks_for_websocket,
        partial=stream.uncaptured_bytes > 0,
        first_byte_ns=closed.first_byte_ns,
    )
    body = stream.body if stream.body is not None and response is not None else NO_BODY
    return judge(transport, body, capture_content=stream.capture_content)


def judge(transport: Transport, body: DecodedBody = NO_BODY, *, capture_content: bool = False) -> Verdict:
    """The verdict on an exchange. `capture_content`: the provider's message may be kept."""
    status = transport.status
    if status is None:
        return _without_response(transport)
    if status >= 400:
        return _http_error(transport, body, status, capture_content)
    terminal_ns = _terminal_ns(transport, body)
    error, error_ns = body.error, body.error_ns
    client_left_ns = transport.client_left_ns
    open_ended = transport.tunnel or body.open_ended
    if client_left_ns is None and transport.cause == "client_left" and not open_ended:
        client_left_ns = transport.end_ns
    if error is not None and _error_counts(body, error_ns, terminal_ns):
        if client_left_ns is not None and error_ns is not None and client_left_ns < error_ns:
            return _client_abort(transport, _phase(transport, body, client_left_ns))
        error_type = identifiers.error_type(error.type) or "inband_error"
        message = _message(error, capture_content)
        return Verdict("inband_error", error_type, _phase(transport, body, error_ns), message)
    if (
        client_left_ns is not None
        and (terminal_ns is None or client_left_ns < terminal_ns)
        and not open_ended
    ):
        return _client_abort(transport, _phase(transport, body, client_left_ns))
    if terminal_ns is not None:
        aborted = client_left_ns is not None or transport.cause not in ("complete", "client_left")
        aborted = aborted and not transport.tunnel  # the tap decided that the end of a tunnel was clean
        phase: Phase | None = "post_finish" if aborted or error is not None else None
        return Verdict("ok", error_phase=phase, aborted_after_terminal=aborted and body.streamed)
    if transport.cause != "complete" and not (body.open_ended and transport.cause == "client_left"):
        return _by_cause(transport, transport.cause, _phase(transport, body, transport.end_ns))
    if body.malformed_events:
        return Verdict("malformed", "malformed_stream", _phase(transport, body, transport.end_ns))
    has_terminal = body.dialect != "unknown" or body.stream_is_missing
    if body.streamed and has_terminal and not transport.partial and not open_ended:
        return Verdict("truncated", "stream_truncated", _phase(transport, body, transport.end_ns))
    return Verdict("ok")


def _without_response(transport: Transport) -> Verdict:
    """No response arrived. A clean end then means that the upstream closed the connection."""
    client_left_ns = transport.client_left_ns
    if client_left_ns is not None and (transport.end_ns is None or client_left_ns < transport.end_ns):
        return _client_abort(transport, "pre_headers")
    return _by_cause(
        transport, "upstream_reset" if transport.cause == "complete" else transport.cause, "pre_headers"
    )


def _by_cause(transport: Transport, cause: Cause, phase: Phase) -> Verdict:
    """The verdict of the transport's cause, for an exchange without a semantic terminal."""
    outcome, error_type = _BY_CAUSE[cause]
    if outcome == "tap_lost":
        return LOST
    if outcome == "refused":
        # The tap refused the request, whatever the upstream did. Logs before `Refusal` have no detail.
        return Verdict("refused", transport.detail if transport.detail in REFUSALS else "bad_request", phase)
    error_type = error_type or identifiers.error_type(transport.detail) or cause
    return Verdict(outcome, error_type, phase, identifiers.name(transport.detail))


def _client_abort(transport: Transport, phase: Phase) -> Verdict:
    return Verdict("client_abort", "client_abort", phase, identifiers.name(transport.detail))


def _http_error(transport: Transport, body: DecodedBody, status: int, capture_content: bool) -> Verdict:
    client_left_ns, headers_ns = transport.client_left_ns, transport.headers_ns
    if client_left_ns is not None and headers_ns is not None and client_left_ns < headers_ns:
        return _client_abort(transport, "pre_headers")
    if transport.upgrade and status in NO_WEBSOCKET:
        return Verdict("refused", "websocket", "pre_headers")
    error = body.error
    error_type = identifiers.error_type(error.type) if error is not None else None
    return Verdict("http_error", error_type or str(status), "pre_headers", _message(error, capture_content))


def _terminal_ns(transport: Transport, body: DecodedBody) -> int | None:
    """When the response was complete. A non-streamed body is complete at its clean end."""
    clean = transport.cause == "complete" and transport.client_left_ns is None
    if body.streamed:
        return body.terminal_ns if clean or not body.output_after_finish else None
    if transport.cause == "complete" and not body.malformed_events:
        return transport.end_ns
    return None


def _error_counts(body: DecodedBody, error_ns: int | None, terminal_ns: int | None) -> bool:
    """Whether the error arrived before or with the terminal."""
    if not body.streamed or terminal_ns is None or error_ns is None:
        return True
    if body.error_seq is not None and body.terminal_seq is not None:
        return body.error_seq <= body.terminal_seq
    return error_ns <= terminal_ns


def _phase(transport: Transport, body: DecodedBody, at_ns: int | None) -> Phase:
    first = body.first_output_ns
    if first is None:
        first = transport.first_byte_ns
    return "pre_first_output" if first is None or (at_ns is not None and at_ns < first) else "mid_stream"


def _message(error: ErrorReport | None, capture_content: bool) -> str | None:
    if error is None or not capture_content or not error.message:
        return None
    return _one_line(error.message, MAX_MESSAGE_CHARS)


def _one_line(text: str, limit: int) -> str | None:
    line = " ".join(text.split())
    line = "".join(c for c in line if c.isprintable())
    return line[:limit] or None

"""Every row of the documented outcome table, and competing causes."""

import json
from typing import Any

import pytest

from streamgauge.analytics.decoding.decoded_body import DecodedBody, body_of
from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.events import ErrorReport
from streamgauge.analytics.measures.outcome import (
    LOST,
    MAX_MESSAGE_CHARS,
    NO_BODY,
    Transport,
    Verdict,
    judge,
)
from streamgauge.ingest.identifiers import hashed

OVERLOADED = ErrorReport("overloaded_error", "The prompt was: tell me a secret", {"type": "overloaded_error"})


def facts(**values: Any) -> DecodedBody:
    """A body of a known dialect with the first output at 100 ns."""
    return DecodedBody(**{"dialect": "openai_chat", "streamed": True, "first_output_ns": 100, **values})


def transport(cause: Any = "complete", **values: Any) -> Transport:
    return Transport(**{"cause": cause, "headers_ns": 50, "end_ns": 1000, **values})


FINISHED = {"terminal_ns": 900}

ROWS: dict[str, tuple[Transport, DecodedBody, Verdict]] = {
    # ok
    "finish seen": (transport(), facts(**FINISHED), Verdict("ok")),
    "finish after output that followed a finish": (
        transport(),
        facts(**FINISHED, output_after_finish=True),
        Verdict("ok"),
    ),
    "non-streamed 200": (transport(), DecodedBody(dialect="openai_chat", streamed=False), Verdict("ok")),
    "no body": (transport(status=204), NO_BODY, Verdict("ok")),
    "redirect": (transport(status=307), NO_BODY, Verdict("ok")),
    "unknown dialect, clean end": (transport(), facts(dialect="unknown"), Verdict("ok")),
    "tunnel closed": (transport(status=101, tunnel=True, client_left_ns=1100), NO_BODY, Verdict("ok")),
    "not mirrored by rule": (transport(partial=True), facts(), Verdict("ok")),
    # http_error
    "provider's type": (
        transport(status=529),
        DecodedBody(streamed=False, error=OVERLOADED),
        Verdict("http_error", "overloaded_error", "pre_headers"),
    ),
    "server without WebSocket": (
        transport(status=426, upgrade=True),
        NO_BODY,
        Verdict("refused", "websocket", "pre_headers"),
    ),
    "path that has no WebSocket": (
        transport(status=404, upgrade=True),
        NO_BODY,
        Verdict("refused", "websocket", "pre_headers"),
    ),
    "WebSocket without a key": (
        transport(status=401, upgrade=True),
        NO_BODY,
        Verdict("http_error", "401", "pre_headers"),
    ),
    "status when the body says nothing": (
        transport(status=502),
        NO_BODY,
        Verdict("http_error", "502", "pre_headers"),
    ),
    "error without a type": (
        transport(status=400),
        DecodedBody(streamed=False, error=ErrorReport(None, "x")),
        Verdict("http_error", "400", "pre_headers"),
    ),
    "reset within an error body": (
        transport("upstream_reset", status=500),
        NO_BODY,
        Verdict("http_error", "500", "pre_headers"),
    ),
    "client left within an error body": (
        transport("client_left", status=500, client_left_ns=60),
        NO_BODY,
        Verdict("http_error", "500", "pre_headers"),
    ),
    "streamed error status": (
        transport(status=429),
        facts(error=ErrorReport("rate_limit")),
        Verdict("http_error", "rate_limit", "pre_headers"),
    ),
    "request refused by the tap": (
        transport("bad_request", status=None, headers_ns=None, detail="body_too_large"),
        NO_BODY,
        Verdict("refused", "body_too_large", "pre_headers"),
    ),
    "request refused by an older tap": (
        transport("bad_request", status=None, headers_ns=None, detail="BadLength"),
        NO_BODY,
        Verdict("refused", "bad_request", "pre_headers"),
    ),
    "body refused during the response": (
        transport("bad_request", detail="bad_request"),
        facts(),
        Verdict("refused", "bad_request", "mid_stream"),
    ),
    # connect_error
    "connect refused": (
        transport("connect_error", status=None, detail="ConnectionRefusedError"),
        NO_BODY,
        Verdict("connect_error", "ConnectionRefusedError", "pre_headers", "ConnectionRefusedError"),
    ),
    "connect limit": (
        transport("connect_timeout", status=None),
        NO_BODY,
        Verdict("connect_error", "connect_timeout", "pre_headers"),
    ),
    # inband_error
    "error event before output": (
        transport(),
        facts(first_output_ns=None, error=OVERLOADED, error_ns=200),
        Verdict("inband_error", "overloaded_error", "pre_first_output"),
    ),
    "error event in mid-stream": (
        transport(),
        facts(error=OVERLOADED, error_ns=200),
        Verdict("inband_error", "overloaded_error", "mid_stream"),
    ),
    "error event then [DONE]": (
        transport(),
        facts(error=ErrorReport("server_error"), error_ns=200, terminal_ns=201),
        Verdict("inband_error", "server_error", "mid_stream"),
    ),
    "LM Studio: error then chat.end": (
        transport(),
        facts(
            dialect="lmstudio",
            error=ErrorReport("internal_error"),
            error_ns=200,
            error_seq=7,
            terminal_ns=200,
            terminal_seq=8,
        ),
        Verdict("inband_error", "internal_error", "mid_stream"),
    ),
    "error in the event that finishes": (
        transport(),
        facts(error=ErrorReport("502"), error_ns=200, terminal_ns=200),
        Verdict("inband_error", "502", "mid_stream"),
    ),
    "error under a non-streamed 200": (
        transport(),
        DecodedBody(streamed=False, error=OVERLOADED),
        Verdict("inband_error", "overloaded_error", "pre_first_output"),
    ),
    "error, then reset": (
        transport("upstream_reset"),
        facts(error=OVERLOADED, error_ns=200),
        Verdict("inband_error", "overloaded_error", "mid_stream"),
    ),
    "error, then the client left": (
        transport("client_left", client_left_ns=300),
        facts(error=OVERLOADED, error_ns=200),
        Verdict("inband_error", "overloaded_error", "mid_stream"),
    ),
    "error in an unknown dialect": (
        transport(),
        facts(dialect="unknown", error=OVERLOADED, error_ns=200),
        Verdict("inband_error", "overloaded_error", "mid_stream"),
    ),
    "error after the finish": (
        transport(),
        facts(**FINISHED, error=OVERLOADED, error_ns=950),
        Verdict("ok", None, "post_finish"),
    ),
    "error after the finish, in the same read": (
        transport(),
        facts(**FINISHED, terminal_seq=4, error=OVERLOADED, error_ns=900, error_seq=5),
        Verdict("ok", None, "post_finish"),
    ),
    # truncated
    "clean end without a finish": (
        transport(),
        facts(),
        Verdict("truncated", "stream_truncated", "mid_stream"),
    ),
    "event stream without an event": (
        transport(),
        facts(first_output_ns=None),
        Verdict("truncated", "stream_truncated", "pre_first_output"),
    ),
    # upstream_reset
    "reset in mid-stream": (
        transport("upstream_reset", detail="ConnectionResetError"),
        facts(),
        Verdict("upstream_reset", "upstream_reset", "mid_stream", "ConnectionResetError"),
    ),
    "reset before output": (
        transport("upstream_reset"),
        facts(first_output_ns=None),
        Verdict("upstream_reset", "upstream_reset", "pre_first_output"),
    ),
    "reset before the head": (
        transport("upstream_reset", status=None),
        NO_BODY,
        Verdict("upstream_reset", "upstream_reset", "pre_headers"),
    ),
    "closed without a head": (
        transport(status=None),
        NO_BODY,
        Verdict("upstream_reset", "upstream_reset", "pre_headers"),
    ),
    "reset after the finish": (
        transport("upstream_reset"),
        facts(**FINISHED),
        Verdict("ok", None, "post_finish", None, aborted_after_terminal=True),
    ),
    "reset in a non-streamed body": (
        transport("upstream_reset"),
        DecodedBody(dialect="openai_chat", streamed=False),
        Verdict("upstream_reset", "upstream_reset", "pre_first_output"),
    ),
    "reset of an unknown dialect": (
        transport("upstream_reset"),
        facts(dialect="unknown"),
        Verdict("upstream_reset", "upstream_reset", "mid_stream"),
    ),
    "client left a tunnel": (
        transport("client_left", status=101, tunnel=True, detail="ConnectionResetError"),
        DecodedBody(streamed=False, first_output_ns=100),
        Verdict("client_abort", "client_abort", "mid_stream", "ConnectionResetError"),
    ),
    "reset of a tunnel": (
        transport("upstream_reset", status=101, tunnel=True),
        NO_BODY,
        Verdict("upstream_reset", "upstream_reset", "pre_first_output"),
    ),
    # idle_timeout
    "silence": (transport("idle_bytes"), facts(), Verdict("idle_timeout", "idle_timeout", "mid_stream")),
    "heartbeats only": (
        transport("idle_output"),
        facts(first_output_ns=None),
        Verdict("idle_timeout", "idle_timeout", "pre_first_output"),
    ),
    "silence before the head": (
        transport("headers_timeout", status=None),
        NO_BODY,
        Verdict("idle_timeout", "idle_timeout", "pre_headers"),
    ),
    "held open after the finish until the limit": (
        transport("idle_bytes"),
        facts(**FINISHED),
        Verdict("ok", None, "post_finish", None, aborted_after_terminal=True),
    ),
    # client_abort
    "client left in mid-stream": (
        transport("client_left", client_left_ns=500),
        facts(),
        Verdict("client_abort", "client_abort", "mid_stream"),
    ),
    "client left before output": (
        transport("client_left", client_left_ns=80),
        facts(first_output_ns=None),
        Verdict("client_abort", "client_abort", "pre_first_output"),
    ),
    "client left before the head": (
        transport("client_left", status=None, client_left_ns=10),
        NO_BODY,
        Verdict("client_abort", "client_abort", "pre_headers"),
    ),
    "client left, and that cancelled the upstream": (
        transport("upstream_reset", client_left_ns=500),
        facts(),
        Verdict("client_abort", "client_abort", "mid_stream"),
    ),
    "client left before the finish came": (
        transport(client_left_ns=500),
        facts(**FINISHED),
        Verdict("client_abort", "client_abort", "mid_stream"),
    ),
    "client left before the error came": (
        transport(client_left_ns=150),
        facts(error=OVERLOADED, error_ns=200),
        Verdict("client_abort", "client_abort", "mid_stream"),
    ),
    "client left while connecting failed": (
        transport("connect_error", status=None, client_left_ns=5, detail="TimeoutError"),
        NO_BODY,
        Verdict("client_abort", "client_abort", "pre_headers", "TimeoutError"),
    ),
    "client left, the instant unknown": (
        transport("client_left"),
        facts(),
        Verdict("client_abort", "client_abort", "mid_stream"),
    ),
    "client left after the finish": (
        transport("client_left", client_left_ns=950),
        facts(**FINISHED),
        Verdict("ok", None, "post_finish", None, aborted_after_terminal=True),
    ),
    "client left a non-streamed answer": (
        transport("client_left", client_left_ns=500),
        DecodedBody(dialect="openai_chat", streamed=False),
        Verdict("client_abort", "client_abort", "pre_first_output"),
    ),
    # malformed
    "bad JSON and no finish": (
        transport(),
        facts(malformed_events=1),
        Verdict("malformed", "malformed_stream", "mid_stream"),
    ),
    "bad JSON with a finish": (transport(), facts(**FINISHED, malformed_events=3), Verdict("ok")),
    "bad JSON, then reset": (
        transport("upstream_reset"),
        facts(malformed_events=1),
        Verdict("upstream_reset", "upstream_reset", "mid_stream"),
    ),
    "bad JSON body, not streamed": (
        transport(),
        DecodedBody(dialect="openai_chat", streamed=False, malformed_events=1),
        Verdict("malformed", "malformed_stream", "pre_first_output"),
    ),
    "answer that is no HTTP": (
        transport("bad_upstream", status=None),
        NO_BODY,
        Verdict("malformed", "malformed_stream", "pre_headers"),
    ),
    "broken chunk framing": (
        transport("bad_upstream"),
        facts(),
        Verdict("malformed", "malformed_stream", "mid_stream"),
    ),
    # output followed a finish reason: the end of the connection decides
    "reset after a finish that proves nothing": (
        transport("upstream_reset"),
        facts(**FINISHED, output_after_finish=True),
        Verdict("upstream_reset", "upstream_reset", "mid_stream"),
    ),
    "client left after a finish that proves nothing": (
        transport("client_left", client_left_ns=950),
        facts(**FINISHED, output_after_finish=True),
        Verdict("client_abort", "client_abort", "mid_stream"),
    ),
    # no body, although the request asked for a stream
    "empty 200": (
        transport(),
        DecodedBody(dialect="unknown", stream_is_missing=True),
        Verdict("truncated", "stream_truncated", "pre_first_output"),
    ),
    # tap_lost
    "the tap stopped": (transport("tap_stopped"), facts(), LOST),
    "the tap stopped before the head": (transport("tap_stopped", status=None), NO_BODY, LOST),
    "the tap stopped after the finish": (
        transport("tap_stopped"),
        facts(**FINISHED),
        Verdict("ok", None, "post_finish", None, aborted_after_terminal=True),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_outcome(name: str) -> None:
    transport, facts, expected = ROWS[name]
    assert judge(transport, facts) == expected


@pytest.mark.parametrize("reason", ["length", "content_filter", "refusal", "stop"])
def test_finish_reasons_are_no_errors(reason: str) -> None:
    assert chat_outcome(reason) == ("ok", None)


@pytest.mark.parametrize(
    "reason", ["error", "abort", "network_error", "insufficient_system_resource", "ERROR"]
)
def test_finish_reason_that_means_failure_is_an_error_of_this_type(reason: str) -> None:
    assert chat_outcome(reason) == ("inband_error", reason)


def chat_outcome(reason: str) -> tuple[str, str | None]:
    """Outcome and error type of a chat stream of two choices, one of which ends with this finish reason."""
    decoder = StreamDecoder(ExchangeInfo(path="/v1/chat/completions", content_type="text/event-stream"))
    for choice in (
        {"index": 0, "delta": {"content": "a"}},
        {"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"},
        {"index": 0, "delta": {}, "finish_reason": reason},
    ):
        decoder.feed([(1, b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode())])
    decoder.finish()
    verdict = judge(transport(), body_of(decoder))
    return verdict.outcome, verdict.error_type


def test_every_outcome_and_phase_has_a_row() -> None:
    verdicts = [v for _, _, v in ROWS.values()]
    assert {v.outcome for v in verdicts} == {
        "ok", "http_error", "connect_error", "inband_error", "truncated", "upstream_reset", "idle_timeout",
        "client_abort", "malformed", "tap_lost", "refused",
    }  # fmt: skip
    assert {v.error_phase for v in verdicts} == {
        "pre_headers",
        "pre_first_output",
        "mid_stream",
        "post_finish",
        None,
    }


def test_providers_message_is_kept_only_with_captured_content() -> None:
    found = facts(error=OVERLOADED, error_ns=200)
    assert judge(transport(), found).error_message is None
    assert judge(transport(), found, capture_content=True).error_message == OVERLOADED.message
    assert judge(transport(status=400), DecodedBody(streamed=False, error=OVERLOADED)).error_message is None


def test_upstream_text_is_bounded_and_on_one_line() -> None:
    found = facts(error=ErrorReport("a\nb\x00" + "c" * 1000, "m" * 10_000), error_ns=200)
    verdict = judge(transport(), found, capture_content=True)
    assert verdict.error_type == hashed("a\nb\x00" + "c" * 1000)
    assert verdict.error_message == "m" * MAX_MESSAGE_CHARS

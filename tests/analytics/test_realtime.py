"""The answers of a Realtime session: who began them, whose events they have, and what interrupts them."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

from tests.analytics.sockets import MS, Sent, recorded
from tests.analytics.test_websockets import answers, rows

AUDIO = b64encode(bytes(4800)).decode()
"""100 ms of PCM."""


def sent(at: int, side: Any, kind: str, **members: Any) -> Sent:
    return at, side, json.dumps({"type": kind, "event_id": f"e{at}", **members}).encode()


def session(at: int = 0, **audio: Any) -> Sent:
    return sent(at, "server", "session.created", session={"id": "sess_1", "model": "voice-1", "audio": audio})


def answer(at: int, name: str, *, end: str = "completed", reason: str | None = None) -> list[Sent]:
    """100 ms after it began: created, two pieces of speech 10 ms apart, done."""
    object_: dict[str, Any] = {"id": name, "object": "realtime.response"}
    return [
        sent(at + 100, "server", "response.created", response=object_),
        sent(at + 110, "server", "response.output_audio.delta", response_id=name, item_id="i", delta=AUDIO),
        sent(at + 120, "server", "response.output_audio.delta", response_id=name, item_id="i", delta=AUDIO),
        sent(
            at + 130, "server", "response.done",
            response=object_ | {"status": end, "status_details": {"type": end, "reason": reason}, "usage": {"output_tokens": 4}},
        ),
    ]  # fmt: skip


def measured(messages: list[Sent]) -> list[dict[str, Any]]:
    return answers(rows(recorded(messages, path="/v1/realtime")))


def test_answer_to_speech_begins_at_its_end_and_one_to_a_request_at_the_request() -> None:
    user = {"type": "message", "role": "user", "content": []}
    tool = {"type": "function_call_output", "call_id": "c", "output": "3"}
    speech, text, result = measured([
        session(),
        sent(900, "server", "input_audio_buffer.speech_started"),
        sent(1000, "server", "input_audio_buffer.speech_stopped"),
        sent(1001, "server", "input_audio_buffer.committed"),
        *answer(1000, "r0"),
        sent(2000, "client", "conversation.item.create", item=user),
        sent(2001, "client", "response.create"),
        *answer(2001, "r1"),
        sent(3000, "client", "conversation.item.create", item=tool),
        sent(3001, "client", "response.create"),
        *answer(3001, "r2"),
    ])  # fmt: skip
    assert {row["request_model"] for row in (speech, text, result)} == {"voice-1"}
    for row in (speech, text, result):
        assert (row["ttfb_ns"], row["first_audio_ns"], row["end_ns"]) == (100 * MS, 110 * MS, 130 * MS)
        assert (row["audio_ns"], row["event_count"], row["output_tokens"]) == (200 * MS, 4, 4)
        assert (row["dialect"], row["outcome"], row["silence_ns"]) == ("openai_realtime", "ok", None)


def test_interruption_is_no_failure_and_its_silence_is_measured() -> None:
    created, first, second, done = answer(1000, "r0", end="cancelled", reason="turn_detected")
    spoken = sent(1115, "server", "input_audio_buffer.speech_started")
    by_speech, by_client = measured([
        session(), sent(1000, "client", "response.create"), created, first, spoken, second, done,
        sent(2000, "client", "response.create"), *answer(2000, "r1")[:3], sent(2125, "client", "response.cancel"),
        answer(2000, "r1", end="cancelled", reason="client_cancelled")[3],
    ])  # fmt: skip
    assert (by_speech["finish_reason"], by_speech["silence_ns"]) == ("turn_detected", 5 * MS)
    assert (by_client["finish_reason"], by_client["silence_ns"]) == ("client_cancelled", 0)
    assert {by_speech["outcome"], by_client["outcome"]} == {"ok"}


def test_refused_request_is_an_error_beside_the_answer_to_speech() -> None:
    speech, refused = sorted(
        measured([
            session(),
            sent(1000, "server", "input_audio_buffer.speech_stopped"),
            sent(1050, "client", "response.create"),
            *answer(1000, "r0")[:1],
            sent(1105, "server", "error", error={"type": "invalid_request_error", "code": "busy"}),
            *answer(1000, "r0")[1:],
            sent(1200, "client", "response.cancel"),
            sent(1201, "server", "error", error={"code": "response_cancel_not_active"}),
        ]),
        key=lambda row: row["started_at"],
    )  # fmt: skip
    assert (speech["response_id"], speech["outcome"], speech["first_audio_ns"]) == ("r0", "ok", 110 * MS)
    assert (refused["outcome"], refused["error_type"]) == ("inband_error", "invalid_request_error")


def test_without_automatic_answers_the_request_is_time_zero() -> None:
    for audio in ({"input": {"turn_detection": None}}, {"input": {"turn_detection": {"create_response": False}}}):  # fmt: skip
        (row,) = measured([
            session(**audio),
            sent(1000, "server", "input_audio_buffer.speech_stopped"),
            sent(1400, "client", "response.create"),
            *answer(1400, "r0"),
        ])  # fmt: skip
        assert row["first_audio_ns"] == 110 * MS


def test_malformed_message_is_an_event_of_the_open_answer_and_the_socket_may_end_within_it() -> None:
    created, first, *_ = answer(1000, "r0")
    (row,) = measured([session(), sent(1000, "client", "response.create"), created, first, (1115, "server", b'{"a')])  # fmt: skip
    assert (row["malformed_events"], row["outcome"], row["error_phase"]) == (1, "client_abort", "mid_stream")


def test_the_limits_that_an_answer_reports_are_columns() -> None:
    limits = [
        {"name": "requests", "limit": 1000, "remaining": 999, "reset_seconds": 60},
        {"name": "tokens", "limit": 50000, "remaining": 49950, "reset_seconds": 30},
    ]
    created, *rest = answer(0, "r0")
    (found,) = measured([
        session(),
        sent(1, "client", "response.create"),
        created,
        sent(105, "server", "rate_limits.updated", rate_limits=limits),
        *rest,
    ])  # fmt: skip
    assert (found["requests_limit"], found["requests_remaining"]) == (1000, 999)
    assert (found["tokens_limit"], found["tokens_remaining"]) == (50000, 49950)
    # The answer began 1 ms after the session.
    assert found["tokens_reset_ns"] == 30_000 * MS + 104 * MS

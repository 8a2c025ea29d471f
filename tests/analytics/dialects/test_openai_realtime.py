"""The Realtime API: speech, rate limits, interruptions, and the status of the response."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from streamgauge.analytics.dialects.openai_realtime import DIALECT
from tests.analytics.dialects.transcript import events, read, tools, usage


def event(kind: str, **members: Any) -> dict[str, Any]:
    return {"type": kind, "event_id": "event_1", "response_id": "resp_1", "item_id": "i", "output_index": 0, **members}  # fmt: skip


def response(kind: str, **members: Any) -> dict[str, Any]:
    audio = {"output": {"format": {"type": "audio/pcmu"}, "voice": "marin"}}
    return event(
        kind,
        response={"object": "realtime.response", "id": "resp_1", "audio": audio, "output": [], **members},
    )


CREATED = response("response.created", status="in_progress")
SPOKEN = [
    event("response.output_audio_transcript.delta", delta="Hi"),
    event("response.output_audio.delta", delta=b64encode(bytes(4000)).decode()),
    event("response.output_audio.delta", delta=b64encode(bytes(2001)).decode()),
]
USAGE = {
    "total_tokens": 30, "input_tokens": 20, "output_tokens": 10, "input_token_details": {"cached_tokens": 4, "audio_tokens": 2},
    "output_token_details": {"text_tokens": 2, "audio_tokens": 8},
}  # fmt: skip


def test_speech_has_a_length_and_a_first_time() -> None:
    found = read(
        DIALECT, events(CREATED, *SPOKEN, response("response.done", status="completed", usage=USAGE))
    )
    audio = found.audio
    assert (audio.first_ns, audio.last_ns, audio.length_ns) == (2_000_000, 3_000_000, 6001 * 125_000)
    assert audio.silence_ns is None
    assert (found.output_event_count, found.response_id) == (3, "resp_1")
    assert (found.first_choice.finish_reason, found.error) == ("completed", None)
    assert usage(found) == (20, 10, None, 4)


def test_format_of_the_beta_and_pcm_are_known() -> None:
    for created, length_ns in (
        ({"output_audio_format": "g711_alaw", "audio": None}, 500_000_000),
        ({"output_audio_format": "pcm16", "audio": None}, 83_333_333),
        ({"audio": {"output": {}}}, 83_333_333),
    ):
        body = events(response("response.created", status="in_progress", **created), SPOKEN[1])
        assert read(DIALECT, body).audio.length_ns == length_ns


@pytest.mark.parametrize(
    ("interruption", "reason"),
    [("input_audio_buffer.speech_started", "turn_detected"), ("response.cancel", "client_cancelled")],
)
def test_interrupted_answer_is_complete_and_its_silence_is_measured(interruption: str, reason: str) -> None:
    done = response("response.done", status="cancelled", status_details={"type": "cancelled", "reason": reason})  # fmt: skip
    found = read(DIALECT, events(CREATED, SPOKEN[1], {"type": interruption}, SPOKEN[1], done))
    assert found.audio.silence_ns == 1_000_000
    assert (found.first_choice.finish_reason, found.error, found.terminal_seen) == (reason, None, True)
    at_once = read(DIALECT, events(CREATED, SPOKEN[1], {"type": interruption}, done))
    assert at_once.audio.silence_ns == 0


def test_failed_answer_has_the_error_of_its_details() -> None:
    error = {"type": "server_error", "code": "overloaded", "message": "busy"}
    done = response("response.done", status="failed", status_details={"type": "failed", "error": error})
    found = read(DIALECT, events(CREATED, done))
    assert found.error is not None
    assert (found.error.type, found.error.message) == ("server_error", "busy")


def test_rate_limits_are_server_statistics() -> None:
    limits = [{"name": "tokens", "limit": 50000, "remaining": 49950, "reset_seconds": 0.06}]
    found = read(DIALECT, events(CREATED, event("rate_limits.updated", rate_limits=limits)))
    stats = {stat.name: (stat.value, stat.unit) for _, stat in found.server_stats}
    assert stats == {"tokens.limit": (50000, "1"), "tokens.remaining": (49950, "1"), "tokens.reset_seconds": (6e7, "ns")}  # fmt: skip
    for broken in ([1], {"a": 1}, "x", [{"name": []}]):
        read(DIALECT, events(event("rate_limits.updated", rate_limits=broken)))


def test_function_call_is_a_tool_call_of_the_client() -> None:
    item = {"id": "i", "type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": ""}
    found = read(
        DIALECT,
        events(
            CREATED,
            event("response.output_item.added", item=item),
            event("response.function_call_arguments.delta", delta='{"a":1}'),
            event("response.function_call_arguments.done", arguments='{"a":1}', name="get_weather"),
            event("response.output_item.done", item={**item, "arguments": '{"a":1}'}),
            response("response.done", status="completed"),
        ),
    )
    assert tools(found) == [("call_1", "get_weather", '{"a":1}')]

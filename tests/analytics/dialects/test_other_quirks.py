"""The quirks of dialects other than OpenAI's, numbered as in the project's definitions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamgauge.analytics.decoding.decoded_body import body_of
from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.measures.outcome import Transport, Verdict, judge
from streamgauge.analytics.measures.stream_latency import first_output_ns

MS = 1_000_000
LM_STUDIO = "/api/v1/chat"
LM_STUDIO_END = {
    "type": "chat.end",
    "result": {"output": [], "stats": {"input_tokens": 3, "total_output_tokens": 2}, "response_id": "r"},
}


def decode(path: str, *items: dict[str, Any] | str) -> StreamDecoder:
    """Decode events that arrive at 0, 1, 2 … ms, each in its own read and named by its type; strings are sent unchanged."""
    decoder = StreamDecoder(ExchangeInfo(path=path, content_type="text/event-stream"), keep_text=True)
    for number, item in enumerate(items):
        name = f"event: {item['type']}\n" if isinstance(item, dict) and "type" in item else ""
        text = item if isinstance(item, str) else f"{name}data: {json.dumps(item)}\n\n"
        decoder.feed([(number * MS, text.encode())])
    decoder.finish()
    return decoder


def verdict(decoder: StreamDecoder) -> Verdict:
    return judge(Transport(status=200, headers_ns=0, end_ns=1000 * MS), body_of(decoder))


def text_delta(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


def candidate(text: str) -> str:
    parts = [{"text": text}]
    return f"data: {json.dumps({'candidates': [{'content': {'parts': parts}, 'index': 0}]})}\r\n\r\n"


IN_BAND: dict[str, tuple[str, list[dict[str, Any] | str], str]] = {
    # shape: (path, events, error_type)
    "responses, flat": (
        "/v1/responses",
        [
            {"type": "response.output_text.delta", "delta": "Hi"},
            {"type": "error", "code": "server_error", "message": "m", "param": None},
        ],
        "server_error",
    ),
    "responses, failed": (
        "/v1/responses",
        [
            {"type": "response.output_text.delta", "delta": "Hi"},
            {
                "type": "response.failed",
                "response": {"status": "failed", "error": {"code": "rate_limit_exceeded"}},
            },
        ],
        "rate_limit_exceeded",
    ),
    "responses, cancelled": (
        "/v1/responses",
        [
            {"type": "response.output_text.delta", "delta": "Hi"},
            {"type": "response.cancelled", "response": {"status": "cancelled"}},
        ],
        "cancelled",
    ),
    "anthropic, event: error": (
        "/v1/messages",
        [text_delta("Hi"), {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}],
        "overloaded_error",
    ),
    "cohere, finish ERROR": (
        "/v2/chat",
        [
            {"type": "content-delta", "delta": {"message": {"content": {"text": "Hi"}}}},
            {"type": "message-end", "delta": {"finish_reason": "ERROR", "error": "m"}},
        ],
        "ERROR",
    ),
    "gemini, raw JSON over several lines and no data field": (
        "/v1beta/models/m:streamGenerateContent",
        [candidate("Hi"), '{\n  "error": {\n    "code": 503,\n    "status": "UNAVAILABLE"\n  }\n}\n'],
        "UNAVAILABLE",
    ),
    "lm studio, error then chat.end": (
        LM_STUDIO,
        [
            {"type": "message.delta", "content": "Hi"},
            {"type": "error", "error": {"type": "internal_error", "message": "m"}},
            LM_STUDIO_END,
        ],
        "internal_error",
    ),
}


@pytest.mark.parametrize("shape", IN_BAND)
def test_quirk_6_in_band_error_shapes(shape: str) -> None:
    path, items, error_type = IN_BAND[shape]
    found = decode(path, *items)
    end = verdict(found)
    assert (end.outcome, end.error_type, end.error_phase) == ("inband_error", error_type, "mid_stream")
    assert (found.text, found.error_ns, found.malformed_events) == ("Hi", 1 * MS, 0)


@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_finished_responses_are_not_errors(status: str) -> None:
    ended = {"type": f"response.{status}", "response": {"status": status}}
    assert (
        verdict(decode("/v1/responses", {"type": "response.output_text.delta", "delta": "Hi"}, ended)).outcome
        == "ok"
    )


def test_quirk_7_lm_studio_chat_end_after_an_error_is_not_a_success() -> None:
    error = {"type": "error", "error": {"type": "model_not_found", "message": "m"}}
    found = decode(LM_STUDIO, {"type": "chat.start", "model_instance_id": "m"}, error, LM_STUDIO_END)
    end = verdict(found)
    assert (end.outcome, end.error_type, end.error_phase) == (
        "inband_error",
        "model_not_found",
        "pre_first_output",
    )
    assert found.usage is not None
    assert found.usage.output_tokens == 2


def test_quirk_7_lm_studio_arguments_are_an_object() -> None:
    found = decode(
        LM_STUDIO, {"type": "tool_call.arguments", "tool": "t", "arguments": {"limit": 1}}, LM_STUDIO_END
    )
    assert found.tool_calls == [{"id": "", "name": "t", "arguments": '{"limit":1}'}]


def test_quirk_9_obfuscation_is_not_output() -> None:
    found = decode(
        "/v1/responses",
        {"type": "response.output_text.delta", "delta": "Hi", "obfuscation": "x" * 500},
        {"type": "response.output_text.delta", "delta": "", "obfuscation": "x" * 500},
        {"type": "response.completed", "response": {"status": "completed"}},
    )
    assert (found.text, found.events.chars, found.events.tokens) == ("Hi", [2, 0, 0], [None, None, None])
    assert found.output_event_count == 1


def test_quirk_11_lm_studio_tool_call_failure_is_counted_only() -> None:
    failure = {
        "type": "tool_call.failure",
        "reason": "r",
        "metadata": {"type": "invalid_name", "tool_name": "t"},
    }
    found = decode(LM_STUDIO, failure, failure, {"type": "message.delta", "content": "Sorry"}, LM_STUDIO_END)
    assert (found.tool_failure_count, found.error, verdict(found).outcome) == (2, None, "ok")


def test_quirk_11_lm_studio_model_load_becomes_server_stats() -> None:
    found = decode(
        LM_STUDIO,
        {"type": "model_load.start", "model_instance_id": "m"},
        {"type": "model_load.end", "model_instance_id": "m", "load_time_seconds": 12.34},
        {"type": "message.delta", "content": "Hi"},
        LM_STUDIO_END,
    )
    assert next((s.source, s.name, s.value, s.unit) for _, s in found.server_stats) == (
        "model_load",
        "load_time_seconds",
        12.34e9,
        "ns",
    )
    assert (first_output_ns(found.events), found.events.kind[:2]) == (2 * MS, ["progress", "progress"])


def test_quirk_12_anthropic_stop_reason_ends_the_stream() -> None:
    found = decode(
        "/v1/messages",
        text_delta("Hi"),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
        {"type": "ping"},
    )
    assert (found.terminal_ns, found.event_count) == (1 * MS, 4)


def test_anthropic_usage_is_cumulative_and_null_is_ignored() -> None:
    found = decode(
        "/v1/messages",
        {
            "type": "message_start",
            "message": {"id": "m", "usage": {"input_tokens": 7, "cache_read_input_tokens": 3}},
        },
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 4}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 9, "input_tokens": None},
        },
        {"type": "message_stop"},
    )
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.output_tokens, found.usage.cached_input_tokens) == (
        10,
        9,
        3,
    )
    assert len(found.usage_reports) == 3

"""LM Studio's native chat: its 19 documented events, singly and in a stream."""

from __future__ import annotations

from typing import Any

import pytest

from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.lmstudio_chat import DIALECT
from streamgauge.analytics.dialects.tolerant_json import compact
from tests.analytics.dialects.transcript import decoded_events, events, read, read_body, tools, usage

MCP = {"type": "ephemeral_mcp", "server_label": "huggingface"}
ARGUMENTS = {"sort": "trendingScore", "limit": 1}
STATS = {
    "input_tokens": 329,
    "total_output_tokens": 268,
    "reasoning_output_tokens": 5,
    "tokens_per_second": 43.73,
    "time_to_first_token_seconds": 0.781,
}
END = {
    "type": "chat.end",
    "result": {
        "model_instance_id": "openai/gpt-oss-20b",
        "output": [{"type": "message", "content": "The current top"}],
        "stats": STATS,
        "response_id": "resp_02b2",
    },
}
STREAM: list[tuple[dict[str, Any], str]] = [
    ({"type": "chat.start", "model_instance_id": "openai/gpt-oss-20b"}, "start"),
    ({"type": "model_load.start", "model_instance_id": "openai/gpt-oss-20b"}, "progress"),
    (
        {"type": "model_load.progress", "model_instance_id": "openai/gpt-oss-20b", "progress": 0.65},
        "progress",
    ),
    (
        {"type": "model_load.end", "model_instance_id": "openai/gpt-oss-20b", "load_time_seconds": 12.34},
        "progress",
    ),
    ({"type": "prompt_processing.start"}, "progress"),
    ({"type": "prompt_processing.progress", "progress": 0.5}, "progress"),
    ({"type": "prompt_processing.end"}, "progress"),
    ({"type": "reasoning.start"}, "start"),
    ({"type": "reasoning.delta", "content": "Need to"}, "reasoning"),
    ({"type": "reasoning.end"}, "annotation"),
    ({"type": "tool_call.start", "tool": "model_search", "provider_info": MCP}, "tool_call"),
    (
        {"type": "tool_call.arguments", "tool": "model_search", "arguments": ARGUMENTS, "provider_info": MCP},
        "tool_call",
    ),
    (
        {"type": "tool_call.success", "tool": "model_search", "arguments": ARGUMENTS, "output": "[…]"},
        "annotation",
    ),
    (
        {"type": "tool_call.failure", "reason": "Cannot find tool", "metadata": {"type": "invalid_name"}},
        "annotation",
    ),
    ({"type": "message.start"}, "start"),
    ({"type": "message.delta", "content": "The current"}, "text"),
    ({"type": "message.delta", "content": " top"}, "text"),
    ({"type": "message.end"}, "annotation"),
    (END, "terminal"),
]


def test_each_event_of_a_stream_has_its_kind() -> None:
    found = read(DIALECT, events(*(event for event, _ in STREAM)))
    assert found.events.kind == [kind for _, kind in STREAM]
    choice = found.first_choice
    assert (str(choice.text), str(choice.reasoning)) == ("The current top", "Need to")
    assert tools(found) == [("", "model_search", '{"sort":"trendingScore","limit":1}')]
    assert (found.response_id, found.response_model) == ("resp_02b2", "openai/gpt-oss-20b")
    assert (found.terminal_seen, found.error, found.finish_reason) == (True, None, None)


def test_each_named_event_is_recognised_and_the_first_is_certain() -> None:
    for event, _ in STREAM:
        assert DIALECT.recognises(event["type"], b"{}") >= 5
    assert DIALECT.recognises("", b'{"type": "chat.start", "model_instance_id": "m"}') >= 5
    assert DIALECT.recognises("", b'{"type":"message_start","message":{}}') == 0


def test_tool_call_arguments_object_becomes_json_text() -> None:
    answers = decoded_events(DIALECT, events(*(event for event, _ in STREAM[10:12])))
    deltas = [piece for answer in answers for f in answer.deltas or [] for piece in f.tool_calls or []]
    assert [piece.arguments for piece in deltas] == ["", compact(ARGUMENTS)]
    assert deltas[0].key == deltas[1].key


def test_two_calls_of_the_same_tool_are_distinguished() -> None:
    start = {"type": "tool_call.start", "tool": "t"}
    found = read(
        DIALECT,
        events(
            start,
            {"type": "tool_call.arguments", "tool": "t", "arguments": {"a": 1}},
            {"type": "tool_call.success", "tool": "t", "arguments": {"a": 1}, "output": "x"},
            start,
            {"type": "tool_call.arguments", "tool": "t", "arguments": {}},
        ),
    )
    assert tools(found) == [("", "t", '{"a":1}'), ("", "t", "{}")]


def test_second_arguments_event_starts_another_call() -> None:
    arguments = {"type": "tool_call.arguments", "tool": "t", "arguments": {}}
    found = read(DIALECT, events({"type": "tool_call.start", "tool": "t"}, arguments, arguments))
    assert tools(found) == [("", "t", "{}"), ("", "t", "{}")]


def test_arguments_without_a_start_event_are_a_call() -> None:
    found = read(DIALECT, events({"type": "tool_call.arguments", "tool": "t", "arguments": {"a": 1}}))
    assert tools(found) == [("", "t", '{"a":1}')]


def test_tool_call_failure_is_counted_but_not_a_stream_error() -> None:
    found = read(
        DIALECT,
        events({"type": "tool_call.failure", "reason": "r", "metadata": {"type": "invalid_name"}}, END),
    )
    assert (found.tool_failure_count, found.error, found.terminal_seen) == (1, None, True)


def test_chat_end_after_an_error_does_not_clear_it() -> None:
    error = {
        "type": "invalid_request",
        "message": "no model",
        "code": "missing_required_parameter",
        "param": "model",
    }
    found = read(DIALECT, events({"type": "error", "error": error}, END))
    assert found.error is not None
    assert (found.error.type, found.error.message, found.error.raw) == ("invalid_request", "no model", error)
    assert found.error_seq is not None
    assert found.terminal_seq is not None
    assert found.error_seq < found.terminal_seq


@pytest.mark.parametrize(
    "kind",
    ["invalid_request", "unknown", "mcp_connection_error", "plugin_connection_error", "not_implemented",
     "model_not_found", "job_not_found", "internal_error"],
)  # fmt: skip
def test_error_type_is_the_one_reported(kind: str) -> None:
    found = read(DIALECT, events({"type": "error", "error": {"type": kind, "message": "m"}}))
    assert found.error is not None
    assert found.error.type == kind


def test_output_only_in_chat_end_is_not_streamed() -> None:
    found = read(DIALECT, events(STREAM[0][0], END))
    assert (str(found.first_choice.text), found.output_event_count, found.content_event_count) == (
        "The current top",
        1,
        0,
    )


@pytest.mark.parametrize("more", [{"error": ""}, {"error": {"message": "m"}}, {"type": 1}])
def test_result_has_no_error_or_type(more: dict[str, Any]) -> None:
    found = read(DIALECT, events({**END, "result": {**END["result"], **more}}))
    assert (str(found.first_choice.text), found.terminal_seen) == ("The current top", True)
    assert (found.error, found.malformed_events) == (None, 0)


def test_stats_become_usage_and_server_stats_in_ns() -> None:
    found = read(DIALECT, events(END))
    assert usage(found) == (329, 268, 5, None)
    assert found.usage is not None
    assert found.usage.raw == STATS
    stats = {stat.name: (stat.value, stat.unit) for _, stat in found.server_stats}
    assert stats["tokens_per_second"] == (43.73, "tok/s")
    assert stats["time_to_first_token_seconds"] == (781_000_000.0, "ns")


def test_model_load_and_prompt_processing_go_to_server_stats() -> None:
    found = read(DIALECT, events(*(event for event, _ in STREAM[:7])))
    assert [(s.source, s.name, s.value, s.unit) for _, s in found.server_stats] == [
        ("model_load", "progress", 0.65, "1"),
        ("model_load", "load_time_seconds", 12.34e9, "ns"),
        ("prompt_processing", "progress", 0.5, "1"),
    ]
    assert found.output_event_count == 0


def test_non_streamed_body() -> None:
    found = read_body(
        DIALECT,
        {
            "model_instance_id": "m",
            "output": [
                {"type": "reasoning", "content": "hm"},
                {"type": "tool_call", "tool": "t", "arguments": {"a": 1}, "output": "o"},
                {"type": "message", "content": "Hi"},
            ],
            "stats": STATS,
            "response_id": "resp_1",
        },
    )
    choice = found.first_choice
    assert (str(choice.text), str(choice.reasoning)) == ("Hi", "hm")
    assert tools(found) == [("", "t", '{"a":1}')]
    assert (usage(found), found.response_id) == ((329, 268, 5, None), "resp_1")


@pytest.mark.parametrize("output", [1, [1], [{"type": "message", "content": "Hi"}, {"content": []}]])
def test_output_of_another_form_is_malformed_in_a_body_only(output: Any) -> None:
    assert read_body(DIALECT, {**END["result"], "output": output}).malformed_events == 1
    found = read(DIALECT, events({**END, "result": {**END["result"], "output": output}}))
    assert (found.terminal_seen, found.malformed_events) == (True, 0)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"type":7}', b'{"type":"message.delta","content":{}}', b"\xff"]
)
def test_invalid_data_is_malformed(data: bytes) -> None:
    reader = DIALECT.reader(ExchangeInfo())
    assert reader.read("message.delta", data).kind == "malformed"
    reader.read_body(data)


def test_claims_only_its_path() -> None:
    assert DIALECT.claims(ExchangeInfo(path="/api/v1/chat")) == 5
    assert DIALECT.claims(ExchangeInfo(path="/v1/chat")) == 0
    assert DIALECT.claims(ExchangeInfo(path="/api/v1/chat/completions")) == 0

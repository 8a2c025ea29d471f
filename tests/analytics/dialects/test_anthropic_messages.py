"""Anthropic's Messages: every event that Friendli documents, and events recorded from Anthropic and others."""

from __future__ import annotations

from typing import Any

import pytest

from streamgauge.analytics.dialects.anthropic import MESSAGES as DIALECT
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from tests.analytics.dialects.transcript import decoded_events, events, read, read_body, tools, usage


def start(**reported: Any) -> dict[str, Any]:
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
    }
    return {"type": "message_start", "message": {**message, "usage": reported or None}}


def block(index: int, **content: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": content}


def delta(index: int, **part: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": part}


def end(reason: str | None = "end_turn", **reported: Any) -> dict[str, Any]:
    return {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": reported or None,
    }


STOP = {"type": "message_stop"}
FRIENDLI_TEXT = [
    start(input_tokens=0, output_tokens=0, cache_read_input_tokens=0),
    block(0, type="text", text=""),
    delta(0, type="text_delta", text="Hello"),
    delta(0, type="text_delta", text=", how can I help?"),
    {"type": "content_block_stop", "index": 0},
    end(output_tokens=11),
    STOP,
]


def test_friendli_text_stream() -> None:
    found = read(DIALECT, events(*FRIENDLI_TEXT))
    assert str(found.first_choice.text) == "Hello, how can I help?"
    assert found.events.kind == ["start", "start", "text", "text", "annotation", "finish", "terminal"]
    assert (found.finish_reason, found.response_id, found.response_model) == ("end_turn", "msg_1", "m")
    assert usage(found) == (0, 11, None, 0)
    assert found.terminal_seen
    assert found.error is None


def test_unnamed_events_are_decoded_by_type() -> None:
    found = read(DIALECT, events(*FRIENDLI_TEXT, named=False))
    assert str(found.first_choice.text) == "Hello, how can I help?"
    assert found.terminal_seen


def test_events_without_a_type_are_decoded_by_name() -> None:
    found = read(
        DIALECT, b'event: content_block_delta\ndata: {"delta": {"type": "text_delta", "text": "x"}}\n\n'
    )
    assert str(found.first_choice.text) == "x"


def test_tool_name_counts_as_output() -> None:
    found = read(
        DIALECT,
        events(
            start(input_tokens=1),
            block(0, type="tool_use", id="toolu_01A", name="get_weather", input={}),
            delta(0, type="input_json_delta", partial_json=""),
            delta(0, type="input_json_delta", partial_json='{"location":"Seoul"'),
            delta(0, type="input_json_delta", partial_json=',"date":"2026-03-12"}'),
            {"type": "content_block_stop", "index": 0},
            end("tool_use", output_tokens=19),
            STOP,
        ),
    )
    assert tools(found) == [("toolu_01A", "get_weather", '{"location":"Seoul","date":"2026-03-12"}')]
    assert (found.output_event_count, found.content_event_count, found.tool_call_count) == (3, 2, 1)


def test_thinking_is_reasoning_and_its_signature_is_not_output() -> None:
    found = read(
        DIALECT,
        events(
            block(0, type="thinking", thinking="", signature=""),
            delta(0, type="thinking_delta", thinking="I should answer briefly."),
            delta(0, type="signature_delta", signature="sig_abc123"),
        ),
    )
    assert str(found.first_choice.reasoning) == "I should answer briefly."
    assert found.events.kind == ["start", "reasoning", "annotation"]


def test_redacted_thinking_citations_and_compaction_are_not_output() -> None:
    found = read(
        DIALECT,
        events(
            block(0, type="redacted_thinking", data="EmwKAhgB"),
            block(1, type="text", text="", citations=[]),
            delta(1, type="citations_delta", citation={"type": "char_location", "cited_text": "x"}),
            block(2, type="compaction", content=None),
            delta(2, type="compaction_delta", content="The user said …"),
        ),
    )
    assert found.output_event_count == 0


def test_server_tools_are_output_but_not_client_tool_calls() -> None:
    sent = events(
        block(0, type="server_tool_use", id="srvtoolu_1", name="web_search", input={}),
        delta(0, type="input_json_delta", partial_json='{"query": "x"}'),
        block(
            1,
            type="web_search_tool_result",
            tool_use_id="srvtoolu_1",
            content=[{"type": "web_search_result"}],
        ),
        block(2, type="mcp_tool_use", id="mcptoolu_1", name="echo", server_name="s", input={}),
        block(3, type="mcp_tool_result", tool_use_id="mcptoolu_1", is_error=False, content=[]),
        block(4, type="tool_use", id="toolu_1", name="mine", input={}),
    )
    answers = decoded_events(DIALECT, sent)
    assert read(DIALECT, sent).events.kind == [
        "tool_call",
        "tool_call",
        "annotation",
        "tool_call",
        "annotation",
        "tool_call",
    ]
    flags = [piece.server_side for a in answers for f in a.deltas or [] for piece in f.tool_calls or []]
    assert flags == [True, True, True, False]


def test_failed_mcp_call_is_counted_but_not_a_stream_error() -> None:
    found = read(
        DIALECT, events(block(0, type="mcp_tool_result", tool_use_id="m", is_error=True, content=[]))
    )
    assert (found.tool_failure_count, found.error, found.events.kind) == (1, None, ["annotation"])


def test_tool_input_in_the_start_event_is_decoded_once() -> None:
    found = read(
        DIALECT,
        events(
            block(0, type="tool_use", id="t", name="n", input={"a": 1}),
            delta(0, type="input_json_delta", partial_json='{"a": 1}'),
        ),
    )
    assert tools(found) == [("t", "n", '{"a":1}')]


def test_text_in_a_block_start_is_output() -> None:
    found = read(
        DIALECT, events(block(0, type="text", text="Hi"), delta(0, type="text_delta", text=" there"))
    )
    assert str(found.first_choice.text) == "Hi there"


@pytest.mark.parametrize("more", [{"error": {}}, {"error": {"message": "m"}}, {"type": 1}])
def test_message_has_no_error_or_type(more: dict[str, Any]) -> None:
    message = {"id": "m", "usage": {"input_tokens": 5}, **more}
    found = read(DIALECT, events({"type": "message_start", "message": message}))
    assert (usage(found)[0], found.response_id) == (5, "m")
    assert (found.error, found.malformed_events) == (None, 0)


def test_ping_is_a_ping() -> None:
    assert read(DIALECT, events({"type": "ping"})).events.kind == ["ping"]


def test_error_event_sets_the_stream_error() -> None:
    sent = {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "Overloaded"},
        "request_id": "r",
    }
    found = read(DIALECT, events(start(input_tokens=3), sent))
    assert found.error is not None
    assert (found.error.type, found.error.message, found.error.raw) == (
        "overloaded_error",
        "Overloaded",
        sent["error"],
    )
    assert not found.terminal_seen


@pytest.mark.parametrize(
    "sent", ['{"error": "upstream gone"}', '{"message": "upstream gone"}', "upstream gone"]
)
def test_error_event_of_any_shape_is_an_error(sent: str) -> None:
    found = read(DIALECT, f"event: error\ndata: {sent}\n\n".encode())
    assert found.error is not None
    assert found.error.message == "upstream gone"


def test_cumulative_usage_overwrites_and_null_is_ignored() -> None:
    found = read(
        DIALECT,
        events(
            start(input_tokens=10, cache_read_input_tokens=5, cache_creation_input_tokens=2, output_tokens=1),
            end(None, output_tokens=7),
            end(output_tokens=11, input_tokens=None, cache_read_input_tokens=None),
            STOP,
        ),
    )
    assert usage(found) == (17, 11, None, 5)
    assert found.usage is not None
    assert found.usage.raw == {
        "input_tokens": 10,
        "cache_read_input_tokens": 5,
        "cache_creation_input_tokens": 2,
        "output_tokens": 11,
    }
    assert len(found.usage_reports) == 3


def test_earlier_usage_reports_are_not_modified() -> None:
    found = read(DIALECT, events(start(input_tokens=10, output_tokens=1), end(output_tokens=11)))
    assert [report.raw["output_tokens"] for _, _, report in found.usage_reports] == [1, 11]


def test_output_tokens_of_message_start_are_ignored() -> None:
    found = read(
        DIALECT, events(start(input_tokens=10, output_tokens=3), delta(0, type="text_delta", text="x" * 500))
    )
    assert usage(found) == (10, None, None, None)
    assert found.usage is not None
    assert found.usage.raw["output_tokens"] == 3


def test_input_tokens_only_in_message_delta_are_used() -> None:
    found = read(
        DIALECT, events(start(input_tokens=0, output_tokens=0), end(input_tokens=44, output_tokens=9))
    )
    assert usage(found) == (44, 9, None, None)


CACHED = {"input_tokens": 3, "cache_creation_input_tokens": 17, "cache_read_input_tokens": 32_651}


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        ({"input_tokens": 15}, {"input_tokens": 0}, (15, 7, None, None)),
        ({"input_tokens": 15}, {"output_tokens": 0}, (15, 0, None, None)),
        (CACHED, CACHED | {"input_tokens": 32_671}, (32_671, 7, None, 32_651)),
        (CACHED, {"input_tokens": 32_671}, (32_671, 7, None, 32_651)),
        (CACHED, {"input_tokens": 4}, (32_672, 7, None, 32_651)),
        (CACHED, {"input_tokens": 0, "cache_read_input_tokens": 0}, (20, 7, None, 0)),
        ({"input_tokens": 15}, {"input_tokens": 15, "cache_read_input_tokens": 5}, (20, 7, None, 5)),
    ],
)
def test_later_counts_neither_lose_nor_repeat_the_input(
    first: dict[str, int], last: dict[str, int], expected: tuple[int | None, ...]
) -> None:
    found = read(DIALECT, events(start(output_tokens=1, **first), end(**{"output_tokens": 7, **last}), STOP))
    assert usage(found) == expected


def test_thinking_tokens_are_reasoning_tokens() -> None:
    found = read(DIALECT, events(end(output_tokens=99, output_tokens_details={"thinking_tokens": 28})))
    assert usage(found)[2] == 28


@pytest.mark.parametrize("reason", ["max_tokens", "tool_use", "stop_sequence", "pause_turn", "refusal"])
def test_stop_reason_is_the_finish(reason: str) -> None:
    assert read(DIALECT, events(end(reason, output_tokens=1))).finish_reason == reason


def test_bedrock_metrics_become_server_stats() -> None:
    metrics = {"inputTokenCount": 8, "outputTokenCount": 4, "invocationLatency": 500, "firstByteLatency": 120}
    found = read(DIALECT, events({"type": "message_stop", "amazon-bedrock-invocationMetrics": metrics}))
    stats = {stat.name: (stat.value, stat.unit) for _, stat in found.server_stats}
    assert stats["firstByteLatency"] == (120e6, "ns")
    assert stats["outputTokenCount"] == (4, "tokens")


def test_non_streamed_body() -> None:
    found = read_body(
        DIALECT,
        {
            "type": "message",
            "id": "msg_2",
            "model": "m",
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Hi"},
                {"type": "tool_use", "id": "t", "name": "n", "input": {}},
            ],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 5, "output_tokens": 6, "cache_read_input_tokens": 4},
        },
    )
    assert (str(found.first_choice.text), str(found.first_choice.reasoning)) == ("Hi", "hm")
    assert tools(found) == [("t", "n", "{}")]
    assert (found.finish_reason, found.response_id, usage(found)) == ("tool_use", "msg_2", (9, 6, None, 4))


def test_error_body_under_200() -> None:
    found = read_body(DIALECT, {"type": "error", "error": {"type": "api_error", "message": "m"}})
    assert found.error is not None
    assert found.error.type == "api_error"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\xff",
        b'{"type": 5}',
        b'{"type":"content_block_delta","delta":"x"}',
        b"[" * 100_000,
    ],
)
def test_invalid_data_is_malformed(data: bytes) -> None:
    reader = DIALECT.reader(ExchangeInfo())
    assert reader.read("content_block_delta", data).kind == "malformed"
    reader.read_body(data)


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b'{"type":"content_block_start"}',
        b'{"type":"message_start","message":{"usage":5,"content":null}}',
    ],
)
def test_missing_members_yield_no_output(data: bytes) -> None:
    assert DIALECT.reader(ExchangeInfo()).read("", data).kind in ("other", "start")


def test_lone_surrogate_and_invalid_utf8_replace_one_character() -> None:
    found = read(
        DIALECT,
        b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"a\\ud83d\xffb"}}\n\n',
    )
    assert str(found.first_choice.text) == "a?\ufffdb"


@pytest.mark.parametrize(
    ("path", "headers", "score"),
    [
        ("/v1/messages", {"anthropic-version": "2023-06-01"}, 9),
        ("/v1/messages", {}, 5),
        ("/inference/v1/messages", {}, 5),
        ("/anthropic/v1/messages?beta=true", {}, 5),
        ("/v1/projects/p/locations/l/publishers/anthropic/models/claude@1:streamRawPredict", {}, 9),
        ("/v1/projects/p/locations/l/publishers/anthropic/models/claude@1:rawPredict", {}, 9),
        ("/v1/threads/thread_1/messages", {}, 0),
        ("/v1/messages/count_tokens", {}, 5),
        ("/v1/chat/completions", {}, 0),
    ],
)
def test_claims_by_path(path: str, headers: dict[str, str], score: int) -> None:
    assert DIALECT.claims(ExchangeInfo(path=path, request_headers=headers)) == score


def test_recognises_its_first_event_named_or_unnamed() -> None:
    assert DIALECT.recognises("message_start", b"{}") >= 5
    assert DIALECT.recognises("", b'{"type": "message_start", "message": {}}') >= 5
    assert DIALECT.recognises("", b'{"id": "x", "choices": []}') == 0
    assert DIALECT.recognises("ping", b'{"type": "ping"}') < 5


def test_count_of_a_prompt_has_its_tokens_and_its_operation() -> None:
    exchange = ExchangeInfo(path="/v1/messages/count_tokens")
    found = read_body(DIALECT, {"input_tokens": 31}, exchange)
    assert usage(found) == (31, None, None, None)
    assert getattr(DIALECT.reader(exchange), "operation", None) == "count_tokens"
    assert getattr(DIALECT.reader(ExchangeInfo(path="/v1/messages")), "operation", None) is None

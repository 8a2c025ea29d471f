"""Gemini's generateContent: framings, function calls, cumulative usage."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.gemini import DIALECT
from tests.analytics.dialects.transcript import events, read, read_body, tools, usage


def chunk(*parts: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": index}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": "gemini-2.5-flash", "responseId": "r1", **more}


def counts(
    prompt: int, candidates: int | None = None, thoughts: int | None = None, **more: Any
) -> dict[str, Any]:
    members = {
        "promptTokenCount": prompt,
        "candidatesTokenCount": candidates,
        "thoughtsTokenCount": thoughts,
        **more,
    }
    return {"usageMetadata": {key: value for key, value in members.items() if value is not None}}


def test_cumulative_usage_on_every_chunk() -> None:
    found = read(
        DIALECT,
        events(
            chunk({"text": "Hel"}, **counts(10, 1)),
            chunk({"text": "lo"}, **counts(10, 2)),
            chunk({"text": ""}, finish="STOP", **counts(10, 2, cachedContentTokenCount=4)),
        ),
    )
    assert str(found.first_choice.text) == "Hello"
    assert found.events.kind == ["text", "text", "finish"]
    assert (found.finish_reason, found.response_id, found.response_model) == (
        "STOP",
        "r1",
        "gemini-2.5-flash",
    )
    assert (usage(found), len(found.usage_reports)) == ((10, 2, None, 4), 3)


def test_finish_chunk_may_carry_the_last_text() -> None:
    found = read(DIALECT, events(chunk({"text": "Hi"}, finish="MAX_TOKENS")))
    assert (str(found.first_choice.text), found.finish_reason, found.events.kind) == (
        "Hi",
        "MAX_TOKENS",
        ["text"],
    )


def test_thought_parts_are_reasoning_and_count_as_output_tokens() -> None:
    found = read(
        DIALECT,
        events(
            chunk({"text": "Let me see", "thought": True}, **counts(5, None, 30)),
            chunk({"text": "40"}, {"thoughtSignature": "c2ln"}, finish="STOP", **counts(5, 2, 30)),
        ),
    )
    assert (str(found.first_choice.reasoning), str(found.first_choice.text)) == ("Let me see", "40")
    assert found.events.kind == ["reasoning", "text"]
    assert usage(found) == (5, 32, 30, None)


def test_function_call_arguments_object_becomes_json_text() -> None:
    call = {
        "functionCall": {"name": "weather", "args": {"city": "Rome"}, "id": "c1"},
        "thoughtSignature": "c2ln",
    }
    found = read(DIALECT, events(chunk(call, {"functionCall": {"name": "time", "args": {}}}, finish="STOP")))
    assert tools(found) == [("c1", "weather", '{"city":"Rome"}'), ("", "time", "{}")]
    assert (found.output_event_count, found.content_event_count) == (1, 1)


@pytest.mark.parametrize("call", [{"name": "now", "args": {}}, {"name": "now"}])
def test_call_without_arguments_gets_an_empty_object(call: dict[str, Any]) -> None:
    found = read(DIALECT, events(chunk({"functionCall": call}, finish="STOP")))
    assert tools(found) == [("", "now", "{}")]
    assert (found.output_event_count, found.content_event_count) == (1, 0)


def piece(path: str, value: str, *, will_continue: bool = False) -> dict[str, Any]:
    piece = {"jsonPath": path, "stringValue": value, "willContinue": will_continue}
    return {"functionCall": {"partialArgs": [piece], "willContinue": True}}


def test_partial_arguments_are_joined() -> None:
    found = read(
        DIALECT,
        events(
            chunk({"functionCall": {"name": "cook", "willContinue": True}}),
            chunk(piece("$.items[0].name", "noo", will_continue=True)),
            chunk(piece("$.items[0].name", "dles", will_continue=True)),
            chunk(piece("$.items[0].name", "")),
            chunk({"functionCall": {"willContinue": True}}),
            chunk(piece("$.items[1].name", "beef")),
            chunk({"functionCall": {}}, finish="STOP"),
        ),
    )
    ((_, name, arguments),) = tools(found)
    assert (name, json.loads(arguments)) == ("cook", {"items": [{"name": "noodles"}, {"name": "beef"}]})
    assert (found.output_event_count, found.content_event_count, found.tool_call_count) == (4, 3, 1)


def test_partial_arguments_are_closed_by_will_continue_false() -> None:
    call = {"functionCall": {"name": "a", "willContinue": True}}
    found = read(DIALECT, events(chunk(call), chunk(piece("$.x", "1")), chunk({"functionCall": {}})))
    assert tools(found) == [("", "a", '{"x":"1"}')]


def test_partial_call_is_closed_by_the_next_call() -> None:
    found = read(
        DIALECT,
        events(
            chunk({"functionCall": {"name": "a", "willContinue": True}}),
            chunk(piece("$.x", "1", will_continue=True)),
            chunk({"functionCall": {"name": "b", "willContinue": True}}),
            chunk({"text": ""}, finish="STOP"),
        ),
    )
    assert tools(found) == [("", "a", '{"x":"1"}'), ("", "b", "{}")]


def test_executable_code_is_output_but_not_a_client_tool_call() -> None:
    found = read(
        DIALECT,
        events(
            chunk({"executableCode": {"language": "PYTHON", "code": "print(17**2)", "id": "x"}}),
            chunk({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "289"}}),
        ),
    )
    assert found.events.kind == ["tool_call", "start"]
    assert (tools(found), found.tool_call_count) == ([], 0)


def test_audio_is_output() -> None:
    found = read(DIALECT, events(chunk({"inlineData": {"mimeType": "audio/L16;rate=24000", "data": "AAAA"}})))
    assert found.events.kind == ["audio"]
    assert (found.output_event_count, found.content_event_count) == (1, 0), (
        "encoded audio has no readable content"
    )


def test_each_candidate_is_a_choice_with_its_own_finish() -> None:
    both = {
        "candidates": [chunk({"text": "a"})["candidates"][0], chunk({"text": "b"}, index=1)["candidates"][0]]
    }
    found = read(DIALECT, events(both, chunk(finish="STOP"), chunk(finish="SAFETY", index=1)))
    assert {index: str(choice.text) for index, choice in found.choices.items()} == {0: "a", 1: "b"}
    assert [choice.finish_reason for choice in found.choices.values()] == ["STOP", "SAFETY"]
    assert found.terminal_seq == 2


def test_blocked_prompt_ends_the_stream_without_an_error() -> None:
    found = read(DIALECT, events({"promptFeedback": {"blockReason": "SAFETY"}, **counts(9)}))
    assert (found.terminal_seen, found.error, found.finish_reason) == (True, None, None)


def test_candidate_without_content() -> None:
    found = read(DIALECT, events({"candidates": [{"finishReason": "RECITATION", "index": 0}]}))
    assert found.finish_reason == "RECITATION"


def test_error_chunk() -> None:
    error = {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}
    found = read(DIALECT, events(chunk({"text": "Hi"}), {"error": error}))
    assert found.error is not None
    assert (found.error.type, found.error.message, found.error.raw) == (
        "UNAVAILABLE",
        error["message"],
        error,
    )


def test_code_assist_wrapper_is_unwrapped() -> None:
    found = read(DIALECT, events({"response": chunk({"text": "Hi"}, finish="STOP"), "traceId": "t"}))
    assert str(found.first_choice.text) == "Hi"


@pytest.mark.parametrize("more", [{"error": ""}, {"error": {"message": "m"}}, {"type": 1}])
def test_wrapped_chunk_has_no_error_or_type(more: dict[str, Any]) -> None:
    candidate = {"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}
    found = read(DIALECT, events({"response": {"candidates": [candidate], **more}}))
    assert (str(found.first_choice.text), found.finish_reason) == ("Hi", "STOP")
    assert (found.error, found.malformed_events) == (None, 0)


def test_non_streamed_body_and_array_body() -> None:
    one = chunk({"text": "Hi"}, finish="STOP", **counts(3, 1))
    assert str(read_body(DIALECT, one).first_choice.text) == "Hi"
    array = json.dumps([chunk({"text": "Hi"}), chunk({"text": "!"}, finish="STOP")], indent=1).encode()
    found = read_body(DIALECT, array)
    assert (str(found.first_choice.text), found.finish_reason) == ("Hi!", "STOP")


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"candidates":{}}', b'{"candidates":[{"content":"x"}]}', b"\xff"]
)
def test_invalid_data_is_malformed(data: bytes) -> None:
    reader = DIALECT.reader(ExchangeInfo())
    assert reader.read("", data).kind == "malformed"
    reader.read_body(data)


@pytest.mark.parametrize(
    ("path", "score"),
    [
        ("/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse", 5),
        ("/v1beta/models/gemini-2.5-pro:generateContent", 5),
        ("/v1/projects/p/locations/l/publishers/google/models/m:streamGenerateContent", 5),
        ("/v1beta/openai/chat/completions", 0),
        ("/v1beta/models/m:countTokens", 5),
    ],
)
def test_claims_by_path(path: str, score: int) -> None:
    assert DIALECT.claims(ExchangeInfo(path=path)) == score


def test_count_of_a_prompt_has_its_tokens_and_its_operation() -> None:
    exchange = ExchangeInfo(path="/v1beta/models/m:countTokens")
    found = read_body(
        DIALECT,
        {"totalTokens": 31, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 31}]},
        exchange,
    )
    assert usage(found) == (31, None, None, None)
    assert getattr(DIALECT.reader(exchange), "operation", None) == "count_tokens"
    assert getattr(DIALECT.reader(ExchangeInfo(path="/v1/messages")), "operation", None) is None

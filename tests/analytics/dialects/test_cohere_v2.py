"""Cohere's chat v2."""

from __future__ import annotations

from typing import Any

import pytest

from streamgauge.analytics.dialects.cohere import CHAT_V2 as DIALECT
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from tests.analytics.dialects.transcript import events, read, read_body, tools, usage

USAGE = {
    "billed_units": {"input_tokens": 84, "output_tokens": 314},
    "tokens": {"input_tokens": 1501, "output_tokens": 346, "reasoning_tokens": 304},
    "cached_tokens": 1008,
}


def event(kind: str, index: int = 0, **message: Any) -> dict[str, Any]:
    return {"type": kind, "index": index, "delta": {"message": message}}


def end(reason: str = "COMPLETE", **more: Any) -> dict[str, Any]:
    return {"type": "message-end", "delta": {"finish_reason": reason, "usage": USAGE, **more}}


def test_stream_with_thinking_text_and_citations() -> None:
    found = read(
        DIALECT,
        events(
            {"type": "message-start", "id": "x1", "delta": {"message": {"role": "assistant", "content": []}}},
            event("content-start", content={"type": "thinking", "thinking": ""}),
            event("content-delta", content={"thinking": "hm"}),
            {"type": "content-end", "index": 0},
            event("content-start", 1, content={"type": "text", "text": ""}),
            event("content-delta", 1, content={"text": "Hi"}),
            event("citation-start", citations={"start": 0, "end": 2, "text": "Hi"}),
            {"type": "citation-end", "index": 0},
            end(),
        ),
    )
    assert found.events.kind == [
        "start", "start", "reasoning", "annotation", "start", "text", "annotation", "annotation", "finish",
    ]  # fmt: skip
    assert (str(found.first_choice.text), str(found.first_choice.reasoning)) == ("Hi", "hm")
    assert (found.finish_reason, found.response_id, found.terminal_seen) == ("COMPLETE", "x1", True)
    assert usage(found) == (1501, 346, 304, 1008)


def test_tool_plan_is_output_but_not_text_or_reasoning() -> None:
    found = read(DIALECT, events(event("tool-plan-delta", tool_plan="I will use the tool")))
    assert (found.output_event_count, found.content_event_count) == (1, 1)
    assert (found.text_chars, found.reasoning_chars, found.events.chars) == (0, 0, [19])


def test_tool_calls_are_distinguished_by_index() -> None:
    def call(kind: str, index: int, **function: Any) -> dict[str, Any]:
        tool_call = {
            "function": function,
            **({"id": f"c{index}", "type": "function"} if "name" in function else {}),
        }
        return event(kind, index, tool_calls=tool_call)

    found = read(
        DIALECT,
        events(
            call("tool-call-start", 0, name="a", arguments=""),
            call("tool-call-delta", 0, arguments='{"x":'),
            call("tool-call-delta", 0, arguments="1}"),
            {"type": "tool-call-end", "index": 0},
            call("tool-call-start", 1, name="b", arguments=""),
            {"type": "tool-call-end", "index": 1},
            end("TOOL_CALL"),
        ),
    )
    assert tools(found) == [("c0", "a", '{"x":1}'), ("c1", "b", "")]
    assert (found.output_event_count, found.content_event_count) == (4, 2)


def test_error_finish_has_its_message() -> None:
    found = read(DIALECT, events(end("ERROR", error="invalid tool generation", usage={})))
    assert found.error is not None
    assert (found.error.type, found.error.message, found.error.raw) == (
        "ERROR",
        "invalid tool generation",
        "invalid tool generation",
    )
    assert (found.finish_reason, found.events.kind) == ("ERROR", ["error"])
    assert usage(found) == (None, None, None, None)


def test_error_finish_without_message_uses_the_reason_as_type() -> None:
    found = read(DIALECT, events(end("TIMEOUT")))
    assert found.error is not None
    assert found.error.type == "TIMEOUT"


@pytest.mark.parametrize("reason", ["MAX_TOKENS", "STOP_SEQUENCE", "TOOL_CALL", "ERROR_TOXIC", "ERROR_LIMIT"])
def test_other_finish_reasons_are_not_errors(reason: str) -> None:
    assert read(DIALECT, events(end(reason))).error is None


def test_usage_with_billed_units_only() -> None:
    found = read(DIALECT, events(end(usage={"billed_units": {"input_tokens": 1, "output_tokens": 2}})))
    assert usage(found) == (1, 2, None, None)


def test_non_streamed_body() -> None:
    found = read_body(
        DIALECT,
        {
            "id": "x1",
            "finish_reason": "TOOL_CALL",
            "message": {
                "role": "assistant",
                "tool_plan": "I will",
                "content": [{"type": "text", "text": "Hi"}, {"type": "thinking", "thinking": "hm"}],
                "tool_calls": [{"id": "c", "function": {"name": "n", "arguments": "{}"}}],
            },
            "usage": USAGE,
        },
    )
    assert (str(found.first_choice.text), str(found.first_choice.reasoning)) == ("Hi", "hm")
    assert (tools(found), found.finish_reason, found.response_id) == ([("c", "n", "{}")], "TOOL_CALL", "x1")


def test_invalid_data_is_malformed() -> None:
    assert read(DIALECT, b'data: {\n\ndata: {"delta":[]}\n\n').malformed_events == 2


def test_claims_by_path() -> None:
    assert DIALECT.claims(ExchangeInfo(path="/v2/chat")) == 5
    assert DIALECT.claims(ExchangeInfo(path="/v1/chat")) == 0

"""Cohere's v1 chat and generate."""

from __future__ import annotations

from typing import Any

import pytest

from streamgauge.analytics.dialects.cohere import CHAT_V1 as DIALECT
from tests.analytics.dialects.transcript import events, read, read_body, tools, usage


def line(kind: str, **more: Any) -> dict[str, Any]:
    return {"is_finished": kind == "stream-end", "event_type": kind, **more}


def end(reason: str = "COMPLETE", **more: Any) -> dict[str, Any]:
    meta = {
        "billed_units": {"input_tokens": 5, "output_tokens": 6},
        "tokens": {"input_tokens": 70, "output_tokens": 8},
    }
    return line("stream-end", finish_reason=reason, response={"text": "Hi there", "meta": meta}, **more)


def test_text_stream() -> None:
    found = read(
        DIALECT,
        events(
            line("stream-start", generation_id="g1"),
            line("text-generation", text="Hi"),
            line("text-generation", text=" there"),
            line("citation-generation", citations=[]),
            end(),
        ),
    )
    assert str(found.first_choice.text) == "Hi there"
    assert found.events.kind == ["start", "text", "text", "annotation", "finish"]
    assert (found.finish_reason, found.response_id, found.terminal_seen) == ("COMPLETE", "g1", True)
    assert usage(found) == (70, 8, None, None)
    assert found.usage is not None
    assert found.usage.raw == {"input_tokens": 5, "output_tokens": 6}


def test_whole_tool_calls_after_streamed_ones_are_ignored() -> None:
    found = read(
        DIALECT,
        events(
            line("tool-calls-chunk", text="I will"),
            line("tool-calls-chunk", tool_call_delta={"index": 0, "name": "n"}),
            line("tool-calls-chunk", tool_call_delta={"index": 0, "parameters": '{"a":1}'}),
            line("tool-calls-generation", tool_calls=[{"name": "n", "parameters": {"a": 1}}]),
        ),
    )
    assert tools(found) == [("", "n", '{"a":1}')]
    assert found.events.kind == ["reasoning", "tool_call", "tool_call", "annotation"]


def test_tool_calls_without_deltas_are_decoded() -> None:
    found = read(
        DIALECT, events(line("tool-calls-generation", tool_calls=[{"name": "n", "parameters": {"a": 1}}]))
    )
    assert tools(found) == [("", "n", '{"a":1}')]


@pytest.mark.parametrize("reason", ["ERROR", "TIMEOUT"])
def test_failed_finish_has_its_reason_and_usage(reason: str) -> None:
    found = read(DIALECT, events(end(reason, error="m")))
    assert found.error is not None
    assert (found.error.type, found.error.message) == (reason, "m")
    assert (found.finish_reason, usage(found)) == (reason, (70, 8, None, None))
    assert found.terminal_seen


@pytest.mark.parametrize("more", [{}, line("citation-generation")])
def test_error_that_is_no_finish(more: dict[str, Any]) -> None:
    found = read(DIALECT, events({"error": "m", "code": "c", **more}))
    assert found.error is not None
    assert (found.error.type, found.error.message, found.terminal_seen) == ("c", "m", False)


def test_non_streamed_bodies() -> None:
    chat = read_body(
        DIALECT,
        {
            "text": "Hi",
            "generation_id": "g",
            "finish_reason": "COMPLETE",
            "meta": {"tokens": {"input_tokens": 1}},
        },
    )
    assert (str(chat.first_choice.text), chat.response_id, chat.finish_reason) == ("Hi", "g", "COMPLETE")
    generate = read_body(DIALECT, {"id": "i", "generations": [{"text": "a"}, {"text": "b"}]})
    assert {index: str(choice.text) for index, choice in generate.choices.items()} == {0: "a", 1: "b"}


def test_invalid_data_is_malformed() -> None:
    assert read(DIALECT, b'data: {\n\ndata: {"text":[]}\n\n').malformed_events == 2

"""Gemini's Interactions API."""

from __future__ import annotations

from typing import Any

import pytest

from streamgauge.analytics.dialects.gemini_interactions import DIALECT
from tests.analytics.dialects.transcript import events, read, read_body, tools, usage

CREATED = {
    "event_type": "interaction.created",
    "interaction": {"id": "v1_a", "model": "m", "status": "in_progress"},
}
USAGE = {
    "total_input_tokens": 22,
    "total_output_tokens": 10,
    "total_thought_tokens": 5,
    "total_cached_tokens": 3,
}


def completed(status: str = "completed", **more: Any) -> dict[str, Any]:
    return {
        "event_type": "interaction.completed",
        "interaction": {"id": "v1_a", "status": status, "usage": USAGE, **more},
    }


def start(index: int, **step: Any) -> dict[str, Any]:
    return {"event_type": "step.start", "index": index, "step": step}


def delta(index: int, **part: Any) -> dict[str, Any]:
    return {"event_type": "step.delta", "index": index, "delta": part}


def stop(index: int) -> dict[str, Any]:
    return {"event_type": "step.stop", "index": index}


def test_stream_with_thoughts_and_text() -> None:
    found = read(
        DIALECT,
        events(
            CREATED,
            {"event_type": "interaction.status_update", "interaction_id": "v1_a", "status": "in_progress"},
            start(0, type="thought"),
            delta(0, type="thought_summary", content={"text": "hm", "type": "text"}),
            delta(0, type="thought_signature", signature="c2ln"),
            stop(0),
            start(1, type="model_output"),
            delta(1, type="text", text="40"),
            delta(1, type="text_annotation_delta", annotations=[]),
            stop(1),
            completed(),
        ),
    )
    assert found.events.kind == [
        "start", "progress", "start", "reasoning", "annotation", "annotation", "start", "text", "annotation",
        "annotation", "finish",
    ]  # fmt: skip
    assert (str(found.first_choice.text), str(found.first_choice.reasoning)) == ("40", "hm")
    assert (found.finish_reason, found.response_id, found.response_model) == ("completed", "v1_a", "m")
    assert usage(found) == (22, 15, 5, 3)


def test_function_calls_with_and_without_arguments() -> None:
    found = read(
        DIALECT,
        events(
            start(0, type="function_call", id="c1", name="add", arguments={}),
            delta(0, type="arguments_delta", arguments='{"x":'),
            delta(0, type="arguments_delta", arguments="2}"),
            stop(0),
            start(1, type="function_call", id="c2", name="now", arguments={}),
            stop(1),
            completed("requires_action"),
        ),
    )
    assert tools(found) == [("c1", "add", '{"x":2}'), ("c2", "now", "{}")]
    assert (found.finish_reason, found.error) == ("requires_action", None)
    assert (found.output_event_count, found.content_event_count) == (4, 2)


def test_server_side_search_is_not_output() -> None:
    found = read(
        DIALECT,
        events(
            start(0, type="google_search_call", id="s"),
            delta(0, type="google_search_call", arguments={"queries": ["x"]}),
            start(1, type="google_search_result", call_id="s"),
            delta(1, type="google_search_result", result=[{}]),
        ),
    )
    assert found.output_event_count == 0


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_failed_interaction_is_an_error(status: str) -> None:
    found = read(DIALECT, events(CREATED, completed(status)))
    assert found.error is not None
    assert found.error.type == status


def test_error_event() -> None:
    found = read(DIALECT, events({"event_type": "error", "error": {"code": "quota", "message": "m"}}))
    assert found.error is not None
    assert (found.error.type, found.error.message) == ("quota", "m")


def test_names_of_the_first_preview() -> None:
    found = read(
        DIALECT,
        events(
            {"event_type": "interaction.start", "interaction": {"id": "i", "status": "in_progress"}},
            {"event_type": "content.start", "index": 0, "content": {"type": "text"}},
            {"event_type": "content.delta", "index": 0, "delta": {"type": "text", "text": "Hi"}},
            {"event_type": "content.stop", "index": 0},
            {"event_type": "interaction.complete", "interaction": {"id": "i", "status": "completed"}},
        ),
    )
    assert (str(found.first_choice.text), found.finish_reason) == ("Hi", "completed")


def test_non_streamed_body() -> None:
    found = read_body(
        DIALECT,
        {"id": "i", "status": "completed", "outputs": [{"type": "text", "text": "Hi"}], "usage": USAGE},
    )
    assert (str(found.first_choice.text), usage(found)) == ("Hi", (22, 15, 5, 3))


def test_non_streamed_body_of_steps() -> None:
    steps = [
        {"type": "thought", "summary": [{"type": "text", "text": "hm"}]},
        {"type": "function_call", "id": "c", "name": "n", "arguments": {"a": 1}},
        {"type": "model_output", "content": [{"type": "text", "text": "Hi"}]},
    ]
    found = read_body(DIALECT, {"id": "i", "status": "requires_action", "steps": steps})
    assert (str(found.first_choice.text), str(found.first_choice.reasoning)) == ("Hi", "hm")
    assert tools(found) == [("c", "n", '{"a":1}')]


def test_invalid_data_is_malformed() -> None:
    assert read(DIALECT, b'data: {\n\ndata: {"delta":[]}\n\n').malformed_events == 2

"""OpenAI's Assistants: runs of threads, streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.openai_assistants import DIALECT
from tests.analytics.dialects.transcript import read, tools, usage


def named(*pairs: tuple[str, dict[str, Any]]) -> bytes:
    return "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in pairs).encode()


def run(status: str, **more: Any) -> tuple[str, dict[str, Any]]:
    run_object = {
        "id": "run_1",
        "object": "thread.run",
        "model": "gpt-4",
        "status": status,
        "usage": None,
        "last_error": None,
    }
    return f"thread.run.{status}", {**run_object, **more}


def message(text: str) -> tuple[str, dict[str, Any]]:
    content = [{"index": 0, "type": "text", "text": {"value": text, "annotations": []}}]
    return "thread.message.delta", {
        "id": "msg_1",
        "object": "thread.message.delta",
        "delta": {"content": content},
    }


def step(**call: Any) -> tuple[str, dict[str, Any]]:
    details = {"type": "tool_calls", "tool_calls": [{"index": 0, **call}]}
    return "thread.run.step.delta", {
        "id": "step_1",
        "object": "thread.run.step.delta",
        "delta": {"step_details": details},
    }


def test_message_stream() -> None:
    used = {
        "prompt_tokens": 6,
        "completion_tokens": 16,
        "total_tokens": 22,
        "prompt_token_details": {"cached_tokens": 2},
    }
    found = read(
        DIALECT,
        named(
            ("thread.created", {"id": "thread_1", "object": "thread"}),
            ("thread.run.created", run("queued")[1]),
            run("in_progress"),
            ("thread.message.created", {"id": "msg_1", "object": "thread.message", "status": "in_progress"}),
            message("Hel"),
            message("lo"),
            ("thread.message.completed", {"id": "msg_1", "object": "thread.message", "status": "completed"}),
            (
                "thread.run.step.completed",
                {"id": "s", "object": "thread.run.step", "usage": {"prompt_tokens": 1}},
            ),
            run("completed", usage=used),
        ),
    )
    assert str(found.first_choice.text) == "Hello"
    assert (found.finish_reason, found.response_id, found.response_model) == ("completed", "run_1", "gpt-4")
    assert (usage(found), found.terminal_seen) == ((6, 16, None, 2), True)
    assert found.events.kind[4:6] == ["text", "text"]


def test_function_call_and_generated_code() -> None:
    found = read(
        DIALECT,
        named(
            step(id="call_1", type="function", function={"name": "f", "arguments": ""}),
            step(type="function", function={"arguments": "{}"}),
            run("requires_action"),
        ),
    )
    assert (tools(found), found.finish_reason, found.error) == (
        [("call_1", "f", "{}")],
        "requires_action",
        None,
    )
    code = read(DIALECT, named(step(id="c", type="code_interpreter", code_interpreter={"input": "1+1"})))
    assert (code.events.kind, tools(code)) == (["tool_call"], [])


def test_calls_of_different_steps_are_distinguished() -> None:
    first = step(id="call_1", type="function", function={"name": "f", "arguments": "1"})
    name, data = step(id="call_2", type="function", function={"name": "g", "arguments": "2"})
    found = read(DIALECT, named(first, (name, {**data, "id": "step_2"})))
    assert tools(found) == [("call_1", "f", "1"), ("call_2", "g", "2")]


@pytest.mark.parametrize(
    ("status", "kind"), [("failed", "server_error"), ("cancelled", "cancelled"), ("expired", "expired")]
)
def test_failed_run_is_an_error(status: str, kind: str) -> None:
    last_error = {"code": "server_error", "message": "m"} if status == "failed" else None
    found = read(DIALECT, named(run(status, last_error=last_error)))
    assert found.error is not None
    assert (found.error.type, found.error.raw) == (kind, last_error)


def test_error_event() -> None:
    found = read(DIALECT, named(("error", {"error": {"type": "t", "message": "m"}})))
    assert found.error is not None
    assert found.error.type == "t"


def test_invalid_data_is_malformed() -> None:
    assert (
        read(DIALECT, b'event: thread.run\ndata: {\n\nevent: x\ndata: {"delta":[]}\n\n').malformed_events == 2
    )


@pytest.mark.parametrize(
    ("path", "score"),
    [
        ("/v1/threads/thread_1/runs", 5),
        ("/v1/threads/runs", 5),
        ("/v1/threads/thread_1/runs/run_1/submit_tool_outputs", 5),
        ("/v1/threads/thread_1/messages", 0),
    ],
)
def test_claims_by_path(path: str, score: int) -> None:
    assert DIALECT.claims(ExchangeInfo(path=path)) == score

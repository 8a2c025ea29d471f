"""Ollama's native chat and generate: JSON lines."""

from __future__ import annotations

from typing import Any

import pytest

from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.ollama import DIALECT
from tests.analytics.dialects.transcript import events, read, read_body, tools, usage

END = {
    "done": True,
    "done_reason": "stop",
    "total_duration": 5645304708,
    "load_duration": 55095250,
    "prompt_eval_count": 307,
    "prompt_eval_duration": 710671250,
    "eval_count": 308,
    "eval_duration": 4466025455,
}


def chat(content: str = "", **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content,
        **{k: more.pop(k) for k in ("thinking", "tool_calls") if k in more},
    }
    return {
        "model": "qwen3:4b",
        "created_at": "2026-08-04T19:58:15Z",
        "message": message,
        "done": False,
        **more,
    }


def test_chat_stream() -> None:
    call = {"id": "c1", "function": {"index": 0, "name": "weather", "arguments": {"city": "Tokyo"}}}
    found = read(
        DIALECT,
        events(chat("", thinking="hm"), chat("Hel"), chat("lo"), chat(tool_calls=[call]), chat("", **END)),
    )
    assert (str(found.first_choice.text), str(found.first_choice.reasoning)) == ("Hello", "hm")
    assert tools(found) == [("c1", "weather", '{"city":"Tokyo"}')]
    assert found.events.kind == ["reasoning", "text", "text", "tool_call", "finish"]
    assert (found.finish_reason, found.response_model, found.terminal_seen) == ("stop", "qwen3:4b", True)
    assert usage(found) == (307, 308, None, None)


def test_server_times_are_kept_in_ns() -> None:
    found = read(DIALECT, events(chat("", **END)))
    stats = {stat.name: (stat.value, stat.unit) for _, stat in found.server_stats}
    assert stats["load_duration"] == (55095250.0, "ns")
    assert stats["eval_count"] == (308.0, "tokens")


def test_generate_stream() -> None:
    found = read(
        DIALECT,
        events(
            {"model": "m", "created_at": "t", "response": "", "thinking": "hm", "done": False},
            {"model": "m", "created_at": "t", "response": "Hi", "done": False},
            {
                "model": "m",
                "created_at": "t",
                "response": "",
                "done": True,
                "done_reason": "length",
                "context": [1, 2],
            },
        ),
    )
    assert (str(found.first_choice.text), str(found.first_choice.reasoning), found.finish_reason) == (
        "Hi",
        "hm",
        "length",
    )


def test_calls_of_successive_messages_are_distinguished() -> None:
    calls = [{"function": {"name": "a", "arguments": {}}}, {"function": {"name": "b", "arguments": {}}}]
    found = read(DIALECT, events(chat(tool_calls=calls), chat(tool_calls=calls[:1])))
    assert [name for _, name, _ in tools(found)] == ["a", "b", "a"]


def test_missing_done_reason_of_old_servers() -> None:
    found = read(DIALECT, events(chat("Hi"), chat("", done=True)))
    assert (found.terminal_seen, found.finish_reason, found.events.kind) == (True, None, ["text", "terminal"])


def test_error_line() -> None:
    found = read(DIALECT, events(chat("Hi"), {"error": "unexpected EOF"}))
    assert found.error is not None
    assert (found.error.message, found.error.raw) == ("unexpected EOF", "unexpected EOF")


def test_non_streamed_body() -> None:
    found = read_body(DIALECT, chat("Hi", **END))
    assert (str(found.first_choice.text), found.finish_reason, usage(found)[1]) == ("Hi", "stop", 308)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"message":1}', b'{"message":{"tool_calls":{}}}'])
def test_invalid_data_is_malformed(data: bytes) -> None:
    assert DIALECT.reader(ExchangeInfo()).read("", data).kind == "malformed"


def test_claims_and_recognises() -> None:
    assert DIALECT.claims(ExchangeInfo(path="/api/chat")) == 5
    assert DIALECT.claims(ExchangeInfo(path="/api/generate")) == 5
    assert DIALECT.claims(ExchangeInfo(path="/v1/chat/completions")) == 0
    assert (
        DIALECT.recognises("", b'{"model":"m","created_at":"t","message":{"content":"a"},"done":false}') >= 5
    )

"""Anthropic's legacy text completions."""

from __future__ import annotations

from typing import Any

from streamgauge.analytics.dialects.anthropic import COMPLETE as DIALECT
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from tests.analytics.dialects.transcript import events, read, read_body


def completion(text: str, reason: str | None = None) -> dict[str, Any]:
    return {
        "type": "completion",
        "id": "compl_1",
        "completion": text,
        "stop_reason": reason,
        "model": "claude-2.1",
    }


def test_pieces_are_joined_and_the_stop_reason_finishes() -> None:
    found = read(
        DIALECT,
        events(
            completion(" Light"), {"type": "ping"}, completion(" bends."), completion("", "stop_sequence")
        ),
    )
    assert str(found.first_choice.text) == " Light bends."
    assert found.events.kind == ["text", "ping", "text", "finish"]
    assert (found.finish_reason, found.response_id, found.response_model) == (
        "stop_sequence",
        "compl_1",
        "claude-2.1",
    )


def test_cumulative_text_of_old_versions_is_differenced() -> None:
    old = ExchangeInfo(request_headers={"anthropic-version": "2023-01-01"})
    found = read(
        DIALECT, events(completion("a"), completion("ab"), completion("ab", "max_tokens"), named=False), old
    )
    assert str(found.first_choice.text) == "ab"
    assert found.output_event_count == 2


def test_error_event() -> None:
    found = read(DIALECT, events({"type": "error", "error": {"type": "overloaded_error", "message": "m"}}))
    assert found.error is not None
    assert found.error.type == "overloaded_error"


def test_non_streamed_body() -> None:
    found = read_body(DIALECT, completion("Hello", "stop_sequence"))
    assert str(found.first_choice.text) == "Hello"


def test_invalid_data_is_malformed() -> None:
    assert read(DIALECT, b"data: {\n\ndata: 5\n\n").malformed_events == 2

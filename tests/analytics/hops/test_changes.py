"""Differences between the two streams of a hop."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from streamgauge.analytics.hops.changes import CHANGES, changes, same_finish
from tests.analytics.hops.hop_streams import stream

ROOT = Path(__file__).resolve().parents[3]
BASE = stream(
    request_model="m", response_model="m", finish_reason="stop", input_tokens=5, output_tokens=9, text_chars=40,
    reasoning_chars=0, tool_call_count=0, choice_count=1, malformed_events=0, comment_count=0, terminator_ns=7,
    output_fingerprint="a1", tool_fingerprint="b1",
).row  # fmt: skip
NOTHING: Mapping[str, Any] = {}
NOTHING: Mapping[str, Any] = {}
KINDS = {"text": 8, "finish": 1, "terminal": 1}


def differences(
    outer: Mapping[str, Any], inner: Mapping[str, Any] = NOTHING, *, kinds: Mapping[str, int] = NOTHING
) -> set[tuple[Any, ...]]:
    """The changes between two usual streams with these values. `kinds`: further events of the outer stream."""
    return set(changes({**BASE, **outer}, {**BASE, **inner}, {**KINDS, **kinds}, KINDS))


def test_equal_streams_have_no_changes() -> None:
    assert differences({}) == set()


@pytest.mark.parametrize(
    ("what", "outer", "inner", "values"),
    [
        ("request_model", {"request_model": "alias"}, {}, ("alias", "m")),
        ("model", {"response_model": "alias"}, {}, ("alias", "m")),
        ("finish_reason", {"finish_reason": "length"}, {}, ("length", "stop")),
        ("finish_reason", {"finish_reason": None}, {}, (None, "stop")),
        ("input_tokens", {"input_tokens": 6}, {}, ("6", "5")),
        ("output_tokens", {"output_tokens": None}, {}, (None, "9")),
        ("reasoning_tokens", {"reasoning_tokens": None}, {"reasoning_tokens": 4}, ("0", "4")),
        ("cached_input_tokens", {"cached_input_tokens": 3}, {"cached_input_tokens": 4}, ("3", "4")),
        ("text_chars", {"text_chars": 38, "output_fingerprint": "a2"}, {}, ("38", "40")),
        ("reasoning_chars", {"reasoning_chars": 0}, {"reasoning_chars": 12}, ("0", "12")),
        ("text", {"output_fingerprint": "a2"}, {}, ("a2", "a1")),
        ("tool_calls", {"tool_call_count": 2}, {}, ("2", "0")),
        ("tool_arguments", {"tool_fingerprint": "b2"}, {}, ("b2", "b1")),
        ("choices", {"choice_count": 2}, {}, ("2", "1")),
        ("streamed", {"streamed": False}, {}, ("false", "true")),
        ("malformed", {"malformed_events": 1}, {}, ("1", "0")),
        ("heartbeats", {"comment_count": 3}, {}, ("3", "0")),
        ("done", {"terminator_ns": None}, {}, (None, "sent")),
        ("status", {"http_status": 201}, {}, ("201", "200")),
    ],
)  # fmt: skip
def test_one_row_per_difference(
    what: str, outer: Any, inner: Any, values: tuple[str | None, str | None]
) -> None:
    assert differences(outer, inner) == {(what, *values)}


@pytest.mark.parametrize(
    ("what", "kind"),
    [("annotations", "annotation"), ("progress", "progress"), ("other_events", "other"), ("refusal", "refusal"),
     ("audio", "audio"), ("heartbeats", "ping")],
)  # fmt: skip
def test_added_events_are_changes(what: str, kind: str) -> None:
    assert differences({}, kinds={kind: 2}) == {(what, "2", "0")}


def test_merged_chunks_are_no_change() -> None:
    assert differences({}, kinds={"text": 3}) == set()


def test_what_follows_from_the_dialect_is_no_change() -> None:
    outer = {"dialect": "anthropic_messages", "finish_reason": "end_turn", "malformed_events": 0}
    assert (
        differences(outer, {"terminator_ns": None, "comment_count": 4}, kinds={"annotation": 2, "other": 1})
        == set()
    )
    assert differences(outer, kinds={"ping": 1}) == {("heartbeats", "1", "0")}


def test_error_that_the_gateway_translates() -> None:
    found = differences(
        {"outcome": "http_error", "http_status": 500, "error_type": "internal_error"},
        {"outcome": "http_error", "http_status": 429, "error_type": "rate_limit_error"},
    )
    assert found == {("status", "500", "429"), ("error", "internal_error", "rate_limit_error")}


def test_done_invented_after_the_death_of_the_upstream() -> None:
    found = differences(
        {"dialect": "openai_chat", "finish_reason": "stop"},
        {
            "dialect": "anthropic_messages", "outcome": "upstream_reset", "error_type": "upstream_reset",
            "terminator_ns": None, "finish_reason": None, "output_tokens": None,
        },
    )  # fmt: skip
    assert found == {
        ("done", "sent", None),
        ("outcome", "ok", "upstream_reset"),
        ("error", None, "upstream_reset"),
        ("finish_reason", "stop", None),
        ("output_tokens", "9", None),
    }


@pytest.mark.parametrize("outcomes", [("client_abort", "ok"), ("tap_lost", "ok"), ("ok", "tap_lost")])
def test_streams_not_received_to_the_end_differ_only_in_the_requested_model(
    outcomes: tuple[str, str],
) -> None:
    outer = {"outcome": outcomes[0], "request_model": "alias", "text_chars": 3, "finish_reason": None}
    assert differences(outer, {"outcome": outcomes[1]}) == {("request_model", "alias", "m")}


@pytest.mark.parametrize(
    ("outer", "inner", "same"),
    [
        ("stop", "end_turn", True), ("stop", "STOP", True), ("tool_calls", "STOP", True), ("tool_calls", "tool_use", True),
        ("length", "max_tokens", True), ("length", "MAX_TOKENS", True), ("content_filter", "SAFETY", True),
        ("stop", "completed", True), ("tool_calls", "completed", True), ("length", "incomplete", True),
        ("stop", "length", False), ("tool_calls", "stop", False), ("stop", "max_tokens", False), ("stop", None, False),
        ("pause_turn", "pause_turn", True), ("pause_turn", "stop", False), (None, None, True),
    ],
)  # fmt: skip
def test_finish_reasons_of_two_dialects(outer: str | None, inner: str | None, same: bool) -> None:
    assert same_finish(outer, inner) is same
    assert same_finish(inner, outer) is same


def test_every_word_is_documented() -> None:
    page = (ROOT / "docs" / "explanation" / "measurement.md").read_text()
    assert [word for word in CHANGES if f"`{word}`" not in page] == []

"""Measures of what a model answers: which streams have them, and their values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from streamgauge.analytics.reports.quality import COLUMNS, INPUT_CLASS, MEASURES
from tests.analytics.measures.test_minute_rows import store, streams
from tests.analytics.stores import plain_tables

ANSWER: dict[str, Any] = {
    "outcome": "ok", "operation": "chat", "dialect": "openai_chat", "streamed": True, "finish_reason": "stop", "output_tokens": 50,
    "text_chars": 200, "reasoning_chars": 0, "refusal_chars": 0, "output_event_count": 40, "ttfo_ns": 10**8, "tool_call_count": 0,
    "malformed_tool_call_count": 0, "tool_failure_count": 0, "input_tokens": 100, "cached_input_tokens": 0,
}  # fmt: skip
WITH_TOOL = {"finish_reason": "tool_calls", "tool_call_count": 1}
NO_OUTPUT = {"ttfo_ns": None, "output_event_count": 0, "text_chars": 0, "output_tokens": None}
FAILED = {"outcome": "inband_error", "error_type": "tool_parser_error", "finish_reason": None}


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with plain_tables() as con:
        yield con


def of_stream(con: duckdb.DuckDBPyConnection, sql: str, row: dict[str, Any]) -> Any:
    con.execute("DELETE FROM streams")
    store(con, streams([{**ANSWER, **row}]))
    return con.execute(f"SELECT {sql} FROM (SELECT {', '.join(COLUMNS)} FROM streams)").fetchall()[0][0]


@pytest.mark.parametrize(
    ("name", "row", "value"),
    [
        ("length", {}, False),
        ("length", {"finish_reason": "max_tokens"}, True),
        ("length", {"finish_reason": "MAX_TOKENS"}, True),
        ("length", {"finish_reason": None}, None),
        ("length", {"operation": "embeddings"}, None),
        ("output_tokens", {}, 50),
        ("output_tokens", {"output_tokens": None}, None),
        ("output_tokens", {"outcome": "truncated"}, None),
        ("output_chars", {"reasoning_chars": 20}, 220),
        ("refusal", {}, False),
        ("refusal", {"refusal_chars": None, "finish_reason": None}, False),
        ("refusal", {"refusal_chars": 30}, True),
        ("refusal", {"finish_reason": "SAFETY"}, True),
        ("empty", {}, False),
        ("empty", NO_OUTPUT, True),
        ("empty", NO_OUTPUT | {"reasoning_chars": 90, "output_event_count": 9}, True),
        ("empty", NO_OUTPUT | {"dialect": "unknown"}, None),
        ("empty", NO_OUTPUT | {"output_event_count": None}, None),
        ("empty", {"streamed": False, "ttfo_ns": None, "output_event_count": 1}, False),
        ("tool_calls", {}, False),
        ("tool_calls", WITH_TOOL, True),
        ("tool_arguments", {}, None),
        ("tool_arguments", WITH_TOOL, False),
        ("tool_arguments", WITH_TOOL | {"malformed_tool_call_count": 1}, True),
        ("tool_arguments", WITH_TOOL | {"malformed_tool_call_count": None}, None),
        ("tool_failure", {}, None),
        ("tool_failure", WITH_TOOL, False),
        ("tool_failure", WITH_TOOL | FAILED, True),
        ("tool_failure", WITH_TOOL | {"tool_failure_count": 1}, True),
        ("tool_failure", WITH_TOOL | {"outcome": "client_abort"}, None),
    ],
)
def test_value_of_a_stream(
    con: duckdb.DuckDBPyConnection, name: str, row: dict[str, Any], value: Any
) -> None:
    measure = MEASURES[name]
    assert of_stream(con, f"CASE WHEN {measure.known} THEN {measure.value} END", row) == value


def test_input_classes_are_those_of_uncached_tokens(con: duckdb.DuckDBPyConnection) -> None:
    def found(tokens: int | None, cached: int | None = None) -> int | None:
        row = {"input_tokens": tokens, "cached_input_tokens": cached}
        of: int | None = of_stream(con, INPUT_CLASS, row)
        return of

    assert found(1000) == found(1000, 0) == found(5000, 4000)
    assert found(None) is None
    assert found(100, 100) == 0
    classes = [found(n) for n in (1000, 1300, 2000)]
    assert classes == sorted(set(classes), key=lambda c: c or 0)

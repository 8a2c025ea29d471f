"""The view `wasted_tokens`: each token counts once, for one reason, at the price of its model."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from tests.analytics.measures.test_minute_rows import sid, store, streams
from tests.analytics.schema.prices import price, set_prices

SECOND_NS = 1_000_000_000
SECOND_US = 1_000_000
START_US = 1_790_000_040_000_000
REQUEST = {
    "client_id": "c", "path": "/v1/chat/completions", "request_model": "m", "request_bytes": 100, "end_ns": SECOND_NS,
    "ttft_ns": SECOND_NS // 2, "input_tokens": 1000, "output_tokens": 200, "text_chars": 800, "reasoning_chars": 0,
    "response_bytes": 4000, "delivered_bytes": 4000, "started_at": START_US,
}  # fmt: skip
LEFT = {"outcome": "client_abort", "delivered_bytes": 1000}
FAILED = {"outcome": "truncated", "error_phase": "mid_stream"}
OTHER_SIZE = {"request_bytes": 101}


def fill(con: duckdb.DuckDBPyConnection, *rows: dict[str, Any], hops: dict[int, int] | None = None) -> None:
    """Streams 0, 1, 2 …; `hops` has the outer stream of inner streams, attempts in their order."""
    store(con, streams([{**REQUEST, **row} for row in rows]))
    attempts: dict[int, int] = {}
    for inner, outer in (hops or {}).items():
        attempts[outer] = attempts.get(outer, 0) + 1
        con.execute(
            "INSERT INTO hops BY NAME SELECT ?::UUID AS outer_stream_id, ?::UUID AS inner_stream_id, now() AS outer_started_at, "
            "'trace' AS matched_by, ? AS attempt, 'ok' AS inner_outcome",
            [sid(outer), sid(inner), attempts[outer]],
        )


def wasted(con: duckdb.DuckDBPyConnection) -> dict[int, tuple[Any, ...]]:
    """(reason, output tokens, input tokens) by stream."""
    rows = con.execute("SELECT stream_id, reason, output_tokens, input_tokens FROM wasted_tokens").fetchall()
    assert len({row[0] for row in rows}) == len(rows)
    return {int(str(row[0])[-12:]): row[1:] for row in rows}


def test_ok_and_lost_and_refused_streams_waste_nothing(con: duckdb.DuckDBPyConnection) -> None:
    fill(con, {}, {"outcome": "tap_lost"}, {"outcome": "refused"})
    assert wasted(con) == {}


def test_client_that_left_wastes_the_output_it_did_not_get(con: duckdb.DuckDBPyConnection) -> None:
    fill(con, LEFT, {**LEFT, **OTHER_SIZE, "ttft_ns": None, "response_bytes": 0, "output_tokens": None})
    assert wasted(con) == {0: ("client_left", 150, 0), 1: ("client_left", None, 1000)}


def test_error_after_output_wastes_everything_and_an_error_before_it_nothing_known(
    con: duckdb.DuckDBPyConnection,
) -> None:
    before = {
        "outcome": "http_error",
        "ttft_ns": None,
        "input_tokens": None,
        "output_tokens": None,
        **OTHER_SIZE,
    }
    fill(con, FAILED, before)
    assert wasted(con) == {0: ("error_after_output", 200, 1000)}


@pytest.mark.parametrize(
    ("repeat", "is_repeat"),
    [
        ({}, True),
        ({"started_at": START_US + 60 * SECOND_US}, True),
        ({"started_at": START_US + 61 * SECOND_US}, False),
        (
            {"started_at": START_US + SECOND_US // 2},
            False,
        ),  # before the end: another request at the same time
        ({"request_bytes": 101}, False),
        ({"client_id": "other"}, False),
        ({"client_id": None}, False),
        ({"request_model": "n"}, False),
        ({"path": "/v1/completions"}, False),
        ({"gateway": "other"}, False),
    ],
)
def test_repeated_request_wastes_all_of_the_first_answer(
    repeat: dict[str, Any], is_repeat: bool, con: duckdb.DuckDBPyConnection
) -> None:
    fill(con, LEFT, {"started_at": START_US + 2 * SECOND_US, **repeat})
    assert wasted(con) == {0: ("retried", 200, 1000) if is_repeat else ("client_left", 150, 0)}


def test_request_that_ended_at_once_is_no_repeat_of_itself(con: duckdb.DuckDBPyConnection) -> None:
    fill(con, {**FAILED, "end_ns": 0})
    assert wasted(con) == {0: ("error_after_output", 200, 1000)}


def test_failed_attempts_count_at_the_model_server_only(con: duckdb.DuckDBPyConnection) -> None:
    by_gateway = {"gateway": "model", "client_id": "gateway"}
    fill(con, {}, {**by_gateway, **FAILED}, by_gateway, hops={1: 0, 2: 0})
    assert wasted(con) == {1: ("failed_attempt", 200, 1000)}


def test_gateway_that_reads_on_after_the_client_left_wastes_the_rest(con: duckdb.DuckDBPyConnection) -> None:
    outer = {**LEFT, "text_chars": 400, "output_tokens": None, "input_tokens": None}
    fill(con, outer, {"gateway": "model", "client_id": "gateway"}, hops={1: 0})
    assert wasted(con) == {
        1: ("client_left", 175, 0)
    }  # half of the text left the gateway, a quarter of it was delivered
    assert con.execute("SELECT client_id FROM wasted_tokens").fetchall() == [("c",)]


def test_client_that_left_before_the_gateway_answered_wastes_everything(
    con: duckdb.DuckDBPyConnection,
) -> None:
    outer = {**LEFT, "ttft_ns": None, "text_chars": None, "response_bytes": 0, "delivered_bytes": 0}
    fill(con, outer, {"gateway": "model"}, hops={1: 0})
    assert wasted(con) == {1: ("client_left", 200, 1000)}


def test_cost_is_by_the_first_matching_price(con: duckdb.DuckDBPyConnection) -> None:
    fill(
        con,
        {**FAILED, "request_model": "gpt-mini", "cached_input_tokens": 600},
        {**FAILED, "request_model": "gpt-large", **OTHER_SIZE},
        {**FAILED, "request_model": "other", "request_bytes": 102},
    )
    set_prices(con, price("gpt-mini*", 1, 10, cached_input=0.5, currency="EUR"), price("gpt-*", 2, 20))
    found = con.execute("SELECT model, cost, currency FROM wasted_tokens ORDER BY model").fetchall()
    assert found == [
        ("gpt-large", pytest.approx((1000 * 2 + 200 * 20) / 1e6), "USD"),
        ("gpt-mini", pytest.approx((400 * 1 + 600 * 0.5 + 200 * 10) / 1e6), "EUR"),
        ("other", None, None),
    ]

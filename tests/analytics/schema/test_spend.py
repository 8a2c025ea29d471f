"""The view `spend`: amounts by kind of token, estimates of unreported tokens, and sums that add up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest

from tests.analytics.measures.test_minute_rows import store, streams
from tests.analytics.schema.prices import price, set_prices
from tests.analytics.schema.test_wasted_tokens import REQUEST, START_US, fill

NO_USAGE = {"input_tokens": None, "output_tokens": None, "output_event_count": 50}
KINDS = (
    "input", "cached_input", "cache_write_5m", "cache_write_1h", "input_audio", "input_image", "output", "reasoning",
    "output_audio", "output_image", "web_searches",
)  # fmt: skip


@pytest.fixture
def con(con: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    set_prices(con, price("m*", 1, 10))
    return con


def spend(con: duckdb.DuckDBPyConnection, columns: str = "total, source") -> list[tuple[Any, ...]]:
    return con.execute(f"SELECT {columns} FROM spend ORDER BY stream_id").fetchall()


def test_each_kind_of_token_has_its_amount(con: duckdb.DuckDBPyConnection) -> None:
    rates = {
        "cached_input": 2, "cached_audio": 3, "cache_write_5m": 4, "cache_write_1h": 5, "input_audio": 6, "input_image": 7,
        "reasoning": 8, "output_audio": 9, "output_image": 11, "web_search": 12,
    }  # fmt: skip
    set_prices(con, price("m", 1, 10, **rates))
    fill(
        con,
        {
            "input_tokens": 1000, "cached_input_tokens": 100, "cached_audio_tokens": 10, "cache_write_tokens": 200,
            "cache_write_1h_tokens": 50, "input_audio_tokens": 40, "input_image_tokens": 20, "output_tokens": 500,
            "reasoning_tokens": 100, "output_audio_tokens": 30, "output_image_tokens": 5, "web_searches": 2,
            "token_source": "usage",
        },
    )  # fmt: skip
    [found] = spend(con, ", ".join((*KINDS, "total", "low", "high", "source")))
    in_millionths = (
        650 * 1,
        90 * 2 + 10 * 3,
        150 * 4,
        50 * 5,
        30 * 6,
        20 * 7,
        365 * 10,
        100 * 8,
        30 * 9,
        5 * 11,
        24_000,
    )
    assert [amount * 1e6 for amount in found[:11]] == pytest.approx(in_millionths)
    assert [amount * 1e6 for amount in found[11:14]] == pytest.approx([sum(in_millionths)] * 3)
    assert found[14] == "usage"


def test_price_follows_context_length_time_and_order(con: duckdb.DuckDBPyConnection) -> None:
    later = datetime.fromtimestamp(START_US / 1e6, UTC) + timedelta(hours=1)
    set_prices(
        con,
        price("m", 5, 0, above=2000),
        price("m", 3, 0, valid_from=later),
        price("m", 1, 0, valid_until=later),
        price("*", 9, 0, currency="EUR"),
    )
    after = {"started_at": START_US + 3600 * 10**6}
    alias = {"request_model": "alias", "response_model": "m"}
    fill(con, {"input_tokens": 2000}, {"input_tokens": 2001}, after, {"request_model": "n"}, alias)
    found = spend(con, "total * 1e6, currency")
    assert found == [
        (pytest.approx(a), b)
        for a, b in [(2000, "USD"), (10005, "USD"), (3000, "USD"), (9000, "EUR"), (9000, "EUR")]
    ]
    con.execute("DELETE FROM prices WHERE valid_from IS NOT NULL")
    assert spend(con, "total * 1e6, currency")[2] == (pytest.approx(9000), "EUR")
    con.execute("DELETE FROM prices WHERE model = '*'")
    assert spend(con, "total * 1e6")[-2:] == [(None,), (pytest.approx(1000),)]


def test_unreported_tokens_are_estimated_within_a_range(con: duckdb.DuckDBPyConnection) -> None:
    tools = {"text_chars": 0, "output_event_count": 10, "input_tokens": 1000, "output_tokens": None}
    fill(
        con, {**NO_USAGE, "outcome": "client_abort", "request_bytes": 4000}, {**tools, "outcome": "truncated"}
    )
    (total, low, high, source), of_tools = spend(con, "total * 1e6, low * 1e6, high * 1e6, source")
    assert (low, total, high, source) == (
        *map(pytest.approx, (40 + 1200, 1000 + 2000, 2000 + 8000)),
        "estimate",
    )
    assert of_tools == (*map(pytest.approx, (1000 + 200, 1000 + 100, 1000 + 800)), "estimate")


def test_estimates_follow_requests_to_the_same_model(con: duckdb.DuckDBPyConnection) -> None:
    reported = [
        {
            "outcome": "ok",
            "token_source": "usage",
            "input_tokens": 200 + n,
            "request_bytes": 2000,
            "output_tokens": 400 + n,
        }
        for n in range(41)
    ]
    fill(con, *reported, {**NO_USAGE, "outcome": "client_abort", "request_bytes": 1000})
    *_, (input_tokens, output_tokens, low, high) = spend(con, "input_tokens, output_tokens, low, high")
    assert (input_tokens, output_tokens) == (110, 420)
    assert (low, high) == (pytest.approx((101 + 4020) / 1e6), pytest.approx((119 + 4380) / 1e6))


@pytest.mark.parametrize(
    ("row", "costs"),
    [
        ({"outcome": "http_error"}, False),
        ({"outcome": "connect_error"}, False),
        ({"outcome": "client_abort"}, True),  # the model server may have read the prompt
        ({"outcome": "ok", "request_model": "other"}, False),
    ],
)
def test_request_without_output_costs_its_input_unless_it_failed(
    row: dict[str, Any], costs: bool, con: duckdb.DuckDBPyConnection
) -> None:
    fill(con, {**NO_USAGE, "ttft_ns": None, "text_chars": 0, "output_event_count": 0, **row})
    [(total,)] = spend(con, "total")
    assert total is None if not costs else total > 0


def test_streams_that_cost_nothing_have_no_row(con: duckdb.DuckDBPyConnection) -> None:
    fill(
        con,
        {"operation": "count_tokens"},
        {"operation": "websocket"},
        {"dialect": "mcp"},
        {"outcome": "refused"},
    )
    assert spend(con) == []


def test_hop_is_paid_once_by_the_client(con: duckdb.DuckDBPyConnection) -> None:
    fill(con, {"session_id": "s"}, {"client_id": "gateway", "gateway": "model"}, hops={1: 0})
    [found] = spend(con, "gateway, client_id, session_id, right(client_stream_id::VARCHAR, 1), total * 1e6")
    assert found == ("model", "c", "s", "0", pytest.approx(3000))


def test_sums_over_every_grouping_are_those_of_the_streams(con: duckdb.DuckDBPyConnection) -> None:
    set_prices(con, price("m", 1, 10, cached_input=0.1), price("n*", 2, 20, currency="EUR"))
    rows = [
        {
            "request_model": ("m", "n1", "n2", "other", None)[n % 5], "gateway": ("a", None)[n % 2], "client_id": f"c{n % 7}",
            "session_id": f"s{n % 9}", "started_at": START_US + n * 600 * 10**6, "token_source": "usage",
            "cached_input_tokens": n, "input_tokens": 1000 + n,
            **({**NO_USAGE, "outcome": "client_abort"} if n % 4 == 0 else {"outcome": "ok"}),
        }
        for n in range(200)
    ]  # fmt: skip
    store(con, streams([{**REQUEST, **row} for row in rows]))
    sums = "sum(total), sum(low), sum(high), sum(input) + sum(cached_input) + sum(output)"
    whole = con.execute(f"SELECT currency, {sums}, count(*) FROM spend GROUP BY 1 ORDER BY 1").fetchall()
    assert [row[0] for row in whole] == ["EUR", "USD", None]
    assert whole[0][2] < whole[0][1] < whole[0][3]
    for dimension in ("hour", "gateway", "model", "client_id", "hour, gateway, client_id"):
        grouped = f"SELECT currency, {dimension}, {sums}, sum(requests) FROM spend_by_hour GROUP BY ALL"
        names = "a, b, c, d, n"
        columns = f"currency, {', '.join(f'd{n}' for n in range(dimension.count(',') + 1))}, {names}"
        found = con.execute(
            f"SELECT currency, sum(a), sum(b), sum(c), sum(d), sum(n) FROM ({grouped}) AS t({columns}) GROUP BY 1 ORDER BY 1"
        ).fetchall()
        assert found == [(row[0], *(pytest.approx(value) for value in row[1:])) for row in whole]


def test_cache_write_is_read_again_by_a_later_request_of_the_session_in_time(
    con: duckdb.DuckDBPyConnection,
) -> None:
    minute = 60 * 10**6
    an_hour, read = {"cache_write_1h_tokens": 100}, {"cached_input_tokens": 100}

    def request(session: str, at_us: int, **more: Any) -> dict[str, Any]:
        written = {} if "cached_input_tokens" in more else {"cache_write_tokens": 100}
        return {"session_id": session, "started_at": START_US + at_us, **written, **more}

    fill(
        con,
        request("in time", 0), request("in time", 4 * minute, **read),
        request("too late", 0), request("too late", 6 * minute, **read),
        request("hour", 0, **an_hour), request("hour", 59 * minute, **read),
        request("other session", 0),
        request("other model", 0), request("other model", minute, request_model="m2", **read),
    )  # fmt: skip
    found = con.execute(
        "SELECT session_id, read_again FROM cache_writes JOIN streams USING (stream_id) ORDER BY session_id"
    ).fetchall()
    expected = {
        "hour": True,
        "in time": True,
        "other model": False,
        "other session": False,
        "too late": False,
    }
    # The generated time may be in the future, where a write without a read may still be read.
    assert {name: bool(again) for name, again in found} == expected
    set_prices(con, price("m*", 1, 10, cached_input=0.1, cache_write_5m=1.25, cache_write_1h=2))
    saved, premium = con.execute(
        "SELECT sum(cache_saved) * 1e6, sum(cache_premium) * 1e6 FROM spend"
    ).fetchall()[0]
    assert (saved, premium) == (pytest.approx(4 * 100 * 0.9), pytest.approx(4 * 100 * 0.25 + 100 * 1))

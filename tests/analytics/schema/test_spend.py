"""The view `spend`: amounts by kind of token, estimates of unreported tokens, and sums that add up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest

from streamgauge.analytics.measures.operation import operation_of
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
    fill(
        con,
        {**NO_USAGE, "operation": "chat", "ttft_ns": None, "text_chars": 0, "output_event_count": 0, **row},
    )
    [(total,)] = spend(con, "total")
    assert total is None if not costs else total > 0


def test_streams_that_cost_nothing_have_no_row(con: duckdb.DuckDBPyConnection) -> None:
    fill(
        con,
        {"operation": "count_tokens"},
        {"operation": "websocket"},
        {"operation": "warm_up"},
        {"operation": "web"},
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


def amounts(con: duckdb.DuckDBPyConnection, columns: str = "total") -> list[tuple[Any, ...]]:
    """Columns of `spend` in millionths, the source unchanged."""
    named = ", ".join(c if c == "source" else f"round({c} * 1e6, 6)" for c in columns.split(", "))
    return spend(con, named)


def test_cached_image_is_no_fresh_image(con: duckdb.DuckDBPyConnection) -> None:
    set_prices(con, price("m", 1, 2, cached_input=0.1, input_image=10))
    report = {
        "input_tokens": 9660,
        "output_tokens": 20,
        "cached_input_tokens": 9651,
        "input_image_tokens": 258,
    }
    fill(con, {**report, "cached_image_tokens": 258}, {**report, "cached_image_tokens": 250}, report)
    found = amounts(con, "input_image, input, cached_input, source")
    assert found[0] == (0, 9, 965.1, None)
    assert found[1] == (80, 1, 965.1, None)
    assert found[2] == (90, 0, 965.1, None)  # unknown: as dear as it can be


@pytest.mark.parametrize(
    ("report", "total", "low", "high"),
    [
        # Reasoning above the output is beside it.
        ({"output_tokens": 3256, "reasoning_tokens": 73248}, 3256 * 8 + 73248 * 3, 73248 * 3, 3256 * 8 + 73248 * 3),
        ({"output_tokens": 10, "output_audio_tokens": 20}, 80 + 160, 160, 80 + 160),
        ({"input_tokens": 100, "cached_input_tokens": 300}, 100 * 2 + 300, 300, 100 * 2 + 300),
        ({"input_tokens": 100, "cached_input_tokens": 60, "cache_write_tokens": 60}, 200 + 60 + 120, 60 + 120, 380),
        ({"input_tokens": 100, "cached_input_tokens": 10, "cached_audio_tokens": 20}, 200 + 20, 200, 220),
        # The provider's own total denies it: parts may be beside the whole, too.
        (
            {"output_tokens": 100, "reasoning_tokens": 40, "token_source": "usage_inconsistent"},
            60 * 8 + 40 * 3, 60 * 8 + 40 * 3, 100 * 8 + 40 * 3,
        ),
        (
            {"input_tokens": 100, "cached_input_tokens": 30, "token_source": "usage_inconsistent"},
            70 * 2 + 30, 70 * 2 + 30, 100 * 2 + 30,
        ),
        # The total has more tokens, or less: of input or of output.
        ({"input_tokens": 100, "output_tokens": 10, "unexplained_tokens": 40, "token_source": "usage_inconsistent"}, 280, 280, 280 + 320),
        ({"input_tokens": 100, "output_tokens": 10, "unexplained_tokens": -20, "token_source": "usage_inconsistent"}, 280, 280 - 160, 280),
        ({"input_tokens": 100, "output_tokens": 10, "unexplained_tokens": -90, "token_source": "usage_inconsistent"}, 280, 0, 280),
    ],
)  # fmt: skip
def test_report_that_contradicts_itself_is_a_range(
    report: dict[str, Any], total: float, low: float, high: float, con: duckdb.DuckDBPyConnection
) -> None:
    set_prices(con, price("m", 2, 8, reasoning=3, cached_input=1))
    fill(con, {"input_tokens": 0, "output_tokens": 0, "token_source": "usage", **report})
    assert amounts(con, "total, low, high, source") == [(total, low, high, "usage_inconsistent")]


def test_billed_tokens_count_instead_of_those_of_the_model(con: duckdb.DuckDBPyConnection) -> None:
    report = {"input_tokens": 500, "output_tokens": 60, "cached_input_tokens": 400, "token_source": "usage"}
    fill(
        con,
        {**report, "billed_input_tokens": 4, "billed_output_tokens": 50},
        {**report, "billed_output_tokens": 50},
    )
    assert amounts(con, "total, source") == [(4 + 500, "usage"), (500 + 500, "usage")]
    assert spend(con, "input_tokens, output_tokens")[0] == (500, 60)


POSTED = {"method": "POST", "path": "/v1/responses", "operation": "chat", "response_id": "r"}
READ = {
    "method": "GET",
    "path": "/v1/responses/r",
    "operation": None,
    "response_id": "r",
    "request_bytes": 0,
    "token_source": "usage",
}
WITHOUT_REPORT = {"input_tokens": None, "output_tokens": None, "token_source": None}
NO_OUTPUT = {"ttft_ns": None, "text_chars": 0, "output_event_count": 0}


def in_order(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"started_at": START_US + number * 10**6, **row} for number, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("rows", "billed"),
    [
        # A background response: only the requests that read it have its report.
        (
            [POSTED | WITHOUT_REPORT | NO_OUTPUT, READ | WITHOUT_REPORT | NO_OUTPUT, READ, READ],
            [False, False, True, False],
        ),
        # A stored response with a report of its own, which is read again.
        ([POSTED | {"token_source": "usage"}, READ, READ], [True, False, False]),
        # A stream that broke off, and was continued with `starting_after`.
        ([POSTED | {"token_source": "usage_delta"}, READ | {"token_source": "usage_delta"}, READ], [False, False, True]),
        ([POSTED | WITHOUT_REPORT | {"output_event_count": 3}, READ], [False, True]),
        ([POSTED | {"token_source": "usage"}, READ | {"method": "POST", "path": "/v1/responses/r/cancel"}], [True, False]),
        # A run that waits for tools has its report at its end.
        (
            [
                POSTED | WITHOUT_REPORT | {"path": "/v1/threads/t/runs"},
                READ | {"method": "POST", "path": "/v1/threads/t/runs/r/submit_tool_outputs"},
                READ | {"path": "/v1/threads/t/runs/r"},
            ],
            [False, True, False],
        ),
        # Not read again: a server may give equal ids to different responses.
        ([POSTED | {"token_source": "usage"}, POSTED | {"token_source": "usage"}], [True, True]),
        ([POSTED | WITHOUT_REPORT | NO_OUTPUT], [True]),
        ([READ | WITHOUT_REPORT], [False]),
        # An answer on a WebSocket has the method of its WebSocket.
        ([READ | WITHOUT_REPORT | {"connection_id": "00000000-0000-0000-0000-00000000aaaa", "operation": "chat"}], [True]),
    ],
)  # fmt: skip
def test_response_is_billed_once_by_its_first_final_report(
    rows: list[dict[str, Any]], billed: list[bool], con: duckdb.DuckDBPyConnection
) -> None:
    fill(con, *in_order(*rows))
    assert [total is not None for (total,) in spend(con, "total")] == billed


@pytest.mark.parametrize(
    "asked",
    [
        "POST /tokenize", "POST /detokenize", "POST /v1/moderations", "POST /api/show", "GET /v1/models", "GET /v1/files",
        "POST /v1/batches", "POST /v1/images/generations", "POST /v1/images/edits", "POST /v1/audio/speech",
        "POST /v1/audio/transcriptions", "GET /v1/chat/completions", "DELETE /v1/responses",
    ],
)  # fmt: skip
def test_request_without_a_report_has_no_cost_where_bytes_show_none(
    asked: str, con: duckdb.DuckDBPyConnection
) -> None:
    method, path = asked.split()
    row = {
        "method": method,
        "path": path,
        "operation": operation_of(path),
        "outcome": "ok",
        **WITHOUT_REPORT,
        "output_event_count": 9,
    }
    fill(con, row | NO_OUTPUT)
    assert spend(con, "total, source") == [(None, None)]


@pytest.mark.parametrize(
    ("dialect", "reason", "events", "expected"),
    [
        ("anthropic_messages", "refusal", 0, None),
        ("bedrock_converse", "refusal", 0, None),
        ("anthropic_messages", "refusal", 2, 3_000),
        ("anthropic_messages", "end_turn", 0, 3_000),
        ("openai_chat", "refusal", 0, 3_000),
    ],
)
def test_refusal_of_claude_before_any_output_is_free(
    dialect: str, reason: str, events: int, expected: int | None, con: duckdb.DuckDBPyConnection
) -> None:
    fill(
        con,
        {"dialect": dialect, "finish_reason": reason, "output_event_count": events, "token_source": "usage"},
    )
    assert amounts(con) == [(expected,)]


def test_images_and_speech_cost_the_tokens_that_they_report(con: duckdb.DuckDBPyConnection) -> None:
    row = {"path": "/v1/images/generations", "operation": "generate_content", "token_source": "usage"}
    fill(con, row, row | {"output_tokens": None})
    assert amounts(con) == [(3000,), (None,)]


def test_estimates_are_of_all_that_was_generated(con: duckdb.DuckDBPyConnection) -> None:
    set_prices(con, price("m", 0, 1))
    died = {"outcome": "truncated", "output_tokens": None, "text_chars": 20, "output_event_count": 501}
    fill(
        con,
        {**died, "tool_call_count": 1, "tool_call_chars": 39_000},
        {**died, "tool_call_count": 1, "tool_call_chars": None},  # stored before they were counted
        {**died, "text_chars": 600},
        {**died, "text_chars": 600, "output_tokens": 7, "token_source": "usage_delta", "tps_e2e": 3.5},
        {**died, "text_chars": 600, "output_tokens": 700, "token_source": "usage_delta", "tps_e2e": None},
    )
    assert amounts(con, "total, low, high, source") == [
        (9755, 5853, 39_020, "estimate"),
        (1002, 501, 4008, "estimate"),
        (501, 501, 600, "estimate"),  # an event has at least a token
        (7, 7, 7, "usage_delta"),
        (700, 700, 700, "estimate"),  # output followed the count, which is the least
    ]


def test_event_is_less_than_a_token_where_reports_of_the_model_show_it(
    con: duckdb.DuckDBPyConnection,
) -> None:
    set_prices(con, price("m", 0, 1))
    split = {
        "outcome": "ok",
        "token_source": "usage",
        "output_tokens": 100,
        "text_chars": 400,
        "output_event_count": 400,
    }
    fill(
        con, *[split] * 20, {**split, "outcome": "client_abort", "output_tokens": None, "token_source": None}
    )
    assert amounts(con, "total, low, source")[-1] == (100, 100, "estimate")


def test_price_follows_how_the_request_was_served(con: duckdb.DuckDBPyConnection) -> None:
    set_prices(
        con,
        price("m", 50, 0, service_tier="priority", inference_region="us"),
        price("m", 30, 0, service_tier="priority"),
        price("m", 5, 0, speed="fast"),
        price("m", 2, 0, above=2000),
        price("m", 1, 0),
    )
    served = [
        {"service_tier": "priority", "inference_region": "us"}, {"service_tier": "priority", "inference_region": "eu"},
        {"service_tier": "priority"}, {"service_tier": "flex"}, {"speed": "fast"}, {"speed": "standard"}, {},
    ]  # fmt: skip
    fill(con, *served)
    assert amounts(con) == [(50_000,), (30_000,), (30_000,), (1000,), (5000,), (1000,), (1000,)]


def test_price_is_found_by_the_names_of_gateways(con: duckdb.DuckDBPyConnection) -> None:
    set_prices(
        con,
        price("openrouter/openai/gpt-5", 9, 0),
        price("gpt-5", 1, 0),
        price("gpt-5-mini", 2, 0),
        price("claude-sonnet-4-5", 3, 0),
    )
    asked = {
        "openai/gpt-5": 1, "openrouter/openai/gpt-5": 9, "gpt-5-2025-08-07": 1, "azure/gpt-5-mini": 2, "gpt-5-nano": None,
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0": 3, "acme/gpt-5": None, "gpt-5:extended": None,
    }  # fmt: skip
    fill(con, *({"request_model": name} for name in asked))
    assert amounts(con) == [(None if rate is None else rate * 1000,) for rate in asked.values()]
    set_prices(con, price("*", 7, 0), price("gpt-5", 1, 0))
    assert amounts(con)[0] == (7000,)  # the name as written comes first


def test_free_model_of_openrouter_costs_nothing_unless_a_price_names_it(
    con: duckdb.DuckDBPyConnection,
) -> None:
    asked = (
        {"request_model": "deepseek/r1:free", "response_model": "deepseek/r1"},
        {"request_model": "deepseek/r1"},
    )
    prices = [price("r1", 1, 0), price("*", 2, 0)]
    set_prices(con, *prices)
    fill(con, *asked)
    assert amounts(con) == [(0,), (2000,)]
    assert spend(con, "currency")[0] == ("USD",)
    set_prices(con, price("r1:free", 3, 0), *prices)
    assert amounts(con)[0] == (3000,)
    set_prices(con)
    assert amounts(con) == [(None,), (None,)]


def test_free_variant_that_another_model_answers_has_the_price_of_that_model(
    con: duckdb.DuckDBPyConnection,
) -> None:
    answers = {
        "deepseek/r1": 0, "deepseek/r1:free": 0, "r1-2025-05-28": 0, None: 0, "z-ai/glm:free": 0,
        "openai/gpt-5": 5000, "acme/unknown": None,
    }  # fmt: skip
    set_prices(con, price("deepseek/r1:free", 0, 0), price("r1", 1, 0), price("gpt-5", 5, 0))
    fill(con, *({"request_model": "deepseek/r1:free", "response_model": answer} for answer in answers))
    assert amounts(con) == [(cost,) for cost in answers.values()]


def test_tokens_of_another_model_have_its_prices(con: duckdb.DuckDBPyConnection) -> None:
    tokens = {
        "input_tokens": 10_000, "cached_input_tokens": 2_100, "cache_write_tokens": 1_030, "cache_write_1h_tokens": 510,
        "output_tokens": 700, "reasoning_tokens": 60, "other_input_tokens": 4_000, "other_cached_input_tokens": 100,
        "other_cache_write_tokens": 30, "other_cache_write_1h_tokens": 10, "other_output_tokens": 600, "token_source": "usage",
    }  # fmt: skip
    of_cache = {"cached_input": 2, "cache_write_5m": 3, "cache_write_1h": 4}
    prices = [
        price("m", 1, 10, **of_cache),
        price("opus", 50, 500, **{k: 50 * v for k, v in of_cache.items()}),
    ]
    set_prices(con, *prices)
    fill(
        con,
        {**tokens, "other_model": "anthropic/opus"},
        {**tokens, "other_model": None},
        {**tokens, "other_model": "x"},
    )
    kinds = "input, cached_input, cache_write_5m, cache_write_1h, output, reasoning, total, cache_saved, cache_premium"
    parts = (
        3_000 + 3_870 * 50, 2_000 * 2 + 100 * 100, 500 * 3 + 20 * 150, 500 * 4 + 10 * 200, 100 * 10 + 600 * 500, 0,
    )  # fmt: skip
    saved, premium = 2_000 + 100 * 50 - parts[1], parts[2] + parts[3] - 1_000 - 30 * 50
    unknown = (None,) * 5 + (0,) + (None,) * 3
    assert amounts(con, kinds) == [(*parts, sum(parts), saved, premium), unknown, unknown]
    set_prices(con, prices[0], price("opus", 50, 500, currency="EUR"))
    assert amounts(con) == [(None,)] * 3


def test_deployment_of_azure_has_the_price_of_the_served_model(con: duckdb.DuckDBPyConnection) -> None:
    set_prices(con, price("gpt-4", 30, 0, source="litellm"), price("gpt-4o-mini", 1, 0, source="litellm"))
    deployment = {"request_model": "gpt-4", "provider": "azure.ai.openai"}
    fill(con, {**deployment, "response_model": "gpt-4o-mini-2024-07-18"}, deployment)
    assert amounts(con) == [(1000,), (30_000,)]
    set_prices(con, price("gpt-4", 5, 0), price("gpt-4o-mini", 1, 0, source="litellm"))
    assert amounts(con) == [(5000,), (5000,)]  # your own price of the deployment


def test_reported_cost_is_compared_with_ours(con: duckdb.DuckDBPyConnection) -> None:
    set_prices(con, price("m", 1, 10), price("n", 1, 10, currency="EUR"))
    fill(
        con,
        {"reported_cost": 0.0033}, {"reported_cost": 0.0033, "request_model": "n"}, {"reported_cost": 0.0033, "request_model": "other"},
        {"reported_cost": None}, *in_order(POSTED | {"reported_cost": 0.0033}, READ | {"reported_cost": 0.0033}),
    )  # fmt: skip
    assert amounts(con, "reported_cost, reported_difference") == [
        (3300, 300), (3300, None), (3300, None), (None, None), (3300, 300), (None, None),
    ]  # fmt: skip
    sums = "SELECT sum(reported_cost) * 1e6, sum(reported_difference) * 1e6 FROM spend_by_hour"
    assert con.execute(sums).fetchall() == [(pytest.approx(13_200), pytest.approx(600))]


def test_missed_tokens_cost_what_the_cache_would_have_saved(con: duckdb.DuckDBPyConnection) -> None:
    set_prices(con, price("m*", 1, 10, cached_input=0.1, cache_write_5m=1.25, cache_write_1h=2))
    usage = {
        "input_tokens": 1000,
        "cached_input_tokens": 100,
        "token_source": "usage",
        "output_tokens": 1,
        "cache_missed_tokens": 500,
    }
    fill(
        con, usage, {**usage, "cache_write_tokens": 800}, {**usage, "cache_write_tokens": 800, "cache_write_1h_tokens": 800},
        {**usage, "cache_missed_tokens": None},
    )  # fmt: skip
    found = [missed for (missed,) in spend(con, "cache_missed")]
    assert found[:3] == pytest.approx([500 * 0.9e-6, 500 * 1.15e-6, 500 * 1.9e-6])
    assert found[3] is None

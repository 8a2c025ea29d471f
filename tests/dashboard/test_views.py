"""Every page over streams, over empty tables and without tables: no exceptions, and numbers equal those of SQL."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import polars as pl
import pytest
from streamlit.testing.v1 import AppTest

from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.analytics.reports import formatting, latency, spend
from tests.dashboard.app_test import (
    UNREADABLE,
    VIEWS,
    links,
    metric_value,
    number,
    open_page,
    page_text,
    table,
)
from tests.dashboard.generated_store import NAMED_CLIENT, filled
from tests.tables import tables

LIVE_VIEWS = sorted(set(VIEWS) - {"sql"})


def test_every_view_is_tested() -> None:
    folder = Path(__file__).parents[2] / "dashboard" / "views"
    assert sorted(p.stem for p in folder.glob("*.py") if p.stem != "__init__") == VIEWS


@pytest.fixture(scope="module")
def of_a_day(streams_data: Path) -> Iterator[Callable[[str], AppTest]]:
    """A page over the streams of a day. It runs once for all tests that only read it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield cache(lambda view: open_page(streams_data, monkeypatch, view, range="24h"))


@pytest.mark.parametrize("view", VIEWS)
def test_page_over_streams_has_no_errors(view: str, of_a_day: Callable[[str], AppTest]) -> None:
    app = of_a_day(view)
    assert not app.exception
    assert not app.error
    assert app.title[0].value


LINKS = {
    "latency": {"metric": "end to end", "split": "gateway", "quantile": "p99"},
    "errors": {"by": "client"},
    "streams": {"kind": "errors", "order": "longest", "rows": "300"},
    "compare": {"A-when": "same time", "A-model": ["qwen3-32b"], "B-model": ["deepseek-r1"]},
    "throughput": {"range": "7d", "utc": "True", "answers": "Refusals"},
    "spend": {"by": "session", "currency": "EUR"},
}


@pytest.mark.parametrize("view", LINKS)
def test_link_restores_every_choice(view: str, streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(streams_data, monkeypatch, view, **{"range": "24h"} | LINKS[view])
    assert not app.exception
    kinds = ("selectbox", "multiselect", "segmented_control", "toggle")
    chosen = {widget.key: widget.value for kind in kinds for widget in app.get(kind)}
    for name, value in LINKS[view].items():
        assert str(chosen[name]) == str(value), name
    assert view != "errors" or "undelivered tokens by client" in page_text(app)


@pytest.mark.parametrize("view", VIEWS)
def test_page_over_empty_tables_has_no_errors(
    view: str, empty_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(empty_data, monkeypatch, view)
    assert not app.exception
    assert not app.error


@pytest.mark.parametrize("view", sorted(set(LIVE_VIEWS) - {"stream"}))
def test_page_without_tables_shows_message(
    view: str, no_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(no_tables, monkeypatch, view)
    assert not app.exception
    assert UNREADABLE in page_text(app)


def test_dashboard_files_do_not_shadow_modules(of_a_day: Callable[[str], AppTest]) -> None:
    of_a_day("sql")
    folder = Path(__file__).parents[2] / "dashboard"
    assert str(folder) not in sys.path
    for name in ("tables", "formatting", "charts", "query_runner", "views"):
        assert importlib.util.find_spec(name) is None


def test_page_follows_tables_that_are_created_replaced_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    app = open_page(data, monkeypatch, range="24h")
    assert UNREADABLE in page_text(app)
    filled(data, streams=5)
    app.selectbox(key="range").set_value("7d").run()  # another query, so no cached result
    assert metric_value(app, "Requests") == "5"
    filled(tmp_path / "other", streams=7)
    data.rename(tmp_path / "former")
    (tmp_path / "other").rename(data)
    app.selectbox(key="range").set_value("6h").run()
    assert metric_value(app, "Requests") == "7"
    (data / "catalog.sqlite").rename(tmp_path / "moved.sqlite")
    app.selectbox(key="range").set_value("24h").run()
    assert not app.exception
    assert UNREADABLE in page_text(app)


def test_streams_are_filtered_sorted_and_found(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(
        streams_data, monkeypatch, "streams", range="24h", kind="errors", order="longest", rows="300"
    )
    expected = tables(streams_data).query("""
        SELECT end_ns / 1e9 AS s FROM streams WHERE outcome NOT IN ('ok', 'client_abort', 'tap_lost', 'refused')
        ORDER BY end_ns DESC NULLS LAST""")["s"]
    shown = [row["Duration, s"] for row in table(app, "Streams")]
    assert shown == [formatting.UNKNOWN if s is None else f"{s:,.2f}" for s in expected]
    trace = tables(streams_data).query("SELECT trace_id FROM streams LIMIT 1")["trace_id"][0]
    app = open_page(streams_data, monkeypatch, "streams", range="24h", find=trace[4:20].upper())
    assert len(table(app, "Streams")) == 1


def test_stream_page_shows_the_linked_stream(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = (
        tables(streams_data)
        .query("SELECT stream_id, ttft_ns, trace_id FROM streams WHERE outcome = 'ok' LIMIT 1")
        .to_dicts()[0]
    )
    app = open_page(streams_data, monkeypatch, "stream", id=row["stream_id"])
    assert not app.exception
    assert metric_value(app, "TTFT") == formatting.duration(row["ttft_ns"])
    assert row["trace_id"] in page_text(app)
    assert len(app.get("vega_lite_chart")) == 4


def test_stream_page_draws_the_limit_of_stalls(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = (
        tables(streams_data)
        .query("SELECT stream_id, icl_p50_ns FROM streams WHERE icl_p50_ns IS NOT NULL LIMIT 1")
        .to_dicts()[0]
    )
    monkeypatch.setenv("STREAMGAUGE_STALL_FLOOR", "0.001")
    monkeypatch.setenv("STREAMGAUGE_STALL_FACTOR", "7.0")
    app = open_page(streams_data, monkeypatch, "stream", id=row["stream_id"])
    assert not app.exception
    gaps = app.get("vega_lite_chart")[-1].proto
    expected = f"stall: above {formatting.duration(7 * row['icl_p50_ns'])}"
    rows = [pl.read_ipc_stream(data.data.data).to_dicts() for data in gaps.datasets]
    assert any(expected in str(found) for found in rows)


def test_failed_stream_without_events_is_shown(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tables(streams_data).query("SELECT stream_id FROM streams WHERE outcome = 'http_error' LIMIT 1")[
        "stream_id"
    ][0]
    app = open_page(streams_data, monkeypatch, "stream", id=found)
    assert not app.exception
    assert "http_error" in page_text(app)
    assert "No events are stored" in page_text(app)


@pytest.mark.parametrize(
    ("stream_id", "message"),
    [
        ("", "Open a stream from"),
        ("rm -rf", "is not a stream id"),
        ("00000000-0000-4000-8000-000000000000", "Stream not found"),
    ],
)
def test_unknown_stream_shows_message(
    stream_id: str, message: str, streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(streams_data, monkeypatch, "stream", id=stream_id)
    assert not app.exception
    assert message in page_text(app)


def test_error_counts_equal_sql(streams_data: Path, of_a_day: Callable[[str], AppTest]) -> None:
    app = of_a_day("errors")
    row = (
        tables(streams_data)
        .query("""
        SELECT count(*) FILTER (outcome NOT IN ('ok', 'client_abort', 'tap_lost', 'refused')) AS errors,
            count(*) FILTER (outcome = 'client_abort') AS aborts FROM streams""")
        .to_dicts()[0]
    )
    assert metric_value(app, "Errors") == str(row["errors"])
    assert metric_value(app, "Client aborts") == str(row["aborts"])


def test_latency_by_prompt_size_counts_all_streams(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(
        streams_data,
        monkeypatch,
        "latency",
        range="24h",
        split="prompt size",
        metric="end to end",
        quantile="p99",
    )
    assert not app.exception
    assert sum(number(row["Streams"]) for row in table(app, "Quantiles by prompt size")) == 400


def test_pooled_gaps_equal_gaps_between_events_unless_minutes_are_sampled(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(
        streams_data, monkeypatch, "latency", range="24h", metric="inter-chunk, all gaps", split="everything"
    )
    assert not app.exception
    expected = (
        tables(streams_data)
        .query("""
        SELECT count(gap) AS n, quantile_cont(gap, 0.5) / 1e6 AS p50, quantile_cont(gap, 0.99) / 1e6 AS p99,
            max(gap) / 1e6 AS most
        FROM (SELECT at_ns - lag(at_ns) OVER (PARTITION BY stream_id, choice ORDER BY seq) AS gap FROM events
              WHERE kind IN ('text', 'reasoning'))""")
        .to_dicts()[0]
    )
    (shown,) = table(app, "Quantiles by everything")
    assert number(shown["Gaps"]) == expected["n"]
    assert number(shown["p50, ms"]) == pytest.approx(expected["p50"], rel=0.01, abs=0.05)
    assert number(shown["p99, ms"]) == pytest.approx(expected["p99"], rel=0.01, abs=0.05)
    assert number(shown["max, ms"]) == pytest.approx(expected["most"], rel=0.01, abs=0.05)
    assert "From roll-ups by minute: all minutes; quantiles within 1 %" in page_text(app)
    monkeypatch.setattr(latency, "MAX_BUCKETS_READ", 5_000)
    sampled = open_page(
        streams_data, monkeypatch, "latency", range="24h", metric="inter-chunk, all gaps", split="everything"
    )
    assert not sampled.exception
    assert "one of every" in page_text(sampled)
    assert 0 < number(table(sampled, "Quantiles by everything")[0]["Gaps"]) < expected["n"] / 2


def test_long_range_uses_roll_ups_and_shows_it(
    streams_data: Path, of_a_day: Callable[[str], AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, dict[str, dict[str, str]]] = {}
    of_a_week = open_page(streams_data, monkeypatch, "latency", range="7d")
    for length, app in (("24h", of_a_day("latency")), ("7d", of_a_week)):
        assert not app.exception
        assert ("From roll-ups by minute" in page_text(app)) is (length == "7d")
        found[length] = {row["Model"]: row for row in table(app, "Quantiles by model")}
    for model, exact in found["24h"].items():
        from_rollups = found["7d"][model]
        assert from_rollups["Streams"] == exact["Streams"]
        for quantile, tolerance in (("p50", 0.05), ("max", 0.01)):  # a median is between two streams' values
            heading = f"{quantile}, ms"
            assert number(from_rollups[heading]) == pytest.approx(number(exact[heading]), rel=tolerance)


def test_pooled_gaps_of_one_client_show_message(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(
        streams_data, monkeypatch, "latency", range="24h", metric="inter-chunk, all gaps", client=["c0ffee11"]
    )
    assert not app.exception
    assert "Remove the client filter" in page_text(app)


def test_client_with_a_name_is_shown_and_filtered_by_it(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client_id, name = NAMED_CLIENT
    app = open_page(streams_data, monkeypatch, "streams", range="24h", client=[name])
    assert {row["Client"] for row in table(app, "Streams")} == {name}
    assert name in app.multiselect(key="client").options
    assert client_id not in app.multiselect(key="client").options


def test_undelivered_tokens_equal_those_of_sql(
    streams_data: Path, of_a_day: Callable[[str], AppTest]
) -> None:
    app = of_a_day("errors")
    expected = tables(streams_data).query("""
        SELECT sum(output_tokens * (response_bytes - delivered_bytes) / response_bytes) AS n FROM streams
        WHERE outcome = 'client_abort'""")["n"][0]
    assert expected > 0
    assert metric_value(app, "Undelivered tokens") == formatting.count(expected)


def test_throughput_legend_has_all_kinds_of_tokens(
    streams_data: Path, of_a_day: Callable[[str], AppTest]
) -> None:
    app = of_a_day("throughput")
    legends = " ".join(element.proto.body for element in app.get("html"))
    some = (
        tables(streams_data)
        .query("""
        SELECT count(input_tokens) > 0 AS "input, fresh", count(cached_input_tokens) > 0 AS "input, cached",
            count(reasoning_tokens) > 0 AS "output, reasoning", count(output_tokens) > 0 AS "output, answer"
        FROM streams""")
        .to_dicts()[0]
    )
    assert any(some.values())
    assert {kind: kind in legends for kind in some} == some


def test_spend_has_the_sums_of_the_view(streams_data: Path, of_a_day: Callable[[str], AppTest]) -> None:
    app = of_a_day("spend")
    assert not app.exception
    ask = tables(streams_data).query
    cost, ok, tokens, unpriced = ask("""
        SELECT sum(total) FILTER (currency = 'USD'), count(*) FILTER (outcome = 'ok' AND currency = 'USD'),
            sum(output_tokens) FILTER (currency = 'USD'), count(*) FILTER (currency IS NULL AND source IS NOT NULL) FROM spend""").row(
        0
    )
    assert metric_value(app, "Cost").startswith(spend.cost_text(cost, "USD"))
    assert metric_value(app, "Per successful request") == spend.cost_text(cost / ok, "USD")
    assert metric_value(app, "Per 1,000 output tokens") == spend.cost_text(1000 * cost / tokens, "USD")
    assert f"{unpriced} requests have no price" in page_text(app)
    reported, difference = ask("""
        SELECT sum(reported_cost), sum(reported_difference) FROM spend WHERE currency = 'USD' AND reported_difference IS NOT NULL""").row(
        0
    )
    excess = formatting.share(difference / (reported - difference))
    assert f"Providers report {spend.cost_text(reported, 'USD')} ({excess} more than estimated)" in page_text(
        app
    )
    groups = table(app, "Spend by model")
    assert sum(float(row["Cost, USD"]) for row in groups) == pytest.approx(cost, abs=0.0005)
    assert {row["Model"] for row in groups} == {"gpt-4o-mini", "claude-sonnet-4-5", "deepseek-r1"}
    [of_model] = [row for row in groups if row["Reported, USD"] not in ("", "–")]
    assert of_model["Model"] == "deepseek-r1"
    assert of_model["Difference, USD"] == f"{difference:+.4f}"
    written = ask("SELECT sum(cache_write_tokens)::BIGINT FROM spend WHERE currency = 'USD'").item()
    cache = {row["Model"]: row for row in table(app, "Prompt cache by model")}
    assert cache["claude-sonnet-4-5"]["Tokens written"] == f"{written:,}"
    by_session = """
        SELECT count(*) AS n, sum(total) AS cost FROM spend WHERE currency = 'USD' AND session_id IS NOT NULL
        GROUP BY session_id ORDER BY cost DESC LIMIT 10"""
    dearest = table(app, "Dearest sessions")
    assert [(int(row["Requests"]), float(row["Cost, USD"])) for row in dearest] == [
        (n, pytest.approx(of_session, abs=0.0001)) for n, of_session in ask(by_session).rows()
    ]
    budgets = {row["Budget"]: row for row in table(app, "Budgets")}
    [(spent, estimated)] = ask(
        "SELECT spent, estimated_share FROM budget_spend WHERE name = 'all per month'"
    ).rows()
    assert budgets["all per month"]["Spent"].startswith(spend.cost_text(spent, "USD"))
    assert budgets["all per month"]["Estimated, %"] == f"{100 * estimated:.0f}"
    assert budgets["EUR"]["Spent"].split(" (")[0].endswith(" EUR")
    app.segmented_control(key="currency").set_value("EUR").run()
    assert {row["Model"] for row in table(app, "Spend by model")} == {"qwen3-32b"}


def test_spend_without_an_answer_about_budgets(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_slow(query: object) -> None:
        raise QueryError("the query took longer than 20 s")

    monkeypatch.setattr(spend, "budgets", too_slow)
    app = open_page(streams_data, monkeypatch, "spend", range="24h")
    assert not app.exception
    assert [warning.value for warning in app.warning] == ["the query took longer than 20 s"]
    assert table(app, "Spend by model")


def test_list_of_sessions_has_the_cost_of_each(
    streams_data: Path, of_a_day: Callable[[str], AppTest]
) -> None:
    shown = table(of_a_day("sessions"), "Sessions")
    sql = "SELECT left(session_id, 10), sum(total) FROM spend WHERE currency = 'USD' GROUP BY ALL"
    costs = dict(tables(streams_data).query(sql).rows())
    priced = {row["Session"][:10]: row["Cost"] for row in shown if " USD" in row["Cost"]}
    assert len(priced) > 10
    assert {
        name: spend.cost_text(costs[name], "USD") in text for name, text in priced.items()
    } == dict.fromkeys(priced, True)


def test_live_counts_waiting_streams(of_a_day: Callable[[str], AppTest]) -> None:
    app = of_a_day("live")
    assert (metric_value(app, "In flight"), metric_value(app, "Waiting")) == ("4", "1")
    states = sorted(row["State"] for row in table(app, "Streams in flight"))
    assert states == ["client is not reading", "streaming", "streaming", "waiting"]


def test_link_runs_its_statement(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = "SELECT count(*) AS n, NULL AS nothing FROM streams;"
    app = open_page(streams_data, monkeypatch, "sql", sql=sql)
    assert not app.exception
    assert app.dataframe[0].value["n"].to_list() == [400]
    assert app.query_params["sql"] == sql


def test_variables_of_a_statement_are_the_range_and_the_filters(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = """SELECT count(*) AS n FROM streams WHERE started_at >= $from AND started_at < $to
        AND request_model IN $model AND gateway IN $gateway AND client_id IN $client"""
    chosen = {"range": "24h", "model": ["deepseek-r1", "qwen3-32b"], "client": [NAMED_CLIENT[1]]}
    app = open_page(streams_data, monkeypatch, "sql", sql=sql, **chosen)
    assert not app.exception
    expected = tables(streams_data).query(f"""SELECT count(*) AS n FROM streams
        WHERE request_model IN ('deepseek-r1', 'qwen3-32b') AND client_id = '{NAMED_CLIENT[0]}'""")["n"][0]
    assert app.dataframe[0].value["n"].to_list() == [expected]
    assert expected
    app.button(key="chip-model-qwen3-32b").click().run()
    assert 0 < app.dataframe[0].value["n"].to_list()[0] < expected


def test_sql_page_shows_only_filters_that_its_statement_uses(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"model": ["qwen3-32b"], "gateway": ["edge-eu"]}
    for condition, chips, is_disabled in (
        ("TRUE", [], True),
        ("gateway IN $gateway", ["chip-gateway-edge-eu"], True),
        ("started_at > $from", [], False),
    ):
        app = open_page(
            streams_data, monkeypatch, "sql", sql=f"SELECT 1 AS n FROM streams WHERE {condition}", **chosen
        )
        assert [button.key for button in app.button if "chip" in (button.key or "")] == chips
        assert app.selectbox(key="range").disabled == is_disabled


def test_ids_of_a_result_are_links_and_downloads_have_the_ids(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(
        streams_data, monkeypatch, "sql", sql="SELECT stream_id, trace_id FROM streams LIMIT 1", range="1h"
    )
    row = app.dataframe[0].value.to_dict("records")[0]
    assert re.fullmatch(r"stream\?range=1h&id=[0-9a-f-]{36}", row["stream_id"])
    assert re.fullmatch(r"traces\?range=1h&trace=[0-9a-f]{32}", row["trace_id"])
    columns = json.loads(app.dataframe[0].proto.columns)
    assert columns["stream_id"]["type_config"] == {"type": "link", "display_text": "&id=(.*)"}


def test_list_of_streams_has_pages(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids: list[str] = []
    app = open_page(streams_data, monkeypatch, "streams", range="24h")
    for page in (1, 2, 16):
        app.query_params["page"] = str(page)
        app.run()
        ids += [row["Stream"] for row in table(app, "Streams")]
        text = page_text(app)
        assert f"{page * 25 - 24} – {page * 25} of 400 streams" in text
        assert (f"Page {page + 1} →" in text, f"← Page {page - 1}" in text) == (page < 16, page > 1)
        assert all("page=" not in address for row in links(app, "Streams") for address in row)
    assert len(set(ids)) == 75
    app.query_params["page"] = "17"
    assert "This page has no streams" in page_text(app.run())


def test_empty_panel_says_why(one_stream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page_text(open_page(one_stream, monkeypatch, range="24h"))
    assert "No stream of this selection has output." in text
    assert "No stream of this selection has two output events and a reported number of output tokens." in text


def test_plan_of_a_statement_is_shown(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(streams_data, monkeypatch, "sql", sql="EXPLAIN SELECT count(outcome) FROM streams")
    [plan] = app.code
    assert "Table: streams" in plan.value
    assert not app.error


def test_result_above_the_row_limit_is_cut_with_a_warning(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(streams_data, monkeypatch, "sql", sql="FROM range(10001)")
    assert "more than 10,000 rows" in str(app.warning[0].value)
    assert len(app.dataframe[0].value) == 10_000
    app.query_params["sql"] = "FROM range(10000)"
    app.run()
    assert (len(app.warning), len(app.dataframe[0].value)) == (0, 10_000)


def test_statement_too_long_for_an_address_runs_without_it(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(streams_data, monkeypatch, "sql", sql=f"SELECT 1 AS n -- {'x' * 6000}")
    assert app.dataframe[0].value["n"].to_list() == [1]
    assert "sql" not in app.query_params
    assert "the limit is 6,000" in str(app.info[0].value)


def test_chart_of_a_link_has_the_chosen_columns(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = "SELECT request_model, outcome, count(*) AS n, max(ttft_ns) AS ttft FROM streams GROUP BY ALL"
    app = open_page(
        streams_data, monkeypatch, "sql", sql=sql, view="Chart", y="ttft", colour="outcome", x="wrong"
    )
    assert not app.exception
    assert [app.selectbox(key=key).value for key in ("x", "y", "colour")] == [
        "request_model",
        "ttft",
        "outcome",
    ]
    assert not app.dataframe
    app.query_params["sql"] = "SELECT 1 AS one"  # has no chart
    app.run()
    assert not app.exception
    assert app.dataframe[0].value["one"].to_list() == [1]


def test_compare_detects_differences_of_two_models(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(
        streams_data, monkeypatch, "compare", **{
            "range": "24h", "A-when": "same time", "A-model": ["qwen3-32b"], "B-model": ["claude-sonnet-4-5"],
        }
    )  # fmt: skip
    assert not app.exception
    failures, answers, durations = (
        {row["Metric"]: row for row in table(app, f"{title}: differences between A and B")}
        for title in ("Failures", "Answers", "Lengths and durations of ok streams")
    )
    assert durations["TTFT p50"]["Result"] == "B is worse"
    assert durations["ITL p50"]["Result"] == "B is better"
    expected = tables(streams_data).query("""
        SELECT quantile_cont(end_ns, 0.5) FILTER (outcome = 'ok') AS duration,
            count(*) FILTER (outcome NOT IN ('ok', 'client_abort', 'tap_lost', 'refused'))
              / count(*) FILTER (outcome NOT IN ('client_abort', 'tap_lost', 'refused')) AS error_rate,
            avg((finish_reason = 'length')::INTEGER) FILTER (outcome = 'ok') AS cut,
            quantile_cont(output_tokens, 0.5) FILTER (outcome = 'ok') AS tokens
        FROM streams WHERE request_model = 'qwen3-32b'""").to_dicts()[0]  # fmt: skip
    assert durations["Duration p50"]["A"] == formatting.duration(expected["duration"])
    assert failures["Error rate"]["A"] == formatting.share(expected["error_rate"])
    assert answers["Cut at the token limit"]["A"] == formatting.share(expected["cut"])
    assert durations["Output tokens p50"]["A"] == formatting.count(expected["tokens"])


def test_compare_with_an_onset_splits_the_time_range(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onset = datetime.now(UTC) - timedelta(minutes=40)
    app = open_page(streams_data, monkeypatch, "compare", range="24h", onset=f"{onset:%Y-%m-%dT%H:%M:%S}")
    assert not app.exception
    before = tables(streams_data).query(
        f"SELECT count(*) AS n FROM streams WHERE started_at < '{onset:%Y-%m-%dT%H:%M:%S}+00' AND outcome <> 'refused'"
    )["n"][0]
    assert 0 < before < 400
    assert metric_value(app, "A: requests") == str(before)
    assert int(metric_value(app, "A: requests")) + int(metric_value(app, "B: requests")) == 400
    app = open_page(streams_data, monkeypatch, "compare", onset="yesterday")
    assert "Enter the onset" in page_text(app)


def test_compare_without_a_previous_period_compares_the_halves_of_the_data(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(streams_data, monkeypatch, "compare", range="24h")
    a, b = (int(metric_value(app, f"{side}: requests")) for side in "AB")
    assert min(a, b) > 100
    app = open_page(streams_data, monkeypatch, "compare", range="24h", **{"A-when": "7 d earlier"})
    assert "No comparison: no streams in A. Choose another time or remove a filter." in page_text(app)


def test_compare_by_a_further_dimension(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(
        streams_data, monkeypatch, "compare", **{
            "range": "24h", "dimension": "dialect", "A-when": "same time", "A-value": ["openai_chat"], "B-value": ["o'ther"],
        }
    )  # fmt: skip
    assert not app.exception
    found = tables(streams_data).query("SELECT count(*) AS n FROM streams WHERE dialect = 'openai_chat'")[
        "n"
    ][0]
    assert metric_value(app, "A: requests") == str(found)
    assert metric_value(app, "B: requests") == "0"


def test_compare_of_equal_selections_shows_message(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(streams_data, monkeypatch, "compare", **{"A-when": "same time"})
    assert "the same selection" in page_text(app)

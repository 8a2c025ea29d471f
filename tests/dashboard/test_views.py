"""Every page over streams, over empty tables and without tables: no exceptions, and numbers equal those of SQL."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from dashboard import formatting
from dashboard.queries import rollups
from dashboard.sql_examples import EXAMPLES
from tests.dashboard.app_test import UNREADABLE, VIEWS, metric_value, open_page, page_text
from tests.dashboard.generated_store import filled
from tests.tables import tables

LIVE_VIEWS = sorted(set(VIEWS) - {"sql"})


def test_every_view_is_tested() -> None:
    folder = Path(__file__).parents[2] / "dashboard" / "views"
    assert sorted(p.stem for p in folder.glob("*.py") if p.stem != "__init__") == VIEWS


@pytest.mark.parametrize("view", VIEWS)
def test_page_over_streams_has_no_errors(
    view: str, streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(streams_data, monkeypatch, view, range="24h")
    assert not app.exception
    assert not app.error
    assert app.title[0].value


@pytest.mark.parametrize("view", VIEWS)
def test_page_over_empty_tables_has_no_errors(
    view: str, empty_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(empty_data, monkeypatch, view)
    assert not app.exception
    assert not app.error


@pytest.mark.parametrize("view", sorted(set(LIVE_VIEWS) - {"stream"}))
def test_page_without_tables_shows_message(
    view: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(tmp_path, monkeypatch, view)
    assert not app.exception
    assert UNREADABLE in page_text(app)


def test_dashboard_files_do_not_shadow_modules(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_page(streams_data, monkeypatch, "sql")
    folder = Path(__file__).parents[2] / "dashboard"
    assert str(folder) not in sys.path
    for name in ("tables", "formatting", "charts", "query_runner", "views"):
        assert importlib.util.find_spec(name) is None


def test_pages_show_data_after_tables_are_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(tmp_path, monkeypatch, range="24h")
    assert UNREADABLE in page_text(app)
    filled(tmp_path, streams=5)
    app.selectbox(key="range").set_value("7d").run()  # another query, so no cached result
    assert metric_value(app, "Requests") == "5"


def test_pages_read_a_replaced_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "data", streams=5)
    filled(tmp_path / "other", streams=7)
    app = open_page(tmp_path / "data", monkeypatch, range="24h")
    assert metric_value(app, "Requests") == "5"
    (tmp_path / "data").rename(tmp_path / "former")
    (tmp_path / "other").rename(tmp_path / "data")
    app.selectbox(key="range").set_value("7d").run()
    assert metric_value(app, "Requests") == "7"


def test_streams_are_filtered_sorted_and_found(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(
        streams_data, monkeypatch, "streams", range="24h", kind="errors", order="longest", rows="500"
    )
    expected = tables(streams_data).query("""
        SELECT end_ns / 1e9 AS s FROM streams WHERE outcome NOT IN ('ok', 'client_abort', 'tap_lost', 'refused')
        ORDER BY end_ns DESC NULLS LAST""")["s"]
    shown = app.dataframe[0].value
    assert list(shown["end_ns"]) == pytest.approx(expected.to_list())
    trace = tables(streams_data).query("SELECT trace_id FROM streams LIMIT 1")["trace_id"][0]
    app = open_page(streams_data, monkeypatch, "streams", range="24h", find=trace[4:20].upper())
    assert len(app.dataframe[0].value) == 1


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


def test_error_counts_equal_sql(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(streams_data, monkeypatch, "errors", range="24h")
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
    assert sum(app.dataframe[0].value["n"]) == 400


def test_pooled_gaps_equal_gaps_between_events(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    shown = app.dataframe[0].value.iloc[0]
    assert shown["n"] == expected["n"]
    assert shown["p50_ns"] == pytest.approx(expected["p50"], rel=0.01)
    assert shown["p99_ns"] == pytest.approx(expected["p99"], rel=0.01)
    assert shown["max_ns"] == pytest.approx(expected["most"], rel=0.01)
    assert "From roll-ups by minute: all minutes; quantiles within 1 %" in page_text(app)


def test_long_range_uses_roll_ups_and_shows_it(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {}
    for length in ("24h", "7d"):
        app = open_page(streams_data, monkeypatch, "latency", range=length)
        assert not app.exception
        assert ("From roll-ups by minute" in page_text(app)) is (length == "7d")
        tables[length] = app.dataframe[0].value.set_index("name")
    exact, from_rollups = tables["24h"], tables["7d"].loc[tables["24h"].index]
    assert list(from_rollups["n"]) == list(exact["n"])
    assert list(from_rollups["p50_ns"]) == pytest.approx(
        list(exact["p50_ns"]), rel=0.05
    )  # between two streams' values
    assert list(from_rollups["max_ns"]) == pytest.approx(list(exact["max_ns"]), rel=0.01)


def test_large_query_reads_sampled_minutes_and_shows_it(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = open_page(
        streams_data, monkeypatch, "latency", range="24h", metric="inter-chunk, all gaps", split="everything"
    )
    monkeypatch.setattr(rollups, "MAX_BUCKETS_READ", 5_000)
    sampled = open_page(
        streams_data, monkeypatch, "latency", range="24h", metric="inter-chunk, all gaps", split="everything"
    )
    assert not sampled.exception
    assert "one of every" in page_text(sampled)
    assert "one of every" not in page_text(full)
    few, many = (int(app.dataframe[0].value["n"].iloc[0]) for app in (sampled, full))
    assert 0 < few < many / 2


def test_pooled_gaps_of_one_client_show_message(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(
        streams_data, monkeypatch, "latency", range="24h", metric="inter-chunk, all gaps", client=["c0ffee11"]
    )
    assert not app.exception
    assert "Remove the client filter" in page_text(app)


def test_wasted_tokens_equal_undelivered_tokens(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(streams_data, monkeypatch, "errors", range="24h")
    expected = tables(streams_data).query("""
        SELECT sum(output_tokens * (response_bytes - delivered_bytes) / response_bytes) AS n FROM streams
        WHERE outcome = 'client_abort'""")["n"][0]
    assert expected > 0
    assert metric_value(app, "Wasted tokens") == formatting.count(expected)


def test_throughput_legend_has_all_kinds_of_tokens(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(streams_data, monkeypatch, "throughput", range="24h")
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


def test_live_counts_waiting_streams(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(streams_data, monkeypatch, "live")
    assert (metric_value(app, "In flight"), metric_value(app, "Waiting")) == ("4", "1")


def test_sql_runs_the_statement(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(
        streams_data, monkeypatch, "sql", sql="SELECT count(*) AS n, NULL AS nothing FROM streams;"
    )
    app.button[0].click().run()
    assert not app.exception
    assert app.dataframe[0].value["n"].to_list() == [400]


@pytest.mark.parametrize("title", list(EXAMPLES))
def test_every_example_runs(title: str, streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(streams_data, monkeypatch, "sql")
    app.selectbox(key="example").set_value(title).run()
    assert app.text_area[0].value == EXAMPLES[title]
    app.button[0].click().run()
    assert not app.exception
    assert not app.error
    assert len(app.dataframe[0].value) > 0


@pytest.mark.parametrize(
    "sql",
    ["DROP TABLE streams", "SELECT nonsense FROM streams", "SELECT * FROM 'x.csv'", "SELECT * FROM events"],
)
def test_invalid_or_too_large_sql_is_a_one_line_error(
    sql: str, streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(streams_data, monkeypatch, "sql", sql=sql)
    app.button[0].click().run()
    assert not app.exception
    assert len(app.error) == 1
    assert "\n" not in str(app.error[0].value)


def test_trace_has_spans_of_all_services_and_links_to_its_stream(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(streams_data, monkeypatch, "traces", range="24h")
    assert len(app.dataframe[0].value) == 30
    assert set(app.dataframe[0].value["services"]) == {"app, gateway, tap"}
    row = (
        tables(streams_data)
        .query("SELECT trace_id, stream_id FROM spans WHERE stream_id IS NOT NULL LIMIT 1")
        .to_dicts()[0]
    )
    app = open_page(streams_data, monkeypatch, "traces", trace=row["trace_id"])
    assert not app.exception
    assert len(app.get("vega_lite_chart")) == 1
    assert list(app.dataframe[0].value["service"]) == ["app", "tap", "gateway", "gateway"]
    assert "observed by the tap" not in page_text(app)
    assert app.page_link[0].value == f"Stream {row['stream_id']}"


def test_unknown_trace_shows_message(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(streams_data, monkeypatch, "traces", trace="no'such")
    assert not app.exception
    assert "No spans of this trace are stored" in page_text(app)


def test_compare_detects_differences_of_two_models(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(
        streams_data, monkeypatch, "compare", **{
            "range": "24h", "A-when": "same time", "A-model": ["qwen3-32b"], "B-model": ["claude-sonnet-4-5"],
        }
    )  # fmt: skip
    assert not app.exception
    shown = app.dataframe[0].value.set_index("Metric")["Result"]
    assert shown["TTFT p50"] == "B is worse"
    assert shown["ITL p50"] == "B is better"


def test_compare_of_equal_selections_shows_message(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(streams_data, monkeypatch, "compare", **{"A-when": "same time"})
    assert "the same selection" in page_text(app)

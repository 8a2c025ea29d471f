"""The overview: numbers equal those of SQL, and empty or unreadable data has a message."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from streamgauge.analytics.diagnosis.diagnosis import Measured
from streamgauge.analytics.reports import formatting
from streamgauge.dashboard.views.overview import objective_text
from streamgauge.ingest.ready_file import write_ready_file
from tests.dashboard.app_test import UNREADABLE, metric_value, open_page, page_text
from tests.tables import tables


@pytest.fixture(scope="module")
def overview(streams_data: Path) -> Iterator[AppTest]:
    """The page over all streams."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield open_page(streams_data, monkeypatch, range="24h", refresh="off")


def test_numbers_equal_sql(streams_data: Path, overview: AppTest) -> None:
    app = overview
    assert not app.exception
    row = (
        tables(streams_data)
        .query("""
        SELECT count(*) AS n, quantile_cont(ttft_ns, 0.95) AS ttft, quantile_cont(itl_ns, 0.5) AS itl,
            count(*) FILTER (outcome NOT IN ('ok', 'client_abort', 'tap_lost', 'refused'))
                / count(*) FILTER (outcome NOT IN ('client_abort', 'tap_lost', 'refused')) AS errors,
            count(*) FILTER (meets_objective) / epoch(
                (SELECT time_bucket(INTERVAL '1 minute', min(started_at)) FROM open_streams) - min(started_at)) AS goodput
        FROM streams""")
        .to_dicts()[0]
    )
    assert metric_value(app, "Requests") == formatting.count(row["n"]) == "400"
    assert metric_value(app, "TTFT p95") == formatting.duration(row["ttft"])
    assert metric_value(app, "ITL p50") == formatting.duration(row["itl"])
    assert metric_value(app, "Error rate") == formatting.share(row["errors"])
    assert metric_value(app, "Goodput") == formatting.rate(row["goodput"], "/s")
    assert metric_value(app, "In flight") == "4"


def test_tiles_name_the_stored_objective_that_is_missed_most(
    streams_data: Path, overview: AppTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page_text(overview)
    ttft = tables(streams_data).query(
        "SELECT quantile_cont(ttft_ns, 0.95) AS p95 FROM streams WHERE request_model = 'gpt-4o-mini'"
    )["p95"][0]
    assert f"interactive ≤ 200 ms, missed: {formatting.duration(ttft)}" in text
    assert "objective ≤ 5.00 %" in text  # one objective has an error rate
    one = page_text(open_page(streams_data, monkeypatch, range="24h", refresh="off", model=["deepseek-r1"]))
    assert "objective ≤ 2.00 s" in one


def test_tile_says_that_the_latest_streams_make_its_objective_missed() -> None:
    """The tile shows the streams of complete intervals, and the diagnosis judges all."""
    ttft = Measured(name="ttft", value=2.11e9, limit=2e9, unit="ns")
    assert (
        objective_text([ttft], formatting.duration, 1.92e9)
        == "objective ≤ 2.00 s, with the latest streams 2.11 s"
    )
    assert objective_text([ttft], formatting.duration, 2.11e9) == "objective ≤ 2.00 s, missed"


def test_url_filters_are_applied(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(streams_data, monkeypatch, range="24h", model=["deepseek-r1"], gateway=["edge-eu"])
    wanted = tables(streams_data).query(
        "SELECT count(*) AS n FROM streams WHERE request_model = 'deepseek-r1' AND gateway = 'edge-eu'"
    )["n"][0]
    assert not app.exception
    assert metric_value(app, "Requests") == str(wanted) != "400"
    assert app.multiselect(key="model").value == ["deepseek-r1"]
    assert r"model deepseek\-r1" in page_text(app)


def test_url_filter_without_streams_is_kept(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(streams_data, monkeypatch, model="o'brien; --")
    assert not app.exception
    assert metric_value(app, "Requests") == "0"
    assert "No streams match the time range" in page_text(app)


def test_custom_range_is_applied(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(
        streams_data, monkeypatch, range="custom", **{"from": "2020-01-01T00:00", "until": "2020-01-02T00:00"}
    )
    assert not app.exception
    assert metric_value(app, "Requests") == "0"
    assert "2020-01-01 00:00:00 – 2020-01-02 00:00:00 UTC" in page_text(app)


def test_empty_store_shows_address_of_the_tap(empty_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = empty_data / "run" / "tap.json"
    run.write_text(
        json.dumps({"pid": 1, "listen": "http://127.0.0.1:4199", "admin": "http://127.0.0.1:4198"})
    )
    try:
        app = open_page(empty_data, monkeypatch)
    finally:
        run.unlink()
    assert not app.exception
    assert "No streams yet" in page_text(app)
    assert "http://127.0.0.1:4199/v1" in page_text(app)


def test_empty_store_without_tap_shows_start_command(
    empty_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(empty_data, monkeypatch)
    assert not app.exception
    assert "streamgauge up --upstream" in page_text(app)


@pytest.mark.parametrize("after_a_crash", [False, True])
def test_page_waits_for_analytics_that_is_starting(
    after_a_crash: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"analyze": {"pid": os.getpid(), "restarts": 0, "silent_since": None}}
    write_ready_file(tmp_path / "run" / "up.json", {"parts": parts})
    if after_a_crash:
        (tmp_path / "run" / "analyze.json").write_text('{"pid": 1}')
    assert "Analytics is starting" in page_text(open_page(tmp_path, monkeypatch))


def test_folder_without_tables_is_an_error_message(no_tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(no_tables, monkeypatch)
    assert not app.exception
    assert UNREADABLE in page_text(app)
    assert "has no tables yet" in page_text(app)
    assert "streamgauge status" in page_text(app)


def test_invalid_store_is_an_error_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "catalog.sqlite").write_bytes(b"no database" * 1000)
    app = open_page(tmp_path, monkeypatch)
    assert not app.exception
    assert UNREADABLE in page_text(app)

"""Data that no page was drawn for: 200 models, names as long as they may be, rows that are NULL but for what must be there, one
stream of 100,000 events, numbers at their ends. A correct page or words, never a stack trace."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from analytics.measures.measure import MAX_WORD_CHARS
from tests.dashboard.app_test import UNREADABLE, VIEWS, metric_value, open_page, page_text
from tests.dashboard.generated_store import filled, filling, insert, write_open_streams
from tests.tables import tables

LONG = ("a/very\\long: [model] name.with \"signs\" <b>and</b> $x_1$ 'quotes' " + "0123456789" * 24)[
    :MAX_WORD_CHARS
]
"""As long as analytics lets a name be."""
GIANT, EMPTY = UUID(int=7), UUID(int=9)
EVENTS = 100_000


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("odd")
    now = datetime.now(UTC) - timedelta(minutes=5)
    with filling(data) as connection:
        insert(connection, "streams", [
            {"stream_id": UUID(int=1000 + i), "started_at": now - timedelta(seconds=i), "outcome": "ok", "request_model": f"model-{i}",
             "gateway": f"gateway-{i % 40}", "client_id": f"{i:032x}", "ttft_ns": 1_000_000 * (i + 1), "end_ns": 2_000_000_000}
            for i in range(200)
        ])  # fmt: skip
        insert(connection, "streams", [
            {"stream_id": EMPTY, "started_at": now, "outcome": "tap_lost"},
            {"stream_id": UUID(int=10), "started_at": now, "outcome": "http_error"},
            {"stream_id": UUID(int=11), "started_at": now, "outcome": "an outcome of tomorrow", "error_phase": "p", "error_type": LONG},
            {"stream_id": UUID(int=12), "started_at": now, "outcome": "ok", "request_model": LONG, "gateway": LONG, "client_id": LONG,
             "error_message": LONG, "finish_reason": LONG, "path": LONG, "ttft_ns": 0, "itl_ns": 0.0, "icl_max_ns": 0, "end_ns": 0,
             "output_tokens": 2**40, "input_tokens": 0, "tps_user": 1e12, "tps_e2e": 0.0, "burstiness": 0.0, "stall_count": 0},
            {"stream_id": GIANT, "started_at": now, "outcome": "ok", "request_model": "giant", "ttft_ns": 0, "event_count": EVENTS,
             "end_ns": EVENTS * 1_000_000, "last_output_ns": EVENTS * 1_000_000, "stall_count": 1},
        ])  # fmt: skip
        connection.execute(f"""
            INSERT INTO events BY NAME SELECT '{GIANT}'::UUID AS stream_id, i AS seq, i AS read_seq,
                i * 1000000 + CASE WHEN i > 70000 THEN 3000000000 ELSE 0 END AS at_ns, 'text' AS kind, 0 AS choice, 3 AS chars,
                100 AS bytes FROM range({EVENTS}) AS t(i)""")
        insert(connection, "spans", [
            {"trace_id": "f" * 32, "span_id": "1" * 16, "parent_span_id": "1" * 16, "name": LONG, "kind": "?", "started_at": now,
             "start_ns": 0, "duration_ns": 0, "status": "odd", "attributes": "no JSON", "events": None}
        ])  # fmt: skip
        insert(connection, "usage_reports", [{"stream_id": GIANT, "seq": None, "raw": None}])
        insert(
            connection,
            "server_stats",
            [{"stream_id": GIANT, "source": "s", "name": LONG, "value": None, "unit": None}],
        )
    write_open_streams(data, [
        {"stream_id": UUID(int=20), "started_at": now, "updated_at": now},
        {"stream_id": UUID(int=21), "started_at": now, "updated_at": now, "request_model": LONG, "ttft_ns": 0, "last_output_ns": 0,
         "output_tokens": 5},
    ])  # fmt: skip
    return data


@pytest.mark.parametrize("view", VIEWS)
def test_a_page_over_odd_data_stands(view: str, odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(odd, monkeypatch, view, range="24h")
    assert not app.exception
    assert not app.error


@pytest.mark.parametrize("split", ["model", "gateway", "client", "prompt size", "dialect", "everything"])
def test_latency_by_anything_stands(split: str, odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(odd, monkeypatch, "latency", range="24h", split=split)
    assert not app.exception
    assert not app.error


def test_two_hundred_models_are_counted_and_offered(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(odd, monkeypatch, range="24h")
    assert metric_value(app, "Requests") == "205"
    assert len(app.multiselect(key="model").options) >= 200


def test_a_long_name_is_a_filter_and_a_link_like_any_other(
    odd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for view in ("overview", "errors", "throughput", "streams"):
        app = open_page(odd, monkeypatch, view, range="24h", model=[LONG], gateway=[LONG], client=[LONG])
        assert not app.exception
        assert not app.error
    app = open_page(odd, monkeypatch, range="24h", model=[LONG])
    assert metric_value(app, "Requests") == "1"


def test_a_stream_of_a_hundred_thousand_events_is_drawn_in_part_and_says_so(
    odd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(odd, monkeypatch, "stream", id=str(GIANT))
    assert not app.exception
    assert len(app.get("vega_lite_chart")) == 4
    assert "of 100 k events drawn" in page_text(app)


def test_a_stream_of_nulls_has_its_page(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(odd, monkeypatch, "stream", id=str(EMPTY))
    assert not app.exception
    assert metric_value(app, "TTFT") == "–"
    assert "tap_lost" in page_text(app)


def test_a_running_stream_of_nulls_has_words(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(odd, monkeypatch, "stream", id=str(UUID(int=20)))
    assert not app.exception
    assert "still runs" in page_text(app)


def test_a_trace_of_one_odd_span_is_drawn(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(odd, monkeypatch, "traces", trace="f" * 32)
    assert not app.exception
    assert len(app.get("vega_lite_chart")) == 1


def test_a_store_that_is_removed_under_an_open_page_is_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, streams=3)
    app = open_page(tmp_path, monkeypatch, "streams", range="24h")
    assert len(app.dataframe[0].value) == 3
    (tmp_path / "catalog.sqlite").rename(tmp_path / "elsewhere.sqlite")
    app.selectbox(key="range").set_value("7d").run()
    assert not app.exception
    assert UNREADABLE in page_text(app)


def test_the_odd_names_are_those_of_sql(odd: Path) -> None:
    found = tables(odd).query("SELECT count(DISTINCT request_model) AS n FROM streams")["n"][0]
    assert found == 202

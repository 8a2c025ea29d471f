"""Pages over extreme data: 200 models, names of maximum length, rows of NULL, 100,000 events, extreme numbers.

Every page shows correct data or a message, never a stack trace.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from tests.dashboard.app_test import VIEWS, metric_value, open_page, page_text
from tests.dashboard.generated_store import filling, insert, write_open_streams
from tests.tables import tables

LONG_NAME = ("a/very\\long: [model] name.with \"signs\" <b>and</b> $x_1$ 'quotes' " + "0123456789" * 24)[:256]
"""A name with signs that older versions stored."""
GIANT, EMPTY = UUID(int=7), UUID(int=9)
EVENTS = 100_000


@pytest.fixture(scope="module")
def extreme_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("extreme")
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
            {"stream_id": UUID(int=11), "started_at": now, "outcome": "unknown_outcome", "error_phase": "p", "error_type": LONG_NAME},
            {"stream_id": UUID(int=12), "started_at": now, "outcome": "ok", "request_model": LONG_NAME,
             "gateway": LONG_NAME, "client_id": LONG_NAME,
             "error_message": LONG_NAME, "finish_reason": LONG_NAME, "path": LONG_NAME, "ttft_ns": 0, "itl_ns": 0.0,
             "icl_max_ns": 0, "end_ns": 0,
             "output_tokens": 2**40, "input_tokens": 0, "tps_user": 1e12, "tps_e2e": 0.0, "burstiness": 0.0, "stall_count": 0},
            {"stream_id": GIANT, "started_at": now, "outcome": "ok", "request_model": "giant", "ttft_ns": 0, "event_count": EVENTS,
             "end_ns": EVENTS * 1_000_000, "last_output_ns": EVENTS * 1_000_000, "stall_count": 1},
        ])  # fmt: skip
        connection.execute(f"""
            INSERT INTO events BY NAME SELECT '{GIANT}'::UUID AS stream_id, i AS seq, i AS read_seq,
                i * 1000000 + CASE WHEN i > 70000 THEN 3000000000 ELSE 0 END AS at_ns, 'text' AS kind, 0 AS choice, 3 AS chars,
                100 AS bytes FROM range({EVENTS}) AS t(i)""")
        insert(connection, "spans", [
            {"trace_id": "f" * 32, "span_id": "1" * 16, "parent_span_id": "1" * 16, "name": LONG_NAME, "kind": "?", "started_at": now,
             "start_ns": 0, "duration_ns": 0, "status": "other", "attributes": "no JSON", "events": None}
        ])  # fmt: skip
        insert(connection, "usage_reports", [{"stream_id": GIANT, "seq": None, "raw": None}])
        insert(
            connection,
            "server_stats",
            [{"stream_id": GIANT, "source": "s", "name": LONG_NAME, "value": None, "unit": None}],
        )
    write_open_streams(data, [
        {"stream_id": UUID(int=20), "started_at": now, "updated_at": now},
        {"stream_id": UUID(int=21), "started_at": now, "updated_at": now, "request_model": LONG_NAME, "ttft_ns": 0, "last_output_ns": 0,
         "output_tokens": 5},
    ])  # fmt: skip
    return data


@pytest.mark.parametrize("view", sorted(set(VIEWS) - {"overview"}))
def test_page_over_extreme_data_has_no_errors(
    view: str, extreme_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(extreme_data, monkeypatch, view, range="24h")
    assert not app.exception
    assert not app.error


@pytest.mark.parametrize("split", ["gateway", "client", "prompt size", "dialect", "everything"])
def test_latency_by_another_group_has_no_errors(
    split: str, extreme_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(extreme_data, monkeypatch, "latency", range="24h", split=split)
    assert not app.exception
    assert not app.error


def test_two_hundred_models_are_counted_and_selectable(
    extreme_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(extreme_data, monkeypatch, range="24h")
    assert not app.exception
    assert not app.error
    assert metric_value(app, "Requests") == "205"
    assert len(app.multiselect(key="model").options) >= 200


def test_long_name_works_as_filter_and_link(extreme_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for view in ("errors", "throughput", "streams", "overview"):
        app = open_page(
            extreme_data,
            monkeypatch,
            view,
            range="24h",
            model=[LONG_NAME],
            gateway=[LONG_NAME],
            client=[LONG_NAME],
        )
        assert not app.exception
        assert not app.error
    assert metric_value(app, "Requests") == "1"


def test_stream_of_100000_events_is_sampled_and_shows_it(
    extreme_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(extreme_data, monkeypatch, "stream", id=str(GIANT))
    assert not app.exception
    assert len(app.get("vega_lite_chart")) == 4
    assert "of 100 k events drawn" in page_text(app)


def test_stream_of_nulls_has_a_page(extreme_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(extreme_data, monkeypatch, "stream", id=str(EMPTY))
    assert not app.exception
    assert metric_value(app, "TTFT") == "–"
    assert "tap_lost" in page_text(app)


def test_stream_of_nulls_in_flight_shows_message(extreme_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(extreme_data, monkeypatch, "stream", id=str(UUID(int=20)))
    assert not app.exception
    assert "in flight" in page_text(app)


def test_trace_of_one_invalid_span_is_drawn(extreme_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(extreme_data, monkeypatch, "traces", trace="f" * 32)
    assert not app.exception
    assert sum(e.proto.body.count("<details") for e in app.get("html")) == 1


def test_store_has_all_names(extreme_data: Path) -> None:
    found = tables(extreme_data).query("SELECT count(DISTINCT request_model) AS n FROM streams")["n"][0]
    assert found == 202

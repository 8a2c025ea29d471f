"""The Traces page: list, search in the address, tree of spans, and traces without spans of other services."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from streamgauge.analytics.reports.trace_tree import MEASURED
from tests.dashboard.app_test import metric_value, open_page, page_text, table
from tests.dashboard.generated_traces import LARGE_TRACE, SPANS
from tests.tables import tables


def test_traces_are_listed_with_readable_headings_and_open_as_a_tree(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(streams_data, monkeypatch, "traces", range="24h")
    listed = table(app, "Traces")
    assert len(listed) == 32
    assert list(listed[0])[:4] == ["Trace", "First span", "Outcome", "HTTP"]
    assert {row["Services"] for row in listed if row["First span"] == "answer a question"} == {
        "app, gateway, tap"
    }
    sql = """SELECT trace_id, any_value(stream_id) AS stream_id FROM streams
        WHERE trace_id IN (SELECT trace_id FROM spans) GROUP BY trace_id HAVING count(*) = 1 ORDER BY trace_id LIMIT 1"""
    row = tables(streams_data).query(sql).to_dicts()[0]
    app = open_page(streams_data, monkeypatch, "traces", trace=row["trace_id"])
    assert not app.exception
    assert MEASURED not in spans_html(app)
    assert [spans_html(app).count(f"<small>{name}</small>") for name in ("app", "tap", "gateway")] == [
        1,
        1,
        2,
    ]
    assert table(app, "Streams of the trace")[0]["Stream"] == str(row["stream_id"])[-8:]
    assert (metric_value(app, "Spans"), metric_value(app, "Errors")) == ("4", "0")


def test_trace_without_spans_of_other_services_has_the_phases_measured_by_the_tap(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = (
        tables(streams_data)
        .query(
            "SELECT trace_id, stall_count FROM streams WHERE stall_count > 0 AND trace_id NOT IN (SELECT trace_id FROM spans) LIMIT 1"
        )
        .to_dicts()[0]
    )
    app = open_page(streams_data, monkeypatch, "traces", trace=row["trace_id"])
    assert not app.exception
    html = spans_html(app)
    for phase in (
        "send request",
        "wait for headers",
        "wait for first token",
        "output",
        "end of response",
        "stall 1, caused by",
    ):
        assert phase in html
    assert html.count('class="sg-stall"') == row["stall_count"]
    assert MEASURED in html


def test_trace_of_five_thousand_spans_shows_some_and_counts_the_rest(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(streams_data, monkeypatch, "traces", trace=LARGE_TRACE)
    assert not app.exception
    html = spans_html(app)
    assert html.count("<details") == 500
    assert len(html) < 1_000_000
    omitted = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) further span", html)]
    assert sum(omitted) == SPANS - 500
    assert "✕ error" in html
    assert "4,500 spans have no row" in page_text(app)


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ({"failed": "true", "most": "1000"}, {"eeeeeeee"}),
        ({"service": "worker", "find": "document 7"}, {"bbbbbbbb"}),
        ({"service": "no such service", "least": "1", "outcome": "ok"}, None),
    ],
)
def test_address_has_the_search_of_traces(
    search: dict[str, str], found: set[str] | None, streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(streams_data, monkeypatch, "traces", range="24h", **search)
    assert not app.exception
    if found is None:
        assert "No traces match" in page_text(app)
    else:
        assert found == {row["Trace"] for row in table(app, "Traces")}


def spans_html(app: AppTest) -> str:
    return next(e.proto.body for e in app.get("html") if "sg-trace" in e.proto.body)


def test_unknown_trace_shows_message(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(streams_data, monkeypatch, "traces", trace="no'such")
    assert not app.exception
    assert "No spans of this trace are stored" in page_text(app)

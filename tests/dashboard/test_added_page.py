"""A page is its report, its view and a name in `PAGES`: the navigation, the head, links and the table follow."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from streamgauge.dashboard import pages
from tests.dashboard.app_test import links, open_page, page_text, table

REPORT = '''
"""Requests by operation."""

from __future__ import annotations

import polars as pl

from streamgauge.analytics.reports import Query, columns
from streamgauge.analytics.reports.selection import Selection

TABLE = columns.table(
    "Operations",
    columns.text("operation", "Operation"),
    columns.number("streams", "Streams", help="Streams of the operation.", opens=lambda row: {"dialect": row["dialect"]}),
    columns.ms("end_p50_ns", "Duration p50"),
    empty="No operation.",
)


def by_operation(query: Query, selection: Selection) -> pl.DataFrame:
    return query(f"""
        SELECT operation, any_value(dialect) AS dialect, count(*) AS streams, quantile_cont(end_ns, 0.5) AS end_p50_ns
        FROM streams WHERE {selection.where()} GROUP BY ALL ORDER BY streams DESC, operation""")
'''
VIEW = '''
from __future__ import annotations

import operations_report
import streamlit as st
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import page_frame
from streamgauge.dashboard.query_runner import query
from streamgauge.dashboard.report_tables import show_report


def body(chosen: Selection) -> None:
    show_report(operations_report.TABLE, operations_report.by_operation(query, chosen))


def draw_page() -> None:
    """Requests by their operation."""
    page_frame.show(body)


PAGE = page_frame.Page(draw_page, "Operations", "category", own_filters=("colour",))
'''


def test_page_is_a_report_and_a_view(
    tmp_path: Path, streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "operations_report.py").write_text(REPORT)
    (tmp_path / "operations.py").write_text(VIEW)
    monkeypatch.syspath_prepend(tmp_path)
    added = importlib.import_module("operations")
    monkeypatch.setitem(pages.PAGES, "System", (*pages.PAGES["System"], added.PAGE))

    app = open_page(streams_data, monkeypatch, "operations", range="24h", model="gpt-4o-mini", colour="red")

    assert not app.exception
    assert app.title[0].value == "Operations"
    assert [button.label for button in app.button if (button.key or "").startswith("chip-")][:2] == [
        "model\\: gpt\\-4o\\-mini",
        "colour\\: red",
    ]
    [first, *_] = table(app, "Operations")
    assert [*first] == ["Operation", "Streams", "Duration p50, ms"]
    assert links(app, "Operations")[0][0].startswith("streams?dialect=")
    assert "Streams of the operation." in page_text(app)
    linked = app.session_state["pages"]["operations"]
    assert (linked.title, linked.url_path) == ("Operations", "operations")

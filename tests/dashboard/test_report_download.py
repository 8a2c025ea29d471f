"""The button *Report*: its file has the figures of the pages with the same range."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from streamgauge.analytics.reports import formatting, sessions
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import page_settings
from streamgauge.dashboard.report_download import report_of
from tests.dashboard.app_test import metric_value, open_page, table
from tests.dashboard.written_report import Written, last, query_of


def test_figures_are_those_of_the_pages(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    until = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    chosen = Selection(since=until - timedelta(hours=3), until=until)
    ends = {"range": "custom", "from": f"{chosen.since:%Y-%m-%dT%H:%M}", "until": f"{until:%Y-%m-%dT%H:%M}"}
    app = open_page(streams_data, monkeypatch, **ends)
    found = Written(report_of(chosen, UTC, "", str(page_settings.data_dir())))
    for label in ("Requests", "Error rate", "TTFT p50", "TTFT p95", "ITL p95"):
        assert f"{label}\n{metric_value(app, label)}" in found.sections["verdict"]
    spend = open_page(streams_data, monkeypatch, "spend", by="team", currency="USD", **ends)
    pages = [(row["Team"], row["Cost, USD"]) for row in table(spend, "Spend by team")]
    reports = [rows for _, label, rows in found.tables if label == "Spend by team"]
    assert [(row[0], row[2]) for row in reports[0][1:]] == pages
    latency = open_page(streams_data, monkeypatch, "latency", split="gateway", **ends)
    of_page = {row["Gateway"]: row["p95, ms"] for row in table(latency, "Quantiles by gateway")}
    assert {
        row["Gateway"]: row["TTFT p95 ms"] for row in found.table("latency", "Latency by gateway")
    } == of_page


def test_overview_and_an_open_session_offer_the_report(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = sessions.table(query_of(streams_data), last(24), limit=1)["session_id"][0]
    for page, query in (("overview", {"range": "24h"}), ("sessions", {"session": session_id})):
        app = open_page(streams_data, monkeypatch, page, **query)
        assert [b.label for b in app.get("download_button") if b.label == "Report"] == ["Report"], page


def test_report_of_an_open_session_is_about_it(streams_data: Path) -> None:
    listed = sessions.table(query_of(streams_data), last(24), order="most requests", limit=1).to_dicts()[0]
    found = Written(report_of(last(24), UTC, listed["session_id"], str(streams_data)))
    assert {*found.sections} == {"", "sessions", "definitions"}
    assert f"Turns\n{formatting.count(listed['turns'])}\n" in found.sections["sessions"]

"""The button *Report* below a page: its selection, or its session, as one HTML file (`streamgauge.analytics.html_report`)."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from functools import partial

import polars as pl

from streamgauge.analytics.html_report.document import NOT_OF_SESSIONS, render, session_range
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import filters, page_settings
from streamgauge.dashboard.panels import draw_download
from streamgauge.dashboard.query_runner import run

HELP = "One HTML file to send: verdict, incidents, latency, providers, spend, sessions. It has no prompts and needs no network."


def draw_report_button(chosen: Selection, session_id: str = "") -> None:
    """Draw the button. The file is made when it is clicked."""
    content = partial(report_of, chosen, filters.time_zone(), session_id, str(page_settings.data_dir()))
    draw_download("Report", content, "streamgauge-report.html", "text/html", HELP)


def report_of(chosen: Selection, zone: tzinfo, session_id: str, data: str) -> bytes:
    """Runs in a thread of the server, without the state of the page. Raises QueryError."""

    def query(sql: str) -> pl.DataFrame:
        return run(sql, data)

    ids = [session_id] if session_id else []
    of_session = session_range(query, ids) if ids else None
    without = NOT_OF_SESSIONS if ids else ()
    return render(query, of_session or chosen, zone, datetime.now(UTC), session_ids=ids, without=without)

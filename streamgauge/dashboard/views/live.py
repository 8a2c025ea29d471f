"""Streams in flight: waiting, streaming or silent."""

from __future__ import annotations

import streamlit as st

from streamgauge.analytics.reports import formatting, stream_lists
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import filters, page_frame
from streamgauge.dashboard.panels import numbers
from streamgauge.dashboard.query_runner import query
from streamgauge.dashboard.report_tables import show_report

EVERY_S = 2
SILENT_NS = 5_000_000_000
MAX_ROWS = 500


def body(chosen: Selection) -> None:
    streams = stream_lists.open_streams(query, chosen, most=MAX_ROWS)
    waiting, streaming = stream_lists.count_open(query, chosen)
    # The rows are those with the longest silence, so the count is exact up to `MAX_ROWS`.
    silent = streams.filter(streams["silent_ns"] > SILENT_NS).height
    silent_help = "Streams without any event, pings included, as of the last commit."
    cards = [
        ("In flight", formatting.count(waiting + streaming), metric_help("active")),
        ("Waiting", formatting.count(waiting), "Streams without output so far."),
        ("Streaming", formatting.count(streaming), "Streams with output."),
        ("Silent for over 5 s", formatting.count(silent), silent_help),
    ]
    numbers(cards, least_px=150)
    if streams.is_empty():
        st.info("No streams in flight match the filters.", icon=":material/hourglass_empty:")
        return
    st.caption("Sorted by silence, longest first. Times are as of the last heartbeat of the tap.")
    show_report(stream_lists.OPEN_STREAMS, streams)
    if streams.height == MAX_ROWS:
        st.caption(f"Only the {MAX_ROWS} longest silent streams are shown.")


def draw_page() -> None:
    """Streams in flight."""
    st.caption("Streams in flight. The time range does not apply; the other filters do.")
    page_frame.show(body, every_s=EVERY_S, uses_time_range=False)


PAGE = page_frame.Page(draw_page, "Live", "bolt", applying=lambda: filters.FILTERS)

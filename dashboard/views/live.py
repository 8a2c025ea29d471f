"""Streams in flight: waiting, streaming or silent."""

from __future__ import annotations

import streamlit as st

from streamgauge.analytics.reports import formatting, stream_lists
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import page_frame
from streamgauge.dashboard.query_runner import query
from streamgauge.dashboard.tables.streams import show_open_streams

EVERY_S = 2
SILENT_NS = 5_000_000_000
MAX_ROWS = 500


def body(chosen: Selection) -> None:
    streams = stream_lists.open_streams(query, chosen, most=MAX_ROWS)
    groups = stream_lists.count_by(query, chosen)
    waiting, streaming = int(groups["waiting"].sum()), int(groups["streaming"].sum())
    silent = streams.filter(streams["silent_ns"] > SILENT_NS).height
    with st.grid(4, min_column_width=150):
        for label, count, help_text in (
            ("In flight", waiting + streaming, metric_help("active")),
            ("Waiting", waiting, "Streams without output so far."),
            ("Streaming", streaming, "Streams with output."),
            (
                "Silent for over 5 s",
                silent,
                "Streams without any event, pings included, as of the last commit.",
            ),
        ):
            st.metric(label, formatting.count(count), help=help_text, border=True)
    if streams.is_empty():
        st.info("No streams in flight match the filters.", icon=":material/hourglass_empty:")
        return
    st.caption("Sorted by silence, longest first. Times are as of the last heartbeat of the tap.")
    show_open_streams(streams)
    if streams.height == MAX_ROWS:
        st.caption(f"Only the {MAX_ROWS} longest silent streams are shown.")


st.caption("Streams in flight. The time range does not apply; the other filters do.")
page_frame.show(body, every_s=EVERY_S, uses_time_range=False)

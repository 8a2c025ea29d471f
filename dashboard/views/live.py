"""The streams in flight now: who waits, who streams, who has gone silent."""

from __future__ import annotations

import streamlit as st

from dashboard import formatting, page_frame, query_runner
from dashboard.metric_help import described
from dashboard.queries import live
from dashboard.queries.selection import Selection
from dashboard.tables import generic

EVERY_S = 2
SILENT_NS = 5_000_000_000


def body(chosen: Selection) -> None:
    running = live.open_streams(query_runner.ask, chosen)
    groups = live.count_by(query_runner.ask, chosen)
    waiting, streaming = int(groups["waiting"].sum()), int(groups["streaming"].sum())
    silent = running.filter(running["silent_ns"] > SILENT_NS).height
    with st.grid(4, min_column_width=150):
        st.metric("In flight", formatting.count(waiting + streaming), help=described("active"), border=True)
        st.metric(
            "Waiting",
            formatting.count(waiting),
            help="Open, and no output yet: for the first token.",
            border=True,
        )
        st.metric("Streaming", formatting.count(streaming), help="Open, and output has begun.", border=True)
        st.metric(
            "Silent for over 5 s",
            formatting.count(silent),
            help="No event, not even a ping, as of the last commit.",
            border=True,
        )
    if running.is_empty():
        st.info(
            "Nothing is in flight with these filters. Streams appear here while they run.",
            icon=":material/hourglass_empty:",
        )
        return
    st.caption(
        "As of each row's last commit, the longest silent first. A stream that ended is under Streams."
    )
    generic.live(running)
    if running.height == 500:
        st.caption("The 500 longest silent are shown.")


page_frame.title(
    "Live", "Streams in flight now, whatever the time range; model, gateway and client filters apply."
)
page_frame.show(body, every_s=EVERY_S, timed=False)

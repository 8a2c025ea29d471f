"""The streams in flight now: who waits, who streams, who has gone silent."""

from __future__ import annotations

import streamlit as st

from dashboard import frame, grids, source, units
from dashboard.measures import described
from dashboard.queries import live
from dashboard.queries.selection import Selection

EVERY_S = 2
SILENT_NS = 5_000_000_000


def body(chosen: Selection) -> None:
    running = live.open_streams(source.ask, chosen)
    groups = live.count_by(source.ask, chosen)
    waiting, streaming = int(groups["waiting"].sum()), int(groups["streaming"].sum())
    silent = running.filter(running["silent_ns"] > SILENT_NS).height
    with st.grid(4, min_column_width=150):
        st.metric("In flight", units.count(waiting + streaming), help=described("active"), border=True)
        st.metric(
            "Waiting", units.count(waiting), help="Open, and no output yet: for the first token.", border=True
        )
        st.metric("Streaming", units.count(streaming), help="Open, and output has begun.", border=True)
        st.metric(
            "Silent for over 5 s",
            units.count(silent),
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
    grids.live(running)
    if running.height == 500:
        st.caption("The 500 longest silent are shown.")


frame.title(
    "Live", "Streams in flight now, whatever the time range; model, gateway and client filters apply."
)
frame.show(body, every_s=EVERY_S, timed=False)

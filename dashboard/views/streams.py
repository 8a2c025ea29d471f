"""Find single streams: narrowed, sorted by what hurts, each with a link to its own page."""

from __future__ import annotations

import streamlit as st

from dashboard import formatting, page_frame, query_runner
from dashboard.queries import streams
from dashboard.queries.selection import Selection
from dashboard.tables import generic

LIMITS = (25, 100, 500, 2000)


def body(chosen: Selection) -> None:
    state = st.session_state
    kind, order, limit = state.get("kind", "all"), state.get("order", "newest"), state.get("rows", LIMITS[0])
    text = (state.get("find") or "").strip()
    found = streams.table(query_runner.ask, chosen, kind=kind, order=order, text=text, limit=limit)
    if found.is_empty():
        page_frame.nothing_chosen()
        return
    total = (
        len(found) if len(found) < limit else streams.how_many(query_runner.ask, chosen, kind=kind, text=text)
    )
    shown = f"{formatting.count(len(found))} of {formatting.count(total)} streams"
    st.caption(shown if total > len(found) else f"{formatting.count(total)} streams, all shown")
    generic.streams(found, key="streams", height=620)


page_frame.title("Streams", "Finished streams of the time range. A click on a stream's id opens it.")
with st.container(horizontal=True, vertical_alignment="bottom"):
    st.selectbox("Which", list(streams.KINDS), key="kind", bind="query-params", width=150)
    st.selectbox("Order", list(streams.ORDERS), key="order", bind="query-params", width=200)
    st.selectbox("Rows", LIMITS, key="rows", bind="query-params", width=100)
    st.text_input(
        "Find",
        key="find",
        bind="query-params",
        placeholder="id, trace id, request id, error type, model",
        width=320,
        icon=":material/search:",
    )
page_frame.show(body)

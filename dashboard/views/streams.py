"""A filtered and sorted list of finished streams."""

from __future__ import annotations

import streamlit as st

from dashboard import formatting, page_frame
from dashboard.queries import streams
from dashboard.queries.selection import Selection
from dashboard.query_runner import query
from dashboard.tables.streams import show_streams

LIMITS = (25, 100, 500, 2000)


def body(chosen: Selection) -> None:
    text = (find or "").strip()
    found = streams.table(query, chosen, kind=kind, order=order, text=text, limit=limit)
    if found.is_empty():
        page_frame.show_no_matches()
        return
    total = len(found) if len(found) < limit else streams.count(query, chosen, kind=kind, text=text)
    shown = f"{formatting.count(len(found))} of {formatting.count(total)} streams"
    st.caption(shown if total > len(found) else f"{formatting.count(total)} streams")
    show_streams(found, key="streams", height=620)


page_frame.title("Streams", "Finished streams of the time range. Click an id to open the stream.")
with st.container(horizontal=True, vertical_alignment="bottom"):
    kind = st.selectbox("Show", list(streams.KINDS), key="kind", bind="query-params", width=150)
    order = st.selectbox("Order", list(streams.ORDERS), key="order", bind="query-params", width=200)
    limit = st.selectbox("Rows", LIMITS, key="rows", bind="query-params", width=100)
    find = st.text_input(
        "Find",
        key="find",
        bind="query-params",
        placeholder="id, trace id, request id, error type, model",
        width=320,
        icon=":material/search:",
    )
page_frame.show(body)

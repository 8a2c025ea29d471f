"""A filtered and sorted list of finished streams."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from streamgauge.analytics.reports import formatting, stream_lists
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import filters, page_frame
from streamgauge.dashboard.query_runner import prefetch, query
from streamgauge.dashboard.stream_tables import show_streams

LIMITS = (25, 100, 300)
OWN_FILTERS = filters.PAGE_FILTERS["Streams"]
LABELS = {name: OWN_FILTERS.get(name, name.capitalize()) for name in stream_lists.FACETS}
"""Filters in the order of their values and counts."""


def body(chosen: Selection) -> None:
    own = {name: st.query_params.get_all(name) for name in OWN_FILTERS}
    where = stream_lists.condition(kind=kind, text=find, filters=own)
    facets = prefetch(stream_lists.facets, query, chosen, where)
    count = prefetch(stream_lists.count, query, chosen, where)
    offset = (filters.page_number() - 1) * limit
    found = stream_lists.table(query, chosen, where, order=order, limit=limit, offset=offset)
    if found.is_empty() and not offset:
        page_frame.show_no_matches()
        return
    selected = own | {name: filters.selected(name) for name in filters.FILTERS}
    if html := filters.facets_markup(facets().rows(), LABELS, selected, address_of):
        st.html(html)
    total, last = count(), offset + len(found)
    shown = "" if len(found) >= total else f"{offset + 1:,} – {last:,} of "
    st.caption(f"{shown}{formatting.count(total)} streams")
    show_streams(
        found,
        sort_address=lambda name: address_of("order", [name]),
        order=order,
        empty="This page has no streams.",
    )
    filters.draw_pager(has_more=last < total)


def address_of(parameter: str, values: Sequence[str]) -> str:
    return filters.address_with({parameter: values, filters.PAGE: []})


st.caption("Finished streams of the time range. Click a row to open the stream.")
with filters.row():
    kind = filters.select("Show", list(stream_lists.KINDS), key="kind", width=150)
    order = filters.select("Order", list(stream_lists.ORDERS), key="order", width=200)
    limit = filters.select("Rows", LIMITS, key="rows", width=100)
    placeholder = "id, trace id, request id, error type, model"
    find = filters.text("Search", key="find", placeholder=placeholder, width=320, icon=":material/search:")
page_frame.show(body)

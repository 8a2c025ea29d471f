"""A filtered and sorted list of finished streams."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import streamlit as st

from streamgauge.analytics.reports import formatting, stream_lists
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import filters, page_frame
from streamgauge.dashboard.query_runner import prefetch, query
from streamgauge.dashboard.report_tables import show_report

LIMITS = (25, 100, 300)


def body(kind: str, order: str, limit: int, find: str, chosen: Selection) -> None:
    own = {name: st.query_params.get_all(name) for name in stream_lists.OWN_FILTERS}
    where = stream_lists.condition(kind=kind, text=find, filters=own)
    facets = prefetch(stream_lists.facets, query, chosen, where)
    count = prefetch(stream_lists.count, query, chosen, where)
    offset = (filters.page_number() - 1) * limit
    found = stream_lists.table(query, chosen, where, order=order, limit=limit, offset=offset)
    if found.is_empty() and not offset:
        page_frame.show_no_matches()
        return
    selected = own | {name: filters.selected(name) for name in filters.FILTERS}
    if html := filters.facets_markup(facets().rows(), stream_lists.FACETS, selected, address_of):
        st.html(html)
    total, last = count(), offset + len(found)
    shown = "" if len(found) >= total else f"{offset + 1:,} – {last:,} of "
    st.caption(f"{shown}{formatting.count(total)} streams")
    show_report(
        stream_lists.TABLE,
        found,
        sort_addresses={column: address_of("order", [name]) for name, column in stream_lists.ORDERS.items()},
        order=stream_lists.ORDERS[order],
        empty="This page has no streams.",
    )
    filters.draw_pager(has_more=last < total)


def address_of(parameter: str, values: Sequence[str]) -> str:
    return filters.address_with({parameter: values, filters.PAGE: []})


def draw_page() -> None:
    """Search finished streams."""
    st.caption("Finished streams of the time range. Click a row to open the stream.")
    with filters.row():
        kind = filters.select("Show", list(stream_lists.KINDS), key="kind", width=150)
        order = filters.select("Order", list(stream_lists.ORDERS), key="order", width=200)
        limit = filters.select("Rows", LIMITS, key="rows", width=100)
        placeholder = "id, trace id, request id, error type, model"
        find = filters.text(
            "Search", key="find", placeholder=placeholder, width=320, icon=":material/search:"
        )
    page_frame.show(partial(body, kind, order, limit, find))


PAGE = page_frame.Page(draw_page, "Streams", "list", own_filters=stream_lists.OWN_FILTERS)

"""Search traces, and show one as a waterfall across client, tap and gateway."""

from __future__ import annotations

import streamlit as st

from dashboard import filters, page_frame, trace_spans
from dashboard.charts import colors
from dashboard.charts.drawing import draw, draw_legend
from dashboard.charts.trace import span_waterfall
from dashboard.queries import traces
from dashboard.queries.selection import Selection
from dashboard.query_runner import query
from dashboard.tables.traces import show_spans, show_traces

TRACE_ID_DIGITS = 32
MAX_SPANS = 1000


def body(chosen: Selection) -> None:
    if trace_id := (trace_id_input or "").strip().lower():
        show_trace(trace_id)
        return
    if not traces.any_span(query):
        st.info("No spans are stored yet.", icon=":material/account_tree:")
        st.markdown(
            "Analytics creates spans of finished streams. Clients and gateways send their own to `--otlp-listen`. "
            "The **Stream** page shows the phases of a stream without spans, and `streams.trace_id` has the trace ids."
        )
        return
    st.caption(filters.describe(chosen))
    found = traces.latest(query, chosen, text=(find or "").strip())
    if found.is_empty():
        st.info("No traces match the time range and the text.", icon=":material/filter_alt_off:")
        return
    show_traces(found)


def show_trace(trace_id: str) -> None:
    spans = traces.spans(query, trace_id, most=MAX_SPANS)
    streams = traces.streams_of(query, trace_id)
    for row in streams.head(10).to_dicts():
        st.page_link(
            "views/stream.py",
            label=f"Stream {row['stream_id']}",
            icon=":material/water:",
            query_params={"id": str(row["stream_id"])},
        )
    if spans.is_empty():
        st.info(
            "No spans of this trace are stored." + (" Its stream is linked above." if streams.height else ""),
            icon=":material/account_tree:",
        )
        return
    rows = trace_spans.nested(trace_spans.with_observed(spans.to_dicts(), streams.to_dicts()))
    service_colors = colors.by_name(sorted({trace_spans.service(r) for r in rows}))
    with st.container(border=True):
        st.markdown(
            "**Waterfall**",
            help="Each span is below its parent, in the colour of its service. Clients and gateways send their spans to "
            "`--otlp-listen`. If the client or gateway sent none, the page adds a span observed by the tap: for the client, from "
            "the first byte of the request to the last byte delivered; for the gateway, from sending the request to the last byte "
            "of the response. Times are from the clock of each sender.",
        )
        draw_legend(service_colors)
        draw(span_waterfall(rows, service_colors), "Spans of the trace as a waterfall", key="trace-waterfall")
    if spans.height >= MAX_SPANS:
        st.caption(f"Only the first {MAX_SPANS:,} spans are shown.")
    show_spans(spans)


page_frame.title("Traces")
with st.container(horizontal=True, vertical_alignment="bottom"):
    trace_id_input = st.text_input(
        "Trace id",
        key="trace",
        bind="query-params",
        placeholder="32 hex digits",
        max_chars=TRACE_ID_DIGITS,
        width=340,
    )
    find = st.text_input(
        "Find",
        key="span",
        bind="query-params",
        placeholder="trace id, span name, error",
        width=240,
        icon=":material/search:",
    )
page_frame.show(body, needs_streams=False, uses_time_range=False)

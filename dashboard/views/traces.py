"""Traces: search, and the waterfall of one over client, tap and gateway."""

from __future__ import annotations

import json
from typing import Any

import altair as alt
import polars as pl
import streamlit as st

from dashboard import charts, filters, frame, grids, palette, source, units
from dashboard.queries import traces
from dashboard.queries.selection import Selection

TRACE_DIGITS = 32
ROW_PX = 40
INDENT = "› "


def body(chosen: Selection) -> None:
    trace_id = (st.session_state.get("trace") or "").strip().lower()
    if trace_id:
        one(trace_id)
        return
    if not traces.any_span(source.ask):
        no_spans()
        return
    st.caption(filters.said(chosen))
    found = traces.latest(source.ask, chosen, text=(st.session_state.get("span") or "").strip())
    if found.is_empty():
        st.info("No trace in this time range with this text.", icon=":material/filter_alt_off:")
        return
    zone = filters.zone()
    st.dataframe(
        found.select(
            ("traces?trace=" + pl.col("trace_id")).alias("link"),
            pl.col("began_at").dt.convert_time_zone(zone.key).dt.replace_time_zone(None),
            (pl.col("duration_ns") / 1e6).alias("length_ms"),
            "spans",
            "errors",
            "names",
        ),
        hide_index=True,
        key="traces",
        height=560,
        alt="Traces",
        column_config={
            "link": grids.column.LinkColumn("Trace", display_text=r"trace=([0-9a-f]{12})", width=120),
            "began_at": grids.column.DatetimeColumn(f"Began ({zone.key})", format="MM-DD HH:mm:ss.SSS"),
            "length_ms": grids.column.NumberColumn("Length", format="%.0f ms"),
            "spans": grids.column.NumberColumn("Spans", format="%d"),
            "errors": grids.column.NumberColumn("Errors", format="%d"),
            "names": grids.column.TextColumn("Names", width="large"),
        },
    )


def no_spans() -> None:
    st.info("No spans are stored yet.", icon=":material/account_tree:")
    st.markdown(
        "Spans are built from finished streams and from what gateways send. Until there are some, a stream's own phases "
        "stand on its **Stream** page, and the trace ids are in `streams.trace_id`."
    )


def one(trace_id: str) -> None:
    spans = traces.spans(source.ask, trace_id)
    ids = traces.streams_of(source.ask, trace_id)
    for stream_id in ids:
        st.page_link(
            "views/stream.py",
            label=f"Stream {stream_id}",
            icon=":material/water:",
            query_params={"id": stream_id},
        )
    if spans.is_empty():
        st.info(
            "No spans are stored of this trace." + (" Its stream is linked above." if ids else ""),
            icon=":material/account_tree:",
        )
        return
    charts.draw(waterfall(spans), "Spans of the trace as a waterfall", key="trace-waterfall")
    if spans.height >= 1000:
        st.caption("The first 1,000 spans are drawn.")
    grids.plain(
        spans.select(
            "name", "kind", "status", "status_message", (pl.col("offset_ns") / 1e6).alias("offset, ms"),
            (pl.col("duration_ns") / 1e6).alias("duration, ms"), "span_id", "parent_span_id", "attributes", "events",
        ),
        key="spans", zone=filters.zone(),
    )  # fmt: skip


def waterfall(spans: pl.DataFrame) -> alt.LayerChart | alt.FacetChart:
    """One bar per span, in the order of their parents."""
    rows = nested(spans.to_dicts())
    end = max((r["offset_ns"] + r["duration_ns"] for r in rows), default=1)
    divisor, unit = (1e9, "s") if end >= 1e9 else (1e6, "ms")
    drawn = pl.DataFrame(
        {
            "row": list(range(len(rows))),
            "label": [f"{INDENT * r['depth']}{r['name']} · {units.duration(r['duration_ns'])}" for r in rows],
            "start": [r["offset_ns"] / divisor for r in rows],
            "end": [(r["offset_ns"] + r["duration_ns"]) / divisor for r in rows],
            "length": [units.duration(r["duration_ns"]) for r in rows],
            "service": [service(r) for r in rows],
            "status": [r["status"] for r in rows],
        }
    )
    base = alt.Chart(drawn).encode(
        y=alt.Y("row:O", title=None, axis=None),
        tooltip=["label:N", "service:N", "length:N", "status:N"],
    )
    across = alt.X("start:Q", title=unit, scale=alt.Scale(domain=[0, end / divisor * 1.01], nice=False))
    bars = base.mark_bar(cornerRadius=2, height=11, yOffset=9).encode(x=across, x2="end:Q", color="service:N")
    # The name above its bar, at the left: a column of names would leave a phone no room for the bars.
    names = base.mark_text(align="left", dx=2, dy=-7, fontSize=12, color=palette.RULE).encode(
        x=alt.datum(0), text="label:N"
    )
    return alt.layer(bars, names).properties(height=ROW_PX * len(rows) + 100)


def nested(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The spans below their parents, with `depth`; a span whose parent is not here is a root."""
    known = {s["span_id"] for s in spans}
    children: dict[str | None, list[dict[str, Any]]] = {}
    for span in spans:
        parent = (
            span["parent_span_id"]
            if span["parent_span_id"] in known and span["parent_span_id"] != span["span_id"]
            else None
        )
        children.setdefault(parent, []).append(span)
    placed: list[dict[str, Any]] = []
    stack = [(span, 0) for span in reversed(children.get(None, []))]
    while stack:
        span, depth = stack.pop()
        placed.append({**span, "depth": depth})
        stack += [(child, depth + 1) for child in reversed(children.pop(span["span_id"], []))]
    return placed


def service(span: dict[str, Any]) -> str:
    """Which part of the way a span belongs to."""
    try:
        attributes = json.loads(span["attributes"] or "{}")
    except ValueError:
        attributes = {}
    named = attributes.get("service.name") if isinstance(attributes, dict) else None
    return str(named or span["kind"])


frame.title("Traces")
with st.container(horizontal=True, vertical_alignment="bottom"):
    st.text_input(
        "Trace id",
        key="trace",
        bind="query-params",
        placeholder="32 hex digits",
        max_chars=TRACE_DIGITS,
        width=340,
    )
    st.text_input(
        "Find",
        key="span",
        bind="query-params",
        placeholder="trace id or span name",
        width=240,
        icon=":material/search:",
    )
frame.show(body, need_streams=False, timed=False)

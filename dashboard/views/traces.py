"""Traces: search, and the waterfall of one over client, tap and gateway."""

from __future__ import annotations

import altair as alt
import polars as pl
import streamlit as st

from dashboard import filters, formatting, page_frame, palette, query_runner, trace_spans
from dashboard.charts import base
from dashboard.queries import traces
from dashboard.queries.selection import Selection
from dashboard.tables import generic

TRACE_DIGITS = 32
ROW_PX = 40
INDENT = "› "
NAME_CHARS = 90


def body(chosen: Selection) -> None:
    trace_id = (st.session_state.get("trace") or "").strip().lower()
    if trace_id:
        one(trace_id)
        return
    if not traces.any_span(query_runner.ask):
        no_spans()
        return
    st.caption(filters.said(chosen))
    found = traces.latest(query_runner.ask, chosen, text=(st.session_state.get("span") or "").strip())
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
            "services",
            "names",
        ),
        hide_index=True,
        key="traces",
        height=560,
        alt="Traces",
        column_config={
            "link": generic.column.LinkColumn("Trace", display_text=r"trace=([0-9a-f]{12})", width=120),
            "began_at": generic.column.DatetimeColumn(f"Began ({zone.key})", format="MM-DD HH:mm:ss.SSS"),
            "length_ms": generic.column.NumberColumn("Length", format="%.0f ms"),
            "spans": generic.column.NumberColumn("Spans", format="%d"),
            "errors": generic.column.NumberColumn("Errors", format="%d"),
            "services": generic.column.TextColumn("Services", width="medium"),
            "names": generic.column.TextColumn("Names", width="large"),
        },
    )


def no_spans() -> None:
    st.info("No spans are stored yet.", icon=":material/account_tree:")
    st.markdown(
        "Spans are built from finished streams, and clients and gateways send theirs to `--otlp-listen`. Until there are "
        "some, a stream's own phases stand on its **Stream** page, and the trace ids are in `streams.trace_id`."
    )


def one(trace_id: str) -> None:
    spans = traces.spans(query_runner.ask, trace_id)
    streams = traces.streams_of(query_runner.ask, trace_id)
    for row in streams.head(10).to_dicts():
        st.page_link(
            "views/stream.py",
            label=f"Stream {row['stream_id']}",
            icon=":material/water:",
            query_params={"id": str(row["stream_id"])},
        )
    if spans.is_empty():
        st.info(
            "No spans are stored of this trace." + (" Its stream is linked above." if streams.height else ""),
            icon=":material/account_tree:",
        )
        return
    rows = trace_spans.nested(trace_spans.with_observed(spans.to_dicts(), streams.to_dicts()))
    colors = palette.of_series(sorted({trace_spans.service(r) for r in rows}))
    with st.container(border=True):
        st.markdown(
            "**Waterfall**",
            help="Each service has a colour; a span stands below its parent. Clients and gateways send theirs to "
            "`--otlp-listen`. Where they sent none, their lanes are drawn as the tap saw them: from the request's first byte "
            "to the last byte that the client took, and from the request being sent to the gateway's last byte. Times are "
            "each sender's own clock's.",
        )
        base.legend(colors)
        base.draw(waterfall(rows, colors), "Spans of the trace as a waterfall", key="trace-waterfall")
    if spans.height >= 1000:
        st.caption("The first 1,000 spans are drawn.")
    generic.plain(
        spans.select(
            "name", pl.Series("service", [trace_spans.service(s) for s in spans.to_dicts()]), "kind", "status", "status_message",
            (pl.col("offset_ns") / 1e6).alias("offset, ms"), (pl.col("duration_ns") / 1e6).alias("duration, ms"), "span_id",
            "parent_span_id", "attributes", "events",
        ),
        key="spans", zone=filters.zone(),
    )  # fmt: skip


def waterfall(rows: list[trace_spans.Span], colors: dict[str, str]) -> alt.LayerChart | alt.FacetChart:
    """One bar per span, in this order (`trace_spans.nested`); failed ones are marked."""
    end = max((r["offset_ns"] + r["duration_ns"] for r in rows), default=1) or 1
    divisor, unit = (1e9, "s") if end >= 1e9 else (1e6, "ms")
    drawn = pl.DataFrame(
        {
            "row": list(range(len(rows))),
            "label": [label(r) for r in rows],
            "start": [r["offset_ns"] / divisor for r in rows],
            "end": [(r["offset_ns"] + r["duration_ns"]) / divisor for r in rows],
            "begins": [formatting.duration(r["offset_ns"]) for r in rows],
            "length": [formatting.duration(r["duration_ns"]) for r in rows],
            "service": [trace_spans.service(r) for r in rows],
            "status": [r["status"] for r in rows],
        }
    )
    shared = alt.Chart(drawn).encode(
        y=alt.Y("row:O", title=None, axis=None),
        tooltip=["label:N", "service:N", "begins:N", "length:N", "status:N"],
    )
    across = alt.X("start:Q", title=unit, scale=alt.Scale(domain=[0, end / divisor * 1.01], nice=False))
    bars = shared.mark_bar(cornerRadius=2, height=11, yOffset=9).encode(
        x=across, x2="end:Q", color=base.color_of("service", colors)
    )
    # The name above its bar, at the left: a column of names would leave a phone no room for the bars.
    names = shared.mark_text(align="left", dx=2, dy=-7, fontSize=12, color=palette.RULE).encode(
        x=alt.datum(0), text="label:N"
    )
    return alt.layer(bars, names).properties(height=ROW_PX * len(rows) + 60)


def label(row: trace_spans.Span) -> str:
    """A span's name below its parent's, with its length; a failed one says so."""
    failed = "✕ " if str(row["status"]).lower() == "error" else ""
    name = row["name"] if len(row["name"]) <= NAME_CHARS else row["name"][:NAME_CHARS] + "…"
    return f"{INDENT * row['depth']}{failed}{name} · {formatting.duration(row['duration_ns'])}"


page_frame.title("Traces")
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
        placeholder="trace id, span name, error",
        width=240,
        icon=":material/search:",
    )
page_frame.show(body, need_streams=False, timed=False)

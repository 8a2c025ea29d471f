"""Search traces, and show one as a tree of spans across client, tap and gateway."""

from __future__ import annotations

import contextlib
from collections import Counter
from functools import partial
from typing import Any

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import blame, formatting, has_rows, one_stream, trace_tree, traces
from streamgauge.analytics.reports.columns import outcome_state
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.reports.trace_tree import Tree, tree
from streamgauge.dashboard import filters, page_frame
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import draw_legend
from streamgauge.dashboard.charts.trace import StreamMarks, waterfall
from streamgauge.dashboard.panels import numbers, section
from streamgauge.dashboard.query_runner import QueryError, query, query_catalog
from streamgauge.dashboard.report_tables import outcome_badge, show_report

TRACE_ID_DIGITS = 32
MAX_ROWS = 500
"""Spans of a trace with a row. A row takes 2 KB, so a page stays below 1 MB and is drawn within a second."""
TRACES_PER_PAGE = 50
LONGEST_MS = 86_400_000

Row = dict[str, Any]


def body(trace_id: str, chosen: Selection) -> None:
    if trace_id:
        show_trace(trace_id.lower())
        return
    if not has_rows(query, "spans"):
        st.info("No spans are stored yet.", icon=":material/account_tree:")
        st.markdown(
            "Analytics creates spans of finished streams. Clients and gateways send their own to `--otlp-listen`. "
            "The page of a stream links to its trace, also without spans."
        )
        return
    st.caption(filters.describe(chosen))
    offset = (filters.page_number() - 1) * TRACES_PER_PAGE
    found = traces.latest(query, chosen, search(), most=TRACES_PER_PAGE + 1, offset=offset)
    if found.is_empty() and not offset:
        page_frame.show_no_matches("No traces match the search,")
        return
    shown = found.head(TRACES_PER_PAGE)
    st.caption(
        f"Traces {offset + 1:,} – {offset + shown.height:,}, the newest first. Click a row to open the trace."
    )
    show_report(traces.TABLE, shown)
    filters.draw_pager(has_more=found.height > TRACES_PER_PAGE)


def search() -> traces.Search:
    """The search of the widgets."""
    state = st.session_state
    least_ms, most_ms = state.get("least"), state.get("most")
    return traces.Search(
        text=(state.get("find") or "").strip(),
        service=state.get("service") or "",
        errors=bool(state.get("failed")),
        outcomes=state.get("outcome") or (),
        min_ns=None if least_ms is None else round(least_ms * 1e6),
        max_ns=None if most_ms is None else round(most_ms * 1e6),
    )


def show_trace(trace_id: str) -> None:
    filters.draw_back("trace", "All traces")
    stored, total = trace_tree.spans(query, trace_id)
    streams = trace_tree.streams_of(query, trace_id)
    if in_flight := trace_tree.streams_in_flight(query, trace_id):
        st.info(
            f"{in_flight} stream{'' if in_flight == 1 else 's'} of this trace in flight. Their spans are stored when they end.",
            icon=":material/timelapse:",
        )
    if stored.is_empty() and streams.is_empty():
        st.info(
            "No spans of this trace are stored. They may be older than the retention (`--retain-streams`), or the trace id is "
            "wrong.",
            icon=":material/account_tree:",
        )
        return
    # DuckDB has no empty IN list, so a trace without streams of the tap asks nothing.
    ids = [str(one) for one in streams["stream_id"]]
    stalls = one_stream.stalls(query, *ids).to_dicts() if ids else []
    rows = streams.to_dicts()
    stored_spans = [trace_tree.from_row(row) for row in stored.to_dicts()]
    spans = trace_tree.with_measured(stored_spans, rows, stalls)
    found = tree(spans, most=MAX_ROWS)
    show_header(found, rows, total, errors=sum(span.failed for span in spans))
    if streams.height:
        show_report(trace_tree.STREAMS, streams)
    show_waterfall(found, marks_of(rows, stalls, ids))
    show_omitted(trace_id, found, unread=total - stored.height)


def show_header(found: Tree, streams: list[Row], total: int, *, errors: int) -> None:
    """Model, gateway, outcome and status, and numbers of the trace."""
    if streams:
        show_outcome(streams)
    else:
        st.markdown("This trace has no stream of the tap: other services sent its spans.")
    zone = filters.time_zone()
    started = trace_tree.instant(found.start_ns).astimezone(zone)
    cards = [
        ("Duration", formatting.duration(found.end_ns - found.start_ns), None),
        ("Spans", formatting.count(total), "Stored spans, without those measured by the tap."),
        ("Errors", formatting.count(errors), "Spans with the status error."),
        ("Started", f"{started:%H:%M:%S}", f"{started:%Y-%m-%d %H:%M:%S.%f} {zone.key}"),
    ]
    numbers(cards, least_px=118, border=False)


def show_outcome(streams: list[Row]) -> None:
    shown = next((row for row in streams if outcome_state(row["outcome"]) == "bad"), streams[0])
    names = {
        name: formatting.markdown(", ".join(sorted({row[name] for row in streams})[:3]))
        for name in ("model", "gateway")
    }
    parts = [f"**{names['model']}** via {names['gateway']}", outcome_badge(shown["outcome"])]
    if shown["http_status"] is not None:
        parts.append(f"HTTP {shown['http_status']}")
    if shown["error_type"]:
        parts.append(f"error {formatting.markdown(shown['error_type'])}")
    if len(streams) > 1:
        outcomes = Counter(row["outcome"] for row in streams)
        parts.append(", ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common()))
    st.markdown(" · ".join(parts))


def marks_of(streams: list[Row], stalls: list[Row], stream_ids: list[str]) -> dict[str, StreamMarks]:
    """The marks on the bars of the streams, by span id."""
    blamed = blame.of_streams(query, stream_ids)
    found = {}
    for row in streams:
        stream_id = str(row["stream_id"])
        own = [s for s in stalls if str(s["stream_id"]) == stream_id]
        found[trace_tree.operation_id(row)] = StreamMarks(
            ttft_ns=row["ttft_ns"],
            stalls=own,
            stall_count=row["stall_count"] or 0,
            waited_ns=blamed[stream_id].whole if stream_id in blamed else {},
        )
    return found


def show_waterfall(found: Tree, marks: dict[str, StreamMarks]) -> None:
    services = sorted({row.span.service for row in found.rows()})
    service_colors = colors.of_groups(pl.DataFrame({"name": services}))
    section(
        "Spans",
        "Each span is below its parent, in the colour of its service. The arrow hides the spans below; a click on a row "
        f"shows its attributes. A striped bar is *{trace_tree.MEASURED}*, because no span of another service is stored: the "
        "client from the first byte of its request to the last byte delivered, the gateway from sending the request to the last "
        "byte of the response, the phases and stalls from the times of the stream. ◆ marks the TTFT, a frame a stall in the "
        "colour of its cause. Times are from the clock of each sender; ⚠ marks a span that starts before its parent.",
    )
    draw_legend(service_colors)
    st.html(waterfall(found, service_colors, marks, filters.time_zone()))


def show_omitted(trace_id: str, found: Tree, *, unread: int) -> None:
    if omitted := found.omitted + unread:
        sql = f"SELECT * FROM spans WHERE trace_id = '{trace_id}' ORDER BY started_at"
        st.caption(
            f"{formatting.count(omitted)} spans have no row: the page shows {formatting.count(found.spans - found.omitted)}, those "
            "with errors first, then those of the tap, then the longest."
        )
        filters.page_link("sql", "All spans of the trace in SQL", ":material/database:", {"sql": sql})


def draw_search() -> None:
    filters.text(
        "Search", key="find", placeholder="span name, error, trace id", width=220, icon=":material/search:"
    )
    st.selectbox(
        "Service", services(), index=None, key="service", bind="query-params", placeholder="all", width=170
    )
    st.multiselect(
        "Outcome", list(colors.OUTCOMES), key="outcome", bind="query-params", placeholder="all", width=190
    )
    for key, label in (("least", "At least, ms"), ("most", "At most, ms")):
        st.number_input(
            label, value=None, min_value=0, max_value=LONGEST_MS, key=key, bind="query-params", width=140
        )
    st.toggle(
        "With errors",
        key="failed",
        bind="query-params",
        help="A span has the status error, or a stream failed.",
    )


def services() -> list[str]:
    offered: list[str] = []
    with contextlib.suppress(QueryError):  # the page itself shows the error
        offered = traces.services(query_catalog, filters.selection().in_minutes())
    return filters.options(offered, key="service")


def draw_page() -> None:
    """Search traces and their spans."""
    with filters.row():
        trace_id = filters.text(
            "Trace id", key="trace", placeholder="32 hex digits", width=340, max_chars=TRACE_ID_DIGITS
        )
        if not trace_id:
            draw_search()
    page_frame.show(partial(body, trace_id), needs_streams=False, uses_time_range=False)


PAGE = page_frame.Page(draw_page, "Traces", "account_tree")

"""One stream: phases, events, gaps, usage, and server-reported compared with observed values."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import polars as pl
import streamlit as st

from analytics.schema.outcomes import NOT_COUNTED, OK
from dashboard import filters, formatting, page_frame, query_runner
from dashboard.charts import stream as charts
from dashboard.charts.drawing import draw
from dashboard.metric_help import metric_help
from dashboard.queries import stream, table_columns
from dashboard.queries.selection import Selection
from dashboard.query_runner import query
from dashboard.stream_phases import phases
from dashboard.tables.columns import show as show_frame

Row = dict[str, Any]
TEXT_PX = 380


def body(_: Selection) -> None:
    text = (id_input or "").strip()
    if not text:
        st.info("Open a stream from **Streams**, or enter its id above.", icon=":material/search:")
        return
    try:
        stream_id = UUID(text)
    except ValueError:
        st.warning(f"`{text[:80]}` is not a stream id (a UUID).", icon=":material/warning:")
        return
    row = stream.finished(query, stream_id)
    if row is not None:
        show_finished(stream_id, row)
        return
    row = stream.in_flight(query, stream_id)
    if row is not None:
        st.info("This stream is in flight. The page shows it when it ends.", icon=":material/timelapse:")
        show_columns(row, "open_streams")
        return
    st.warning(
        "Stream not found. It may be older than the retention (`--retain-streams`).",
        icon=":material/warning:",
    )


def show_finished(stream_id: UUID, row: Row) -> None:
    show_headline(row)
    show_numbers(row)
    events, total = stream.events(query, stream_id)
    if row["output_text"] or row["reasoning_text"]:
        left, right = st.columns([3, 2])
        with left:
            show_charts(row, events, total)
        with right:
            show_text(row)
    else:
        show_charts(row, events, total)
    left, right = st.columns(2)
    with left:
        show_usage(row)
    with right:
        show_ids(row)
    show_headers(row)
    show_server_stats(stream_id, row)
    show_usage_reports(stream_id)
    with st.expander("All columns of `streams`"):
        show_columns(row, "streams")


def show_headline(row: Row) -> None:
    outcome = row["outcome"]
    color = "green" if outcome == OK else "gray" if outcome in NOT_COUNTED else "red"
    parts = [f":{color}-badge[{outcome}]"]
    if row["http_status"] is not None:
        parts.append(f"HTTP {row['http_status']}")
    if row["finish_reason"]:
        parts.append(f"finish `{row['finish_reason']}`")
    if row["error_type"]:
        parts.append(f"error `{row['error_type']}` in phase `{row['error_phase']}`")
    started = row["started_at"].astimezone(filters.time_zone())
    parts.append(f"started {started:%Y-%m-%d %H:%M:%S.%f} {filters.time_zone().key}")
    model = row["request_model"] or row["response_model"] or "unknown model"
    st.markdown(f"**{model}** via {row['gateway'] or 'unknown gateway'} · " + " · ".join(parts))
    if row["error_message"]:
        st.code(row["error_message"], language=None, wrap_lines=True)


def show_numbers(row: Row) -> None:
    numbers = [
        ("TTFT", formatting.duration(row["ttft_ns"]), "ttft"),
        ("ITL", formatting.duration(row["itl_ns"]), "itl"),
        ("Speed", formatting.rate(row["tps_user"]), "tps_user"),
        ("Longest gap", formatting.duration(row["icl_max_ns"]), "icl"),
        ("Stalls", formatting.count(row["stall_count"]), "stall"),
        ("End to end", formatting.duration(row["end_ns"]), "end"),
        ("Input tokens", formatting.count(row["input_tokens"]), None),
        ("Output tokens", formatting.count(row["output_tokens"]), None),
    ]
    with st.grid(4, min_column_width=118):
        for label, value, metric in numbers:
            st.metric(label, value, help=metric_help(metric) if metric else None)


def show_charts(row: Row, events: pl.DataFrame, total: int) -> None:
    """Phases and events on one time axis."""
    found = phases(row)
    last_event_ns = int(events["at_ns"].max() or 0) if total else 0  # type: ignore[arg-type]
    end_ns = max([p.end_ns for p in found] + [last_event_ns])
    axis = charts.StreamAxis(min([p.start_ns for p in found] + [0]), end_ns * 1.06 or 1)
    with st.container(border=True):
        st.markdown("**Phases**", help="t0 is when the tap started to contact the upstream.")
        if found:
            draw(charts.phase_waterfall(found, axis), "Phases of the stream as a waterfall", key="phases")
        else:
            st.caption("No times are known for this stream.")
    if total:
        show_events(row, events, total, axis)
    else:
        st.caption(
            "No events are stored for this stream: it had none, or they are older than the retention (`--retain-events`)."
        )


def show_events(row: Row, events: pl.DataFrame, total: int, axis: charts.StreamAxis) -> None:
    stall_ns = shortest_stall_ns(events, row["stall_count"])
    with st.container(border=True):
        st.markdown("**Events**", help=metric_help("stall", more="Shaded bands are stalls."))
        if len(events) < total:
            st.caption(
                f"{formatting.count(len(events))} of {formatting.count(total)} events drawn: every n-th output event, those "
                "after the longest gaps, and all other events. Sums include all events."
            )
        draw(charts.event_marks(events, axis, stall_ns), "Events on the time axis", key="marks")
        unit = "tokens" if (events["tokens_sum"].max() or 0) else "chars"
        draw(charts.cumulative_output(events, axis, unit), f"Cumulative {unit}", key="cumulative")
        if events["gap_ns"].drop_nulls().len():
            draw(charts.gap_points(events, axis, stall_ns), "Gaps between output events", key="gaps")


def shortest_stall_ns(events: pl.DataFrame, stall_count: int | None) -> float | None:
    """The shortest stall, or None without stalls. Stalls are the longest gaps of a stream, and analytics counted them."""
    longest = events["gap_ns"].drop_nulls().sort(descending=True)
    return float(longest[stall_count - 1]) if stall_count and stall_count <= len(longest) else None


def show_usage(row: Row) -> None:
    st.subheader("Usage and sizes", anchor=False)
    count, size = formatting.count, formatting.size
    show_pairs(
        {
            "Input tokens": count(row["input_tokens"]),
            "Cached input tokens": count(row["cached_input_tokens"]),
            "Output tokens": count(row["output_tokens"]),
            "Reasoning tokens": count(row["reasoning_tokens"]),
            "Source of token counts": row["token_source"] or formatting.UNKNOWN,
            "Events, output events": f"{count(row['event_count'])}, {count(row['output_event_count'])}",
            "Comments (heartbeats)": count(row["comment_count"]),
            "Tool calls": count(row["tool_call_count"]),
            "Malformed events": count(row["malformed_events"]),
            "Response, delivered": f"{size(row['response_bytes'])}, {size(row['delivered_bytes'])}",
            "Burstiness": formatting.share(row["burstiness"]),
            "Gaps p50, p95, p99": ", ".join(formatting.duration(row[f"icl_p{q}_ns"]) for q in (50, 95, 99)),
        }
    )


def show_ids(row: Row) -> None:
    st.subheader("Ids and origin", anchor=False)
    names = (
        ("trace_id", "Trace id"), ("span_id", "Span id"), ("parent_span_id", "Parent span id"),
        ("request_id", "Request id"), ("response_id", "Response id"), ("client_id", "Client (hash of its key)"),
        ("server_instance", "Server instance"), ("provider", "Provider"),
        ("dialect", "Dialect"), ("operation", "Operation"), ("path", "Path"), ("response_model", "Response model"),
    )  # fmt: skip
    show_pairs({label: row[name] or formatting.UNKNOWN for name, label in names})
    if row["trace_id"]:
        st.page_link(
            "views/traces.py",
            label="Spans of this trace",
            icon=":material/account_tree:",
            query_params={"trace": row["trace_id"]},
        )


def show_pairs(pairs: dict[str, str]) -> None:
    lines = "".join(
        f"| {name} | `{value}` |\n" if value != formatting.UNKNOWN else f"| {name} | – |\n"
        for name, value in pairs.items()
    )
    st.markdown(f"| | |\n|---|---|\n{lines}")


def show_headers(row: Row) -> None:
    stored = {
        label: json.loads(row[name])
        for label, name in (("Request", "request_headers"), ("Response", "response_headers"))
        if row.get(name)
    }
    if not stored:
        return
    st.subheader(
        "Headers",
        anchor=False,
        help="Only headers of an allow list are stored: none that can contain keys, cookies or names. The tap forwards all headers.",
    )
    for column, (label, headers) in zip(st.columns(2), stored.items(), strict=False):
        with column:
            st.caption(label)
            show_pairs({name: str(value) for name, value in headers.items()})


def show_server_stats(stream_id: UUID, row: Row) -> None:
    stats = stream.server_stats(query, stream_id)
    if stats.is_empty():
        return
    st.subheader("Server-reported and observed values", anchor=False)
    reported = pl.struct("name", "value", "unit").map_elements(_stat_text, return_dtype=pl.String)
    observed = pl.col("name").map_elements(lambda name: observed_value(name, row), return_dtype=pl.String)
    show_frame(
        stats.with_columns(reported.alias("reported"), observed.alias("observed at the tap")).select(
            "source", "name", "reported", "observed at the tap", "raw"
        ),
        key="stats",
    )


def show_usage_reports(stream_id: UUID) -> None:
    reports = stream.usage_reports(query, stream_id)
    if reports.is_empty():
        return
    st.subheader("Usage reports", anchor=False)
    at_ms = (pl.col("at_ns") / 1e6).alias("at, ms")
    show_frame(reports.with_columns(at_ms).drop("stream_id", "at_ns"), key="usage")


def _stat_text(stat: Row) -> str:
    value, unit = stat["value"], stat["unit"]
    if value is None:
        return formatting.UNKNOWN
    if unit == "ns":
        return formatting.duration(value)
    if unit == "tok/s":
        return formatting.rate(value)
    if unit == "tokens":
        return formatting.count(value)
    return formatting.share(value) if "progress" in stat["name"] else f"{value:g}"


def observed_value(name: str, row: Row) -> str:
    """The observed value of a server-reported statistic, or unknown if it has none."""
    name = name.lower().replace("-", "_")
    if "first_token" in name or "ttft" in name:
        return formatting.duration(row["ttft_ns"])
    if "per_second" in name or "tps" in name:
        return formatting.rate(row["tps_user"])
    if "total_duration" in name or "total_time" in name:
        return formatting.duration(row["end_ns"])
    return formatting.UNKNOWN


def show_text(row: Row) -> None:
    """The generated text, next to the charts."""
    with st.container(border=True):
        st.markdown("**Text**", help="Stored because `--capture-content` is on.")
        for label, value in (("Reasoning", row["reasoning_text"]), ("Answer", row["output_text"])):
            if value:
                st.caption(f"{label}, {formatting.count(len(value))} characters")
                st.code(value, language=None, wrap_lines=True, height=TEXT_PX)


def show_columns(row: Row, table: str) -> None:
    """All columns of a row with their comments."""
    comments = table_columns.comments(query_runner.query_catalog, table)
    st.dataframe(
        pl.DataFrame(
            {
                "column": list(row),
                "value": [None if v is None else str(v) for v in row.values()],
                "comment": [comments.get(name, "") for name in row],
            }
        ),
        hide_index=True,
        placeholder="NULL",
        key="raw",
    )


page_frame.title("Stream")
id_input = st.text_input("Stream id", key="id", bind="query-params", placeholder="UUID", width=420)
page_frame.show(body, needs_streams=False, uses_time_range=False)

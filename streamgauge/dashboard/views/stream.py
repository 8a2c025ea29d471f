"""One stream: phases, events, gaps, usage, and server-reported compared with observed values."""

from __future__ import annotations

import json
from functools import partial
from typing import Any
from uuid import UUID

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import blame, formatting, hops, one_stream, spend, table_columns
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.one_stream import phases
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import filters, page_frame, page_settings, query_runner
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts import stream_charts as charts
from streamgauge.dashboard.charts.drawing import draw, draw_legend, draw_split
from streamgauge.dashboard.html_table import show_pairs, show_records
from streamgauge.dashboard.panels import box, numbers, section
from streamgauge.dashboard.query_runner import prefetch, query
from streamgauge.dashboard.report_tables import outcome_badge, show_report

Row = dict[str, Any]
TEXT_PX = 380


def body(id_text: str, _: Selection) -> None:
    if not id_text:
        st.info("Open a stream from **Streams**, or enter its id above.", icon=":material/search:")
        return
    try:
        stream_id = UUID(id_text)
    except ValueError:
        st.warning(
            f"{formatting.markdown(id_text[:80])} is not a stream id (a UUID).", icon=":material/warning:"
        )
        return
    found = one_stream.find(query, stream_id)
    if found is None:
        st.warning(
            "Stream not found. It may be older than the retention (`--retain-streams`).",
            icon=":material/warning:",
        )
    elif found[0] == "finished":
        show_finished(stream_id, found[1])
    else:
        st.info("This stream is in flight. The page shows it when it ends.", icon=":material/timelapse:")
        show_columns(found[1], "open_streams")


def show_finished(stream_id: UUID, row: Row) -> None:
    blamed = prefetch(blame.of_streams, query, [stream_id])
    of_stream = hops.of_stream(query, stream_id)
    show_headline(row)
    show_numbers(row)
    if parts := blamed().get(str(stream_id)):
        show_blame(parts, row["ttft_ns"])
    events, total = one_stream.events(query, stream_id)
    stalls = one_stream.stalls(query, stream_id)
    if row["output_text"] or row["reasoning_text"]:
        left, right = st.columns([3, 2])
        with right:
            show_text(row)
    else:
        left = st.container()
    with left:
        show_charts(row, events, total, stalls)
    show_hops(stream_id, of_stream)
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
    parts = [outcome_badge(row["outcome"])]
    if row["http_status"] is not None:
        parts.append(f"HTTP {row['http_status']}")
    if row["finish_reason"]:
        parts.append(f"finish {formatting.markdown(row['finish_reason'])}")
    if row["error_type"]:
        parts.append(f"error {formatting.markdown(row['error_type'])} in phase {row['error_phase']}")
    started = row["started_at"].astimezone(filters.time_zone())
    parts.append(f"started {started:%Y-%m-%d %H:%M:%S.%f} {filters.time_zone().key}")
    model, gateway = (
        formatting.markdown(name)
        for name in (
            row["request_model"] or row["response_model"] or "unknown model",
            row["gateway"] or "unknown gateway",
        )
    )
    st.markdown(f"**{model}** via {gateway} · " + " · ".join(parts))
    if closing := one_stream.closing(query, row):
        st.markdown(formatting.markdown(closing))
    if row["error_message"]:
        st.code(row["error_message"], language=None, wrap_lines=True)


def show_numbers(row: Row) -> None:
    cards = [
        ("TTFT", formatting.duration(row["ttft_ns"]), metric_help("ttft")),
        ("ITL", formatting.duration(row["itl_ns"]), metric_help("itl")),
        ("Tokens per second", formatting.rate(row["tps_user"]), metric_help("tps_user")),
        ("Longest gap", formatting.duration(row["icl_max_ns"]), metric_help("icl")),
        ("Stalls", formatting.count(row["stall_count"]), metric_help("stall")),
        ("End to end", formatting.duration(row["end_ns"]), metric_help("end")),
        ("Input tokens", formatting.count(row["input_tokens"]), None),
        ("Output tokens", formatting.count(row["output_tokens"]), None),
    ]
    if row["first_audio_ns"] is not None:
        cards += [
            ("First audio", formatting.duration(row["first_audio_ns"]), metric_help("first_audio")),
            ("Length of audio", formatting.duration(row["audio_ns"]), None),
            ("Interruption to silence", formatting.duration(row["silence_ns"]), metric_help("silence")),
        ]
    numbers(cards, columns=4, least_px=118, border=False)


def show_blame(found: blame.Blame, ttft_ns: int | None) -> None:
    """Time by part, to the first token and to the delivery."""
    server = found.server_text(ttft_ns)
    if not found.whole and not found.first_token and server is None:
        return
    with box("Time by part", metric_help("blame")):
        for label, parts in (
            ("To the first token", found.first_token),
            ("To the delivery of the response", found.whole),
        ):
            if parts:
                st.caption(f"{label}: {formatting.duration(sum(parts.values()))}")
                draw_split(parts, colors.CAUSES, label)
        if server is not None:
            st.markdown(f"{server}.", help=metric_help("blame_server"))


def show_hops(stream_id: UUID, found: pl.DataFrame) -> None:
    """The streams on the other side of the gateway, and what the gateway changed."""
    if found.is_empty():
        return
    section("Hops", "This stream and those on the other side of a gateway.")
    for hop in found.to_dicts():
        if hop["added_ttft_ns"] is not None:
            st.markdown(hop_text(hop))
    show_report(hops.ATTEMPTS, found)
    changes = hops.changes_of(query, stream_id)
    if changes.height:
        st.caption("Changes by the gateway")
        show_report(hops.CHANGES_OF_STREAM, changes)


def hop_text(hop: Row) -> str:
    """What the gateway added to one stream, as text."""
    duration = formatting.duration
    delays = ", ".join(
        f"{duration(hop[f'added_event_{name}_ns'])} ({name})" for name in ("p50", "p95", "max")
    )
    parts = [
        f"`{hop['outer_gateway']}` added {duration(hop['added_ttft_ns'])} to the TTFT",
        f"{delays} per output event" if hop["aligned_event_count"] else "",
        f"{duration(hop['added_tail_ns'])} at the end",
        f"merged {formatting.count(hop['merged_event_count'])} and split {formatting.count(hop['split_event_count'])} events",
        f"clock error up to ± {duration(hop['clock_error_ns'])}" if hop["clock_error_ns"] else "",
    ]
    return " · ".join(part for part in parts if part)


def show_charts(row: Row, events: pl.DataFrame, total: int, stalls: pl.DataFrame) -> None:
    """Phases and events on one time axis."""
    found = phases(row)
    last_event_ns = int(events["at_ns"].max() or 0) if total else 0  # type: ignore[arg-type]
    end_ns = max([p.end_ns for p in found] + [last_event_ns])
    # 6 % for the length that is written behind the last bar.
    axis = charts.StreamAxis(min([p.start_ns for p in found] + [0]), end_ns * 1.06 or 1)
    with box("Phases", "t0 is when the tap started to contact the upstream."):
        if found:
            draw(charts.phase_waterfall(found, axis), "Phases of the stream as a waterfall", key="phases")
        else:
            st.caption("No times are known for this stream.")
    if total:
        median_gap_ns = row["icl_p50_ns"]
        limit_ns = None if median_gap_ns is None else page_settings.stall_limit().of(median_gap_ns)
        show_events(events, total, axis, stalls, limit_ns)
    else:
        st.caption(
            "No events are stored for this stream: it had none, or they are older than the retention (`--retain-events`)."
        )


def show_events(
    events: pl.DataFrame, total: int, axis: charts.StreamAxis, stalls: pl.DataFrame, limit_ns: float | None
) -> None:
    with box("Events", metric_help("stall", more="Shaded bands are stalls, by cause.")):
        if stalls.height:
            draw_legend(
                {f"stall: {c}": color for c, color in colors.present(colors.CAUSES, stalls, "cause").items()}
            )
        if len(events) < total:
            st.caption(
                f"{formatting.count(len(events))} of {formatting.count(total)} events drawn: every n-th output event, those "
                "after the longest gaps, and all other events. Sums include all events."
            )
        draw(charts.event_marks(events, axis, stalls), "Events on the time axis", key="marks")
        unit = "tokens" if (events["tokens_sum"].max() or 0) else "chars"
        draw(charts.cumulative_output(events, axis, unit), f"Cumulative {unit}", key="cumulative")
        if events["gap_ns"].drop_nulls().len():
            draw(charts.gap_points(events, axis, stalls, limit_ns), "Gaps between output events", key="gaps")


def show_usage(row: Row) -> None:
    section("Usage and sizes")
    count, size = formatting.count, formatting.size
    show_pairs(
        {
            "Input tokens": count(row["input_tokens"]),
            "Cached input tokens": count(row["cached_input_tokens"]),
            "Output tokens": count(row["output_tokens"]),
            "Reasoning tokens": count(row["reasoning_tokens"]),
            "Source of token counts": row["token_source"] or formatting.UNKNOWN,
            "Estimated cost": spend.of_stream(query, row["stream_id"], row["started_at"])
            or spend.why_no_cost(row),
            "Cost that the provider reports": spend.reported_of_stream(
                query, row["stream_id"], row["started_at"]
            )
            or formatting.UNKNOWN,
            "Events, output events": f"{count(row['event_count'])}, {count(row['output_event_count'])}",
            "Comments (heartbeats)": count(row["comment_count"]),
            "Tool calls": count(row["tool_call_count"]),
            "Malformed events": count(row["malformed_events"]),
            "Response, delivered": f"{size(row['response_bytes'])}, {size(row['delivered_bytes'])}",
            "Burstiness": formatting.share(row["burstiness"]),
            "Gaps p50, p95, p99": ", ".join(formatting.duration(row[f"icl_p{q}_ns"]) for q in (50, 95, 99)),
        },
        label="Usage and sizes",
    )


def show_ids(row: Row) -> None:
    section("Identity")
    names = (
        ("trace_id", "Trace id"), ("span_id", "Span id"), ("parent_span_id", "Parent span id"),
        ("request_id", "Request id"), ("response_id", "Response id"), ("client_id", "Client (hash of its key)"),
        ("client_app", "App"),
        ("server_instance", "Server instance"), ("provider", "Provider"),
        ("dialect", "Dialect"), ("operation", "Operation"), ("path", "Path"), ("response_model", "Response model"),
    )  # fmt: skip
    client = query_runner.client_name(row["client_id"])
    shown = {"Client": client} if client is not None else {}
    shown |= {f"Label {name}": value for name, value in (row["labels"] or {}).items()}
    show_pairs(shown | {label: row[name] or formatting.UNKNOWN for name, label in names}, label="Identity")
    turn = "" if row["turn"] is None else f", turn {row['turn']}"
    opens = {"turn": str(row["turn"])} if turn else {}
    for page, label, icon, parameter in (
        ("sessions", f"Session of this stream{turn}", ":material/forum:", "session"),
        ("traces", "Spans of this trace", ":material/account_tree:", "trace"),
    ):
        if found := row[f"{parameter}_id"]:
            filters.page_link(page, label, icon, {parameter: found} | (opens if page == "sessions" else {}))


def show_headers(row: Row) -> None:
    stored = {
        label: json.loads(row[name])
        for label, name in (("Request", "request_headers"), ("Response", "response_headers"))
        if row.get(name)
    }
    if not stored:
        return
    section(
        "Headers",
        "Only headers of an allow list are stored: none that can contain keys, cookies or names. The tap forwards all headers.",
    )
    for column, (label, headers) in zip(st.columns(2), stored.items(), strict=False):
        with column:
            st.caption(label)
            show_pairs({name: str(value) for name, value in headers.items()}, label=f"{label} headers")


def show_server_stats(stream_id: UUID, row: Row) -> None:
    stats = one_stream.server_stats(query, stream_id)
    if stats.is_empty():
        return
    reported = pl.struct("name", "value", "unit").map_elements(_stat_text, return_dtype=pl.String)
    observed = pl.col("name").map_elements(lambda name: observed_value(name, row), return_dtype=pl.String)
    columns = ("source", "name", "reported", "observed_at_the_tap", "raw")
    shown = stats.with_columns(reported.alias("reported"), observed.alias("observed_at_the_tap"))
    show_records("Server-reported and observed values", shown.select(columns))


def show_usage_reports(stream_id: UUID) -> None:
    reports = one_stream.usage_reports(query, stream_id)
    if reports.is_empty():
        return
    at_ms = (pl.col("at_ns") / 1e6).alias("at, ms")
    show_records("Usage reports", reports.with_columns(at_ms).drop("stream_id", "at_ns"))


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
    with box("Text", "Stored because `--capture-content` is on."):
        for label, value in (("Reasoning", row["reasoning_text"]), ("Answer", row["output_text"])):
            if value:
                st.caption(f"{label}, {formatting.count(len(value))} characters")
                st.code(value, language=None, wrap_lines=True, height=TEXT_PX)


def show_columns(row: Row, table: str) -> None:
    """All columns of a row with their comments."""
    comments = table_columns.comments(query_runner.query_catalog, table)
    rows = {
        "column": list(row),
        "value": ["NULL" if value is None else str(value) for value in row.values()],
        "comment": [comments.get(name) for name in row],
    }
    show_report(table_columns.OF_ROW, pl.DataFrame(rows), table=table)


def draw_page() -> None:
    """One stream: phases, events, gaps, usage."""
    id_text = filters.text("Stream id", key="id", placeholder="UUID", width=420)
    page_frame.show(partial(body, id_text), needs_streams=False, uses_time_range=False)


PAGE = page_frame.Page(draw_page, "Stream", "water", hidden=True, applying=lambda: ())

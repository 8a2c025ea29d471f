"""One stream: what happened, when, and what the server says of it."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import polars as pl
import streamlit as st

from dashboard import filters, formatting, page_frame, query_runner
from dashboard.charts import base, stream
from dashboard.metric_help import described
from dashboard.queries import streams, table_columns
from dashboard.queries.selection import Selection
from dashboard.stream_phases import phases
from dashboard.tables import generic

Row = dict[str, Any]
TEXT_PX = 380


def body(_: Selection) -> None:
    asked = (st.session_state.get("id") or "").strip()
    if not asked:
        st.info("Which stream? Open one from **Streams**, or paste its id above.", icon=":material/search:")
        return
    try:
        stream_id = UUID(asked)
    except ValueError:
        st.warning(f"`{asked[:80]}` is no stream id (a UUID).", icon=":material/warning:")
        return
    row = streams.one(query_runner.ask, stream_id)
    if row is not None:
        finished(stream_id, row)
        return
    running = streams.one_open(query_runner.ask, stream_id)
    if running is not None:
        st.info("This stream still runs: its page fills when it ends.", icon=":material/timelapse:")
        raw(running, "open_streams")
        return
    st.warning(
        "No such stream. It may be older than what is kept (`--retain-streams`).", icon=":material/warning:"
    )


def finished(stream_id: UUID, row: Row) -> None:
    headline(row)
    numbers(row)
    events, total = streams.events(query_runner.ask, stream_id)
    if has_text(row):
        drawn, written = st.columns([3, 2])
        with drawn:
            pictures(row, events, total)
        with written:
            text(row)
    else:
        pictures(row, events, total)
    left, right = st.columns(2)
    with left:
        facts(row)
    with right:
        ids(row)
    heads(row)
    said_by_server(stream_id, row)
    with st.expander("The whole row of `streams`"):
        raw(row, "streams")


def headline(row: Row) -> None:
    outcome = row["outcome"]
    colour = {"ok": "green", "client_abort": "gray", "tap_lost": "gray"}.get(outcome, "red")
    parts = [f":{colour}-badge[{outcome}]"]
    if row["http_status"] is not None:
        parts.append(f"HTTP {row['http_status']}")
    if row["finish_reason"]:
        parts.append(f"finish `{row['finish_reason']}`")
    if row["error_type"]:
        parts.append(f"error `{row['error_type']}` in phase `{row['error_phase']}`")
    started = row["started_at"].astimezone(filters.zone())
    parts.append(f"started {started:%Y-%m-%d %H:%M:%S.%f} {filters.zone().key}")
    model = row["request_model"] or row["response_model"] or "unknown model"
    st.markdown(f"**{model}** via {row['gateway'] or 'unknown gateway'} · " + " · ".join(parts))
    if row["error_message"]:
        st.code(row["error_message"], language=None, wrap_lines=True)


def numbers(row: Row) -> None:
    cards = [
        ("TTFT", formatting.duration(row["ttft_ns"]), "ttft"),
        ("ITL", formatting.duration(row["itl_ns"]), "itl"),
        ("Speed", formatting.rate(row["tps_user"]), "tps_user"),
        ("Longest gap", formatting.duration(row["icl_max_ns"]), "icl"),
        ("Stalls", formatting.count(row["stall_count"]), "stall"),
        ("Length", formatting.duration(row["end_ns"]), "end"),
        ("Input tokens", formatting.count(row["input_tokens"]), None),
        ("Output tokens", formatting.count(row["output_tokens"]), None),
    ]
    with st.grid(4, min_column_width=118):
        for label, value, measure in cards:
            st.metric(label, value, help=described(measure) if measure else None)


def pictures(row: Row, events: pl.DataFrame, total: int) -> None:
    bars = phases(row)
    ends = [p.end_ns for p in bars] + [int(events["at_ns"].max() or 0) if total else 0]  # type: ignore[arg-type]
    begins = [p.start_ns for p in bars] + [0]
    axis = stream.Axis(min(begins), max(ends) * 1.06 or 1)
    with st.container(border=True):
        st.markdown("**Phases**", help="t0 is when the tap turned to the upstream.")
        if bars:
            base.draw(stream.waterfall(bars, axis), "Phases of the stream as a waterfall", key="phases")
        else:
            st.caption("No times are known of this stream.")
    if not total:
        st.caption(
            "No events are stored of this stream: it had none, or they are older than `--retain-events`."
        )
        return
    stall_ns = shortest_stall_ns(events, row["stall_count"])
    with st.container(border=True):
        st.markdown("**Events**", help=described("stall", more="Stalls are the shaded bands."))
        if len(events) < total:
            st.caption(
                f"{formatting.count(len(events))} of {formatting.count(total)} events drawn: every n-th, and all that are no output or "
                "follow one of the longest gaps. The sums are over all."
            )
        base.draw(stream.event_marks(events, axis, stall_ns), "Each event on the time axis", key="marks")
        what = "tokens" if (events["tokens_sum"].max() or 0) else "chars"
        base.draw(stream.arrived(events, axis, what), f"{what} arrived by when", key="arrived")
        if events["gap_ns"].drop_nulls().len():
            base.draw(stream.gaps(events, axis, stall_ns), "Gaps between output events", key="gaps")


def shortest_stall_ns(events: pl.DataFrame, stalls: int | None) -> float | None:
    """A stream's stalls are its longest gaps, and analytics has counted them: so the shortest one is known without the
    settings that made it a stall. None without stalls."""
    longest = events["gap_ns"].drop_nulls().sort(descending=True)
    return float(longest[stalls - 1]) if stalls and stalls <= len(longest) else None


def facts(row: Row) -> None:
    st.subheader("Usage and sizes", anchor=False)
    cached = row["cached_input_tokens"]
    facts = {
        "Input tokens": formatting.count(row["input_tokens"]),
        "… of them cached": formatting.count(cached),
        "Output tokens": formatting.count(row["output_tokens"]),
        "… of them reasoning": formatting.count(row["reasoning_tokens"]),
        "Tokens known from": row["token_source"] or formatting.UNKNOWN,
        "Events, of them output": f"{formatting.count(row['event_count'])}, {formatting.count(row['output_event_count'])}",
        "Comments (heartbeats)": formatting.count(row["comment_count"]),
        "Tool calls": formatting.count(row["tool_call_count"]),
        "Malformed events": formatting.count(row["malformed_events"]),
        "Response, delivered": f"{formatting.size(row['response_bytes'])}, {formatting.size(row['delivered_bytes'])}",
        "Burstiness": formatting.share(row["burstiness"]),
        "Gaps p50, p95, p99": ", ".join(formatting.duration(row[f"icl_p{q}_ns"]) for q in (50, 95, 99)),
    }
    table(facts)


def ids(row: Row) -> None:
    st.subheader("Who and where", anchor=False)
    names = (
        ("trace_id", "Trace id"), ("span_id", "Span id"), ("parent_span_id", "Parent span"),
        ("request_id", "Request id"), ("response_id", "Response id"), ("client_id", "Client (hash of its key)"),
        ("server_instance", "Server instance"), ("provider", "Provider"),
        ("dialect", "Dialect"), ("operation", "Operation"), ("path", "Path"), ("response_model", "Model in the response"),
    )  # fmt: skip
    table({label: row[name] or formatting.UNKNOWN for name, label in names})
    if row["trace_id"]:
        st.page_link(
            "views/traces.py",
            label="Spans of this trace",
            icon=":material/account_tree:",
            query_params={"trace": row["trace_id"]},
        )


def table(facts: dict[str, str]) -> None:
    lines = "".join(
        f"| {name} | `{value}` |\n" if value != formatting.UNKNOWN else f"| {name} | – |\n"
        for name, value in facts.items()
    )
    st.markdown(f"| | |\n|---|---|\n{lines}")


def heads(row: Row) -> None:
    """What is kept of both heads: a short list, no secrets."""
    kept = {
        side: json.loads(row[name])
        for side, name in (("Request", "request_headers"), ("Response", "response_headers"))
        if row.get(name)
    }
    if not kept:
        return
    st.subheader(
        "Headers",
        anchor=False,
        help="Of each head what a short list allows: nothing that could be a key, a cookie or a name. The tap passes all "
        "fields on; the tables keep these.",
    )
    for place, (side, fields) in zip(st.columns(2), kept.items(), strict=False):
        with place:
            st.caption(side)
            table({name: str(value) for name, value in fields.items()})


def said_by_server(stream_id: UUID, row: Row) -> None:
    stats = streams.server_stats(query_runner.ask, stream_id)
    if not stats.is_empty():
        st.subheader("Server-reported against observed", anchor=False)
        generic.show(
            stats.with_columns(
                pl.struct("name", "value", "unit")
                .map_elements(_readable, return_dtype=pl.String)
                .alias("server says"),
                pl.col("name")
                .map_elements(lambda n: observed(n, row), return_dtype=pl.String)
                .alias("observed at the tap"),
            ).select("source", "name", "server says", "observed at the tap", "raw"),
            key="stats",
        )
    usage = streams.usage_reports(query_runner.ask, stream_id)
    if not usage.is_empty():
        st.subheader("Usage reports", anchor=False)
        generic.show(
            usage.with_columns((pl.col("at_ns") / 1e6).alias("at, ms")).drop("stream_id", "at_ns"),
            key="usage",
        )


def _readable(stat: Row) -> str:
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


def observed(name: str, row: Row) -> str:
    """What the tap saw of the same thing, where there is such a thing."""
    plain = name.lower().replace("-", "_")
    if "first_token" in plain or "ttft" in plain:
        return formatting.duration(row["ttft_ns"])
    if "per_second" in plain or "tps" in plain:
        return formatting.rate(row["tps_user"])
    if "total_duration" in plain or "total_time" in plain:
        return formatting.duration(row["end_ns"])
    return formatting.UNKNOWN


def has_text(row: Row) -> bool:
    return bool(row["output_text"] or row["reasoning_text"])


def text(row: Row) -> None:
    """What was generated, beside the time line."""
    with st.container(border=True):
        st.markdown("**Text**", help="Stored because `--capture-content` is on.")
        for label, value in (("Reasoning", row["reasoning_text"]), ("Answer", row["output_text"])):
            if value:
                st.caption(f"{label}, {formatting.count(len(value))} characters")
                st.code(value, language=None, wrap_lines=True, height=TEXT_PX)


def raw(row: Row, of: str) -> None:
    meanings = table_columns.meanings(query_runner.ask_seldom, of)
    st.dataframe(
        pl.DataFrame(
            {
                "column": list(row),
                "value": [None if v is None else str(v) for v in row.values()],
                "meaning": [meanings.get(name, "") for name in row],
            }
        ),
        hide_index=True,
        placeholder="NULL",
        key="raw",
    )


page_frame.title("Stream")
st.text_input("Stream id", key="id", bind="query-params", placeholder="UUID", width=420)
page_frame.show(body, need_streams=False, timed=False)

"""Alerts: those that fire, those that resolved in the time range, the rules and the silences."""

from __future__ import annotations

import json

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import alerts
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import page_frame
from streamgauge.dashboard.html_table import Column, Row, instant, show_records, show_table
from streamgauge.dashboard.panels import section
from streamgauge.dashboard.query_runner import query

TIME = "%m-%d %H:%M:%S"
MAX_ROWS = 200


def body(chosen: Selection) -> None:
    firing = alerts.firing(query)
    section("Firing")
    if firing.is_empty():
        st.success("No alert fires.", icon=":material/check_circle:")
    else:
        show_alerts(firing, "Alerts that fire")
    section("History", "Alerts that resolved, and overlap the time range.")
    history = alerts.history(query, chosen, most=MAX_ROWS)
    show_alerts(history, "Resolved alerts", empty="No alert resolved in this time range.")
    if history.height == MAX_ROWS:
        st.caption(f"Only the newest {MAX_ROWS} alerts are shown.")
    section("Rules", "What analytics evaluates. Settings apply from its next start.")
    show_records(alerts.rules(query), label="Rules", empty="Analytics has not started yet.")
    section("Silences", "Alerts with a silence are shown here, but send no message.")
    show_records(alerts.silences(query), label="Silences", empty="None.")
    # Not `st.code`: its colours have too little contrast, and on a phone the keyboard cannot scroll it.
    st.caption(
        "To silence alerts: `streamgauge silence --model 'gpt-*' --for 2h`. To end a silence: `--for 0`."
    )


def show_alerts(found: pl.DataFrame, label: str, empty: str = "") -> None:
    """A table of alerts. A row opens the Overview with the streams and the time of its alert."""
    columns = [
        Column(name="message", heading="Alert", link=overview_link, opens_row=True, min_characters=40, priority=0),
        Column(name="severity", heading="Severity", line=True,
               state=lambda row: "bad" if row["severity"] == "page" and row["resolved_at"] is None else None),
        Column(name="rule", heading="Rule", line=True),
        instant("began_at", "Since", form=TIME),
        instant("resolved_at", "Resolved", form=TIME),
        Column(name="evidence", heading="Evidence", min_characters=30, priority=2),
        Column(name="stream_id", heading="Stream", text=lambda i: i[:8], mono=True, priority=3,
               link=lambda row: f"stream?id={row['stream_id']}" if row["stream_id"] else None),
        Column(name="not_sent", heading="No message", priority=4,
               text=lambda why: why[:14] if why.startswith("alert ") else why),
    ]  # fmt: skip
    texts = found.with_columns(pl.col("evidence").list.join("; ").replace("", None))
    show_table(columns, texts, label=label, stacks=True, empty=empty)


def overview_link(row: Row) -> str:
    place = {name: row[name] for name in ("model", "gateway") if row[name] is not None}
    until = row["resolved_at"] or row["fired_at"]
    return "./" + alerts.overview_address(
        place | json.loads(row["place"] or "{}"), row["began_at"].timestamp(), until.timestamp()
    )


st.caption(
    "What analytics reports by itself. Filters do not apply; the time range applies to the history. "
    "Times inside texts are in UTC."
)
page_frame.show(body, needs_streams=False)

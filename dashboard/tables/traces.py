"""Tables of traces and of the streams of one trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
import streamlit as st

from streamgauge.dashboard import filters
from streamgauge.dashboard.tables import html_table
from streamgauge.dashboard.tables.html_table import Column, ms, number, show_table
from streamgauge.dashboard.tables.streams import (
    GATEWAY,
    HTTP,
    MODEL,
    outcome_column,
    outcome_state,
    stream_column,
)

TRACE_DIGITS = 8


def _address(row: Mapping[str, Any]) -> str:
    return filters.address_with({"trace": [row["trace_id"]]})


def show_traces(frame: pl.DataFrame) -> None:
    """Traces (`reports.traces.latest`). A click on a row opens the trace."""
    zone = filters.time_zone()
    columns = [
        Column(name="trace_id", heading="Trace", text=lambda value: value[:TRACE_DIGITS], line=True, mono=True, link=_address,
               opens_row=True, priority=0, help="Opens the trace. The text is the first digits of its id."),
        Column(name="root", heading="First span", priority=2, min_characters=18),
        outcome_column(priority=0, help="Of the first failed stream, or else of the first stream."),
        HTTP,
        Column(name="error_type", heading="Cause", priority=3, min_characters=12,
               state=lambda row: outcome_state(row["outcome"])),
        html_table.instant("began_at", "Started", zone, form="%m-%d %H:%M:%S.%f", priority=3),
        ms("duration_ns", "Duration", priority=1),
        number("errors", "Errors", priority=1, help="Spans with the status error.",
               state=lambda row: "bad" if row["errors"] else None),
        number("spans", "Spans", priority=3),
        number("streams", "Streams", priority=6),
        MODEL,
        GATEWAY,
        Column(name="services", heading="Services", priority=4, min_characters=16),
    ]  # fmt: skip
    show_table(columns, frame, label="Traces")
    st.caption(f"Started: time zone {zone.key}.")


def show_streams_of_trace(frame: pl.DataFrame) -> None:
    """The streams of one trace (`reports.traces.streams_of`). A click on a row opens the stream."""
    columns = [
        stream_column(opens_row=True),
        outcome_column(priority=0),
        HTTP,
        Column(name="error_type", heading="Cause", priority=3, min_characters=12),
        html_table.instant("started_at", "Started", filters.time_zone(), form="%H:%M:%S.%f", priority=4),
        MODEL,
        GATEWAY,
        ms("ttft_ns", "TTFT", priority=2),
        number("stall_count", "Stalls", priority=3),
        ms("end_ns", "Duration", priority=1),
    ]  # fmt: skip
    show_table(columns, frame, label="Streams of the trace")

"""Tables in the house style: durations in ms, links to the single stream, words for what is unknown."""

from __future__ import annotations

from typing import Any

import polars as pl
import streamlit as st

from dashboard import filters, units
from dashboard.queries.selection import Selection

column = st.column_config
OUTCOME_SIGNS = {"ok": "✓ ok", "client_abort": "◌ client_abort", "tap_lost": "? tap_lost"}
"""An outcome as read in a table; every other is an error and gets a ✕. Signs, so that no colour is needed."""

STREAM_COLUMNS: dict[str, Any] = {
    "link": column.LinkColumn(
        "Stream", display_text=r"id=(?:.*)([0-9a-f]{8})$", width=90, help="Opens the stream; its id's last digits."
    ),
    "started": column.DatetimeColumn("Started", format="MM-DD HH:mm:ss.SSS", width=150),
    "model": column.TextColumn("Model", width=170),
    "gateway": column.TextColumn("Gateway", width=110),
    "client": column.TextColumn("Client", width=110, help="Keyed hash of the API key."),
    "outcome": column.TextColumn("Outcome", width=120),
    "why": column.TextColumn("Why", width=150, help="Error type, else the finish reason."),
    "ttft_ms": column.NumberColumn("TTFT", format="%.0f ms", width=90),
    "itl_ms": column.NumberColumn("ITL", format="%.1f ms", width=90),
    "gap_ms": column.NumberColumn("Longest gap", format="%.0f ms", width=100),
    "tps_user": column.NumberColumn("Speed", format="%.1f tok/s", width=100),
    "end_s": column.NumberColumn("Length", format="%.2f s", width=90),
    "input_tokens": column.NumberColumn("In", format="%d", width=70, help="Input tokens as reported."),
    "output_tokens": column.NumberColumn("Out", format="%d", width=70, help="Output tokens as reported."),
    "stall_count": column.NumberColumn("Stalls", format="%d", width=65),
}  # fmt: skip


def streams(frame: pl.DataFrame, *, key: str) -> None:
    """Streams, one a row, each with a link to its own page (`queries.streams.COLUMNS`)."""
    zone = filters.zone()
    shown = frame.select(
        ("stream?id=" + pl.col("stream_id").cast(pl.String)).alias("link"),
        pl.col("started_at").dt.convert_time_zone(zone.key).dt.replace_time_zone(None).alias("started"),
        "model",
        pl.col("outcome").map_elements(lambda o: OUTCOME_SIGNS.get(o, f"✕ {o}"), return_dtype=pl.String),
        pl.coalesce("error_type", "finish_reason").alias("why"),
        (pl.col("ttft_ns") / 1e6).alias("ttft_ms"),
        (pl.col("itl_ns") / 1e6).alias("itl_ms"),
        (pl.col("icl_max_ns") / 1e6).alias("gap_ms"),
        "tps_user",
        (pl.col("end_ns") / 1e9).alias("end_s"),
        "input_tokens",
        "output_tokens",
        "stall_count",
        "gateway",
        "client",
    )
    st.dataframe(
        shown,
        column_config=STREAM_COLUMNS,
        hide_index=True,
        key=key,
        placeholder=units.UNKNOWN,
        alt="Streams",
    )
    st.caption(f"Started: {zone.key}.")


def changes(frame: pl.DataFrame, chosen: Selection) -> None:
    """The models and gateways that moved most against the period before."""
    if frame.is_empty():
        st.caption(
            "Nothing to compare: no model or gateway has 5 requests both in this range and in the "
            f"{units.span(chosen.length)} before."
        )
        return
    shown = frame.with_columns(
        pl.col("ttft_p50_ns") / 1e6,
        pl.col("ttft_p50_before_ns") / 1e6,
        *(pl.col(c) * 100 for c in ("ttft_change", "error_rate", "error_rate_before", "error_change")),
    )
    st.dataframe(
        shown,
        hide_index=True,
        key="changes",
        placeholder=units.UNKNOWN,
        alt="What changed",
        column_config={
            "dimension": column.TextColumn("", width=80),
            "name": column.TextColumn("Name"),
            "requests": column.NumberColumn("Requests", format="%d"),
            "requests_before": column.NumberColumn("before", format="%d"),
            "ttft_p50_ns": column.NumberColumn("TTFT p50", format="%.0f ms"),
            "ttft_p50_before_ns": column.NumberColumn("before", format="%.0f ms"),
            "ttft_change": column.NumberColumn("change", format="%+.0f %%"),
            "error_rate": column.NumberColumn("Error rate", format="%.1f %%"),
            "error_rate_before": column.NumberColumn("before", format="%.1f %%"),
            "error_change": column.NumberColumn("change, points", format="%+.1f"),
        },
    )

"""Tables of the errors page: kinds of errors, and client aborts by group."""

from __future__ import annotations

import polars as pl
import streamlit as st

from dashboard import filters
from dashboard.metric_help import metric_help
from dashboard.tables.columns import (
    count,
    instant,
    local_time,
    number,
    percent,
    seconds,
    short_client,
    show,
    text,
)


def show_error_kinds(frame: pl.DataFrame) -> None:
    """Kinds of errors (`queries.errors.kinds`)."""
    if frame.is_empty():
        st.caption("No errors in this selection.")
        return
    zone = filters.time_zone()
    show(
        frame.with_columns(local_time("last_at", zone)),
        key="kinds",
        alt="Kinds of errors",
        column_config={
            "outcome": text("Outcome"),
            "error_phase": text("Phase"),
            "error_type": text("Type"),
            "http_status": count("HTTP"),
            "n": count("Streams"),
            "models": count("Models", help="Number of models with this error."),
            "gateways": count("Gateways", help="Number of gateways with this error."),
            "last_at": instant("Last", format="MM-DD HH:mm:ss"),
            "message": text("Last message", width="large"),
        },
    )
    st.caption(f"Last: time zone {zone.key}.")


def show_aborts(frame: pl.DataFrame, *, group: str) -> None:
    """Client aborts and wasted tokens (`queries.errors.aborts`)."""
    if frame.is_empty():
        st.caption("No client aborts in this selection.")
        return
    show(
        frame.with_columns(
            short_client(),
            pl.col("abort_share") * 100,
            pl.col("aborted_after_ns") / 1e9,
            pl.col("undelivered_bytes") / 1024,
        ),
        key="aborts",
        alt=f"Client aborts by {group}",
        column_config={
            "name": text(group.capitalize()),
            "requests": count("Requests"),
            "aborts": count("Aborts", help=metric_help("aborts")),
            "abort_share": percent("share"),
            "before_output": count(
                "before first token", help="The client left while waiting for the first token."
            ),
            "aborted_after_ns": seconds("aborted after, p50"),
            "output_tokens": count("Tokens generated", help=metric_help("aborted_tokens")),
            "wasted_tokens": number("wasted", format="%.0f", help=metric_help("wasted")),
            "undelivered_bytes": number("undelivered", format="%.1f KiB"),
        },
    )

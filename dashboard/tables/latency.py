"""Tables of the latency page: quantiles and stalls by group."""

from __future__ import annotations

import polars as pl
import streamlit as st

from dashboard.tables.columns import count, number, percent, seconds, show, text


def show_quantiles(frame: pl.DataFrame, *, group: str, counted: str = "streams") -> None:
    """Quantiles in ns (`queries.latency.table`). `counted` names the unit of `n`."""
    quantiles = [c for c in frame.columns if c.endswith("_ns")]
    show(
        frame.with_columns(pl.col(c) / 1e6 for c in quantiles),
        key="quantiles",
        alt=f"Quantiles by {group}",
        column_config={
            "name": text(group.capitalize()),
            "n": number(counted.capitalize(), format="localized", help="Those with a known value."),
            **{c: number(c.removesuffix("_ns"), format="%.1f ms") for c in quantiles},
        },
    )


def show_stalls(frame: pl.DataFrame, *, group: str) -> None:
    """Stalls (`queries.latency.stalls`)."""
    if frame.is_empty():
        st.caption("Stalls are unknown for these streams.")
        return
    show(
        frame.with_columns(
            pl.col("stalled_share") * 100,
            pl.col("stalled_time_share") * 100,
            pl.col("stalled_ns") / 1e9,
            pl.col("worst_ns") / 1e9,
        ),
        key="stalls",
        alt=f"Stalls by {group}",
        column_config={
            "name": text(group.capitalize()),
            "streams": count("Streams", help="Streams with known stalls."),
            "stalled_streams": count("with stalls"),
            "stalled_share": percent("share"),
            "stalls": count("Stalls"),
            "stalled_ns": seconds("Stalled time"),
            "stalled_time_share": number("of output time", format="%.2f %%"),
            "worst_ns": number("Longest gap", format="%.2f s"),
        },
    )

"""Tables with one row per group: latency quantiles, stalls, throughput, kinds of errors, client aborts."""

from __future__ import annotations

import polars as pl
import streamlit as st

from dashboard import filters
from dashboard.metric_help import metric_help
from dashboard.tables import columns


def show_quantiles(frame: pl.DataFrame, *, group: str, counted: str = "streams") -> None:
    """Quantiles in ns (`queries.latency.table`). `counted` names the unit of `n`."""
    quantiles = [c for c in frame.columns if c.endswith("_ns")]
    columns.show(
        frame.with_columns(columns.scaled(columns.NS_TO_MS, *quantiles)),
        key="quantiles",
        alt=f"Quantiles by {group}",
        column_config={
            "name": columns.text(group.capitalize()),
            "n": columns.number(counted.capitalize(), format="localized", help="With a known value."),
            **{c: columns.number(c.removesuffix("_ns"), format="%.1f ms") for c in quantiles},
        },
    )


def show_stalls(frame: pl.DataFrame, *, group: str) -> None:
    """Stalls (`queries.latency.stalls`)."""
    if frame.is_empty():
        st.caption("Stalls are unknown for these streams.")
        return
    columns.show(
        frame.with_columns(
            *columns.scaled(columns.TO_PERCENT, "stalled_share", "stalled_time_share"),
            *columns.scaled(columns.NS_TO_S, "stalled_ns", "worst_ns"),
        ),
        key="stalls",
        alt=f"Stalls by {group}",
        column_config={
            "name": columns.text(group.capitalize()),
            "streams": columns.count("Streams", help="Streams with known stalls."),
            "stalled_streams": columns.count("with stalls"),
            "stalled_share": columns.percent("share"),
            "stalls": columns.count("Stalls"),
            "stalled_ns": columns.seconds("Stalled time"),
            "stalled_time_share": columns.number("of output time", format="%.2f %%"),
            "worst_ns": columns.number("Longest gap", format="%.2f s"),
        },
    )


def show_throughput(frame: pl.DataFrame, *, group: str) -> None:
    """Tokens and speed (`queries.throughput.table`)."""
    columns.show(
        frame.with_columns(
            columns.scaled(columns.TO_PERCENT, "cached_share", "reasoning_share", "burstiness_p50", "known")
        ),
        key="throughput",
        alt=f"Throughput by {group}",
        column_config={
            "name": columns.text(group.capitalize()),
            "requests": columns.count("Requests"),
            "input_tokens": columns.number("Tokens in", format="localized"),
            "cached_share": columns.percent("cached", help=metric_help("cached")),
            "output_tokens": columns.number("Tokens out", format="localized"),
            "reasoning_share": columns.percent("reasoning", help="Reasoning tokens / output tokens."),
            "output_per_s": columns.tokens_per_s("Output", help=metric_help("tps_total")),
            "tps_user_p50": columns.tokens_per_s("Speed p50", help=metric_help("tps_user")),
            "tps_user_p5": columns.tokens_per_s(
                "Speed p5", help="The slowest 5 % of streams are at or below this."
            ),
            "tps_e2e_p50": columns.tokens_per_s("E2E speed p50", help=metric_help("tps_e2e")),
            "burstiness_p50": columns.number(
                "Burstiness p50", format="%.0f %%", help=metric_help("burstiness")
            ),
            "known": columns.number(
                "tokens known", format="%.0f %%", help="Share of streams with known output tokens."
            ),
        },
    )


def show_error_kinds(frame: pl.DataFrame) -> None:
    """Kinds of errors (`queries.errors.kinds`)."""
    if frame.is_empty():
        st.caption("No errors in this selection.")
        return
    zone = filters.time_zone()
    columns.show(
        frame.with_columns(columns.local_time("last_at", zone)),
        key="kinds",
        alt="Kinds of errors",
        column_config={
            "outcome": columns.text("Outcome"),
            "error_phase": columns.text("Phase"),
            "error_type": columns.text("Type"),
            "http_status": columns.count("HTTP"),
            "n": columns.count("Streams"),
            "models": columns.count("Models", help="Number of models with this error."),
            "gateways": columns.count("Gateways", help="Number of gateways with this error."),
            "last_at": columns.instant("Last", format="MM-DD HH:mm:ss"),
            "message": columns.text("Last message", width="large"),
        },
    )
    st.caption(f"Last: time zone {zone.key}.")


def show_aborts(frame: pl.DataFrame, *, group: str) -> None:
    """Client aborts and wasted tokens (`queries.errors.aborts`)."""
    if frame.is_empty():
        st.caption("No client aborts in this selection.")
        return
    columns.show(
        frame.with_columns(
            columns.short_client(),
            *columns.scaled(columns.TO_PERCENT, "abort_share"),
            *columns.scaled(columns.NS_TO_S, "aborted_after_ns"),
            *columns.scaled(1 / 1024, "undelivered_bytes"),
        ),
        key="aborts",
        alt=f"Client aborts by {group}",
        column_config={
            "name": columns.text(group.capitalize()),
            "requests": columns.count("Requests"),
            "aborts": columns.count("Aborts", help=metric_help("aborts")),
            "abort_share": columns.percent("share"),
            "before_output": columns.count(
                "before first token", help="The client left while waiting for the first token."
            ),
            "aborted_after_ns": columns.seconds("aborted after, p50"),
            "output_tokens": columns.count("Tokens generated", help=metric_help("aborted_tokens")),
            "wasted_tokens": columns.number("wasted", format="%.0f", help=metric_help("wasted")),
            "undelivered_bytes": columns.number("undelivered", format="%.1f KiB"),
        },
    )

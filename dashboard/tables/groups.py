"""Tables with one row per group: latency quantiles, stalls, throughput, causes of errors, client aborts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
import streamlit as st

from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.schema.clients import NO_CLIENT_NAMES, shortened
from streamgauge.dashboard import filters
from streamgauge.dashboard.tables import html_table
from streamgauge.dashboard.tables.html_table import Column, number, percent, seconds, show_table
from streamgauge.dashboard.tables.streams import stream_column


def group_column(group: str) -> Column:
    """Names of groups. A model, gateway or client is a link that filters the page."""

    def link(row: Mapping[str, Any]) -> str | None:
        if group not in filters.FILTERS or row["name"] in (None, *NO_CLIENT_NAMES[1:]):
            return None
        return filters.address_with({group: (row["name"],)})

    return Column(name="name", heading=group.capitalize(), text=shortened, link=link)


def show_quantiles(frame: pl.DataFrame, *, group: str, counted: str = "streams") -> None:
    """Quantiles in ns (`reports.latency.table`). `counted` names the unit of `n`."""
    quantiles = [c for c in frame.columns if c.endswith("_ns")]
    show_table(
        [
            group_column(group),
            number("n", counted.capitalize(), help="With a known value."),
            *(html_table.ms(name, name.removesuffix("_ns"), digits=1) for name in quantiles),
        ],
        frame,
        label=f"Quantiles by {group}",
        stacks=True,
    )


def show_stalls(frame: pl.DataFrame, *, group: str) -> None:
    """Stalls (`reports.latency.stalls`)."""
    if frame.is_empty():
        st.caption("Stalls are unknown for these streams.")
        return
    columns = [
        group_column(group),
        number("streams", "Streams", help="Streams with known stalls."),
        number("stalled_streams", "Streams with stalls"),
        percent("stalled_share", "Share with stalls"),
        number("stalls", "Stalls"),
        seconds("stalled_ns", "Stalled time"),
        percent("stalled_time_share", "Share of output time", digits=2),
        seconds("worst_ns", "Longest gap", digits=2),
    ]
    show_table(columns, frame, label=f"Stalls by {group}", stacks=True)


def show_throughput(frame: pl.DataFrame, *, group: str) -> None:
    """Tokens and speed (`reports.throughput.table`)."""
    slowest = "The slowest 5 % of streams are at or below this."
    columns = [
        group_column(group),
        number("requests", "Requests"),
        number("input_tokens", "Tokens in"),
        percent("cached_share", "Cached", help=metric_help("cached")),
        number("output_tokens", "Tokens out"),
        percent("reasoning_share", "Reasoning", help="Reasoning tokens / output tokens."),
        number("output_per_s", "Output", unit="tok/s", digits=1, help=metric_help("tps_total")),
        number("tps_user_p50", "Tokens/s p50", digits=1, help=metric_help("tps_user")),
        number("tps_user_p5", "Tokens/s p5", digits=1, help=slowest),
        number("tps_e2e_p50", "Tokens/s end to end p50", digits=1, help=metric_help("tps_e2e")),
        percent("burstiness_p50", "Burstiness p50", digits=0, help=metric_help("burstiness")),
        percent("known", "Tokens known", digits=0, help="Share of streams with known output tokens."),
    ]
    show_table(columns, frame, label=f"Throughput by {group}", stacks=True)


def show_wasted(frame: pl.DataFrame) -> None:
    """Wasted tokens by model and reason (`reports.throughput.wasted`)."""
    if frame.is_empty():
        st.caption("No wasted tokens in this selection.")
        return
    columns = [
        Column(name="model", heading="Model"),
        Column(name="reason", heading="Reason"),
        number("streams", "Streams"),
        number("output_tokens", "Tokens out"),
        number("input_tokens", "Tokens in"),
        number("cost", "Cost", digits=4, help="Needs `--price-file`."),
        Column(name="currency", heading="Currency"),
    ]
    show_table(columns, frame, label="Wasted tokens by model and reason", stacks=True)


def show_causes(frame: pl.DataFrame) -> None:
    """Causes of errors (`reports.errors.causes`). Each links to its streams, and to the newest of them."""
    if frame.is_empty():
        st.caption("No errors in this selection.")
        return
    zone = filters.time_zone()
    columns = [
        Column(name="error_type", heading="Error type", link=_streams_of, help="Opens the streams with this error type and status."),
        number("http_status", "HTTP", priority=1),
        Column(name="error_phase", heading="Phase", min_characters=16, priority=5),
        number("n", "Streams", priority=1),
        percent("share", "Share", priority=2, help="Share of all errors in the selection."),
        html_table.instant("first_at", "First seen", zone, priority=2),
        html_table.instant("last_at", "Last seen", zone, priority=3),
        number("clients", "Clients", priority=4, help="Number of clients with this error."),
        number("models", "Models", priority=7, help="Number of models with this error."),
        number("gateways", "Gateways", priority=7, help="Number of gateways with this error."),
        stream_column(heading="Example", help_text="Opens the newest stream with this cause."),
        Column(name="message", heading="Last message", min_characters=24, priority=6),
    ]  # fmt: skip
    show_table(columns, frame, label="Causes of errors", stacks=True)
    st.caption(f"First and last seen: time zone {zone.key}.")


def _streams_of(cause: Mapping[str, Any]) -> str | None:
    if cause["error_type"] is None:
        return None
    status = {} if cause["http_status"] is None else {"status": str(cause["http_status"])}
    return filters.page_address("streams", {"cause": cause["error_type"], **status})


def show_aborts(frame: pl.DataFrame, *, group: str) -> None:
    """Client aborts and undelivered tokens (`reports.errors.aborts`)."""
    if frame.is_empty():
        st.caption("No client aborts in this selection.")
        return
    columns = [
        group_column(group),
        number("requests", "Requests"),
        number("aborts", "Aborts", help=metric_help("aborts")),
        percent("abort_share", "Share"),
        number("before_output", "Before first token", help="The client disconnected while waiting for the first token."),
        seconds("aborted_after_ns", "Median time to abort"),
        number("output_tokens", "Tokens generated", help=metric_help("aborted_tokens")),
        number("undelivered_tokens", "Undelivered tokens", help=metric_help("undelivered")),
        number("undelivered_bytes", "Undelivered bytes", unit="KiB", digits=1, factor=1 / 1024),
    ]  # fmt: skip
    show_table(columns, frame, label=f"Client aborts by {group}", stacks=True)

"""Tables of the overview: contributors to bad streams, and changes. Each row links to the page filtered by it."""

from __future__ import annotations

from urllib.parse import urlencode

import polars as pl
import streamlit as st

from dashboard import filters, formatting
from dashboard.metric_help import metric_help
from dashboard.queries.selection import Selection
from dashboard.tables import columns

FILTER_LINK = columns.link(
    "", display_text="filter", width=48, help="Opens this page with this filter in a new tab."
)
EXCLUDED_PARAMETERS = frozenset({*filters.FILTERS, "token"})


def filter_address(dimension: str, name: str) -> str:
    """The address of this page with one dimension filtered to one name."""
    kept = [
        (key, value)
        for key in st.query_params
        if key not in EXCLUDED_PARAMETERS
        for value in st.query_params.get_all(key)
    ]
    other = [(key, value) for key in filters.FILTERS if key != dimension for value in filters.selected(key)]
    return "?" + urlencode([*kept, *other, (dimension, name)])


def _filter_links(frame: pl.DataFrame) -> pl.Series:
    links = [
        filter_address(dimension, name) for dimension, name in frame.select("dimension", "name").iter_rows()
    ]
    return pl.Series("link", links, pl.String)


def show_contributors(frame: pl.DataFrame) -> None:
    """Groups with more than their share of bad streams (`queries.overview.top_contributors`)."""
    if frame.is_empty():
        st.caption("None: there are no bad streams, or every group has its share of them.")
        return
    columns.show(
        frame.select(
            _filter_links(frame),
            "dimension",
            columns.short_client(),
            *columns.scaled(columns.TO_PERCENT, "of_all_bad", "of_all", "bad_share"),
            "bad",
            *columns.scaled(columns.TO_PERCENT, "error_rate"),
            *columns.scaled(columns.NS_TO_MS, "ttft_p95_ns", "itl_p95_ns"),
        ),
        key="contributors",
        alt="Models, gateways and clients with more than their share of bad streams",
        height="content",
        column_config={
            "link": FILTER_LINK,
            "dimension": columns.text("", width=61),
            "name": columns.text("Name", width=118),
            "of_all_bad": columns.progress(
                "of bad", format="%.0f %%", min_value=0, max_value=100, width=92, color="orange",
                help="Its share of all bad streams of the selection.",
            ),
            "of_all": columns.number("of traffic", format="%.0f %%", width=72, help="Its share of all requests."),
            "bad_share": columns.percent("bad", width=64, help="Bad streams / its own requests."),
            "bad": columns.count("streams", help="Bad streams."),
            "error_rate": columns.percent("errors", help=metric_help("error_rate")),
            "ttft_p95_ns": columns.ms("TTFT p95"),
            "itl_p95_ns": columns.number("ITL p95", format="%.1f ms"),
        },
    )  # fmt: skip


def show_changes(frame: pl.DataFrame, chosen: Selection) -> None:
    """Groups that changed most from the previous period (`queries.overview.largest_changes`)."""
    if frame.is_empty():
        st.caption(
            "Nothing to compare: no model or gateway has 5 requests both in this range and in the previous "
            f"{formatting.span(chosen.length)}."
        )
        return
    columns.show(
        frame.select(
            _filter_links(frame),
            "dimension",
            columns.short_client(),
            *columns.scaled(columns.NS_TO_MS, "ttft_p50_ns"),
            *columns.scaled(columns.TO_PERCENT, "ttft_change", "error_rate", "error_change"),
            *columns.scaled(columns.NS_TO_MS, "ttft_p50_before_ns"),
            *columns.scaled(columns.TO_PERCENT, "error_rate_before"),
            "requests",
            "requests_before",
        ),
        key="changes",
        alt="Largest changes",
        height="content",
        column_config={
            "link": FILTER_LINK,
            "dimension": columns.text("", width=61),
            "name": columns.text("Name", width=96),
            "ttft_p50_ns": columns.ms("TTFT p50", width=72),
            "ttft_change": columns.number("change", format="%+.0f %%", width=60),
            "error_rate": columns.percent("errors", width=56, help=metric_help("error_rate")),
            "error_change": columns.number(
                "change", format="%+.1f", width=60, help="Change of the error rate in percentage points."
            ),
            "ttft_p50_before_ns": columns.ms("TTFT before"),
            "error_rate_before": columns.percent("errors before"),
            "requests": columns.count("requests"),
            "requests_before": columns.count("requests before"),
        },
    )

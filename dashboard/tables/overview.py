"""Tables of the overview: contributors to bad streams, and changes. The name in each row filters all pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import formatting
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.clients import shortened
from streamgauge.dashboard import filters
from streamgauge.dashboard.tables.html_table import Column, ms, number, percent, show_table


def _filter_address(row: Mapping[str, Any]) -> str:
    return filters.address_with({row["dimension"]: (row["name"],)})


NAME = Column(name="name", heading="Name", text=shortened, link=_filter_address, help="Filters all pages by this name.")  # fmt: skip
DIMENSION = Column(name="dimension", heading="Kind", line=True, priority=2)


def show_contributors(frame: pl.DataFrame) -> None:
    """Groups with more than their share of bad streams (`reports.overview.top_contributors`)."""
    if frame.is_empty():
        st.caption("No model, gateway or client has more than its share of unsuccessful streams.")
        return
    columns = [
        NAME,
        DIMENSION,
        percent("of_all_bad", "Share of unsuccessful", digits=0, bar=True,
                help="Its share of all unsuccessful streams of the selection."),
        percent("of_all", "Share of requests", digits=0, help="Its share of all requests."),
        percent("bad_share", "Unsuccessful", help="Unsuccessful streams / its own requests."),
        number("bad", "Streams", priority=3, help="Unsuccessful streams."),
        percent("error_rate", "Error rate", priority=2, help=metric_help("error_rate")),
        ms("ttft_p95_ns", "TTFT p95", priority=3),
        ms("itl_p95_ns", "ITL p95", digits=1, priority=3),
    ]  # fmt: skip
    show_table(
        columns,
        frame,
        label="Models, gateways and clients with more than their share of unsuccessful streams",
    )


def show_changes(frame: pl.DataFrame, chosen: Selection) -> None:
    """Groups that changed most from the previous period (`reports.overview.largest_changes`)."""
    if frame.is_empty():
        st.caption(
            "Nothing to compare: no model or gateway has 5 requests both in this range and in the previous "
            f"{formatting.span(chosen.length)}."
        )
        return
    points = "Change of the error rate in percentage points."
    columns = [
        NAME,
        DIMENSION,
        ms("ttft_p50_ns", "TTFT p50"),
        percent("ttft_change", "Change", digits=0, sign=True),
        percent("error_rate", "Error rate", help=metric_help("error_rate")),
        number("error_change", "Change", unit="points", digits=1, factor=100, sign=True, help=points),
        ms("ttft_p50_before_ns", "TTFT before", priority=3),
        percent("error_rate_before", "Errors before", priority=3),
        number("requests", "Requests", priority=4),
        number("requests_before", "Requests before", priority=4),
    ]
    show_table(columns, frame, label="Largest changes")

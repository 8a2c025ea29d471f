"""Tables of traces and spans."""

from __future__ import annotations

import polars as pl

from dashboard import filters, trace_spans
from dashboard.tables import columns
from dashboard.tables.query_result import show_result


def show_traces(frame: pl.DataFrame) -> None:
    """Traces (`queries.traces.latest`). Each row links to its waterfall."""
    zone = filters.time_zone()
    columns.show(
        frame.select(
            ("traces?trace=" + pl.col("trace_id")).alias("link"),
            columns.local_time("began_at", zone),
            *columns.scaled(columns.NS_TO_MS, "duration_ns"),
            *("spans", "errors", "services", "names"),
        ),
        key="traces",
        height=560,
        alt="Traces",
        column_config={
            "link": columns.link("Trace", display_text=r"trace=([0-9a-f]{12})", width=120),
            "began_at": columns.instant(f"Started ({zone.key})", format="MM-DD HH:mm:ss.SSS"),
            "duration_ns": columns.ms("Duration"),
            "spans": columns.count("Spans"),
            "errors": columns.count("Errors"),
            "services": columns.text("Services", width="medium"),
            "names": columns.text("Span names", width="large"),
        },
    )


def show_spans(frame: pl.DataFrame) -> None:
    """The spans of one trace (`queries.traces.spans`)."""
    services = [trace_spans.service(span) for span in frame.to_dicts()]
    show_result(
        frame.select(
            "name", pl.Series("service", services), "kind", "status", "status_message",
            (pl.col("offset_ns") / 1e6).alias("offset, ms"), (pl.col("duration_ns") / 1e6).alias("duration, ms"),
            "span_id", "parent_span_id", "attributes", "events",
        ),
        key="spans",
    )  # fmt: skip

"""Tables of traces and spans."""

from __future__ import annotations

import polars as pl

from dashboard import filters, trace_spans
from dashboard.tables.columns import count, instant, link, local_time, ms, show, text
from dashboard.tables.query_result import show_result


def show_traces(frame: pl.DataFrame) -> None:
    """Traces (`queries.traces.latest`). Each row links to its waterfall."""
    zone = filters.time_zone()
    show(
        frame.select(
            ("traces?trace=" + pl.col("trace_id")).alias("link"),
            local_time("began_at", zone),
            (pl.col("duration_ns") / 1e6).alias("duration_ms"),
            "spans",
            "errors",
            "services",
            "names",
        ),
        key="traces",
        height=560,
        alt="Traces",
        column_config={
            "link": link("Trace", display_text=r"trace=([0-9a-f]{12})", width=120),
            "began_at": instant(f"Started ({zone.key})", format="MM-DD HH:mm:ss.SSS"),
            "duration_ms": ms("Duration"),
            "spans": count("Spans"),
            "errors": count("Errors"),
            "services": text("Services", width="medium"),
            "names": text("Span names", width="large"),
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

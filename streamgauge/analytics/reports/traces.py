"""The list of traces: which match a search, with their streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from streamgauge.analytics.reports import Query, columns
from streamgauge.analytics.reports.selection import GATEWAY, MODEL, Selection, contains_text
from streamgauge.analytics.schema.dimensions import is_one_of
from streamgauge.analytics.schema.outcomes import IS_ERROR
from streamgauge.analytics.schema.sql_quoting import literal

SERVICE = """CASE WHEN json_valid(attributes) THEN attributes->>'$."service.name"' END"""
"""SQL of a span's service name."""
FAILED = "lower(status) = 'error'"
SPANS_WITH_SERVICE = 20_000
"""Spans that `services` reads at most."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """Conditions for traces. An empty text and None match all."""

    text: str = ""
    """A part of the trace id, or of the name or the status message of a span, ignoring case."""
    service: str = ""
    errors: bool = False
    """Only traces with a failed span or stream."""
    min_ns: int | None = None
    max_ns: int | None = None
    outcomes: Sequence[str] = ()
    """Outcomes of streams. A trace has a stream with one of them."""

    def of_span(self) -> str:
        """SQL condition of one span: text and service."""
        parts = []
        if self.text:
            parts.append(contains_text(self.text, "trace_id", "name", "coalesce(status_message, '')"))
        if self.service:
            # The search for the text comes first: it costs less than the decoding of JSON.
            parts.append(f"contains(attributes, 'service.name') AND {SERVICE} = {literal(self.service)}")
        return " AND ".join(parts) or "TRUE"

    def of_trace(self) -> str:
        """SQL condition of all spans of a trace: its duration."""
        parts = [f"bool_or({self.of_span()})"]
        if self.min_ns is not None:
            parts.append(f"{DURATION_NS} >= {self.min_ns:d}")
        if self.max_ns is not None:
            parts.append(f"{DURATION_NS} <= {self.max_ns:d}")
        return " AND ".join(parts)


DURATION_NS = """(date_diff('microsecond', min(started_at), max(started_at + to_microseconds(duration_ns // 1000))) * 1000)::BIGINT"""
"""SQL of the duration of a group of spans."""


TABLE = columns.table(
    "Traces",
    columns.TRACE,
    columns.text("root", "First span", priority=2, min_characters=18),
    columns.outcome(help="Of the first failed stream, or else of the first stream."),
    columns.HTTP,
    replace(columns.CAUSE, state=lambda row: columns.outcome_state(row["outcome"])),
    columns.instant("began_at", "Started", priority=3),
    columns.ms("duration_ns", "Duration"),
    columns.number("errors", "Errors", help="Spans with the status error.", state=lambda row: "bad" if row["errors"] else None),
    columns.number("spans", "Spans", priority=3),
    columns.number("streams", "Streams", priority=6),
    columns.MODEL,
    columns.GATEWAY,
    columns.text("services", "Services", priority=4, min_characters=16),
    stacks=False,
    zone_of="Started",)  # fmt: skip


def latest(
    query: Query, selection: Selection, search: Search | None = None, *, most: int = 200, offset: int = 0
) -> pl.DataFrame:
    """Traces of the time range, newest first, without the first `offset`.

    `trace_id, began_at, duration_ns, spans, errors, services, root` (name of the first span), and of their streams `streams,
    outcome` (of the first failed stream, else of the first), `http_status, error_type, model, gateway`. The filters of the
    selection apply to the streams.
    """
    within = selection.within()
    search = search or Search()
    by_stream, failed_stream = "", ""
    if search.outcomes or selection.filters() != "TRUE":
        outcomes = is_one_of("outcome", search.outcomes) if search.outcomes else "TRUE"
        by_stream = f"AND trace_id IN (SELECT trace_id FROM streams WHERE {selection.where()} AND {outcomes})"
    if search.errors:
        failed_stream = f"AND (bool_or({FAILED}) OR trace_id IN (SELECT trace_id FROM streams WHERE {within} AND {IS_ERROR}))"
    return query(f"""
        WITH newest AS (
                SELECT trace_id FROM spans WHERE {within} {by_stream}
                GROUP BY trace_id HAVING {search.of_trace()} {failed_stream} ORDER BY max(started_at) DESC, trace_id
                LIMIT {most:d} OFFSET {offset:d}),
            of_spans AS (
                SELECT trace_id, min(started_at) AS began_at, {DURATION_NS} AS duration_ns, count(*) AS spans,
                    count(*) FILTER ({FAILED}) AS errors,
                    string_agg(DISTINCT {SERVICE}, ', ' ORDER BY {SERVICE}) AS services, arg_min(name, started_at) AS root
                FROM spans WHERE {within} AND trace_id IN (SELECT trace_id FROM newest) GROUP BY ALL),
            of_streams AS (
                SELECT trace_id, count(*) AS streams,
                    first({{'outcome': outcome, 'http_status': http_status, 'error_type': error_type, 'model': {MODEL},
                        'gateway': {GATEWAY}}} ORDER BY {IS_ERROR} DESC, started_at) AS shown
                FROM streams WHERE {within} AND trace_id IN (SELECT trace_id FROM newest) GROUP BY ALL)
        SELECT * EXCLUDE (shown), shown.*
        FROM of_spans LEFT JOIN of_streams USING (trace_id) ORDER BY began_at DESC, trace_id LIMIT {most:d}""")


def services(query: Query, selection: Selection, *, most: int = 50) -> list[str]:
    """Names of services among the spans of the time range."""
    within = selection.within()
    found = query(f"""
        SELECT DISTINCT {SERVICE} AS name FROM (SELECT attributes FROM spans WHERE {within} LIMIT {SPANS_WITH_SERVICE:d})
        WHERE name IS NOT NULL ORDER BY name LIMIT {most:d}""")
    return list(found["name"])

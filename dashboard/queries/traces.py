"""SQL for traces: their list, and the spans, streams and stalls of one trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from streamgauge.analytics.schema.dimensions import is_one_of
from streamgauge.analytics.schema.outcomes import IS_ERROR
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.dashboard.queries import Query
from streamgauge.dashboard.queries.selection import GATEWAY, MODEL, Selection, instant

SERVICE = """CASE WHEN json_valid(attributes) THEN attributes->>'$."service.name"' END"""
"""SQL of a span's service name."""
FAILED = "lower(status) = 'error'"
MAX_SPANS = 5_000
"""Spans of one trace that are read."""
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
            fields = ("trace_id", "name", "coalesce(status_message, '')")
            parts.append(
                "(" + " OR ".join(f"contains(lower({f}), lower({literal(self.text)}))" for f in fields) + ")"
            )
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


def latest(
    query: Query, selection: Selection, search: Search | None = None, *, most: int = 200
) -> pl.DataFrame:
    """Traces of the time range, newest first.

    `trace_id, began_at, duration_ns, spans, errors, services, root` (name of the first span), and of their streams `streams,
    outcome` (of the first failed stream, else of the first), `http_status, error_type, model, gateway`. The filters of the
    selection apply to the streams.
    """
    within = f"started_at >= {instant(selection.since)} AND started_at < {instant(selection.until)}"
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
                GROUP BY trace_id HAVING {search.of_trace()} {failed_stream} ORDER BY max(started_at) DESC LIMIT {most:d}),
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
        SELECT * EXCLUDE (shown), shown.outcome AS outcome, shown.http_status AS http_status, shown.error_type AS error_type,
            shown.model AS model, shown.gateway AS gateway
        FROM of_spans LEFT JOIN of_streams USING (trace_id) ORDER BY began_at DESC, trace_id LIMIT {most:d}""")


def services(query: Query, selection: Selection, *, most: int = 50) -> list[str]:
    """Names of services among the spans of the time range."""
    within = f"started_at >= {instant(selection.since)} AND started_at < {instant(selection.until)}"
    found = query(f"""
        SELECT DISTINCT {SERVICE} AS name FROM (SELECT attributes FROM spans WHERE {within} LIMIT {SPANS_WITH_SERVICE:d})
        WHERE name IS NOT NULL ORDER BY name LIMIT {most:d}""")
    return list(found["name"])


def spans(query: Query, trace_id: str, *, most: int = MAX_SPANS) -> tuple[pl.DataFrame, int]:
    """(spans of one trace with their start `at_ns` in Unix time, number of its spans).

    The tap's span replaces others with its id. Above `most`, spans with errors stay, then those of the tap, then the longest.
    """
    frame = query(f"""
        SELECT *, count(*) OVER () AS total FROM (
            SELECT *, epoch_us(started_at) * 1000 AS at_ns FROM spans WHERE trace_id = {literal(trace_id.lower())}
            QUALIFY row_number() OVER (PARTITION BY span_id ORDER BY stream_id NULLS LAST) = 1)
        ORDER BY {FAILED} DESC, stream_id IS NULL, duration_ns DESC, span_id LIMIT {most:d}""")
    return frame.drop("total"), int(frame["total"][0]) if frame.height else 0


MAX_STREAMS = 50
"""Streams of one trace that are read."""
PHASE_COLUMNS = """client_start_ns, connected_ns, request_sent_ns, headers_ns, ttfb_ns, ttft_ns, ttfo_ns, last_output_ns, end_ns,
    client_drain_ns"""


def streams_of(query: Query, trace_id: str, *, most: int = MAX_STREAMS) -> pl.DataFrame:
    """The finished streams with this trace id.

    `stream_id, span_id, parent_span_id, started_at, at_ns` (start in Unix time), `gateway, model, outcome, http_status, error_type,
    stall_count, waited_upstream_ns, waited_client_ns, tap_delay_ns` and `PHASE_COLUMNS`.
    """
    return query(f"""
        SELECT stream_id, span_id, parent_span_id, started_at, epoch_us(started_at) * 1000 AS at_ns, {GATEWAY} AS gateway,
            {MODEL} AS model, outcome, http_status, error_type, stall_count, waited_upstream_ns, waited_client_ns, tap_delay_ns,
            {PHASE_COLUMNS}
        FROM streams WHERE trace_id = {literal(trace_id.lower())} ORDER BY started_at LIMIT {most:d}""")


def streams_in_flight(query: Query, trace_id: str) -> int:
    """Number of streams in flight with this trace id."""
    found = query(f"SELECT count(*) AS n FROM open_streams WHERE trace_id = {literal(trace_id.lower())}")
    return int(found["n"][0])


def stalls_of(query: Query, stream_ids: list[str], *, most: int = 500) -> pl.DataFrame:
    """The longest stalls of streams: `stream_id, at_ns` (of the output event before it), `gap_ns, cause`."""
    ids = ", ".join(f"{literal(one)}::UUID" for one in stream_ids) or "NULL"
    return query(f"""
        SELECT stream_id, at_ns, gap_ns, cause FROM stalls WHERE stream_id IN ({ids})
        ORDER BY gap_ns DESC, at_ns LIMIT {most:d}""")


def attempts_of(query: Query, stream_ids: list[str], *, most: int = 200) -> pl.DataFrame:
    """The rows of `hops` with these streams as the outer ones."""
    ids = ", ".join(f"{literal(one)}::UUID" for one in stream_ids) or "NULL"
    return query(
        f"SELECT * FROM hops WHERE outer_stream_id IN ({ids}) ORDER BY outer_started_at, attempt LIMIT {most:d}"
    )


def any_span(query: Query) -> bool:
    """Whether the store has any span."""
    return bool(query("SELECT EXISTS (SELECT 1 FROM spans) AS found")["found"][0])

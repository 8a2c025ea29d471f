"""SQL for traces: the list, and the spans of one trace."""

from __future__ import annotations

import polars as pl

from analytics.schema.sql_quoting import literal
from dashboard.queries import Query
from dashboard.queries.selection import MODEL, Selection, instant

SERVICE = """CASE WHEN json_valid(attributes) THEN attributes->>'$."service.name"' END"""
"""SQL of a span's service name."""


def latest(query: Query, selection: Selection, *, text: str = "", most: int = 200) -> pl.DataFrame:
    """Traces of the time range, newest first: `trace_id, began_at, spans, duration_ns, services, names, errors`.

    Reads only the spans of the newest `most` traces, so the cost does not depend on the number of traces.
    """
    within = f"started_at >= {instant(selection.since)} AND started_at < {instant(selection.until)}"
    matches = (
        f"AND (contains(lower(trace_id), lower({literal(text)})) OR contains(lower(name), lower({literal(text)})) "
        f"OR contains(lower(coalesce(status_message, '')), lower({literal(text)})))"
        if text
        else ""
    )
    return query(f"""
        WITH newest AS (
            SELECT trace_id FROM spans WHERE {within} {matches}
            GROUP BY trace_id ORDER BY max(started_at) DESC LIMIT {most:d})
        SELECT trace_id, min(started_at) AS began_at, count(*) AS spans,
            (date_diff('microsecond', min(started_at), max(started_at + to_microseconds(duration_ns // 1000))) * 1000)::BIGINT
                AS duration_ns,
            string_agg(DISTINCT coalesce({SERVICE}, '?'), ', ' ORDER BY coalesce({SERVICE}, '?')) AS services,
            string_agg(DISTINCT name, ', ' ORDER BY name) AS names, count(*) FILTER (lower(status) = 'error') AS errors
        FROM spans WHERE {within} AND trace_id IN (SELECT trace_id FROM newest)
        GROUP BY ALL ORDER BY began_at DESC, trace_id LIMIT {most:d}""")


def spans(query: Query, trace_id: str, *, most: int = 1000) -> pl.DataFrame:
    """The spans of one trace by their start, with `offset_ns` from the first. The tap's span replaces others with its id."""
    return query(f"""
        SELECT *, (date_diff('microsecond', min(started_at) OVER (), started_at) * 1000)::BIGINT AS offset_ns
        FROM spans WHERE trace_id = {literal(trace_id.lower())}
        QUALIFY row_number() OVER (PARTITION BY span_id ORDER BY stream_id NULLS LAST) = 1
        ORDER BY started_at, start_ns, kind = 'internal', duration_ns LIMIT {most:d}""")


def streams_of(query: Query, trace_id: str) -> pl.DataFrame:
    """The finished streams with this trace id, at most 50.

    `stream_id, span_id, parent_span_id, gateway, model, outcome, client_start_ns, request_sent_ns, end_ns, client_drain_ns`.
    """
    return query(f"""
        SELECT stream_id, span_id, parent_span_id, gateway, {MODEL} AS model, outcome, client_start_ns, request_sent_ns, end_ns,
            client_drain_ns
        FROM streams WHERE trace_id = {literal(trace_id.lower())} ORDER BY started_at LIMIT 50""")


def any_span(query: Query) -> bool:
    """Whether the store has any span."""
    return bool(query("SELECT EXISTS (SELECT 1 FROM spans) AS found")["found"][0])

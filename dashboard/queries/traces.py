"""SQL of spans: the list of traces, and one of them."""

from __future__ import annotations

import polars as pl

from dashboard.queries import Ask
from dashboard.queries.selection import Selection, instant, literal


def latest(ask: Ask, selection: Selection, *, text: str = "", most: int = 200) -> pl.DataFrame:
    """Columns `trace_id, began_at, spans, duration_ns, names, errors` of traces that began in the time range, newest first."""
    found = (
        f"AND (contains(lower(trace_id), lower({literal(text)})) OR contains(lower(name), lower({literal(text)})))"
        if text
        else ""
    )
    return ask(f"""
        SELECT trace_id, min(started_at) AS began_at, count(*) AS spans,
            (date_diff('microsecond', min(started_at), max(started_at + to_microseconds(duration_ns // 1000))) * 1000)::BIGINT
                AS duration_ns,
            string_agg(DISTINCT name, ', ') AS names, count(*) FILTER (lower(status) = 'error') AS errors
        FROM spans WHERE started_at >= {instant(selection.since)} AND started_at < {instant(selection.until)} {found}
        GROUP BY ALL ORDER BY began_at DESC LIMIT {most:d}""")


def spans(ask: Ask, trace_id: str, *, most: int = 1000) -> pl.DataFrame:
    """The spans of one trace by their start, with `offset_ns` from the first."""
    return ask(f"""
        SELECT *, (date_diff('microsecond', min(started_at) OVER (), started_at) * 1000)::BIGINT AS offset_ns
        FROM spans WHERE trace_id = {literal(trace_id.lower())} ORDER BY started_at, start_ns LIMIT {most:d}""")


def streams_of(ask: Ask, trace_id: str) -> list[str]:
    """The ids of the finished streams that carry this trace id, at most 50."""
    frame = ask(
        f"SELECT stream_id FROM streams WHERE trace_id = {literal(trace_id.lower())} ORDER BY started_at LIMIT 50"
    )
    return [str(found) for found in frame["stream_id"]]


def any_span(ask: Ask) -> bool:
    """Whether spans are kept at all."""
    return bool(ask("SELECT EXISTS (SELECT 1 FROM spans) AS found")["found"][0])

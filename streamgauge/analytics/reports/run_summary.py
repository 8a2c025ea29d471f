"""What happened in a time range, for the summary of `streamgauge run`: measures by model, times of tools, errors, stalls, cost."""

from __future__ import annotations

import polars as pl

from streamgauge.analytics.reports import Query, number_of
from streamgauge.analytics.reports.errors import CAUSE_AND_TYPE
from streamgauge.analytics.reports.overview import SUMMARY, SUMMARY_COLUMNS
from streamgauge.analytics.reports.selection import Selection, dimension, instant
from streamgauge.analytics.schema.dimensions import TO_MODEL
from streamgauge.analytics.schema.outcomes import IS_ERROR, IS_REQUEST

MAX_GROUPS = 1000


def by_group(query: Query, selection: Selection, by: str = "model") -> pl.DataFrame:
    """`name` (NULL: all together, the first row) and the columns of `SUMMARY_COLUMNS`, busiest first. Empty without requests."""
    group = dimension(by)
    return query(f"""
        SELECT name, {SUMMARY_COLUMNS} FROM (
            SELECT {group} AS name, grouping({group}) AS is_total, {SUMMARY} FROM streams
            WHERE {selection.where()} AND {IS_REQUEST} GROUP BY GROUPING SETS ((), ({group})))
        WHERE requests > 0 ORDER BY is_total DESC, requests DESC, name LIMIT {MAX_GROUPS:d}""").drop(
        "is_total"
    )


def exchanges(query: Query, selection: Selection) -> int:
    """The number of streams without the answers on WebSockets."""
    return number_of(query, "count(*)", f"streams WHERE {selection.where()} AND connection_id IS NULL")


def times(query: Query, selection: Selection) -> tuple[int, int, int]:
    """Nanoseconds in which at least one request to a model was open, pauses for tools of sessions, and the number of sessions."""
    row = query(f"""
        WITH chosen AS (
            SELECT session_id, epoch_ns(started_at) AS from_ns, from_ns + coalesce(end_ns, 0) AS until_ns
            FROM streams WHERE {selection.where()} AND {IS_REQUEST} AND {TO_MODEL}
        ), ordered AS (
            SELECT *, max(until_ns) OVER (ORDER BY from_ns, until_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS covered_ns
            FROM chosen
        )
        SELECT coalesce(sum(greatest(0, until_ns - greatest(from_ns, coalesce(covered_ns, 0)))), 0)::BIGINT AS model_ns,
            (SELECT coalesce(sum(tool_ns), 0)::BIGINT FROM sessions WHERE session_id IN (SELECT session_id FROM chosen)) AS tool_ns,
            (SELECT count(*) FROM sessions WHERE session_id IN (SELECT session_id FROM chosen)) AS sessions
        FROM ordered""").row(0)
    return int(row[0]), int(row[1]), int(row[2])


def failures(query: Query, selection: Selection, *, most: int) -> pl.DataFrame:
    """`cause, error_phase, n`: the causes of errors, most frequent first."""
    return query(f"""
        SELECT {CAUSE_AND_TYPE} AS cause, error_phase, count(*) AS n
        FROM streams WHERE {selection.where()} AND {IS_ERROR} AND {IS_REQUEST}
        GROUP BY ALL ORDER BY n DESC, cause, error_phase LIMIT {most:d}""")


def stalls(query: Query, selection: Selection) -> pl.DataFrame:
    """`cause, stalls, streams, longest_ns`, the most frequent cause first."""
    return query(f"""
        SELECT cause, count(*) AS stalls, count(DISTINCT stream_id) AS streams, max(gap_ns) AS longest_ns
        FROM stalls WHERE stream_id IN (SELECT stream_id FROM streams WHERE {selection.where()})
        GROUP BY cause ORDER BY stalls DESC, cause""")


def cost(query: Query, selection: Selection) -> pl.DataFrame:
    """`currency, cost, requests, estimated` of the requests with a price. Empty without prices."""
    return query(f"""
        SELECT currency, sum(total) AS cost, count(total) AS requests, count(total) FILTER (source = 'estimate') AS estimated
        FROM spend WHERE {selection.where()} AND total IS NOT NULL GROUP BY currency ORDER BY currency""")


def cost_of_agents(query: Query, selection: Selection) -> pl.DataFrame:
    """`agent, cost, requests`: the cost in USD as agents estimate it."""
    return query(f"""
        SELECT agent, sum(cost) AS cost, count(cost) AS requests FROM agent_events
        WHERE occurred_at BETWEEN {instant(selection.since)} AND {instant(selection.until)} AND cost IS NOT NULL
        GROUP BY agent ORDER BY agent""")

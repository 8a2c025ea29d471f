"""SQL for errors, client aborts and wasted tokens."""

from __future__ import annotations

import polars as pl

from analytics.schema.outcomes import ERROR_RATE, IS_ERROR, IS_REQUEST, REQUESTS
from dashboard.queries import Query
from dashboard.queries.selection import DIMENSIONS, Selection

GROUPINGS: dict[str, str] = {
    **DIMENSIONS,
    "phase": "coalesce(error_phase, '–')",
    "type": "coalesce(error_type, '–')",
    "HTTP status": "coalesce(CAST(http_status AS VARCHAR), '–')",
}
"""Grouping → SQL of its value."""


def outcomes_timeline(query: Query, selection: Selection) -> pl.DataFrame:
    """`at, outcome, n`: streams by outcome over time, without `ok`."""
    return query(f"""
        SELECT {selection.bucket()} AS "at", outcome, count(*) AS n FROM streams
        WHERE {selection.where()} AND outcome <> 'ok' GROUP BY ALL ORDER BY "at", outcome""")


def rate_timeline(query: Query, selection: Selection, dimension: str, *, most: int = 7) -> pl.DataFrame:
    """`at, name, error_rate, n` of the `most` groups with the most errors."""
    return query(f"""
        WITH chosen AS (SELECT *, {DIMENSIONS[dimension]} AS name FROM streams WHERE {selection.where()} AND {IS_REQUEST}),
            worst AS (SELECT name FROM chosen GROUP BY name
                ORDER BY count(*) FILTER ({IS_ERROR}) DESC, name LIMIT {most:d})
        SELECT {selection.bucket()} AS "at", name, {ERROR_RATE} AS error_rate, count(*) AS n
        FROM chosen WHERE name IN (SELECT name FROM worst) GROUP BY ALL ORDER BY "at", name""")


def counts(query: Query, selection: Selection, grouping: str, *, most: int = 15) -> pl.DataFrame:
    """`name, outcome, n`: errors of the `most` largest groups."""
    return query(f"""
        WITH chosen AS (SELECT {GROUPINGS[grouping]} AS name, outcome FROM streams WHERE {selection.where()} AND {IS_ERROR}),
            largest AS (SELECT name FROM chosen GROUP BY name ORDER BY count(*) DESC, name LIMIT {most:d})
        SELECT name, outcome, count(*) AS n FROM chosen WHERE name IN (SELECT name FROM largest)
        GROUP BY ALL ORDER BY n DESC, name""")


def kinds(query: Query, selection: Selection, *, most: int = 100) -> pl.DataFrame:
    """`outcome, error_phase, error_type, http_status, n, models, gateways, last_at, message`: the kinds of errors."""
    return query(f"""
        SELECT outcome, error_phase, error_type, http_status, count(*) AS n,
            count(DISTINCT {DIMENSIONS["model"]}) AS models, count(DISTINCT {DIMENSIONS["gateway"]}) AS gateways,
            max(started_at) AS last_at, arg_max(error_message, started_at) AS message
        FROM streams WHERE {selection.where()} AND {IS_ERROR} GROUP BY ALL ORDER BY n DESC, outcome LIMIT {most:d}""")


ABORTS = f"""
    count(*) FILTER (outcome = 'client_abort') AS aborts, aborts / nullif({REQUESTS}, 0) AS abort_share,
    count(*) FILTER (outcome = 'client_abort' AND ttft_ns IS NULL) AS before_output,
    sum(output_tokens) FILTER (outcome = 'client_abort')::BIGINT AS output_tokens,
    sum(output_tokens * (1 - least(delivered_bytes / nullif(response_bytes, 0), 1))) FILTER (outcome = 'client_abort')
        AS wasted_tokens,
    sum(response_bytes - delivered_bytes) FILTER (outcome = 'client_abort')::BIGINT AS undelivered_bytes"""
"""Aggregates of client aborts. Undelivered tokens are estimated from the undelivered share of the bytes."""


def abort_summary(query: Query, selection: Selection) -> dict[str, float | None]:
    """Client aborts: `aborts, abort_share, aborts_with_tokens, output_tokens, wasted_tokens, undelivered_bytes, before_output,
    lost, refused, after_terminal`.

    - `aborts_with_tokens`: aborted streams with known output tokens. `output_tokens` are their tokens and `wasted_tokens` the
      undelivered part of them.
    - `before_output`: aborted before the first token.
    - `lost`: streams lost by the tap; `refused`: requests that the tap refused. Neither are aborts.
    - `after_terminal`: the client left after the terminal event, which is no abort.
    """
    rows = query(f"""
        SELECT {ABORTS}, count(output_tokens) FILTER (outcome = 'client_abort') AS aborts_with_tokens,
            count(*) FILTER (outcome = 'tap_lost') AS lost,
            count(*) FILTER (outcome = 'refused') AS refused,
            count(*) FILTER (aborted_after_terminal) AS after_terminal
        FROM streams WHERE {selection.where()}""").to_dicts()
    found: dict[str, float | None] = rows[0]
    return found


def aborts(query: Query, selection: Selection, dimension: str, *, most: int = 50) -> pl.DataFrame:
    """`name, requests, aborts, abort_share, before_output, aborted_after_ns` (median), `output_tokens, wasted_tokens,
    undelivered_bytes` of the groups with client aborts."""
    return query(f"""
        SELECT * FROM (
            SELECT {DIMENSIONS[dimension]} AS name, {REQUESTS} AS requests, {ABORTS},
                quantile_cont(end_ns, 0.5) FILTER (outcome = 'client_abort') AS aborted_after_ns
            FROM streams WHERE {selection.where()} GROUP BY ALL)
        WHERE aborts > 0 ORDER BY aborts DESC, name LIMIT {most:d}""")

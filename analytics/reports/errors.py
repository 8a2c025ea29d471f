"""SQL for errors, client aborts and undelivered tokens."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from streamgauge.analytics.reports import Query
from streamgauge.analytics.reports.selection import DIMENSIONS, Selection, dimension, instant
from streamgauge.analytics.schema.dimensions import ENDED_AT
from streamgauge.analytics.schema.outcomes import ERROR_RATE, IS_ERROR, IS_REQUEST, REQUESTS

CAUSE = (
    "CASE WHEN outcome = 'http_error' THEN 'HTTP ' || coalesce(http_status::VARCHAR, '?') ELSE outcome END"
)
"""SQL of the short name of an error's cause."""
CAUSE_AND_TYPE = f"""{CAUSE}
    || CASE WHEN error_type IS NULL OR error_type IN (outcome, http_status::VARCHAR) THEN '' ELSE ' · ' || left(error_type, 60) END"""
"""SQL of the cause with the error type, if that says more."""


def causes_timeline(query: Query, selection: Selection, *, most: int = 7) -> pl.DataFrame:
    """`at, cause, n`: errors over time by the `most` frequent causes, and "others"."""
    return query(f"""
        WITH chosen AS (SELECT {selection.bucket()} AS "at", {CAUSE} AS cause FROM streams
                WHERE {selection.where()} AND {IS_ERROR} AND {IS_REQUEST}),
            frequent AS (SELECT cause FROM chosen GROUP BY cause ORDER BY count(*) DESC, cause LIMIT {most:d})
        SELECT "at", CASE WHEN cause IN (SELECT cause FROM frequent) THEN cause ELSE 'others' END AS cause, count(*) AS n
        FROM chosen GROUP BY ALL ORDER BY "at", cause""")


def rate_timeline(query: Query, selection: Selection) -> pl.DataFrame:
    """`at, error_rate, n` of all requests."""
    return query(f"""
        SELECT {selection.bucket()} AS "at", {ERROR_RATE} AS error_rate, count(*) AS n
        FROM streams WHERE {selection.where()} AND {IS_REQUEST} GROUP BY ALL ORDER BY "at" """)


def worst_pairs(query: Query, selection: Selection, *, most: int = 6) -> pl.DataFrame:
    """`at, model, gateway, error_rate, n, errors, total_errors, total_n` over time of the `most` pairs with most errors above
    their share, worst first. The totals are those of the pair."""
    return query(f"""
        WITH chosen AS (
                SELECT *, {DIMENSIONS["model"]} AS the_model, {DIMENSIONS["gateway"]} AS the_gateway
                FROM streams WHERE {selection.where()} AND {IS_REQUEST}),
            overall AS (SELECT {ERROR_RATE} AS rate FROM chosen),
            worst AS (
                SELECT the_model, the_gateway, count(*) FILTER ({IS_ERROR}) AS total_errors, count(*) AS total_n,
                    total_errors - total_n * any_value(overall.rate) AS excess
                FROM chosen, overall GROUP BY the_model, the_gateway HAVING total_errors > 0
                ORDER BY excess DESC, the_model, the_gateway LIMIT {most:d})
        SELECT {selection.bucket()} AS "at", the_model AS model, the_gateway AS gateway, {ERROR_RATE} AS error_rate,
            count(*) AS n, count(*) FILTER ({IS_ERROR}) AS errors, any_value(total_errors) AS total_errors,
            any_value(total_n) AS total_n
        FROM chosen JOIN worst USING (the_model, the_gateway)
        GROUP BY "at", the_model, the_gateway ORDER BY any_value(excess) DESC, model, gateway, "at" """)


def matrix(query: Query, selection: Selection, *, most: int = 200) -> pl.DataFrame:
    """`model, gateway, requests, errors, error_rate` of each pair with requests, most errors first."""
    return query(f"""
        SELECT {DIMENSIONS["model"]} AS model, {DIMENSIONS["gateway"]} AS gateway, {REQUESTS} AS requests,
            count(*) FILTER ({IS_ERROR}) AS errors, {ERROR_RATE} AS error_rate
        FROM streams WHERE {selection.where()} AND {IS_REQUEST} GROUP BY ALL
        ORDER BY errors DESC, requests DESC, model, gateway LIMIT {most:d}""")


def causes(
    query: Query, selection: Selection, onset: datetime | None = None, *, most: int = 100
) -> pl.DataFrame:
    """`http_status, error_type, error_phase, n, share, clients, models, gateways, first_at, last_at, before_onset, stream_id,
    message`: the causes of errors, most frequent first.

    `share` is the share of all errors of the selection. `stream_id` and `message` are those of the newest error. A stream fails
    when it ends, as the onset of a diagnosis counts it. `before_onset` is NULL without an onset.
    """
    before = "NULL::BIGINT" if onset is None else f"count(*) FILTER (failed_at < {instant(onset)})"
    return query(f"""
        SELECT http_status, error_type, error_phase, count(*) AS n, count(*) / sum(count(*)) OVER () AS share,
            count(DISTINCT {DIMENSIONS["client"]}) AS clients, count(DISTINCT {DIMENSIONS["model"]}) AS models,
            count(DISTINCT {DIMENSIONS["gateway"]}) AS gateways, min(failed_at) AS first_at, max(failed_at) AS last_at,
            {before} AS before_onset, arg_max(stream_id, started_at) AS stream_id, arg_max(error_message, started_at) AS message
        FROM (SELECT *, {ENDED_AT} AS failed_at
            FROM streams WHERE {selection.where()} AND {IS_ERROR} AND {IS_REQUEST})
        GROUP BY http_status, error_type, error_phase
        ORDER BY n DESC, http_status, error_type, error_phase LIMIT {most:d}""")


def violations(query: Query, selection: Selection, *, most: int = 100) -> pl.DataFrame:
    """`gateway, upstream, model, rule, dialect, n, share, first_at, last_at, stream_id` (the newest): streams that break rules of
    strict clients, most frequent first. `share` is that of the streams of the place and dialect that were checked."""
    place = f"""{DIMENSIONS["gateway"]} AS gateway, coalesce(server_address, '') AS upstream, {DIMENSIONS["model"]} AS model, dialect"""
    return query(f"""
        WITH chosen AS (SELECT {place}, violations, started_at, stream_id FROM streams
                WHERE {selection.where()} AND violations IS NOT NULL),
            checked AS (SELECT gateway, upstream, model, dialect, count(*) AS checked FROM chosen GROUP BY ALL)
        SELECT gateway, upstream, model, rule, dialect, count(*) AS n, n / any_value(checked) AS share,
            min(started_at) AS first_at, max(started_at) AS last_at, arg_max(stream_id, started_at) AS stream_id
        FROM (SELECT * EXCLUDE (violations), unnest(violations) AS rule FROM chosen WHERE len(violations) > 0)
        JOIN checked USING (gateway, upstream, model, dialect)
        GROUP BY gateway, upstream, model, rule, dialect ORDER BY n DESC, gateway, upstream, model, rule LIMIT {most:d}""")


ABORTS = f"""
    count(*) FILTER (outcome = 'client_abort') AS aborts, aborts / nullif({REQUESTS}, 0) AS abort_share,
    count(*) FILTER (outcome = 'client_abort' AND ttft_ns IS NULL) AS before_output,
    sum(output_tokens) FILTER (outcome = 'client_abort')::BIGINT AS output_tokens,
    sum(output_tokens * (1 - least(delivered_bytes / nullif(response_bytes, 0), 1))) FILTER (outcome = 'client_abort')
        AS undelivered_tokens,
    sum(response_bytes - delivered_bytes) FILTER (outcome = 'client_abort')::BIGINT AS undelivered_bytes"""
"""Aggregates of client aborts. Undelivered tokens are estimated from the undelivered share of the bytes."""


def abort_summary(query: Query, selection: Selection) -> dict[str, float | None]:
    """Client aborts: `aborts, abort_share, aborts_with_tokens, output_tokens, undelivered_tokens, undelivered_bytes, before_output,
    lost, refused, after_terminal`.

    - `aborts_with_tokens`: aborted streams with known output tokens. `output_tokens` are their tokens and `undelivered_tokens` the
      undelivered part of them.
    - `before_output`: aborted before the first token.
    - `lost`: streams lost by the tap; `refused`: requests that the tap refused. Neither are aborts.
    - `after_terminal`: the client disconnected after the terminal event, which is no abort.
    """
    return query(f"""
        SELECT {ABORTS}, count(output_tokens) FILTER (outcome = 'client_abort') AS aborts_with_tokens,
            count(*) FILTER (outcome = 'tap_lost') AS lost,
            count(*) FILTER (outcome = 'refused') AS refused,
            count(*) FILTER (aborted_after_terminal) AS after_terminal
        FROM streams WHERE {selection.where()}""").to_dicts()[0]


def aborts(query: Query, selection: Selection, by: str, *, most: int = 50) -> pl.DataFrame:
    """`name, requests, aborts, abort_share, before_output, aborted_after_ns` (median), `output_tokens, undelivered_tokens,
    undelivered_bytes` of the groups with client aborts."""
    return query(f"""
        SELECT * FROM (
            SELECT {dimension(by)} AS name, {REQUESTS} AS requests, {ABORTS},
                quantile_cont(end_ns, 0.5) FILTER (outcome = 'client_abort') AS aborted_after_ns
            FROM streams WHERE {selection.where()} GROUP BY ALL)
        WHERE aborts > 0 ORDER BY aborts DESC, name LIMIT {most:d}""")

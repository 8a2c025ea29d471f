"""SQL of what went wrong, and what the client left behind."""

from __future__ import annotations

import polars as pl

from analytics.schema.outcomes import ERROR_RATE, IS_ERROR
from dashboard.queries import Ask
from dashboard.queries.selection import DIMENSIONS, Selection

SPLITS: dict[str, str] = {
    **DIMENSIONS,
    "phase": "coalesce(error_phase, '–')",
    "type": "coalesce(error_type, '–')",
    "outcome": "outcome",
    "HTTP status": "coalesce(CAST(http_status AS VARCHAR), '–')",
}
"""What errors can be split by: name → SQL."""


def outcomes_timeline(ask: Ask, selection: Selection) -> pl.DataFrame:
    """Columns `at, outcome, n`: every outcome but `ok` over time."""
    return ask(f"""
        SELECT {selection.bucket()} AS "at", outcome, count(*) AS n FROM streams
        WHERE {selection.where()} AND outcome <> 'ok' GROUP BY ALL ORDER BY "at", outcome""")


def rate_timeline(ask: Ask, selection: Selection, dimension: str, *, most: int = 7) -> pl.DataFrame:
    """Columns `at, name, error_rate, n` of the `most` groups with the most errors."""
    return ask(f"""
        WITH chosen AS (SELECT *, {DIMENSIONS[dimension]} AS name FROM streams WHERE {selection.where()}),
            worst AS (SELECT name FROM chosen GROUP BY name
                ORDER BY count(*) FILTER ({IS_ERROR}) DESC, name LIMIT {most:d})
        SELECT {selection.bucket()} AS "at", name, {ERROR_RATE} AS error_rate, count(*) AS n
        FROM chosen WHERE name IN (SELECT name FROM worst) GROUP BY ALL ORDER BY "at", name""")


def counts(ask: Ask, selection: Selection, split: str, *, most: int = 15) -> pl.DataFrame:
    """Columns `name, outcome, n`: errors by a split, stacked by outcome, of the `most` largest."""
    return ask(f"""
        WITH chosen AS (SELECT {SPLITS[split]} AS name, outcome FROM streams WHERE {selection.where()} AND {IS_ERROR}),
            largest AS (SELECT name FROM chosen GROUP BY name ORDER BY count(*) DESC, name LIMIT {most:d})
        SELECT name, outcome, count(*) AS n FROM chosen WHERE name IN (SELECT name FROM largest)
        GROUP BY ALL ORDER BY n DESC, name""")


def kinds(ask: Ask, selection: Selection, *, most: int = 100) -> pl.DataFrame:
    """Columns `outcome, error_phase, error_type, http_status, n, models, gateways, last_at, message`: each kind of error."""
    return ask(f"""
        SELECT outcome, error_phase, error_type, http_status, count(*) AS n,
            count(DISTINCT {DIMENSIONS["model"]}) AS models, count(DISTINCT {DIMENSIONS["gateway"]}) AS gateways,
            max(started_at) AS last_at, arg_max(error_message, started_at) AS message
        FROM streams WHERE {selection.where()} AND {IS_ERROR} GROUP BY ALL ORDER BY n DESC, outcome LIMIT {most:d}""")


WASTED_TOKENS = "output_tokens * (1 - least(delivered_bytes / nullif(response_bytes, 0), 1))"
"""Output tokens that came from the upstream and never went to the client: by the part of the bytes that did not."""


def left_behind(ask: Ask, selection: Selection) -> dict[str, float | None]:
    """Client aborts apart: `aborts, abort_share, told, output_tokens, wasted_tokens, undelivered_bytes, before_output, lost,
    after_terminal`.

    `told`: aborted streams whose output tokens are known; `output_tokens` are theirs, `wasted_tokens` the part of these
    that the client never got. `undelivered_bytes` came from upstream and never went to the client; `before_output`: aborted
    while waiting for the first token.
    """
    rows = ask(f"""
        SELECT count(*) FILTER (outcome = 'client_abort') AS aborts, aborts / nullif(count(*), 0) AS abort_share,
            count(output_tokens) FILTER (outcome = 'client_abort') AS told,
            sum(output_tokens) FILTER (outcome = 'client_abort')::BIGINT AS output_tokens,
            sum({WASTED_TOKENS}) FILTER (outcome = 'client_abort') AS wasted_tokens,
            sum(response_bytes - delivered_bytes) FILTER (outcome = 'client_abort')::BIGINT AS undelivered_bytes,
            count(*) FILTER (outcome = 'client_abort' AND ttft_ns IS NULL) AS before_output,
            count(*) FILTER (outcome = 'tap_lost') AS lost,
            count(*) FILTER (aborted_after_terminal) AS after_terminal
        FROM streams WHERE {selection.where()}""").to_dicts()
    found: dict[str, float | None] = rows[0]
    return found


def aborts(ask: Ask, selection: Selection, dimension: str, *, most: int = 50) -> pl.DataFrame:
    """Columns `name, requests, aborts, abort_share, before_output, left_after_ns, output_tokens, wasted_tokens,
    undelivered_bytes` of the groups with aborts; `left_after_ns`: the median of when the client left."""
    return ask(f"""
        SELECT * FROM (
            SELECT {DIMENSIONS[dimension]} AS name, count(*) AS requests,
                count(*) FILTER (outcome = 'client_abort') AS aborts, aborts / requests AS abort_share,
                count(*) FILTER (outcome = 'client_abort' AND ttft_ns IS NULL) AS before_output,
                quantile_cont(end_ns, 0.5) FILTER (outcome = 'client_abort') AS left_after_ns,
                sum(output_tokens) FILTER (outcome = 'client_abort')::BIGINT AS output_tokens,
                sum({WASTED_TOKENS}) FILTER (outcome = 'client_abort') AS wasted_tokens,
                sum(response_bytes - delivered_bytes) FILTER (outcome = 'client_abort')::BIGINT AS undelivered_bytes
            FROM streams WHERE {selection.where()} GROUP BY ALL)
        WHERE aborts > 0 ORDER BY aborts DESC, name LIMIT {most:d}""")

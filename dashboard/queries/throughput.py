"""SQL of how much flows: tokens, speed and concurrency."""

from __future__ import annotations

import polars as pl

from dashboard.queries import Ask
from dashboard.queries.selection import DIMENSIONS, Selection, instant

CONCURRENT_AT_MOST_S = 3600
"""Streams that began earlier than this before the range are not looked for when concurrency is counted."""


def tokens_timeline(ask: Ask, selection: Selection) -> pl.DataFrame:
    """Columns `at, kind, tokens`: input (fresh), input (cached), reasoning and answer tokens by the start of the stream."""
    return ask(f"""
        WITH t AS (
            SELECT {selection.bucket()} AS "at",
                sum(input_tokens - coalesce(cached_input_tokens, 0))::BIGINT AS "input, fresh",
                sum(cached_input_tokens)::BIGINT AS "input, cached",
                sum(reasoning_tokens)::BIGINT AS "output, reasoning",
                sum(output_tokens - coalesce(reasoning_tokens, 0))::BIGINT AS "output, answer"
            FROM streams WHERE {selection.where()} GROUP BY ALL)
        SELECT "at", kind, tokens FROM (
            UNPIVOT t ON "input, fresh", "input, cached", "output, reasoning", "output, answer" INTO NAME kind VALUE tokens)
        ORDER BY "at", kind""")


def speed_timeline(ask: Ask, selection: Selection, dimension: str, *, most: int = 7) -> pl.DataFrame:
    """Columns `at, name, tps_user, output_tokens, n`: median speed per stream, and tokens, of the busiest."""
    return ask(f"""
        WITH chosen AS (SELECT *, {DIMENSIONS[dimension]} AS name FROM streams WHERE {selection.where()}),
            busiest AS (SELECT name FROM chosen GROUP BY name ORDER BY count(*) DESC, name LIMIT {most:d})
        SELECT {selection.bucket()} AS "at", name, quantile_cont(tps_user, 0.5) AS tps_user,
            sum(output_tokens)::BIGINT AS output_tokens, count(*) AS n
        FROM chosen WHERE name IN (SELECT name FROM busiest) GROUP BY ALL ORDER BY "at", name""")


def concurrency(ask: Ask, selection: Selection) -> pl.DataFrame:
    """Columns `at, peak`: the most streams open at once, per point of time; streams that still run included.

    A point of time without start or end of a stream has no row: the number did not change there.
    """
    early = f"{instant(selection.since)} - INTERVAL '{CONCURRENT_AT_MOST_S} seconds'"
    return ask(f"""
        WITH lives AS (
                SELECT started_at, started_at + to_microseconds(coalesce(end_ns, 0) // 1000) AS ended_at FROM streams
                WHERE started_at >= {early} AND started_at < {instant(selection.until)} AND {selection.filters()}
                UNION ALL SELECT started_at, NULL FROM open_streams
                WHERE started_at < {instant(selection.until)} AND {selection.filters()}),
            steps AS (
                SELECT started_at AS "at", 1 AS step FROM lives
                UNION ALL SELECT ended_at, -1 FROM lives WHERE ended_at < {instant(selection.until)}),
            running AS (
                SELECT "at", greatest(step, 0) - step + sum(step) OVER (ORDER BY "at", step DESC) AS open FROM steps)
        SELECT time_bucket(INTERVAL '{selection.bucket_s} seconds', greatest("at", {instant(selection.since)})) AS "at",
            max(open)::BIGINT AS peak
        FROM running WHERE "at" >= {instant(selection.since)} GROUP BY ALL ORDER BY "at" """)


def table(ask: Ask, selection: Selection, dimension: str, *, most: int = 50) -> pl.DataFrame:
    """Columns `name, requests, input_tokens, cached_share, output_tokens, reasoning_share, output_per_s, tps_user_p50,
    tps_user_p5, tps_e2e_p50, burstiness_p50, known` by group; `known`: the share of streams whose tokens are known."""
    seconds = selection.length.total_seconds()
    return ask(f"""
        SELECT {DIMENSIONS[dimension]} AS name, count(*) AS requests, sum(input_tokens)::BIGINT AS input_tokens,
            sum(cached_input_tokens) / nullif(sum(input_tokens) FILTER (cached_input_tokens IS NOT NULL), 0) AS cached_share,
            sum(output_tokens)::BIGINT AS output_tokens,
            sum(reasoning_tokens) / nullif(sum(output_tokens) FILTER (reasoning_tokens IS NOT NULL), 0) AS reasoning_share,
            sum(output_tokens) / {seconds:.3f} AS output_per_s,
            quantile_cont(tps_user, 0.5) AS tps_user_p50, quantile_cont(tps_user, 0.05) AS tps_user_p5,
            quantile_cont(tps_e2e, 0.5) AS tps_e2e_p50, quantile_cont(burstiness, 0.5) AS burstiness_p50,
            count(output_tokens) / count(*) AS known
        FROM streams WHERE {selection.where()} GROUP BY ALL ORDER BY output_tokens DESC NULLS LAST, name LIMIT {most:d}""")

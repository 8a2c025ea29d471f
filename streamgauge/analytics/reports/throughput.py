"""SQL for tokens, speed and concurrency."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from streamgauge.analytics.reports import Query, columns, quality
from streamgauge.analytics.reports.columns import GROUP, number, percent, text
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import MAX_STREAM_S, Selection, dimension, instant
from streamgauge.analytics.schema.dimensions import ENDED_AT, INPUT_TOKENS
from streamgauge.analytics.schema.outcomes import IS_REQUEST

CACHE_HIT_SHARE = (
    "sum(cached_input_tokens) / nullif(sum(input_tokens) FILTER (cached_input_tokens IS NOT NULL), 0)"
)
"""SQL over streams: share of input tokens read from the prompt cache, where both are reported."""

ANSWERS = {measure.label: measure for measure in quality.MEASURES.values() if measure.unit == "share"}
"""Label → measure of answers that is a share."""


def tokens_timeline(query: Query, selection: Selection) -> pl.DataFrame:
    """`at, kind, tokens`: fresh input, cached input, reasoning and answer tokens, by the start of the stream."""
    return query(f"""
        WITH t AS (
            SELECT {selection.bucket()} AS "at",
                sum({INPUT_TOKENS} - coalesce(cached_input_tokens, 0))::BIGINT AS "input, fresh",
                sum(cached_input_tokens)::BIGINT AS "input, cached",
                sum(reasoning_tokens)::BIGINT AS "output, reasoning",
                sum(output_tokens - coalesce(reasoning_tokens, 0))::BIGINT AS "output, answer"
            FROM streams WHERE {selection.where()} GROUP BY ALL)
        SELECT "at", kind, tokens FROM (
            UNPIVOT t ON "input, fresh", "input, cached", "output, reasoning", "output, answer" INTO NAME kind VALUE tokens)
        ORDER BY "at", kind""")


def speed_timeline(
    query: Query, selection: Selection, by: str, *, share_of: str = "length", most: int = 7
) -> pl.DataFrame:
    """`at, name, tps_user` (median), `output_tokens, cache_hit_share, answer_tokens` (median), `share, n` of the `most` busiest groups.

    `share` is that of the answers with the measure `share_of`.
    """
    known = quality.MEASURES[share_of].known
    return query(f"""
        WITH chosen AS (SELECT *, {dimension(by)} AS name FROM streams WHERE {selection.where()} AND {IS_REQUEST}),
            busiest AS (SELECT name FROM chosen GROUP BY name ORDER BY count(*) DESC, name LIMIT {most:d})
        SELECT {selection.bucket()} AS "at", name, quantile_cont(tps_user, 0.5) AS tps_user,
            sum(output_tokens)::BIGINT AS output_tokens, {CACHE_HIT_SHARE} AS cache_hit_share,
            quantile_cont(output_tokens, 0.5) FILTER ({quality.MEASURES["output_tokens"].known}) AS answer_tokens,
            count(*) FILTER ({quality.is_affected(share_of)}) / nullif(count(*) FILTER ({known}), 0) AS share, count(*) AS n
        FROM chosen WHERE name IN (SELECT name FROM busiest) GROUP BY ALL ORDER BY "at", name""")


def ttft_by_cache_hit(query: Query, selection: Selection) -> pl.DataFrame:
    """`name, n, first, value_ns`: p50 and p95 of the TTFT by the share of the prompt read from the cache, in four ranges."""
    return query(f"""
        WITH hits AS (
                SELECT least(cached_input_tokens / input_tokens, 1) AS hit_share, ttft_ns FROM streams
                WHERE {selection.where()} AND cached_input_tokens IS NOT NULL AND input_tokens > 0 AND ttft_ns IS NOT NULL),
            ranges AS (
                SELECT CASE WHEN hit_share = 0 THEN 'no hit' WHEN hit_share < 0.5 THEN 'below 50 %'
                        WHEN hit_share < 0.9 THEN '50 – 90 %' ELSE '90 – 100 %' END AS name,
                    min(hit_share) AS low, count(*) AS n, quantile_cont(ttft_ns, 0.5) AS p50, quantile_cont(ttft_ns, 0.95) AS p95
                FROM hits GROUP BY ALL)
        SELECT name, n, first, value_ns FROM (UNPIVOT ranges ON p50, p95 INTO NAME first VALUE value_ns) ORDER BY low, first""")


def concurrency(query: Query, selection: Selection) -> pl.DataFrame:
    """`at, peak`: the maximum number of streams open at the same time, including streams in flight.

    Points without the start or end of a stream have no row, because the number did not change.
    """
    early = f"{instant(selection.since)} - INTERVAL '{MAX_STREAM_S} seconds'"
    return query(f"""
        WITH lifetimes AS (
                SELECT started_at, {ENDED_AT} AS ended_at FROM streams
                WHERE started_at >= {early} AND started_at < {instant(selection.until)} AND {selection.filters()}
                UNION ALL SELECT started_at, NULL FROM open_streams
                WHERE started_at < {instant(selection.until)} AND {selection.filters()}),
            steps AS (
                SELECT started_at AS "at", 1 AS step FROM lifetimes
                UNION ALL SELECT ended_at, -1 FROM lifetimes WHERE ended_at < {instant(selection.until)}),
            running AS (
                SELECT "at", greatest(step, 0) - step + sum(step) OVER (ORDER BY "at", step DESC) AS open FROM steps)
        SELECT time_bucket(INTERVAL '{selection.bucket_s} seconds', greatest("at", {instant(selection.since)})) AS "at",
            max(open)::BIGINT AS peak
        FROM running WHERE "at" >= {instant(selection.since)} GROUP BY ALL ORDER BY "at" """)


WASTED = columns.table(
    "Wasted tokens by model and reason",
    text("model", "Model"),
    text("reason", "Reason"),
    number("streams", "Streams", opens={}, of="model"),
    number("output_tokens", "Tokens out"),
    number("input_tokens", "Tokens in"),
    number("cost", "Cost", digits=4, help="Needs `--price-file`."),
    text("currency", "Currency"),
    empty="No wasted tokens in this selection.",
)


def wasted(query: Query, selection: Selection, *, most: int = 30) -> pl.DataFrame:
    """`model, reason, streams, output_tokens, input_tokens, cost, currency` of the view `wasted_tokens`, largest first.

    `query` may return an answer that is a minute old.
    """
    chosen = selection.in_minutes()
    # The view has no programs and no labels.
    of_streams = (
        f"stream_id IN (SELECT stream_id FROM streams WHERE {chosen.where()})"
        if chosen.apps or chosen.labels
        else "TRUE"
    )
    where = f"{replace(chosen, apps=(), labels=()).where()} AND {of_streams}"
    return query(f"""
        WITH wasted AS (SELECT *, model AS request_model, NULL::VARCHAR AS response_model FROM wasted_tokens)
        SELECT model, reason, count(*) AS streams, sum(output_tokens)::BIGINT AS output_tokens,
            sum(input_tokens)::BIGINT AS input_tokens, sum(cost) AS cost, currency
        FROM wasted WHERE {where} GROUP BY ALL
        ORDER BY cost DESC NULLS LAST, output_tokens DESC NULLS LAST, streams DESC, model, reason LIMIT {most:d}""")


TABLE = columns.table(
    "Throughput by {by}",
    GROUP,
    number("requests", "Requests", opens={}),
    number("input_tokens", "Tokens in"),
    percent("cached_share", "Cached", help=metric_help("cached")),
    number("output_tokens", "Tokens out"),
    percent("reasoning_share", "Reasoning", help="Reasoning tokens / output tokens."),
    number("output_per_s", "Output", unit="tok/s", digits=1, help=metric_help("tps_total")),
    number("tps_user_p50", "Tokens/s p50", digits=1, help=metric_help("tps_user")),
    number("tps_user_p5", "Tokens/s p5", digits=1, help="The slowest 5 % of streams are at or below this."),
    number("tps_e2e_p50", "Tokens/s end to end p50", digits=1, help=metric_help("tps_e2e")),
    percent("burstiness_p50", "Burstiness p50", digits=0, help=metric_help("burstiness")),
    percent("known", "Tokens known", digits=0, help="Share of streams with known output tokens."),
)


def table(query: Query, selection: Selection, by: str, *, most: int = 50) -> pl.DataFrame:
    """`name, requests, input_tokens, cached_share, output_tokens, reasoning_share, output_per_s, tps_user_p50, tps_user_p5,
    tps_e2e_p50, burstiness_p50, known` by group. `known`: share of streams with known output tokens.
    Rates are per second of the range since the first stored data."""
    seconds = selection.seconds_with_data()
    return query(f"""
        SELECT {dimension(by)} AS name, count(*) AS requests, sum({INPUT_TOKENS})::BIGINT AS input_tokens,
            {CACHE_HIT_SHARE} AS cached_share,
            sum(output_tokens)::BIGINT AS output_tokens,
            sum(reasoning_tokens) / nullif(sum(output_tokens) FILTER (reasoning_tokens IS NOT NULL), 0) AS reasoning_share,
            sum(output_tokens) / {seconds:.3f} AS output_per_s,
            quantile_cont(tps_user, 0.5) AS tps_user_p50, quantile_cont(tps_user, 0.05) AS tps_user_p5,
            quantile_cont(tps_e2e, 0.5) AS tps_e2e_p50, quantile_cont(burstiness, 0.5) AS burstiness_p50,
            count(output_tokens) / count(*) AS known
        FROM streams WHERE {selection.where()} AND {IS_REQUEST} GROUP BY ALL ORDER BY output_tokens DESC NULLS LAST, name LIMIT {most:d}""")

"""SQL of the first page: is it healthy, and if not, since when and for whom."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from analytics.schema.outcomes import ERROR_RATE, IS_ERROR
from dashboard.queries import Ask
from dashboard.queries.selection import (
    CLIENT,
    DIMENSIONS,
    GATEWAY,
    MODEL,
    Selection,
    instant,
)

SUMMARY = f"""
    count(*) AS requests,
    count(*) FILTER ({IS_ERROR}) AS errors,
    count(*) FILTER (outcome = 'client_abort') AS aborts,
    count(*) FILTER (outcome = 'tap_lost') AS lost,
    {ERROR_RATE} AS error_rate,
    count(ttft_ns) AS ttft_count,
    quantile_cont(ttft_ns, [0.5, 0.95, 0.99]) AS ttft_q,
    count(itl_ns) AS itl_count,
    quantile_cont(itl_ns, [0.5, 0.95, 0.99]) AS itl_q,
    quantile_cont(tps_user, 0.5) AS tps_user_p50,
    sum(output_tokens)::BIGINT AS output_tokens,
    sum(input_tokens)::BIGINT AS input_tokens,
    sum(stall_count)::BIGINT AS stalls
"""
"""The numbers of any group of streams; quantiles over streams (`quantile_cont`), three at once, which costs as much as one."""

COURSE = f"""
    count(*) AS requests,
    {ERROR_RATE} AS error_rate,
    quantile_cont(ttft_ns, {{quantile}}) AS ttft_ns,
    quantile_cont(itl_ns, {{quantile}}) AS itl_ns,
    sum(output_tokens)::BIGINT AS output_tokens
"""
"""What is drawn over time; at each point that is a group of its own, so it has no more than is drawn."""

SPREAD = """* EXCLUDE (ttft_q, itl_q),
    ttft_q[1] AS ttft_p50_ns, ttft_q[2] AS ttft_p95_ns, ttft_q[3] AS ttft_p99_ns,
    itl_q[1] AS itl_p50_ns, itl_q[2] AS itl_p95_ns, itl_q[3] AS itl_p99_ns"""
"""The columns of a query over SUMMARY, each quantile in a column of its own."""


def good(slo_ttft_s: float, slo_itl_s: float) -> str:
    """SQL that is true of a stream which meets every SLO; a missing metric is a miss, and so is a failure."""
    return (
        f"outcome = 'ok' AND coalesce(ttft_ns <= {slo_ttft_s * 1e9:.0f}, FALSE) "
        f"AND coalesce(itl_ns <= {slo_itl_s * 1e9:.0f}, FALSE)"
    )


def summary_now_and_before(
    ask: Ask, selection: Selection, *, slo_ttft_s: float, slo_itl_s: float
) -> dict[str, dict[str, float | None]]:
    """{"now": …, "before": …}: the columns of SUMMARY and `good`; "before" is the period of the same length before."""
    before = selection.before()
    frame = ask(f"""
        SELECT {SPREAD} FROM (
            SELECT started_at >= {instant(selection.since)} AS is_now, {SUMMARY},
                count(*) FILTER ({good(slo_ttft_s, slo_itl_s)}) AS good
            FROM streams
            WHERE started_at >= {instant(before.since)} AND started_at < {instant(selection.until)}
                AND {selection.filters()}
            GROUP BY ALL)""")
    rows = {bool(row.pop("is_now")): row for row in frame.to_dicts()}
    nothing: dict[str, float | None] = {"requests": 0, "errors": 0, "aborts": 0, "lost": 0, "good": 0}
    return {"now": rows.get(True, nothing), "before": rows.get(False, nothing)}


def active_streams(ask: Ask, selection: Selection) -> int:
    """Streams in flight now that match the filters; the time range does not matter."""
    frame = ask(f"SELECT count(*) AS n FROM open_streams WHERE {selection.filters()}")
    return int(frame["n"][0])


LONGEST_S = 3600
"""Streams that began earlier than this are not looked for when those open at a moment of the past are counted."""


def active_then(ask: Ask, selection: Selection, at: datetime) -> int:
    """Streams that were in flight at a moment of the past, of those that have ended since."""
    frame = ask(f"""
        SELECT count(*) AS n FROM streams
        WHERE started_at > {instant(at)} - INTERVAL '{LONGEST_S} seconds' AND started_at <= {instant(at)}
            AND started_at + to_microseconds(end_ns // 1000) > {instant(at)} AND {selection.filters()}""")
    return int(frame["n"][0])


def timeline(ask: Ask, selection: Selection, *, slo_ttft_s: float, slo_itl_s: float) -> pl.DataFrame:
    """Columns `at`, those of COURSE at the 95th percentile, and `good`: one row per point of time that has streams."""
    return ask(f"""
        SELECT {selection.bucket()} AS "at", {COURSE.format(quantile=0.95)},
            count(*) FILTER ({good(slo_ttft_s, slo_itl_s)}) AS good
        FROM streams WHERE {selection.where()} GROUP BY ALL ORDER BY "at" """)


def timeline_by(
    ask: Ask, selection: Selection, dimension: str, *, quantile: float = 0.95, most: int = 7
) -> pl.DataFrame:
    """Columns `at`, `name` and those of COURSE, of the `most` busiest values of a dimension; the rest is "others"."""
    column = DIMENSIONS[dimension]
    return ask(f"""
        WITH busiest AS (
                SELECT {column} AS value FROM streams WHERE {selection.where()}
                GROUP BY value ORDER BY count(*) DESC, value LIMIT {most:d})
        SELECT {selection.bucket()} AS "at",
            CASE WHEN {column} IN (SELECT value FROM busiest) THEN {column} ELSE 'others' END AS name,
            {COURSE.format(quantile=f"{quantile:.4f}")}
        FROM streams WHERE {selection.where()} GROUP BY ALL ORDER BY "at", name""")


def moved_most(ask: Ask, selection: Selection, *, least: int = 5, most: int = 6) -> pl.DataFrame:
    """What changed against the period before, of models and gateways with at least `least` requests in both.

    Columns: `dimension, name, requests, requests_before, ttft_p50_ns, ttft_p50_before_ns, ttft_change` (relative),
    `error_rate, error_rate_before, error_change` (in points); the largest change of either first.
    """
    before = selection.before()
    return ask(f"""
        WITH chosen AS (
                SELECT started_at >= {instant(selection.since)} AS is_now, {MODEL} AS model, {GATEWAY} AS gateway, outcome,
                    ttft_ns
                FROM streams
                WHERE started_at >= {instant(before.since)} AND started_at < {instant(selection.until)}
                    AND {selection.filters()}),
            grouped AS (
                SELECT CASE GROUPING(model, gateway) WHEN 1 THEN 'model' ELSE 'gateway' END AS dimension,
                    coalesce(model, gateway) AS name, is_now, count(*) AS requests, {ERROR_RATE} AS error_rate,
                    quantile_cont(ttft_ns, 0.5) AS ttft_p50_ns
                FROM chosen GROUP BY GROUPING SETS ((model, is_now), (gateway, is_now)))
        SELECT a.dimension, a.name, a.requests, b.requests AS requests_before,
            a.ttft_p50_ns, b.ttft_p50_ns AS ttft_p50_before_ns,
            a.ttft_p50_ns / nullif(b.ttft_p50_ns, 0) - 1 AS ttft_change,
            a.error_rate, b.error_rate AS error_rate_before, a.error_rate - b.error_rate AS error_change
        FROM grouped AS a JOIN grouped AS b ON a.dimension = b.dimension AND a.name = b.name AND a.is_now AND NOT b.is_now
        WHERE a.requests >= {least:d} AND b.requests >= {least:d}
        ORDER BY greatest(coalesce(abs(ttft_change), 0), 5 * coalesce(abs(error_change), 0)) DESC, a.name
        LIMIT {most:d}""")


def bad(slo_ttft_s: float, slo_itl_s: float) -> str:
    """SQL that is true of a stream that failed or is known to miss an objective."""
    return (
        f"({IS_ERROR} OR coalesce(ttft_ns > {slo_ttft_s * 1e9:.0f}, FALSE) "
        f"OR coalesce(itl_ns > {slo_itl_s * 1e9:.0f}, FALSE))"
    )


def where_it_hurts(
    ask: Ask, selection: Selection, *, slo_ttft_s: float, slo_itl_s: float, least: int = 5, most: int = 8
) -> pl.DataFrame:
    """Models, gateways and clients that have more bad streams than their share of the traffic explains, the worst first.

    Columns: `dimension, name, requests, bad, bad_share` (of its own), `of_all_bad` (its part of all bad streams), `of_all`
    (its part of all requests), `error_rate, ttft_p95_ns, itl_p95_ns`. Only those with at least `least` requests.
    """
    sides = "WHEN 3 THEN 'model' WHEN 5 THEN 'gateway' ELSE 'client'"
    return ask(f"""
        WITH chosen AS (
                SELECT {MODEL} AS model, {GATEWAY} AS gateway, {CLIENT} AS client, {bad(slo_ttft_s, slo_itl_s)} AS is_bad,
                    outcome, ttft_ns, itl_ns
                FROM streams WHERE {selection.where()}),
            grouped AS (
                SELECT CASE GROUPING(model, gateway, client) {sides} END AS dimension,
                    coalesce(model, gateway, client) AS name, count(*) AS requests, count(*) FILTER (is_bad) AS bad,
                    {ERROR_RATE} AS error_rate, quantile_cont(ttft_ns, 0.95) AS ttft_p95_ns,
                    quantile_cont(itl_ns, 0.95) AS itl_p95_ns
                FROM chosen GROUP BY GROUPING SETS ((model), (gateway), (client))),
            whole AS (SELECT count(*) AS n, count(*) FILTER (is_bad) AS bad FROM chosen)
        SELECT g.dimension, g.name, g.requests, g.bad, g.bad / g.requests AS bad_share, g.bad / whole.bad AS of_all_bad,
            g.requests / whole.n AS of_all, g.error_rate, g.ttft_p95_ns, g.itl_p95_ns
        FROM grouped AS g, whole
        WHERE g.bad > 0 AND g.requests >= {least:d} AND g.bad * whole.n > g.requests * whole.bad
        ORDER BY g.bad - g.requests * whole.bad / whole.n DESC, g.dimension, g.name LIMIT {most:d}""")


def choices(ask: Ask, selection: Selection, *, most: int = 200) -> dict[str, list[str]]:
    """What the filters offer: models, gateways and clients of the time range and of the streams open now, busiest first."""
    union = " UNION ALL ".join(
        f"SELECT * FROM (SELECT '{name}' AS dimension, {column} AS name, count(*) AS n FROM seen GROUP BY ALL "
        f"ORDER BY n DESC LIMIT {most:d})"
        for name, column in (("model", MODEL), ("gateway", GATEWAY), ("client", CLIENT))
    )
    frame = ask(f"""
        WITH seen AS (
            SELECT request_model, response_model, gateway, client_id FROM streams
            WHERE started_at >= {instant(selection.since)} AND started_at < {instant(selection.until)}
            UNION ALL SELECT request_model, response_model, gateway, client_id FROM open_streams)
        {union} ORDER BY dimension, n DESC, name""")
    found: dict[str, list[str]] = {"model": [], "gateway": [], "client": []}
    for dimension, name in frame.select("dimension", "name").iter_rows():
        found[dimension].append(name)
    return found


def any_stream(ask: Ask) -> bool:
    """Whether there is any stream at all, finished or open: else the pages say how to begin."""
    frame = ask("SELECT (EXISTS (SELECT 1 FROM streams)) OR (EXISTS (SELECT 1 FROM open_streams)) AS found")
    return bool(frame["found"][0])

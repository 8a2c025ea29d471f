"""SQL of how long things take: over time, as distributions, by group."""

from __future__ import annotations

import polars as pl

from dashboard.queries import Ask
from dashboard.queries.selection import DIMENSIONS, Selection

METRICS: dict[str, str] = {
    "TTFT": "ttft_ns",
    "ITL": "itl_ns",
    "inter-chunk, median of the stream": "icl_p50_ns",
    "inter-chunk, p95 of the stream": "icl_p95_ns",
    "longest gap": "icl_max_ns",
    "first byte": "ttfb_ns",
    "first chunk": "ttfc_ns",
    "first answer token": "ttfo_ns",
    "second token after the first": "ttst_ns",
    "connect": "connected_ns",
    "end to end": "end_ns",
}
"""What can be looked at: name → column of `streams`, in ns."""

PROMPT_SIZE = """CASE WHEN input_tokens IS NULL THEN 'unknown' WHEN input_tokens < 256 THEN '< 256'
    WHEN input_tokens < 1024 THEN '256 – 1 k' WHEN input_tokens < 4096 THEN '1 k – 4 k'
    WHEN input_tokens < 16384 THEN '4 k – 16 k' WHEN input_tokens < 65536 THEN '16 k – 64 k' ELSE '≥ 64 k' END"""
PROMPT_SIZES = ("< 256", "256 – 1 k", "1 k – 4 k", "4 k – 16 k", "16 k – 64 k", "≥ 64 k", "unknown")
GROUPS: dict[str, str] = {
    **DIMENSIONS,
    "prompt size": PROMPT_SIZE,
    "dialect": "coalesce(dialect, 'unknown')",
    "everything": "'all streams'",
}
"""What latency can be split by: name → SQL."""

BINS_PER_DECADE = 12
"""Bins are a factor of 10^(1/12) ≈ 1.21 wide: a distribution read off a chart is right to about a fifth."""


def heatmap(ask: Ask, selection: Selection, column: str) -> pl.DataFrame:
    """Columns `at, low_ns, high_ns, n`: streams per point of time and bin of a metric (log bins)."""
    return ask(f"""
        SELECT {selection.bucket()} AS "at", floor(log10({column}) * 6)::INTEGER AS bin,
            pow(10, bin / 6) AS low_ns, pow(10, (bin + 1) / 6) AS high_ns, count(*) AS n
        FROM streams WHERE {selection.where()} AND {column} > 0 GROUP BY ALL ORDER BY "at", bin""")


def distribution(ask: Ask, selection: Selection, column: str, group: str, *, most: int = 6) -> pl.DataFrame:
    """Columns `name, low_ns, high_ns, n, share, cumulated`: the histogram (log bins) and ECDF of the `most` busiest groups.

    `share` is of the group's streams that have the metric; `cumulated` the share at or below `high_ns`.
    """
    return ask(f"""
        WITH chosen AS (SELECT {GROUPS[group]} AS name, {column} AS value FROM streams
                WHERE {selection.where()} AND {column} > 0),
            busiest AS (SELECT name FROM chosen GROUP BY name ORDER BY count(*) DESC, name LIMIT {most:d}),
            binned AS (SELECT name, floor(log10(value) * {BINS_PER_DECADE})::INTEGER AS bin, count(*) AS n
                FROM chosen WHERE name IN (SELECT name FROM busiest) GROUP BY ALL)
        SELECT name, pow(10, bin / {BINS_PER_DECADE}) AS low_ns, pow(10, (bin + 1) / {BINS_PER_DECADE}) AS high_ns, n,
            n / sum(n) OVER (PARTITION BY name) AS share,
            (sum(n) OVER (PARTITION BY name ORDER BY bin)) / sum(n) OVER (PARTITION BY name) AS cumulated
        FROM binned ORDER BY name, bin""")


def quantile_timeline(
    ask: Ask, selection: Selection, column: str, group: str, quantile: float, *, most: int = 7
) -> pl.DataFrame:
    """Columns `at, name, value_ns, n`: one quantile (`quantile_cont` over streams) of the `most` busiest groups over time."""
    return ask(f"""
        WITH chosen AS (SELECT started_at, {GROUPS[group]} AS name, {column} AS value FROM streams
                WHERE {selection.where()} AND {column} IS NOT NULL),
            busiest AS (SELECT name FROM chosen GROUP BY name ORDER BY count(*) DESC, name LIMIT {most:d})
        SELECT {selection.bucket()} AS "at", name, quantile_cont(value, {quantile:.4f}) AS value_ns, count(*) AS n
        FROM chosen WHERE name IN (SELECT name FROM busiest) GROUP BY ALL ORDER BY "at", name""")


def table(ask: Ask, selection: Selection, column: str, group: str, *, most: int = 50) -> pl.DataFrame:
    """Columns `name, n, p50_ns, p90_ns, p95_ns, p99_ns, max_ns` of a metric by group, busiest first."""
    return ask(f"""
        SELECT name, n, q[1] AS p50_ns, q[2] AS p90_ns, q[3] AS p95_ns, q[4] AS p99_ns, max_ns FROM (
            SELECT {GROUPS[group]} AS name, count({column}) AS n, quantile_cont({column}, [0.5, 0.9, 0.95, 0.99]) AS q,
                max({column}) AS max_ns
            FROM streams WHERE {selection.where()} GROUP BY ALL)
        ORDER BY n DESC, name LIMIT {most:d}""")


def firsts(ask: Ask, selection: Selection, group: str, quantile: float, *, most: int = 12) -> pl.DataFrame:
    """Columns `name, n, first, value_ns`: first byte, chunk, token and answer token by group, one quantile of each.

    Over streams with output: a body that was not streamed has a first byte, and would be compared with nothing.
    """
    return ask(f"""
        WITH g AS (
            SELECT {GROUPS[group]} AS name, count(*) AS n,
                quantile_cont(ttfb_ns, {quantile:.4f}) AS "first byte", quantile_cont(ttfc_ns, {quantile:.4f}) AS "first chunk",
                quantile_cont(ttft_ns, {quantile:.4f}) AS "first token",
                quantile_cont(ttfo_ns, {quantile:.4f}) AS "first answer token"
            FROM streams WHERE {selection.where()} AND ttft_ns IS NOT NULL
            GROUP BY ALL ORDER BY n DESC, name LIMIT {most:d})
        SELECT name, n, first, value_ns FROM (
            UNPIVOT g ON "first byte", "first chunk", "first token", "first answer token" INTO NAME first VALUE value_ns)""")


def stalls(ask: Ask, selection: Selection, group: str, *, most: int = 30) -> pl.DataFrame:
    """Columns `name, streams, stalled_streams, stalled_share, stalls, stalled_ns, stalled_time_share, worst_ns` by group.

    Over streams whose stalls are known. `stalled_time_share` is stalled time / time from first to last output.
    """
    return ask(f"""
        SELECT {GROUPS[group]} AS name, count(stall_count) AS streams, count(*) FILTER (stall_count > 0) AS stalled_streams,
            stalled_streams / nullif(count(stall_count), 0) AS stalled_share, sum(stall_count)::BIGINT AS stalls,
            sum(stalled_ns)::BIGINT AS stalled_ns,
            sum(stalled_ns) / nullif(sum(last_output_ns - ttft_ns) FILTER (stall_count IS NOT NULL), 0) AS stalled_time_share,
            max(icl_max_ns) AS worst_ns
        FROM streams WHERE {selection.where()} GROUP BY ALL HAVING count(stall_count) > 0
        ORDER BY stalled_share DESC, name LIMIT {most:d}""")

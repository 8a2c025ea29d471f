"""SQL for durations of streams: over time, as distributions, by group; stalls."""

from __future__ import annotations

import polars as pl

from streamgauge.analytics.reports import Query
from streamgauge.analytics.reports.selection import DIMENSIONS, Selection

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
"""Metric → column of `streams`, in ns."""

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
"""Grouping → SQL of its value."""

BINS_PER_DECADE = 12
"""Bins of histograms: each is a factor of 10^(1/12) ≈ 1.21 wide."""
HEATMAP_BINS_PER_DECADE = 6
"""Bins of heatmaps: each is a factor of 10^(1/6) ≈ 1.47 wide."""


def heatmap(query: Query, selection: Selection, column: str) -> pl.DataFrame:
    """`at, low_ns, high_ns, n`: streams by time and logarithmic bin of a metric."""
    return query(f"""
        SELECT {selection.bucket()} AS "at", floor(log10({column}) * {HEATMAP_BINS_PER_DECADE})::INTEGER AS bin,
            pow(10, bin / {HEATMAP_BINS_PER_DECADE}) AS low_ns,
            pow(10, (bin + 1) / {HEATMAP_BINS_PER_DECADE}) AS high_ns, count(*) AS n
        FROM streams WHERE {selection.where()} AND {column} > 0 GROUP BY ALL ORDER BY "at", bin""")


def distribution(
    query: Query, selection: Selection, column: str, group: str, *, most: int = 6
) -> pl.DataFrame:
    """`name, low_ns, high_ns, n, share, cumulated`: histogram (logarithmic bins) and ECDF of the `most` busiest groups.

    `share` is relative to the group's streams with the metric. `cumulated` is the share at or below `high_ns`.
    """
    return query(f"""
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
    query: Query, selection: Selection, column: str, group: str, quantile: float, *, most: int = 7
) -> pl.DataFrame:
    """`at, name, value_ns, n`: a quantile over streams (`quantile_cont`) of the `most` busiest groups."""
    return query(f"""
        WITH chosen AS (SELECT started_at, {GROUPS[group]} AS name, {column} AS value FROM streams
                WHERE {selection.where()} AND {column} IS NOT NULL),
            busiest AS (SELECT name FROM chosen GROUP BY name ORDER BY count(*) DESC, name LIMIT {most:d})
        SELECT {selection.bucket()} AS "at", name, quantile_cont(value, {quantile:.4f}) AS value_ns, count(*) AS n
        FROM chosen WHERE name IN (SELECT name FROM busiest) GROUP BY ALL ORDER BY "at", name""")


def table(query: Query, selection: Selection, column: str, group: str, *, most: int = 50) -> pl.DataFrame:
    """`name, n, p50_ns, p90_ns, p95_ns, p99_ns, max_ns` of a metric by group, busiest first."""
    return query(f"""
        SELECT name, n, q[1] AS p50_ns, q[2] AS p90_ns, q[3] AS p95_ns, q[4] AS p99_ns, max_ns FROM (
            SELECT {GROUPS[group]} AS name, count({column}) AS n, quantile_cont({column}, [0.5, 0.9, 0.95, 0.99]) AS q,
                max({column}) AS max_ns
            FROM streams WHERE {selection.where()} GROUP BY ALL)
        ORDER BY n DESC, name LIMIT {most:d}""")


def first_times(
    query: Query, selection: Selection, group: str, quantile: float, *, most: int = 12
) -> pl.DataFrame:
    """`name, n, first, value_ns`: a quantile of the times to the first byte, chunk, token and answer token by group.

    Only streams with output, because all four times are compared.
    """
    return query(f"""
        WITH g AS (
            SELECT {GROUPS[group]} AS name, count(*) AS n,
                quantile_cont(ttfb_ns, {quantile:.4f}) AS "first byte", quantile_cont(ttfc_ns, {quantile:.4f}) AS "first chunk",
                quantile_cont(ttft_ns, {quantile:.4f}) AS "first token",
                quantile_cont(ttfo_ns, {quantile:.4f}) AS "first answer token"
            FROM streams WHERE {selection.where()} AND ttft_ns IS NOT NULL
            GROUP BY ALL ORDER BY n DESC, name LIMIT {most:d})
        SELECT name, n, first, value_ns FROM (
            UNPIVOT g ON "first byte", "first chunk", "first token", "first answer token" INTO NAME first VALUE value_ns)""")


def stalls(query: Query, selection: Selection, group: str, *, most: int = 30) -> pl.DataFrame:
    """`name, streams, stalled_streams, stalled_share, stalls, stalled_ns, stalled_time_share, worst_ns` by group.

    Only streams with known stalls. `stalled_time_share` is stalled time / time from first to last output.
    """
    return query(f"""
        SELECT {GROUPS[group]} AS name, count(stall_count) AS streams, count(*) FILTER (stall_count > 0) AS stalled_streams,
            stalled_streams / nullif(count(stall_count), 0) AS stalled_share, sum(stall_count)::BIGINT AS stalls,
            sum(stalled_ns)::BIGINT AS stalled_ns,
            sum(stalled_ns) / nullif(sum(last_output_ns - ttft_ns) FILTER (stall_count IS NOT NULL), 0) AS stalled_time_share,
            max(icl_max_ns) AS worst_ns
        FROM streams WHERE {selection.where()} GROUP BY ALL HAVING count(stall_count) > 0
        ORDER BY stalled_share DESC, name LIMIT {most:d}""")

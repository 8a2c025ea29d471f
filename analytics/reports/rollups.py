"""SQL over the roll-ups by minute: for long ranges, and for pooled gaps of any range.

- Roll-ups have minute, model and gateway, but no client and no prompt size. `can_answer` checks this.
- Quantiles come from summed histograms and are within 1 % of the quantiles over the streams.
- Minutes are whole, so the first and last minute can extend beyond the range. Roll-ups are kept longer than streams.
- `sampling_interval` limits the work: a query that would read too much reads one of every n minutes, and the page shows n.
"""

from __future__ import annotations

from datetime import timedelta

import polars as pl

from streamgauge.analytics.reports import Query
from streamgauge.analytics.reports.latency import BINS_PER_DECADE, HEATMAP_BINS_PER_DECADE
from streamgauge.analytics.reports.selection import Selection, instant
from streamgauge.analytics.schema.histogram_buckets import BUCKETS_PER_DECADE, VALUE, ZERO_BUCKET
from streamgauge.analytics.schema.sql_quoting import literal

MIN_RANGE = timedelta(hours=36)
"""Longer ranges use roll-ups. For shorter ranges, reading all streams of a busy gateway is fast enough."""
QUANTILE_ERROR = "1 %"
MAX_BUCKETS_READ = 150_000
"""Histogram buckets that one query reads at most."""
BUCKETS_PER_HISTOGRAM = 150
"""Estimate of the non-empty buckets of a histogram."""
POOLED_GAPS = "icl_ns"
"""The metric of all gaps between output events. Its histograms count gaps, not streams."""
NAMES = {
    "model": "coalesce(model, '(no model)')",
    "gateway": "coalesce(gateway, '(no gateway)')",
    "everything": "'all streams'",
}
"""Grouping → SQL of its value."""


def can_answer(selection: Selection, group: str) -> bool:
    """Whether roll-ups have the grouping and the filters."""
    return group in NAMES and not selection.clients


def preferred(selection: Selection, group: str) -> bool:
    """Whether roll-ups can answer and the range is long."""
    return selection.length > MIN_RANGE and can_answer(selection, group)


def sampling_interval(query: Query, selection: Selection, metric: str) -> int:
    """The n for which reading one of every n minutes reads at most MAX_BUCKETS_READ buckets. 1 reads all minutes."""
    found = query(
        f"SELECT sum(least(n, {BUCKETS_PER_HISTOGRAM}))::BIGINT AS n FROM histogram_minutes "
        f"WHERE {where(selection)} AND metric = {literal(metric)}"
    )["n"][0]
    return max(1, -(-int(found or 0) // MAX_BUCKETS_READ))


def where(selection: Selection, nth: int = 1) -> str:
    """SQL condition of the selection over a table of minutes. `nth` keeps one of every n minutes."""
    parts = [
        f"minute >= date_trunc('minute', {instant(selection.since)})",
        f"minute < {instant(selection.until)}",
    ]
    if nth > 1:
        parts.append(f"(epoch(minute)::BIGINT // 60) % {nth:d} = 0")
    for name, values in (("model", selection.models), ("gateway", selection.gateways)):
        if values:
            parts.append(f"{NAMES[name]} IN ({', '.join(map(literal, values))})")
    return " AND ".join(parts)


def bucket_s(selection: Selection) -> int:
    """Seconds between the points of a time series, at least 60."""
    return max(selection.bucket_s, 60)


def _at(selection: Selection) -> str:
    return f"time_bucket(INTERVAL '{bucket_s(selection)} seconds', minute)"


def _buckets(selection: Selection, metrics: tuple[str, ...], nth: int) -> str:
    """SQL of a table `minute, gateway, model, metric, bucket, n` with the buckets of these metrics.

    The public view `histogram_buckets` has the same rows with more columns, which makes it slower.
    """
    return f"""(
        SELECT minute, gateway, model, metric, unnest(buckets) AS bucket, unnest(counts) AS n FROM histogram_minutes
        WHERE {where(selection, nth)} AND metric IN ({", ".join(map(literal, metrics))}))"""


def _ranked(source: str, partition: str) -> str:
    """SQL of the rows of `source` with the cumulated counts and the total count of their partition."""
    return f"""SELECT *, sum(n) OVER (PARTITION BY {partition} ORDER BY bucket) AS cumulated,
        sum(n) OVER (PARTITION BY {partition}) AS total FROM {source}"""


def _quantile(quantile: float) -> str:
    return f"min(value) FILTER (cumulated > {quantile:.4f} * (total - 1))"


def heatmap(query: Query, selection: Selection, metric: str, *, nth: int = 1) -> pl.DataFrame:
    """`at, low_ns, high_ns, n`: counts by time and logarithmic bin of a metric."""
    width = BUCKETS_PER_DECADE // HEATMAP_BINS_PER_DECADE
    return query(f"""
        SELECT {_at(selection)} AS "at", floor(bucket / {width})::INTEGER AS bin,
            pow(10, bin / {HEATMAP_BINS_PER_DECADE}) AS low_ns,
            pow(10, (bin + 1) / {HEATMAP_BINS_PER_DECADE}) AS high_ns, sum(n)::BIGINT AS n
        FROM {_buckets(selection, (metric,), nth)} WHERE bucket > {ZERO_BUCKET}
        GROUP BY ALL ORDER BY "at", bin""")


def distribution(
    query: Query, selection: Selection, metric: str, group: str, *, nth: int = 1, most: int = 6
) -> pl.DataFrame:
    """Like `latency.distribution`."""
    width = BUCKETS_PER_DECADE // BINS_PER_DECADE
    return query(f"""
        WITH binned AS (
                SELECT {NAMES[group]} AS name, floor(bucket / {width})::INTEGER AS bin, sum(n)::BIGINT AS n
                FROM {_buckets(selection, (metric,), nth)} WHERE bucket > {ZERO_BUCKET} GROUP BY ALL),
            busiest AS (SELECT name FROM binned GROUP BY name ORDER BY sum(n) DESC, name LIMIT {most:d})
        SELECT name, pow(10, bin / {BINS_PER_DECADE}) AS low_ns, pow(10, (bin + 1) / {BINS_PER_DECADE}) AS high_ns, n,
            n / sum(n) OVER (PARTITION BY name) AS share,
            (sum(n) OVER (PARTITION BY name ORDER BY bin)) / sum(n) OVER (PARTITION BY name) AS cumulated
        FROM binned WHERE name IN (SELECT name FROM busiest) ORDER BY name, bin""")


def quantile_timeline(
    query: Query,
    selection: Selection,
    metric: str,
    group: str,
    quantile: float,
    *,
    nth: int = 1,
    most: int = 7,
) -> pl.DataFrame:
    """Like `latency.quantile_timeline`."""
    return query(f"""
        WITH summed AS (
                SELECT {_at(selection)} AS "at", {NAMES[group]} AS name, bucket, {VALUE} AS value, sum(n) AS n
                FROM {_buckets(selection, (metric,), nth)} GROUP BY ALL),
            busiest AS (SELECT name FROM summed GROUP BY name ORDER BY sum(n) DESC, name LIMIT {most:d}),
            ranked AS ({_ranked("summed", '"at", name')} WHERE name IN (SELECT name FROM busiest))
        SELECT "at", name, {_quantile(quantile)} AS value_ns, max(total)::BIGINT AS n
        FROM ranked GROUP BY ALL ORDER BY "at", name""")


def table(
    query: Query, selection: Selection, metric: str, group: str, *, nth: int = 1, most: int = 50
) -> pl.DataFrame:
    """Like `latency.table`. `n` counts only the minutes that were read."""
    quantiles = ", ".join(f"{_quantile(q)} AS p{100 * q:.0f}_ns" for q in (0.5, 0.9, 0.95, 0.99))
    return query(f"""
        WITH summed AS (
                SELECT {NAMES[group]} AS name, bucket, {VALUE} AS value, sum(n) AS n
                FROM {_buckets(selection, (metric,), nth)} GROUP BY ALL),
            ranked AS ({_ranked("summed", "name")})
        SELECT name, max(total)::BIGINT AS n, {quantiles}, max(value) AS max_ns
        FROM ranked GROUP BY name ORDER BY n DESC, name LIMIT {most:d}""")


FIRST_TIMES = {
    "ttfb_ns": "first byte",
    "ttfc_ns": "first chunk",
    "ttft_ns": "first token",
    "ttfo_ns": "first answer token",
}


def first_times(
    query: Query, selection: Selection, group: str, quantile: float, *, nth: int = 1, most: int = 12
) -> pl.DataFrame:
    """Like `latency.first_times`, but first bytes and chunks include streams without output."""
    named = " ".join(f"WHEN {literal(metric)} THEN {literal(name)}" for metric, name in FIRST_TIMES.items())
    return query(f"""
        WITH summed AS (
                SELECT {NAMES[group]} AS name, metric, bucket, {VALUE} AS value, sum(n) AS n
                FROM {_buckets(selection, tuple(FIRST_TIMES), nth)} GROUP BY ALL),
            busiest AS (
                SELECT name FROM summed WHERE metric = 'ttft_ns' GROUP BY name ORDER BY sum(n) DESC, name LIMIT {most:d}),
            ranked AS ({_ranked("summed", "name, metric")} WHERE name IN (SELECT name FROM busiest))
        SELECT name, max(total)::BIGINT AS n, CASE metric {named} END AS first,
            {_quantile(quantile)} AS value_ns
        FROM ranked GROUP BY name, metric ORDER BY n DESC, name""")


def stalls(query: Query, selection: Selection, group: str, *, most: int = 30) -> pl.DataFrame:
    """Like `latency.stalls`. Exact, except that the ends of the range are rounded to minutes."""
    return query(f"""
        SELECT {NAMES[group]} AS name, sum(streams_with_stalls_known)::BIGINT AS streams,
            sum(m.stalled_streams)::BIGINT AS stalled_streams,
            sum(m.stalled_streams) / nullif(sum(streams_with_stalls_known), 0) AS stalled_share,
            sum(m.stalls)::BIGINT AS stalls, sum(m.stalled_ns)::BIGINT AS stalled_ns,
            sum(m.stalled_ns) / nullif(sum(m.output_ns), 0) AS stalled_time_share, max(icl_max_ns) AS worst_ns
        FROM stream_minutes AS m WHERE {where(selection)} GROUP BY ALL HAVING sum(streams_with_stalls_known) > 0
        ORDER BY stalled_share DESC, name LIMIT {most:d}""")

"""SQL over the roll-ups by the minute: what long ranges are drawn from, and the gaps between chunks at any range.

- A roll-up knows minute, model and gateway, no client and no prompt size: `usable` says whether a question can be asked of it.
- Quantiles come from histograms that were added up: within 1 % of the same quantile over the streams themselves.
- Minutes are whole: the first and the last of a range may reach beyond it. Roll-ups outlive the streams they were made of.
- What would be too much to read while somebody waits is read in part: `every` says how many minutes one is taken of, and the
  page tells it.
"""

from __future__ import annotations

from datetime import timedelta

import polars as pl

from analytics.schema.histogram_buckets import BUCKETS_PER_DECADE, VALUE, ZERO_BUCKET
from analytics.schema.sql_quoting import literal
from dashboard.queries import Ask
from dashboard.queries.selection import Selection, instant

FROM = timedelta(hours=36)
"""Ranges longer than this are drawn from roll-ups: a day of a busy gateway is still quickly read stream by stream."""
ERROR = "1 %"
"""How far a quantile may be off."""
READ_AT_MOST = 500_000
"""Buckets of histograms that one question reads."""
BUCKETS_OF_ROW = 150
"""A histogram has hardly more buckets with something in them."""
GAPS = "icl_ns"
"""The metric of the gaps between output events, pooled; its unit of counting is the gap, not the stream."""
NAMES = {
    "model": "coalesce(model, '(no model)')",
    "gateway": "coalesce(gateway, '(no gateway)')",
    "everything": "'all streams'",
}
"""What roll-ups can be split by: name → SQL."""


def usable(selection: Selection, group: str) -> bool:
    """Whether the roll-ups know what is asked for."""
    return group in NAMES and not selection.clients


def wanted(selection: Selection, group: str) -> bool:
    """Whether the roll-ups are what to ask: they know it, and the range is long."""
    return selection.length > FROM and usable(selection, group)


def every(ask: Ask, selection: Selection, metric: str) -> int:
    """Of how many minutes one is to be taken, so that a question reads no more than it may. 1: all are."""
    found = ask(
        f"SELECT sum(least(n, {BUCKETS_OF_ROW}))::BIGINT AS n FROM histogram_minutes "
        f"WHERE {where(selection)} AND metric = {literal(metric)}"
    )["n"][0]
    return max(1, -(-int(found or 0) // READ_AT_MOST))


def where(selection: Selection, each: int = 1) -> str:
    """The selection as SQL over a table of minutes, to follow a WHERE; `each`-th minutes only."""
    parts = [
        f"minute >= date_trunc('minute', {instant(selection.since)})",
        f"minute < {instant(selection.until)}",
    ]
    if each > 1:
        parts.append(f"(epoch(minute)::BIGINT // 60) % {each:d} = 0")
    for name, values in (("model", selection.models), ("gateway", selection.gateways)):
        if values:
            parts.append(f"{NAMES[name]} IN ({', '.join(map(literal, values))})")
    return " AND ".join(parts)


def bucket_s(selection: Selection) -> int:
    """Width of a point on a time line: at least the minute."""
    return max(selection.bucket_s, 60)


def _at(selection: Selection) -> str:
    return f"time_bucket(INTERVAL '{bucket_s(selection)} seconds', minute)"


def _buckets(selection: Selection, metrics: tuple[str, ...], each: int) -> str:
    """SQL of a table of `minute, gateway, model, metric, bucket, n`: the buckets of these metrics. (The public view
    `histogram_buckets` says the same with names for everything, and takes longer for it.)"""
    return f"""(
        SELECT minute, gateway, model, metric, unnest(buckets) AS bucket, unnest(counts) AS n FROM histogram_minutes
        WHERE {where(selection, each)} AND metric IN ({", ".join(map(literal, metrics))}))"""


def heatmap(
    ask: Ask, selection: Selection, metric: str, *, each: int = 1, bins_per_decade: int = 6
) -> pl.DataFrame:
    """Columns `at, low_ns, high_ns, n`: how many per point of time and log bin of a metric."""
    wide = BUCKETS_PER_DECADE // bins_per_decade
    return ask(f"""
        SELECT {_at(selection)} AS "at", floor(bucket / {wide})::INTEGER AS bin,
            pow(10, bin / {bins_per_decade}) AS low_ns, pow(10, (bin + 1) / {bins_per_decade}) AS high_ns, sum(n)::BIGINT AS n
        FROM {_buckets(selection, (metric,), each)} WHERE bucket > {ZERO_BUCKET}
        GROUP BY ALL ORDER BY "at", bin""")


def distribution(
    ask: Ask,
    selection: Selection,
    metric: str,
    group: str,
    *,
    each: int = 1,
    most: int = 6,
    bins_per_decade: int = 12,
) -> pl.DataFrame:
    """As `latency.distribution`."""
    wide = BUCKETS_PER_DECADE // bins_per_decade
    return ask(f"""
        WITH binned AS (
                SELECT {NAMES[group]} AS name, floor(bucket / {wide})::INTEGER AS bin, sum(n)::BIGINT AS n
                FROM {_buckets(selection, (metric,), each)} WHERE bucket > {ZERO_BUCKET} GROUP BY ALL),
            busiest AS (SELECT name FROM binned GROUP BY name ORDER BY sum(n) DESC, name LIMIT {most:d})
        SELECT name, pow(10, bin / {bins_per_decade}) AS low_ns, pow(10, (bin + 1) / {bins_per_decade}) AS high_ns, n,
            n / sum(n) OVER (PARTITION BY name) AS share,
            (sum(n) OVER (PARTITION BY name ORDER BY bin)) / sum(n) OVER (PARTITION BY name) AS cumulated
        FROM binned WHERE name IN (SELECT name FROM busiest) ORDER BY name, bin""")


def quantile_timeline(
    ask: Ask, selection: Selection, metric: str, group: str, quantile: float, *, each: int = 1, most: int = 7
) -> pl.DataFrame:
    """As `latency.quantile_timeline`."""
    return ask(f"""
        WITH added AS (
                SELECT {_at(selection)} AS "at", {NAMES[group]} AS name, bucket, {VALUE} AS value, sum(n) AS n
                FROM {_buckets(selection, (metric,), each)} GROUP BY ALL),
            busiest AS (SELECT name FROM added GROUP BY name ORDER BY sum(n) DESC, name LIMIT {most:d}),
            ranked AS (
                SELECT *, sum(n) OVER (PARTITION BY "at", name ORDER BY bucket) AS upto,
                    sum(n) OVER (PARTITION BY "at", name) AS many
                FROM added WHERE name IN (SELECT name FROM busiest))
        SELECT "at", name, min(value) FILTER (upto > {quantile:.4f} * (many - 1)) AS value_ns, max(many)::BIGINT AS n
        FROM ranked GROUP BY ALL ORDER BY "at", name""")


def table(
    ask: Ask, selection: Selection, metric: str, group: str, *, each: int = 1, most: int = 50
) -> pl.DataFrame:
    """As `latency.table`; `n` counts what was read."""
    quantiles = ", ".join(
        f"min(value) FILTER (upto > {q} * (many - 1)) AS p{100 * q:.0f}_ns" for q in (0.5, 0.9, 0.95, 0.99)
    )
    return ask(f"""
        WITH added AS (
                SELECT {NAMES[group]} AS name, bucket, {VALUE} AS value, sum(n) AS n
                FROM {_buckets(selection, (metric,), each)} GROUP BY ALL),
            ranked AS (
                SELECT *, sum(n) OVER (PARTITION BY name ORDER BY bucket) AS upto, sum(n) OVER (PARTITION BY name) AS many
                FROM added)
        SELECT name, max(many)::BIGINT AS n, {quantiles}, max(value) AS max_ns
        FROM ranked GROUP BY name ORDER BY n DESC, name LIMIT {most:d}""")


FIRSTS = {
    "ttfb_ns": "first byte",
    "ttfc_ns": "first chunk",
    "ttft_ns": "first token",
    "ttfo_ns": "first answer token",
}


def firsts(
    ask: Ask, selection: Selection, group: str, quantile: float, *, each: int = 1, most: int = 12
) -> pl.DataFrame:
    """As `latency.firsts`, but for first bytes and chunks over all streams that have them, with output or without."""
    named = " ".join(f"WHEN {literal(metric)} THEN {literal(name)}" for metric, name in FIRSTS.items())
    return ask(f"""
        WITH added AS (
                SELECT {NAMES[group]} AS name, metric, bucket, {VALUE} AS value, sum(n) AS n
                FROM {_buckets(selection, tuple(FIRSTS), each)} GROUP BY ALL),
            busiest AS (
                SELECT name FROM added WHERE metric = 'ttft_ns' GROUP BY name ORDER BY sum(n) DESC, name LIMIT {most:d}),
            ranked AS (
                SELECT *, sum(n) OVER (PARTITION BY name, metric ORDER BY bucket) AS upto,
                    sum(n) OVER (PARTITION BY name, metric) AS many
                FROM added WHERE name IN (SELECT name FROM busiest))
        SELECT name, max(many)::BIGINT AS n, CASE metric {named} END AS first,
            min(value) FILTER (upto > {quantile:.4f} * (many - 1)) AS value_ns
        FROM ranked GROUP BY name, metric ORDER BY n DESC, name""")


def stalls(ask: Ask, selection: Selection, group: str, *, most: int = 30) -> pl.DataFrame:
    """As `latency.stalls`; nothing here is approximate but the ends of the range."""
    return ask(f"""
        SELECT {NAMES[group]} AS name, sum(streams_with_stalls_known)::BIGINT AS streams,
            sum(m.stalled_streams)::BIGINT AS stalled_streams,
            sum(m.stalled_streams) / nullif(sum(streams_with_stalls_known), 0) AS stalled_share,
            sum(m.stalls)::BIGINT AS stalls, sum(m.stalled_ns)::BIGINT AS stalled_ns,
            sum(m.stalled_ns) / nullif(sum(m.output_ns), 0) AS stalled_time_share, max(icl_max_ns) AS worst_ns
        FROM stream_minutes AS m WHERE {where(selection)} GROUP BY ALL HAVING sum(streams_with_stalls_known) > 0
        ORDER BY stalled_share DESC, name LIMIT {most:d}""")

"""Durations of streams: over time, as distributions, by group; stalls. From the streams, or from roll-ups by minute.

- `source_of` chooses: long ranges and pooled gaps are read from roll-ups, if these have the grouping and the filters.
- Roll-ups have minute, model and gateway, but no client and no prompt size. They are kept longer than streams.
- Quantiles from roll-ups come from summed histograms and are within 1 % of the quantiles over the streams.
- Minutes are whole, so the first and last minute can extend beyond the range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import polars as pl

from streamgauge.analytics.reports import Query, columns
from streamgauge.analytics.reports.columns import GROUP, ms, number, percent, seconds
from streamgauge.analytics.reports.selection import DIMENSIONS, Selection, dimension, instant
from streamgauge.analytics.schema.dimensions import HAS_ROLLUPS, is_one_of
from streamgauge.analytics.schema.prompt_sizes import PROMPT_SIZE
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.schema.stream_columns import Metric, values_of

_METRICS = sorted(values_of(Metric).items(), key=lambda metric: metric[1].place)
METRICS = {metric.label: column for column, metric in _METRICS}
"""Metric → column of `streams`, in ns."""

GROUPS: dict[str, str] = {
    **DIMENSIONS,
    "prompt size": PROMPT_SIZE,
    "dialect": "coalesce(dialect, 'unknown')",
    "everything": "'all streams'",
}
"""Grouping → SQL of its value over streams. Labels are groupings, too."""


MINUTE_GROUPS: dict[str, str] = {
    "model": "coalesce(model, '(no model)')",
    "gateway": "coalesce(gateway, '(no gateway)')",
    "everything": GROUPS["everything"],
}
"""Grouping → SQL of its value over roll-ups."""
POOLED_GAPS = "icl_ns"
"""The metric of all gaps between output events, only in roll-ups. Its histograms count gaps, not streams."""

MIN_RANGE = timedelta(hours=36)
"""Longer ranges use roll-ups. For shorter ranges, reading all streams of a busy gateway is fast enough."""
QUANTILE_ERROR = "1 %"
MAX_BUCKETS_READ = 100_000
"""Histogram buckets that one query reads at most. Above it, it reads one of every n minutes, and the page shows n."""
MAX_MINUTES_LISTED = 1000
"""Minutes that a condition lists. Of more, it has their remainder, whose query reads the histograms of all minutes."""
BUCKETS_PER_HISTOGRAM = 150
"""Estimate of the non-empty buckets of a histogram."""
BINS_PER_DECADE = 12
"""Bins of histograms: each is a factor of 10^(1/12) ≈ 1.21 wide."""
HEATMAP_BINS_PER_DECADE = 6
"""Bins of heatmaps: each is a factor of 10^(1/6) ≈ 1.47 wide."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the durations of a selection are read, and the grouping."""

    selection: Selection
    group: str
    nth: int | None = None
    """None: the streams. n: one of every n minutes of the roll-ups."""

    @property
    def bucket_s(self) -> int:
        """Seconds between the points of a time series. Roll-ups have at least 60."""
        return max(self.selection.bucket_s, 1 if self.nth is None else 60)

    def values(self, *metrics: str, streams: str = "TRUE") -> str:
        """SQL of a table `at, name, metric, value, n`. A stream is one row with `n` 1, NULL if the value is unknown.

        `streams`: a condition of streams, which roll-ups ignore.
        """
        at = f"time_bucket(INTERVAL '{self.bucket_s} seconds', {'started_at' if self.nth is None else 'minute'}) AS \"at\""
        names = ", ".join(map(literal, metrics))
        if self.nth is not None:
            return f"""(
                SELECT {at}, {MINUTE_GROUPS[self.group]} AS name, metric, value, n FROM histogram_buckets
                WHERE {self.where()} AND metric IN ({names}))"""
        # A list of one element would cost as much as the rest of the query.
        value, name = (
            (metrics[0], names)
            if len(metrics) == 1
            else (f"unnest([{', '.join(metrics)}])", f"unnest([{names}])")
        )
        return f"""(
                SELECT {at}, {dimension(self.group, GROUPS)} AS name, {name} AS metric, {value} AS value, 1 AS n FROM streams
                WHERE {self.where()} AND {HAS_ROLLUPS} AND {streams})"""

    def quantiles(self, table: str, keys: str, quantiles: Sequence[float]) -> str:
        """SQL of `q` (a list), `n` (known values) and `largest` for each value of the keys, from a table as of `values`."""
        if self.nth is None:
            return f"""
            SELECT {keys}, quantile_cont(value, [{", ".join(f"{q:.4f}" for q in quantiles)}]) AS q, count(value) AS n,
                max(value) AS largest
            FROM {table} GROUP BY ALL"""
        q = ", ".join(f"min(value) FILTER (cumulated > {q:.4f} * (total - 1))" for q in quantiles)
        return f"""
            SELECT {keys}, [{q}] AS q, max(total)::BIGINT AS n, max(value) AS largest FROM (
                SELECT *, sum(n) OVER (PARTITION BY {keys} ORDER BY value) AS cumulated,
                    sum(n) OVER (PARTITION BY {keys}) AS total
                FROM (SELECT {keys}, value, sum(n) AS n FROM {table} GROUP BY ALL))
            GROUP BY ALL"""

    def where(self) -> str:
        """SQL condition over the streams or the minutes."""
        chosen = self.selection
        if self.nth is None:
            return chosen.where()
        parts = [
            f"minute >= date_trunc('minute', {instant(chosen.since)})",
            f"minute < {instant(chosen.until)}",
        ]
        if self.nth > 1:
            step_s = 60 * self.nth
            begin, end = (int(at.timestamp()) // step_s for at in (chosen.since, chosen.until))
            chosen_minutes = [datetime.fromtimestamp(step_s * n, UTC) for n in range(begin, end + 1)]
            # The scan skips the histograms of other minutes only if it compares the column itself.
            parts.append(
                f"minute IN ({', '.join(map(instant, chosen_minutes))})"
                if len(chosen_minutes) <= MAX_MINUTES_LISTED
                else f"(epoch(minute)::BIGINT // 60) % {self.nth:d} = 0"
            )
        by_name = (("model", chosen.models), ("gateway", chosen.gateways))
        parts += [is_one_of(MINUTE_GROUPS[name], values) for name, values in by_name if values]
        return " AND ".join(parts)


def source_of(query: Query, selection: Selection, metric: str, group: str) -> Source | None:
    """The source of a metric by group. None: only roll-ups have it, and they lack the grouping or the filters."""
    has_minutes = group in MINUTE_GROUPS and not (selection.clients or selection.apps or selection.labels)
    if metric == POOLED_GAPS and not has_minutes:
        return None
    if not has_minutes or (metric != POOLED_GAPS and selection.length <= MIN_RANGE):
        return Source(selection=selection, group=group)
    all_minutes = Source(selection=selection, group=group, nth=1)
    found = query(
        f"SELECT sum(least(n, {BUCKETS_PER_HISTOGRAM}))::BIGINT AS n FROM histogram_minutes "
        f"WHERE {all_minutes.where()} AND metric = {literal(metric)}"
    )["n"][0]
    return Source(selection=selection, group=group, nth=max(1, -(-int(found or 0) // MAX_BUCKETS_READ)))


def heatmap(query: Query, source: Source, metric: str) -> pl.DataFrame:
    """`at, low_ns, high_ns, n`: counts by time and logarithmic bin of a metric."""
    return query(f"""
        SELECT "at", floor(log10(value) * {HEATMAP_BINS_PER_DECADE})::INTEGER AS bin,
            pow(10, bin / {HEATMAP_BINS_PER_DECADE}) AS low_ns,
            pow(10, (bin + 1) / {HEATMAP_BINS_PER_DECADE}) AS high_ns, sum(n)::BIGINT AS n
        FROM {source.values(metric)} WHERE value > 0 GROUP BY ALL ORDER BY "at", bin""")


BUSIEST = "SELECT name FROM chosen GROUP BY name ORDER BY sum(n) DESC, name LIMIT {most:d}"


def shares(values: str, most: int | None = None) -> str:
    """SQL of `name, low_ns, high_ns, n, share, cumulated` of the `most` largest names of a table `name, value, n`, or of all.

    `share` is relative to all of the name. `cumulated` is the share at or below `high_ns`.
    """
    # Without a limit, the table is read once.
    shown = "TRUE" if most is None else f"name IN ({BUSIEST.format(most=most)})"
    return f"""
        WITH chosen AS (SELECT name, value, n FROM {values} WHERE value > 0),
            binned AS (SELECT name, floor(log10(value) * {BINS_PER_DECADE})::INTEGER AS bin, sum(n)::BIGINT AS n
                FROM chosen WHERE {shown} GROUP BY ALL)
        SELECT name, pow(10, bin / {BINS_PER_DECADE}) AS low_ns, pow(10, (bin + 1) / {BINS_PER_DECADE}) AS high_ns, n,
            n / sum(n) OVER (PARTITION BY name) AS share,
            (sum(n) OVER (PARTITION BY name ORDER BY bin)) / sum(n) OVER (PARTITION BY name) AS cumulated
        FROM binned ORDER BY name, bin"""


def distribution(query: Query, source: Source, metric: str, *, most: int = 6) -> pl.DataFrame:
    """Histogram (logarithmic bins) and ECDF of the `most` busiest groups: the columns of `shares`."""
    return query(shares(source.values(metric), most))


def quantile_timeline(
    query: Query, source: Source, metric: str, quantile: float, *, most: int = 7
) -> pl.DataFrame:
    """`at, name, value_ns, n`: a quantile of the `most` busiest groups."""
    return query(f"""
        WITH chosen AS (SELECT "at", name, value, n FROM {source.values(metric)} WHERE value IS NOT NULL),
            shown AS (FROM chosen WHERE name IN ({BUSIEST.format(most=most)}))
        SELECT "at", name, q[1] AS value_ns, n FROM ({source.quantiles("shown", '"at", name', [quantile])})
        ORDER BY "at", name""")


QUANTILES = columns.table(
    "Quantiles by {by}",
    GROUP,
    number("n", "{counted}", help="With a known value.", opens={}),
    *(ms(f"{name}_ns", name, digits=1) for name in ("p50", "p90", "p95", "p99", "max")),
)


def table(query: Query, source: Source, metric: str, *, most: int = 50) -> pl.DataFrame:
    """`name, n, p50_ns, p90_ns, p95_ns, p99_ns, max_ns` of a metric by group, busiest first.

    `n` counts only the minutes that were read.
    """
    return query(f"""
        SELECT name, n, q[1] AS p50_ns, q[2] AS p90_ns, q[3] AS p95_ns, q[4] AS p99_ns, largest AS max_ns
        FROM ({source.quantiles(source.values(metric), "name", (0.5, 0.9, 0.95, 0.99))})
        ORDER BY n DESC, name LIMIT {most:d}""")


FIRST_TIMES = {
    "ttfb_ns": "first byte",
    "ttfc_ns": "first chunk",
    "ttft_ns": "first token",
    "ttfo_ns": "first answer token",
}


def first_times(query: Query, source: Source, quantile: float, *, most: int = 12) -> pl.DataFrame:
    """`name, first, value_ns`: a quantile of the times to the first byte, chunk, token and answer token by group.

    Only streams with output, because all four times are compared. In roll-ups, first bytes and chunks include streams without.
    """
    named = " ".join(f"WHEN {literal(metric)} THEN {literal(name)}" for metric, name in FIRST_TIMES.items())
    values = source.values(*FIRST_TIMES, streams="ttft_ns IS NOT NULL")
    return query(f"""
        WITH chosen AS ({source.quantiles(values, "name, metric", [quantile])}),
            busiest AS (SELECT name, n FROM chosen WHERE metric = 'ttft_ns' AND n > 0 ORDER BY n DESC, name LIMIT {most:d})
        SELECT name, CASE metric {named} END AS first, q[1] AS value_ns
        FROM chosen JOIN busiest USING (name) WHERE value_ns IS NOT NULL ORDER BY busiest.n DESC, name""")


STALLS_OF_STREAMS = """(
            SELECT *, (stall_count IS NOT NULL)::INTEGER AS streams_with_stalls_known, (stall_count > 0)::INTEGER AS stalled_streams,
                stall_count AS stalls, if(stall_count IS NOT NULL, last_output_ns - ttft_ns, NULL) AS output_ns
            FROM streams)"""
"""SQL of the streams with the columns of `stream_minutes` that `stalls` reads."""


STALLS = columns.table(
    "Stalls by {by}",
    GROUP,
    number("streams", "Streams", help="Streams with known stalls."),
    number("stalled_streams", "Streams with stalls", opens={"kind": "stalled"}),
    percent("stalled_share", "Share with stalls"),
    number("stalls", "Stalls"),
    seconds("stalled_ns", "Stalled time"),
    percent("stalled_time_share", "Share of output time", digits=2),
    seconds("worst_ns", "Longest gap", digits=2),
    empty="Stalls are unknown for these streams.",
)


def stalls(query: Query, source: Source, *, most: int = 30) -> pl.DataFrame:
    """`name, streams, stalled_streams, stalled_share, stalls, stalled_ns, stalled_time_share, worst_ns` by group.

    Only streams with known stalls. `stalled_time_share` is stalled time / time from first to last output. Exact, also from
    roll-ups, and of all minutes.
    """
    source = replace(source, nth=source.nth and 1)
    rows, group = (
        (STALLS_OF_STREAMS, dimension(source.group, GROUPS))
        if source.nth is None
        else ("stream_minutes", MINUTE_GROUPS[source.group])
    )
    return query(f"""
        SELECT {group} AS name, sum(m.streams_with_stalls_known)::BIGINT AS streams,
            sum(m.stalled_streams)::BIGINT AS stalled_streams,
            sum(m.stalled_streams) / nullif(sum(m.streams_with_stalls_known), 0) AS stalled_share,
            sum(m.stalls)::BIGINT AS stalls, sum(m.stalled_ns)::BIGINT AS stalled_ns,
            sum(m.stalled_ns) / nullif(sum(m.output_ns), 0) AS stalled_time_share, max(m.icl_max_ns) AS worst_ns
        FROM {rows} AS m WHERE {source.where()} GROUP BY ALL HAVING sum(m.streams_with_stalls_known) > 0
        ORDER BY stalled_share DESC, name LIMIT {most:d}""")

"""Roll-ups by the minute of what a commit stores: counts, sums, and histograms that can be merged. No I/O, no clock.

Rules
1. Roll-ups are rows to append, made of the very rows that the transaction stores: so each stream is in them exactly once.
   Rows that share a key are parts of one minute, to be added up (`rollup_compaction` does, later, to keep them few).
2. A histogram has `BUCKETS_PER_DECADE` buckets to a factor of ten, of equal width on a log scale. A value read back from its
   bucket (its geometric middle) is off by at most 0.97 % of itself, and so is every quantile, however many
   histograms were added up: adding them loses nothing. Zero and less have a bucket of their own, which reads back as 0.
3. A minute is that of `started_at`, a model what was asked for, else what answered. Gaps between output events (`icl_ns`) are
   pooled within each choice and counted with the minute in which their stream began. A stream with a hole has no gaps.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from analytics.decoded.decoded_event import OUTPUT_KINDS
from analytics.schema.histogram_buckets import BUCKETS_PER_DECADE, ZERO_BUCKET
from analytics.schema.tables import EVENTS, HISTOGRAM_MINUTES, STALLS, STREAM_MINUTES, STREAMS, Columns

METRICS = (
    "ttfb_ns", "ttfc_ns", "ttft_ns", "ttfo_ns", "ttst_ns", "itl_ns", "icl_p50_ns", "icl_p95_ns", "icl_max_ns",
    "connected_ns", "last_output_ns", "end_ns", "tps_user", "tps_e2e", "burstiness",
)  # fmt: skip
"""Columns of `streams` that have histograms; `icl_ns`, the pooled gaps, is one more."""
WHO = ("minute", "gateway", "provider", "model")
_WHAT = ("dialect", "operation", "outcome", "error_phase", "error_type", "http_status")
_MOST = 2**47
"""Of a number in a sum: 39 hours in ns."""
DEFAULT_STALL = (500_000_000, 5.0)


def rollups(
    tables: Mapping[str, pl.DataFrame], stall: tuple[int, float] = DEFAULT_STALL
) -> dict[str, pl.DataFrame]:
    """The rows of `stream_minutes`, `histogram_minutes` and `stalls` that belong to these of `streams` and `events`.

    `stall` = (floor ns, factor), by which the streams were measured. The events of a stream are together, in order.
    """
    streams = tables.get("streams")
    if streams is None or streams.is_empty():
        return {}
    streams = _complete(streams, STREAMS).with_columns(_OWN)
    who = streams.select(WHO)
    keys = who.unique(maintain_order=True).with_row_index("key")
    streams = streams.with_columns(
        who.join(keys, on=WHO, how="left", nulls_equal=True, maintain_order="left")["key"]
    )
    gaps = _gaps(streams, tables.get("events"))
    made = {
        "stream_minutes": streams.lazy().group_by(*WHO, *_WHAT).agg(_COUNTED).select(STREAM_MINUTES.keys()),
        "histogram_minutes": _histogram_minutes(streams.lazy(), gaps, keys.lazy()),
    }
    found = dict(zip(made, pl.collect_all(made.values()), strict=True))
    floor_ns, factor = stall
    long_gaps = gaps.filter(pl.col("gap_ns") > floor_ns)
    if not long_gaps.is_empty():
        found["stalls"] = _stalls(streams, long_gaps, factor)
    return found


def _complete(rows: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    """All columns; a row that says little of its stream has NULL in the others."""
    missing = [pl.lit(None, columns[name]).alias(name) for name in columns.keys() - set(rows.columns)]
    return rows.with_columns(missing) if missing else rows


def _known_sum(values: pl.Expr, name: str) -> pl.Expr:
    """The sum of what is known, NULL when nothing is. Numbers that upstreams make up cannot make it overflow."""
    found = values.cast(pl.Int64).clip(upper_bound=_MOST)
    return pl.when(values.count() > 0).then(found.sum()).alias(name)


def _sums(**columns: str) -> list[pl.Expr]:
    return [_known_sum(pl.col(column), name) for name, column in columns.items()]


_COUNTED = [
    pl.lit(value=False).alias("settled"),
    pl.len().cast(pl.Int64).alias("streams"),
    pl.col("ttft_ns").count().cast(pl.Int64).alias("streams_with_output"),
    pl.col("output_tokens").count().cast(pl.Int64).alias("streams_with_output_tokens"),
    pl.col("aborted_after_terminal").sum().cast(pl.Int64),
    pl.col("stall_count").count().cast(pl.Int64).alias("streams_with_stalls_known"),
    (pl.col("stall_count") > 0).sum().cast(pl.Int64).alias("stalled_streams"),
    *_sums(stalls="stall_count", stalled_ns="stalled_ns"),
    _known_sum(
        pl.when(pl.col("stall_count").is_not_null()).then(pl.col("last_output_ns") - pl.col("ttft_ns")),
        "output_ns",
    ),
    pl.col("icl_max_ns").max(),
    *_sums(input_tokens="input_tokens", cached_input_tokens="cached_input_tokens"),
    # a share needs the whole of those whose part is known
    _known_sum(
        pl.when(pl.col("cached_input_tokens").is_not_null()).then("input_tokens"),
        "input_tokens_with_cache_known",
    ),
    *_sums(output_tokens="output_tokens", reasoning_tokens="reasoning_tokens"),
    _known_sum(
        pl.when(pl.col("reasoning_tokens").is_not_null()).then("output_tokens"),
        "output_tokens_with_reasoning_known",
    ),
    *_sums(
        events="event_count", output_events="output_event_count", text_chars="text_chars",
        reasoning_chars="reasoning_chars", tool_calls="tool_call_count", malformed_events="malformed_events",
        request_bytes="request_bytes", response_bytes="response_bytes", delivered_bytes="delivered_bytes",
        lost_bytes="lost_bytes",
    ),
    pl.col("started_at").min().alias("first_at"),
    pl.col("started_at").max().alias("last_at"),
]  # fmt: skip


def _bucket(value: pl.Expr) -> pl.Expr:
    log = (value.log10() * BUCKETS_PER_DECADE).floor().clip(ZERO_BUCKET + 1, -ZERO_BUCKET - 1)
    return pl.when(value > 0).then(log).otherwise(ZERO_BUCKET).cast(pl.Int16).alias("bucket")


def _histogram_minutes(streams: pl.LazyFrame, gaps: pl.DataFrame, keys: pl.LazyFrame) -> pl.LazyFrame:
    values = (
        streams.select("key", *_VALUES)
        .unpivot(on=METRICS, index="key", variable_name="metric", value_name="value")
        .filter(_IS_NUMBER)
    )
    parts = [values.group_by("key", "metric", _BUCKET).agg(_FILLED)]
    if not gaps.is_empty():
        parts.append(gaps.lazy().select("key", *_GAP_VALUES).group_by("key", "metric", _BUCKET).agg(_FILLED))
    return (
        pl.concat(parts)
        .sort("bucket")
        .group_by("key", "metric", maintain_order=True)
        .agg(_HISTOGRAM)
        .join(keys, on="key")
        .with_columns(_UNSETTLED)
        .select(HISTOGRAM_MINUTES.keys())
    )


_OWN = [
    pl.col("started_at").dt.truncate("1m").alias("minute"),
    pl.coalesce("request_model", "response_model").alias("model"),
]
_VALUES = [pl.col(name).cast(pl.Float64) for name in METRICS]
_GAP_VALUES = [pl.lit("icl_ns").alias("metric"), pl.col("gap_ns").cast(pl.Float64).alias("value")]
_IS_NUMBER = pl.col("value").is_finite()  # NULL is neither
_BUCKET = _bucket(pl.col("value"))
_FILLED = [pl.len().cast(pl.Int32).alias("n"), pl.col("value").sum().alias("total")]
_HISTOGRAM = [
    pl.col("n").sum().cast(pl.Int64),
    pl.col("total").sum().cast(pl.Float32),
    pl.col("bucket").alias("buckets"),
    pl.col("n").alias("counts"),
]
_UNSETTLED = [
    pl.lit(value=False).alias("settled"),
    *(pl.lit(None, pl.Float32).alias(name) for name in ("p50", "p95", "p99")),
]


def _gaps(streams: pl.DataFrame, events: pl.DataFrame | None) -> pl.DataFrame:
    """`_GAPS` of each two consecutive outputs of one choice, in streams that were measured."""
    if events is None or events.is_empty() or not streams["icl_p50_ns"].count():
        return pl.DataFrame(schema=_GAPS)
    events = _complete(events, EVENTS)
    runs = (
        events.lazy()
        .filter(_IS_NEW)
        .select("stream_id")
        .with_row_index("run")
        .join(
            streams.lazy().with_row_index("row").filter(_IS_WHOLE).select("stream_id", "row", "key"),
            on="stream_id",
        )
    )
    outputs = events.lazy().select(_OUTPUT).filter("output")
    if events["choice"].max():
        outputs = outputs.sort("run", "choice", maintain_order=True)
    return (
        outputs.with_columns(_FROM)
        .filter(pl.col("from_ns").is_not_null())
        .join(runs.drop("stream_id"), on="run")
        .select(_GAP)
        .collect()
    )


_IS_NEW = pl.col("stream_id").ne_missing(pl.col("stream_id").shift()).fill_null(value=True)
_IS_WHOLE = pl.col("icl_p50_ns").is_not_null()
_OUTPUT = [
    (_IS_NEW.cum_sum() - 1).cast(pl.UInt32).alias("run"),
    "seq",
    pl.col("choice").fill_null(0),
    "at_ns",
    pl.col("kind").is_in(OUTPUT_KINDS).alias("output"),
]
_FROM = (
    pl.when((pl.col("run") == pl.col("run").shift()) & (pl.col("choice") == pl.col("choice").shift()))
    .then(pl.col("at_ns").shift())
    .alias("from_ns")
)
_GAP = [
    "row", "key", "seq", "choice", "from_ns", pl.col("at_ns").alias("until_ns"),
    (pl.col("at_ns") - pl.col("from_ns")).alias("gap_ns"),
]  # fmt: skip


def _stalls(streams: pl.DataFrame, long_gaps: pl.DataFrame, factor: float) -> pl.DataFrame:
    """One row a stall: a gap above both limits, in a stream whose row says that it stalled."""
    stalled = streams.with_row_index("row").filter(pl.col("stall_count") > 0)
    return (
        long_gaps.join(stalled, on="row", maintain_order="left")
        .filter(pl.col("gap_ns") > factor * pl.col("icl_p50_ns"))
        .select(STALLS.keys())
    )


_GAPS = {
    "row": pl.UInt32(), "key": pl.UInt32(), "seq": pl.Int32(), "choice": pl.Int16(),
    "from_ns": pl.Int64(), "until_ns": pl.Int64(), "gap_ns": pl.Int64(),
}  # fmt: skip

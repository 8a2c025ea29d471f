"""Roll-ups by the minute of what a commit stores: counts, sums, and histograms that can be merged. No I/O, no clock.

Rules
1. Roll-ups are rows to append, made of the very rows that the transaction stores: so each stream is in them exactly once.
   Rows that share a key are parts of one minute, to be added up (`analytics.settle` does, later, to keep them few).
2. A histogram has `BUCKETS_PER_DECADE` buckets to a factor of ten, of equal width on a log scale. A value read back from its
   bucket (`bucket_value`) is off by at most `RELATIVE_ERROR` of itself, and so is every quantile, however many histograms were
   added up: adding them loses nothing. Zero and less have a bucket of their own, which reads back as 0.
3. A minute is that of `started_at`, a model what was asked for, else what answered. Gaps between output events (`icl_ns`) are
   pooled within each choice and counted with the minute in which their stream began. A stream with a hole has no gaps.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from analytics.dialects.shape import OUTPUT_KINDS
from analytics.tables import EVENTS, HISTOGRAM_MINUTES, STALLS, STREAM_MINUTES, STREAMS, Columns

BUCKETS_PER_DECADE = 120
"""A multiple of 12 and of 6, so that wider bins of a chart are made of whole buckets."""
ZERO_BUCKET = -32768
RELATIVE_ERROR = 10 ** (0.5 / BUCKETS_PER_DECADE) - 1
"""0.97 %: from the value that stands for a bucket, its geometric middle, to its edges."""

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


def bucket_value(bucket: int) -> float:
    """The value that stands for a bucket; the views say the same in SQL."""
    return 0.0 if bucket == ZERO_BUCKET else 10 ** ((bucket + 0.5) / BUCKETS_PER_DECADE)


def rollups(
    tables: Mapping[str, pl.DataFrame], stall: tuple[int, float] = DEFAULT_STALL
) -> dict[str, pl.DataFrame]:
    """The rows of `stream_minutes`, `histogram_minutes` and `stalls` that belong to these of `streams` and `events`.

    `stall` = (floor ns, factor), by which the streams were measured.
    """
    streams = tables.get("streams")
    if streams is None or streams.is_empty():
        return {}
    streams = _complete(streams, STREAMS).with_columns(
        pl.col("started_at").dt.truncate("1m").alias("minute"),
        pl.coalesce("request_model", "response_model").alias("model"),
    )
    who = streams.select(WHO)
    keys = who.unique(maintain_order=True).with_row_index("key")
    streams = streams.with_columns(
        who.join(keys, on=WHO, how="left", nulls_equal=True, maintain_order="left")["key"]
    )
    gaps = _gaps(streams, tables.get("events"))
    return {
        "stream_minutes": _stream_minutes(streams),
        "histogram_minutes": _histogram_minutes(streams, gaps, keys),
        "stalls": _stalls(streams, gaps, stall),
    }


def _complete(rows: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    """All columns; a row that says little of its stream has NULL in the others."""
    there = set(rows.columns)
    return rows.with_columns(
        pl.lit(None, kind).alias(name) for name, kind in columns.items() if name not in there
    )


def _known_sum(column: str) -> pl.Expr:
    """The sum of what is known, NULL when nothing is. Numbers that upstreams make up cannot make it overflow."""
    return pl.when(pl.col(column).count() > 0).then(
        pl.col(column).cast(pl.Int64).clip(upper_bound=_MOST).sum()
    )


def _stream_minutes(streams: pl.DataFrame) -> pl.DataFrame:
    return (
        streams.with_columns(
            output_ns=pl.when(pl.col("stall_count").is_not_null()).then(
                pl.col("last_output_ns") - pl.col("ttft_ns")
            ),
            # a share needs the whole of those whose part is known
            cacheable=pl.when(pl.col("cached_input_tokens").is_not_null()).then("input_tokens"),
            reasonable=pl.when(pl.col("reasoning_tokens").is_not_null()).then("output_tokens"),
        )
        .group_by(*WHO, *_WHAT)
        .agg(
            pl.lit(False).alias("settled"),
            pl.len().cast(pl.Int64).alias("streams"),
            pl.col("ttft_ns").count().cast(pl.Int64).alias("streams_with_output"),
            pl.col("output_tokens").count().cast(pl.Int64).alias("streams_with_output_tokens"),
            pl.col("aborted_after_terminal").fill_null(value=False).sum().cast(pl.Int64),
            pl.col("stall_count").count().cast(pl.Int64).alias("streams_with_stalls_known"),
            (pl.col("stall_count").fill_null(0) > 0).sum().cast(pl.Int64).alias("stalled_streams"),
            _known_sum("stall_count").alias("stalls"),
            _known_sum("stalled_ns"),
            _known_sum("output_ns"),
            pl.col("icl_max_ns").max(),
            _known_sum("input_tokens"),
            _known_sum("cached_input_tokens"),
            _known_sum("cacheable").alias("input_tokens_with_cache_known"),
            _known_sum("output_tokens"),
            _known_sum("reasoning_tokens"),
            _known_sum("reasonable").alias("output_tokens_with_reasoning_known"),
            _known_sum("event_count").alias("events"),
            _known_sum("output_event_count").alias("output_events"),
            _known_sum("text_chars"),
            _known_sum("reasoning_chars"),
            _known_sum("tool_call_count").alias("tool_calls"),
            _known_sum("malformed_events"),
            _known_sum("request_bytes"),
            _known_sum("response_bytes"),
            _known_sum("delivered_bytes"),
            _known_sum("lost_bytes"),
            pl.col("started_at").min().alias("first_at"),
            pl.col("started_at").max().alias("last_at"),
        )
        .select(STREAM_MINUTES.keys())
    )


def _bucket(value: pl.Expr) -> pl.Expr:
    log = (value.log10() * BUCKETS_PER_DECADE).floor().clip(ZERO_BUCKET + 1, -ZERO_BUCKET - 1)
    return pl.when(value > 0).then(log).otherwise(ZERO_BUCKET).cast(pl.Int16).alias("bucket")


def _histogram_minutes(streams: pl.DataFrame, gaps: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    values = (
        streams.select("key", *(pl.col(name).cast(pl.Float64) for name in METRICS))
        .unpivot(on=METRICS, index="key", variable_name="metric", value_name="value")
        .filter(pl.col("value").is_finite())  # NULL is neither
    )
    gap_values = gaps.select("key", pl.lit("icl_ns").alias("metric"), pl.col("gap_ns").cast(pl.Float64))
    filled = [
        part.group_by("key", "metric", _bucket(pl.col(value))).agg(
            pl.len().cast(pl.Int32).alias("n"),
            pl.col(value).sum().alias("total"),
        )
        for part, value in ((values, "value"), (gap_values, "gap_ns"))
    ]
    return (
        pl.concat(filled)
        .sort("bucket")
        .group_by("key", "metric", maintain_order=True)
        .agg(
            pl.col("n").sum().cast(pl.Int64),
            pl.col("total").sum().cast(pl.Float32),
            pl.col("bucket").alias("buckets"),
            pl.col("n").alias("counts"),
        )
        .join(keys, on="key")
        .with_columns(
            pl.lit(False).alias("settled"),
            *(pl.lit(None, pl.Float32).alias(name) for name in ("p50", "p95", "p99")),
        )
        .select(HISTOGRAM_MINUTES.keys())
    )


def _gaps(streams: pl.DataFrame, events: pl.DataFrame | None) -> pl.DataFrame:
    """`_GAPS` of each two consecutive outputs of one choice, in streams that were measured."""
    whole = streams.with_row_index("row").filter(pl.col("icl_p50_ns").is_not_null())
    if events is None or events.is_empty() or whole.is_empty():
        return pl.DataFrame(schema=_GAPS)
    events = _complete(events, EVENTS)
    new = pl.col("stream_id").ne_missing(pl.col("stream_id").shift()).fill_null(value=True)
    outputs = events.select(
        (new.cum_sum() - 1).cast(pl.UInt32).alias("run"),
        "seq",
        pl.col("choice").fill_null(0),
        "at_ns",
        pl.col("kind").is_in(OUTPUT_KINDS).alias("output"),
    ).filter("output")
    if (outputs["choice"] != 0).any():
        outputs = outputs.sort("run", "choice", maintain_order=True)
    together = (pl.col("run") == pl.col("run").shift()) & (pl.col("choice") == pl.col("choice").shift())
    gaps = outputs.with_columns(pl.when(together).then(pl.col("at_ns").shift()).alias("from_ns")).filter(
        pl.col("from_ns").is_not_null()
    )
    runs = (
        events.select("stream_id").filter(new)
        .join(whole.select("stream_id", "row", "key"), on="stream_id", how="left", maintain_order="left")
    )  # fmt: skip
    return gaps.select(
        runs["row"].gather(gaps["run"]),
        runs["key"].gather(gaps["run"]),
        "seq",
        "choice",
        "from_ns",
        pl.col("at_ns").alias("until_ns"),
        (pl.col("at_ns") - pl.col("from_ns")).alias("gap_ns"),
    ).filter(pl.col("row").is_not_null())


def _stalls(streams: pl.DataFrame, gaps: pl.DataFrame, stall: tuple[int, float]) -> pl.DataFrame:
    """One row a stall: a gap above both limits, in a stream whose row says that it stalled."""
    floor_ns, factor = stall
    stalled = streams.with_row_index("row").filter(pl.col("stall_count") > 0)
    return (
        gaps.filter(pl.col("gap_ns") > floor_ns)
        .join(stalled, on="row", maintain_order="left")
        .filter(pl.col("gap_ns") > factor * pl.col("icl_p50_ns"))
        .select(STALLS.keys())
    )


_GAPS = {
    "row": pl.UInt32(), "key": pl.UInt32(), "seq": pl.Int32(), "choice": pl.Int16(),
    "from_ns": pl.Int64(), "until_ns": pl.Int64(), "gap_ns": pl.Int64(),
}  # fmt: skip

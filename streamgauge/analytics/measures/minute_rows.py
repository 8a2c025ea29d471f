"""Roll-ups by minute of the rows of one commit: counts, sums, and mergeable histograms. No I/O, no clock.

Rules
1. Roll-up rows are appended in the transaction of the rows they are computed from, so each stream is counted exactly once.
   Rows that share a key are parts of one minute and must be added up (`streamgauge.analytics.storage.rollup_compaction` does it later).
2. Histograms have logarithmic buckets (`streamgauge.analytics.schema.histogram_buckets`). A value read back from its bucket is off by
   at most 0.97 %, and so is every quantile. Adding histograms adds no error.
3. `minute` is that of `started_at`. `model` is the requested model, else that of the response. Gaps (`icl_ns`) count in the
   minute in which their stream started.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from streamgauge.analytics.measures.stream_latency import gap_rows, stall_rows
from streamgauge.analytics.reports import quality
from streamgauge.analytics.schema.dimensions import INPUT_TOKENS, NO_REQUESTS
from streamgauge.analytics.schema.frames import with_all_columns
from streamgauge.analytics.schema.histogram_buckets import BUCKETS_PER_DECADE, ZERO_BUCKET
from streamgauge.analytics.schema.outcomes import NOT_COUNTED, NOT_ERRORS, OK
from streamgauge.analytics.schema.stall_limit import StallLimit
from streamgauge.analytics.schema.stream_columns import Histogram, values_of
from streamgauge.analytics.schema.tables import (
    CLIENT_MINUTES,
    HISTOGRAM_MINUTES,
    LABEL_MINUTES,
    STREAM_MINUTES,
    STREAMS,
    Table,
)

METRICS = tuple(values_of(Histogram))
"""Columns of `streams` with a histogram. The pooled gaps have one too, `icl_ns`."""
_SOURCE = ("minute", "gateway", "provider", "model")
_MAX_SUMMAND = 2**47
"""39 hours in ns."""
_DEFAULT_STALL = StallLimit()


def rollups(
    tables: Mapping[str, pl.DataFrame], stall: StallLimit = _DEFAULT_STALL
) -> dict[str, pl.DataFrame]:
    """The rows of the tables of roll-ups and of `output_stalls` for these rows of `streams` and `events`.

    `stall` is the limit that the streams were measured with. The events of a stream are adjacent and in order. `output_waits`
    has their waits.
    """
    streams = tables.get("streams")
    if streams is None or streams.is_empty():
        return {}
    streams = with_all_columns(streams, STREAMS).with_columns(_DERIVED)
    streams = streams.filter(~pl.col("operation").is_in(NO_REQUESTS, nulls_equal=True))
    sources = streams.select(_SOURCE)
    keys = sources.unique(maintain_order=True).with_row_index("key")
    streams = streams.with_columns(
        sources.join(keys, on=_SOURCE, how="left", nulls_equal=True, maintain_order="left")["key"]
    )
    gaps = gap_rows(streams, tables.get("events"), tables.get("output_waits"))
    queries = {
        "stream_minutes": _grouped(streams.lazy(), STREAM_MINUTES, _COUNTS),
        "client_minutes": _grouped(streams.lazy(), CLIENT_MINUTES, _CLIENT_COUNTS),
        "histogram_minutes": _histogram_minutes(streams.lazy(), gaps, keys.lazy()),
    }
    if streams["labels"].null_count() < streams.height:
        labelled = streams.lazy().filter(pl.col("labels").is_not_null()).with_columns(_LABEL, _VALUE)
        queries["label_minutes"] = _grouped(labelled.explode("label", "value"), LABEL_MINUTES, _CLIENT_COUNTS)
    # Together, so that polars computes what they share once and starts its threads once.
    found = dict(zip(queries, pl.collect_all(queries.values()), strict=True))
    stalls = stall_rows(streams, gaps, stall)
    if not stalls.is_empty():
        found["output_stalls"] = stalls
    return found


def _grouped(streams: pl.LazyFrame, table: Table, counts: list[pl.Expr]) -> pl.LazyFrame:
    return streams.group_by(table.key.split(", ")).agg(counts).select(table.types.keys())


def _known_sum(values: pl.Expr, name: str) -> pl.Expr:
    """The sum of known values, NULL if there is none. Absurd numbers from an upstream cannot make it overflow."""
    # Without the limit one absurd number would make the sum of a minute overflow to a negative one.
    found = values.cast(pl.Int64).clip(upper_bound=_MAX_SUMMAND)
    return pl.when(values.count() > 0).then(found.sum()).alias(name)


def _sums(**columns: str) -> list[pl.Expr]:
    return [_known_sum(pl.col(column), name) for name, column in columns.items()]


def _same_sums(table: Table) -> list[pl.Expr]:
    """Sums of the columns of `streams` that the roll-up has by the same name. A count of streams is no sum, and is never NULL."""
    counts = {*table.key.split(", "), "icl_max_ns", "aborted_after_terminal"}
    return _sums(**{name: name for name in table.types if name in STREAMS.types and name not in counts})


def _counts(**conditions: str) -> list[pl.Expr]:
    """Numbers of streams for which a condition in SQL holds."""
    return [
        pl.sql_expr(condition).fill_null(value=False).sum().cast(pl.Int64).alias(name)
        for name, condition in conditions.items()
    ]


# The expressions are built once, at import, because they are the same for every commit.
_LABEL, _VALUE = (
    pl.col("labels").map.keys().alias("label"),
    pl.col("labels").map.values().alias("value"),
)
_MEETING = pl.col("meets_objective").fill_null(value=False) & (pl.col("outcome") == OK)
_CLIENT_COUNTS = [
    pl.lit(value=False).alias("settled"),
    pl.len().cast(pl.Int64).alias("streams"),
    (~pl.col("outcome").is_in(NOT_COUNTED)).sum().cast(pl.Int64).alias("counted"),
    (~pl.col("outcome").is_in(NOT_ERRORS)).sum().cast(pl.Int64).alias("errors"),
    _MEETING.sum().cast(pl.Int64).alias("meeting_objective"),
    *_same_sums(CLIENT_MINUTES),
]
_COUNTS = [
    pl.lit(value=False).alias("settled"),
    pl.len().cast(pl.Int64).alias("streams"),
    pl.col("ttft_ns").count().cast(pl.Int64).alias("streams_with_output"),
    pl.col("output_tokens").count().cast(pl.Int64).alias("streams_with_output_tokens"),
    pl.col("aborted_after_terminal").sum().cast(pl.Int64),
    _MEETING.sum().cast(pl.Int64).alias("meeting_objective"),
    pl.col("stall_count").count().cast(pl.Int64).alias("streams_with_stalls_known"),
    (pl.col("stall_count") > 0).sum().cast(pl.Int64).alias("stalled_streams"),
    pl.col("icl_max_ns").max(),
    *_same_sums(STREAM_MINUTES),
    *_sums(stalls="stall_count", events="event_count", output_events="output_event_count", tool_calls="tool_call_count"),
    # the denominator of a share: only streams whose numerator is known
    *(
        _known_sum(pl.when(pl.col(known).is_not_null()).then(value), name)
        for name, known, value in (
            ("output_ns", "stall_count", pl.col("last_output_ns") - pl.col("ttft_ns")),
            ("input_tokens_with_cache_known", "cached_input_tokens", pl.col("input_tokens")),
            ("output_tokens_with_reasoning_known", "reasoning_tokens", pl.col("output_tokens")),
        )
    ),
    *_counts(
        complete_answers=quality.IS_ANSWER, cut_answers=quality.is_affected("length"), refusals=quality.is_affected("refusal"),
        empty_answers=quality.is_affected("empty"), answers_with_tools=quality.is_affected("tool_calls"),
        streams_with_malformed_tools=quality.is_affected("tool_arguments"), streams_with_tools=quality.MEASURES["tool_failure"].known,
        failed_with_tools=quality.is_affected("tool_failure"),
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
        .select(HISTOGRAM_MINUTES.types.keys())
    )


_DERIVED = [
    pl.col("started_at").dt.truncate("1m").alias("minute"),
    pl.coalesce("request_model", "response_model").alias("model"),
    pl.sql_expr(INPUT_TOKENS).alias("input_tokens"),
]
_VALUES = [pl.col(name).cast(pl.Float64) for name in METRICS]
_GAP_VALUES = [pl.lit("icl_ns").alias("metric"), pl.col("upstream_ns").cast(pl.Float64).alias("value")]
_IS_NUMBER = pl.col("value").is_finite()  # false for NULL, NaN and infinity
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

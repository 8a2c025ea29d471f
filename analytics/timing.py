"""Times between output events, for many streams at once: gaps, quantiles, stalls, burstiness. Pure polars.

Definitions (docs/metrics.md), each over the output events a1…aM of a stream:

- A gap (icl) lies between two consecutive output events of one choice; events of one read have gap 0.
- Quantiles interpolate linearly between the two nearest gaps, as DuckDB's `quantile_cont` does.
- A stall is a gap above max(`stall_floor_ns`, `stall_factor` × the stream's median gap).
- Burstiness is the share of output bytes that came in the largest read, or in reads at most 1 ms after or before another one
  with output. Output bytes are the data bytes of output events, by the read that completed them.

A small batch goes to `analytics.timing_plain`, which computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from analytics.dialects.shape import OUTPUT_KINDS
from analytics.events import EventFrame
from analytics.stream import FinishedStream
from analytics.timing_plain import BURST_NS, NOTHING, Timing, timing_of

FEW_EVENTS = 5_000
"""Up to so many events plain Python is quicker than the set-up of polars' queries (about 10 ms)."""


def timings(
    events: EventFrame, finished: Sequence[FinishedStream], *, stall_floor_ns: int, stall_factor: float
) -> list[Timing]:
    """The timing of each stream of a batch."""
    if len(events.rows) <= FEW_EVENTS:
        return [
            timing_of(s.decoder.events, stall_floor_ns=stall_floor_ns, stall_factor=stall_factor)
            if s.decoder is not None
            else NOTHING
            for s in finished
        ]
    return timings_of_many(events, len(finished), stall_floor_ns=stall_floor_ns, stall_factor=stall_factor)


def timings_of_many(
    events: EventFrame, streams: int, *, stall_floor_ns: int, stall_factor: float
) -> list[Timing]:
    """The timings of a batch of `streams` streams, by polars."""
    every = events.rows.select(
        events.stream.alias("stream"),
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"),
        "seq", "read_seq", "at_ns", "bytes", "tokens",
        pl.col("choice").cast(pl.Int64).fill_null(0),
        pl.col("kind").is_in(OUTPUT_KINDS).alias("output"),
    )  # fmt: skip
    outputs = every.filter("output")
    if outputs.is_empty():
        return [NOTHING] * streams
    gaps, by_choice = _gaps(outputs, events.extra)
    found = pl.DataFrame({"stream": range(streams)}, schema={"stream": pl.UInt32})
    for part in (
        _totals(every, outputs),
        by_choice,
        _quantiles(gaps, stall_floor_ns, stall_factor),
        _burstiness(outputs),
    ):
        found = found.join(part, on="stream", how="left", maintain_order="left")
    no_gap = pl.col("stall_count").is_null() & pl.col("last_output_seq").is_not_null()
    rows = found.with_columns(
        pl.when(no_gap).then(0).otherwise("stall_count").alias("stall_count"),
        pl.when(no_gap).then(0).otherwise("stalled_ns").alias("stalled_ns"),
    ).select(Timing._fields)
    return [Timing(*row) for row in rows.iter_rows()]


def _totals(every: pl.DataFrame, outputs: pl.DataFrame) -> pl.DataFrame:
    listed = every.group_by("stream").agg(pl.col("tokens").cast(pl.Int64).sum().alias("listed"))
    return (
        outputs.group_by("stream")
        .agg(pl.col("seq").last().alias("last_output_seq"), pl.col("tokens").null_count().alias("unlisted"))
        .join(listed, on="stream")
        .select(
            "stream",
            "last_output_seq",
            pl.when(pl.col("unlisted") == 0).then("listed").alias("listed_tokens"),
        )
    )


def _gaps(outputs: pl.DataFrame, extra: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(stream, gap) of each two consecutive outputs of one choice; and by stream what its choices amount to."""
    outputs = outputs.select("stream", "row", "choice", "at_ns")
    if not extra.is_empty():
        more = extra.join(outputs.drop("choice"), on="row").select("stream", "row", "choice", "at_ns")
        outputs = pl.concat([outputs, more])
    several = (outputs["choice"] != 0).any()
    if several:
        outputs = outputs.sort("stream", "choice", "row", maintain_order=True)
    same = pl.col("stream") == pl.col("stream").shift(1)
    if several:
        same &= pl.col("choice") == pl.col("choice").shift(1)
    outputs = outputs.with_columns(
        pl.when(same).then(pl.col("at_ns") - pl.col("at_ns").shift(1)).alias("gap")
    )
    gaps = outputs.filter(pl.col("gap").is_not_null()).select("stream", "gap")
    choices = (
        outputs.group_by("stream", "choice")
        .agg(
            pl.col("at_ns").first().alias("first"),
            pl.col("at_ns").last().alias("last"),
            pl.col("gap").drop_nulls().first().alias("ttst_ns"),
            pl.len().alias("m"),
        )
        .sort("stream", "first", "choice")
    )
    one = (pl.len() == 1) & (pl.col("m").first() >= 2)
    by_stream = choices.group_by("stream").agg(
        pl.col("ttst_ns").first(),
        pl.when(one).then(pl.col("last").first() - pl.col("first").first()).alias("span_ns"),
    )
    return gaps, by_stream


def _quantiles(gaps: pl.DataFrame, stall_floor_ns: int, stall_factor: float) -> pl.DataFrame:
    gap = pl.col("gap")
    found = gaps.group_by("stream").agg(
        gap.quantile(0.5, "linear").alias("icl_p50_ns"),
        gap.quantile(0.95, "linear").alias("icl_p95_ns"),
        gap.quantile(0.99, "linear").alias("icl_p99_ns"),
        gap.max().alias("icl_max_ns"),
    )
    limit = pl.max_horizontal(pl.lit(float(stall_floor_ns)), pl.col("icl_p50_ns") * stall_factor)
    candidates = gaps.filter(gap > stall_floor_ns)
    stalls = (
        candidates.join(found.select("stream", limit.alias("limit")), on="stream")
        .filter(gap > pl.col("limit"))
        .group_by("stream")
        .agg(pl.len().cast(pl.Int64).alias("stall_count"), gap.sum().alias("stalled_ns"))
    )
    return found.join(stalls, on="stream", how="left").with_columns(
        pl.col("stall_count").fill_null(0), pl.col("stalled_ns").fill_null(0)
    )


def _burstiness(outputs: pl.DataFrame) -> pl.DataFrame:
    new_read = (pl.col("stream") != pl.col("stream").shift(1)) | (
        pl.col("read_seq") != pl.col("read_seq").shift(1)
    )
    reads = (
        outputs.select("stream", "at_ns", "bytes", new_read.fill_null(value=True).cum_sum().alias("read"))
        .group_by("read", maintain_order=True)
        .agg(
            pl.col("stream").first(),
            pl.col("at_ns").first(),
            pl.col("bytes").cast(pl.Int64).sum(),
            pl.len().alias("m"),
        )
    )
    close = (pl.col("stream") == pl.col("stream").shift(1)) & (
        pl.col("at_ns") - pl.col("at_ns").shift(1) <= BURST_NS
    )
    reads = reads.with_columns(close.fill_null(value=False).alias("close"))
    reads = reads.with_columns((pl.col("close") | pl.col("close").shift(-1, fill_value=False)).alias("near"))
    size = pl.col("bytes")
    return (
        reads.group_by("stream")
        .agg(
            size.sum().alias("total"),
            size.filter("near").sum().alias("in_bursts"),
            size.max().alias("largest"),
            pl.col("near").get(size.arg_max()).alias("largest_near"),
            pl.col("m").sum().alias("m"),
        )
        .filter((pl.col("m") >= 2) & (pl.col("total") > 0))
        .select(
            "stream",
            (
                (pl.col("in_bursts") + pl.when("largest_near").then(0).otherwise("largest")) / pl.col("total")
            ).alias("burstiness"),
        )
    )

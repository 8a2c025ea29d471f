"""Times between output events, for many streams at once: gaps, quantiles, stalls, burstiness. Pure polars.

Definitions (docs/metrics.md), each over the output events a1…aM of a stream:

- A gap (icl) lies between two consecutive output events of one choice; events of one read have gap 0.
- Quantiles interpolate linearly between the two nearest gaps, as DuckDB's `quantile_cont` does.
- A stall is a gap above max(`stall_floor_ns`, `stall_factor` × the stream's median gap).
- Burstiness is the share of output bytes that came in the largest read, or in reads at most 1 ms after or before another one
  with output. Output bytes are the data bytes of output events, by the read that completed them.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from analytics.dialects.shape import OUTPUT_KINDS
from analytics.events import EventFrame

BURST_NS = 1_000_000
"""Reads no further apart than this came as one."""


@dataclass(frozen=True, slots=True)
class Timings:
    """One value for each stream of the batch, None = unknown or undefined."""

    ttst_ns: list[int | None]
    span_ns: list[int | None]
    """aM - a1; None with several choices or M < 2."""
    last_output_seq: list[int | None]
    icl_p50_ns: list[float | None]
    icl_p95_ns: list[float | None]
    icl_p99_ns: list[float | None]
    icl_max_ns: list[int | None]
    stall_count: list[int | None]
    """0 when there was output but no gap; None without output."""
    stalled_ns: list[int | None]
    burstiness: list[float | None]
    listed_tokens: list[int | None]
    """Sum of the tokens that the events list; None unless every output event does."""


def timings_of(events: EventFrame, streams: int, *, stall_floor_ns: int, stall_factor: float) -> Timings:
    """The timings of a batch of `streams` streams."""
    every = events.rows.select(
        events.stream.alias("stream"),
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"),
        "seq", "read_seq", "at_ns", "bytes", "tokens",
        pl.col("choice").cast(pl.Int64).fill_null(0),
        pl.col("kind").is_in(OUTPUT_KINDS).alias("output"),
    )  # fmt: skip
    outputs = every.filter("output")
    found = pl.DataFrame({"stream": range(streams)}, schema={"stream": pl.UInt32})
    if not outputs.is_empty():
        gaps, by_choice = _gaps(outputs, events.extra)
        for part in (
            _totals(every, outputs),
            by_choice,
            _quantiles(gaps, stall_floor_ns, stall_factor),
            _burstiness(outputs),
        ):
            found = found.join(part, on="stream", how="left", maintain_order="left")

    def column(name: str) -> list:  # type: ignore[type-arg]
        return found[name].to_list() if name in found.columns else [None] * streams

    stalls = [
        0 if c is None and last is not None else c
        for c, last in zip(column("stall_count"), column("last_output_seq"), strict=True)
    ]
    stalled = [0 if c == 0 else ns for c, ns in zip(stalls, column("stalled_ns"), strict=True)]
    return Timings(
        ttst_ns=column("ttst_ns"),
        span_ns=column("span_ns"),
        last_output_seq=column("last_output_seq"),
        icl_p50_ns=column("icl_p50_ns"),
        icl_p95_ns=column("icl_p95_ns"),
        icl_p99_ns=column("icl_p99_ns"),
        icl_max_ns=column("icl_max_ns"),
        stall_count=stalls,
        stalled_ns=stalled,
        burstiness=column("burstiness"),
        listed_tokens=column("listed_tokens"),
    )


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

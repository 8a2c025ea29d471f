"""The histogram of times between output chunks, counted in bulk: a hundred thousand a second would be too many SDK calls.

Gaps are those of `analytics.measure`: between consecutive output events of one choice. They are put into buckets a commit at
a time, and become an SDK metric, with all others, when somebody reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from opentelemetry.sdk.metrics.export import AggregationTemporality, Histogram, HistogramDataPoint, Metric

from analytics.dialects.shape import OUTPUT_KINDS
from analytics.semconv import SECONDS_BOUNDS

Key = tuple[tuple[str, Any], ...]
"""Attributes of one series."""


@dataclass(slots=True)
class _Series:
    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS_BOUNDS) + 1))
    sum_s: float = 0.0
    min_s: float = float("inf")
    max_s: float = 0.0


class ChunkTimes:
    """Counted by the consumer's thread, read by the exporters'."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._series: dict[Key, _Series] = {}
        self._since_ns = time.time_ns()

    def count(self, events: pl.DataFrame, keys: Mapping[str, Key]) -> None:
        """The gaps in rows of `events`; `keys` has the series of each stream that counts."""
        outputs = (
            events.lazy().filter(pl.col("kind").is_in(OUTPUT_KINDS)).select("stream_id", "choice", "at_ns")
        )
        found = (
            outputs.with_columns(pl.col("choice").fill_null(0))
            .with_columns(
                (pl.col("at_ns") - pl.col("at_ns").shift(1).over("stream_id", "choice")).alias("gap")
            )
            .filter(pl.col("gap").is_not_null())
            .with_columns((pl.col("gap") / 1e9).alias("gap_s"))
            .with_columns(
                pl.sum_horizontal([pl.col("gap_s") > bound for bound in SECONDS_BOUNDS]).alias("bucket")
            )
            .group_by("stream_id", "bucket")
            .agg(
                pl.len().alias("n"),
                pl.col("gap_s").sum().alias("sum_s"),
                pl.col("gap_s").min().alias("min_s"),
                pl.col("gap_s").max().alias("max_s"),
            )
            .collect()
        )
        with self._lock:
            for stream_id, bucket, n, sum_s, min_s, max_s in found.iter_rows():
                key = keys.get(stream_id)
                if key is None:
                    continue
                series = self._series.setdefault(key, _Series())
                series.counts[bucket] += n  # (low, high], as the SDK's buckets
                series.sum_s += sum_s
                series.min_s, series.max_s = min(series.min_s, min_s), max(series.max_s, max_s)

    def metric(self) -> Metric:
        """All of it so far, cumulative."""
        now_ns = time.time_ns()
        with self._lock:
            points: Sequence[HistogramDataPoint] = [
                HistogramDataPoint(
                    attributes=dict(key),
                    start_time_unix_nano=self._since_ns,
                    time_unix_nano=now_ns,
                    count=sum(s.counts),
                    sum=s.sum_s,
                    bucket_counts=list(s.counts),
                    explicit_bounds=SECONDS_BOUNDS,
                    min=s.min_s,
                    max=s.max_s,
                )
                for key, s in self._series.items()
            ]
        return Metric(
            self.name,
            "Time between two output chunks",
            "s",
            Histogram(points, AggregationTemporality.CUMULATIVE),
        )

"""Counters and histograms with cheap bulk updates, in the data model of the OpenTelemetry SDK. No I/O; time is an argument.

An SDK instrument takes 30 µs or more per measurement (attribute sets, locks, reservoirs), and a stream has a dozen. Here the
caller looks up the series of a set of attributes once and keeps it. A measurement is then a binary search and three additions.
Readers return the SDK's own `Metric` objects.

Rules
- A bucket is (low, high], as in the SDK.
- An exemplar is the newest sampled measurement of its bucket. Each delta reader exports it once.
- An instrument has at most `MAX_SERIES` series. Further ones are added to a series with the attribute
  `otel.metric.overflow`, as in the SDK.
- Adding and reading happen on different threads. Both hold the lock of the set.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk import metrics as sdk
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)

from streamgauge.analytics.telemetry.metric_definitions import Instrument
from streamgauge.ingest.guards import Guard

Key = tuple[tuple[str, Any], ...]
"""The attributes of one series."""
Sample = tuple[int, int, int]
"""(trace id, span id, time in ns) of a measurement in a sampled trace."""

MAX_SERIES = 2_000
OVERFLOW: Key = (("otel.metric.overflow", True),)


class Distribution:
    __slots__ = ("bounds", "counts", "exemplars", "max", "min", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.min, self.max = float("inf"), float("-inf")
        self.exemplars: dict[int, tuple[float, Sample]] = {}

    def add(self, value: float, sample: Sample | None = None) -> None:
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.sum += value
        if value < self.min:
            self.min = value
        if value > self.max:
            self.max = value
        if sample is not None:
            self.exemplars[bucket] = (value, sample)

    def add_sorted_ns(self, values_ns: Sequence[int]) -> None:
        """Add sorted times in ns to a histogram in seconds. One search per bucket instead of one per value."""
        start = 0
        for bucket, bound in enumerate((*self.bounds, float("inf"))):
            if start == len(values_ns):
                return
            end = bisect_right(values_ns, bound * 1e9, start)
            if end > start:
                self.counts[bucket] += end - start
                self.sum += sum(values_ns[start:end]) / 1e9
                self.min = min(self.min, values_ns[start] / 1e9)
                self.max = max(self.max, values_ns[end - 1] / 1e9)
                start = end


class Counter:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class SeriesSet:
    """The series of a list of instruments."""

    def __init__(self, instruments: Sequence[Instrument], now_ns: int) -> None:
        self.lock = threading.Lock()
        self._instruments = {i.name: i for i in instruments if i.kind in ("histogram", "counter")}
        self._since_ns = now_ns
        self._series: dict[str, dict[Key, Any]] = {name: {} for name in self._instruments}

    def distribution(self, name: str, attributes: Mapping[str, Any]) -> Distribution:
        """The series of a histogram with these attributes. The caller holds the lock."""
        instrument = self._instruments[name]
        series: Distribution = self._get_or_create(name, attributes, lambda: Distribution(instrument.bounds))
        return series

    def counter(self, name: str, attributes: Mapping[str, Any]) -> Counter:
        """The series of a counter with these attributes. The caller holds the lock."""
        series: Counter = self._get_or_create(name, attributes, Counter)
        return series

    def _get_or_create(self, name: str, attributes: Mapping[str, Any], make: Any) -> Any:
        # Not sorted: the callers build their attributes in one order, and sorting costs more than the look-up.
        known, key = self._series[name], tuple(attributes.items())
        found = known.get(key)
        if found is None:
            if len(known) >= MAX_SERIES:
                key = OVERFLOW
            found = known.setdefault(key, known.get(key) or make())
        return found

    def reader(self, *, delta_histograms: bool = False, delta_counters: bool = False) -> SeriesReader:
        """A reader with its own state: cumulative values, or differences since its last read."""
        return SeriesReader(self, delta_histograms=delta_histograms, delta_counters=delta_counters)


class SeriesReader:
    """One reader's view, independent of other readers."""

    def __init__(self, of: SeriesSet, *, delta_histograms: bool, delta_counters: bool) -> None:
        self._of = of
        self._delta = {"histogram": delta_histograms, "counter": delta_counters}
        self._before: dict[tuple[str, Key], Any] = {}
        self._read_ns = of._since_ns

    def read(self, now_ns: int) -> list[Metric]:
        """Every instrument with data."""
        since_ns, self._read_ns = self._read_ns, now_ns
        found = []
        with self._of.lock:
            for name, series in self._of._series.items():
                instrument = self._of._instruments[name]
                delta = self._delta[instrument.kind]
                start_ns = since_ns if delta else self._of._since_ns
                temporality = AggregationTemporality.DELTA if delta else AggregationTemporality.CUMULATIVE
                data: Histogram | Sum
                if instrument.kind == "histogram":
                    data = Histogram(self._distributions(name, series, delta, start_ns, now_ns), temporality)
                else:
                    data = Sum(
                        self._sums(name, series, delta, start_ns, now_ns), temporality, is_monotonic=True
                    )
                if data.data_points:
                    found.append(Metric(name, instrument.description, instrument.unit, data))
        return found

    def _distributions(
        self, name: str, series: Mapping[Key, Distribution], delta: bool, start_ns: int, now_ns: int
    ) -> list[HistogramDataPoint]:
        points = []
        for key, one in series.items():
            if one.max < one.min:  # empty
                continue
            counts, total = list(one.counts), one.sum
            least: float | None = one.min
            most: float | None = one.max
            exemplars = one.exemplars.values()
            if delta:
                before_counts, before_sum = self._before.get((name, key), ((0,) * len(counts), 0.0))
                self._before[name, key] = (tuple(counts), total)
                counts = [now - before for now, before in zip(counts, before_counts, strict=True)]
                if not any(counts):
                    continue
                total -= before_sum
                if any(before_counts):  # minimum and maximum of the interval are unknown
                    least = most = None
            points.append(
                HistogramDataPoint(
                    attributes=dict(key),
                    start_time_unix_nano=start_ns,
                    time_unix_nano=now_ns,
                    count=sum(counts),
                    sum=total,
                    bucket_counts=counts,
                    explicit_bounds=one.bounds,
                    min=least,  # type: ignore[arg-type]  # optional in OTLP
                    max=most,  # type: ignore[arg-type]
                    exemplars=[
                        sdk.Exemplar({}, value, at_ns, span_id, trace_id)
                        for value, (trace_id, span_id, at_ns) in exemplars
                        if not delta or at_ns > start_ns
                    ],
                )
            )
        return points

    def _sums(
        self, name: str, series: Mapping[Key, Counter], delta: bool, start_ns: int, now_ns: int
    ) -> list[NumberDataPoint]:
        points = []
        for key, one in series.items():
            value = one.value
            if delta:
                value -= self._before.get((name, key), 0)
                self._before[name, key] = one.value
                if not value:
                    continue
            points.append(NumberDataPoint(dict(key), start_ns, now_ns, value))
        return points


# The SDK's own metrics and the bulk-counted series leave in one request, so that
# `OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=delta` applies to both.
class CombinedExporter(MetricExporter):
    """Adds the metrics of a `SeriesSet` to each export of the wrapped exporter."""

    def __init__(self, exporter: MetricExporter, series: SeriesSet, guard: Guard) -> None:
        # The wrapped exporter read its preferences from the environment. The SDK's reader uses these attributes.
        preferred = exporter._preferred_temporality or {}
        super().__init__(
            preferred_temporality=preferred, preferred_aggregation=exporter._preferred_aggregation
        )
        delta = AggregationTemporality.DELTA
        self._exporter, self._guard = exporter, guard
        self._series = series.reader(
            delta_histograms=preferred.get(sdk.Histogram) is delta,
            delta_counters=preferred.get(sdk.Counter) is delta,
        )

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        self._guard.beat()  # the SDK's thread calls this once per interval
        data = with_metrics(metrics_data, self._series.read(time.time_ns()))
        assert data is not None
        return self._exporter.export(data, timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._exporter.shutdown(timeout_millis=timeout_millis, **kwargs)


def with_metrics(data: MetricsData | None, more: Sequence[Metric]) -> MetricsData | None:
    """Add metrics to the first scope, which is ours. None if the SDK is shut down."""
    if data is None or not more:
        return data
    resources = []
    for resource in data.resource_metrics:
        scopes = [
            ScopeMetrics(s.scope, [*s.metrics, *more], s.schema_url) if i == 0 else s
            for i, s in enumerate(resource.scope_metrics)
        ]
        resources.append(ResourceMetrics(resource.resource, scopes, resource.schema_url))
    return MetricsData(resources)

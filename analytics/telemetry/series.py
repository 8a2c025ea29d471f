"""Counters and histograms that are added to in bulk, in the data model of the OpenTelemetry SDK. No I/O; time is an argument.

An SDK instrument spends 30 microseconds and more on one measurement (attribute sets, locks, reservoirs), and a stream has a
dozen. Here the series of a set of attributes is looked up once and kept by who counts; a measurement is then a search in the
bounds and three additions. What is read are the SDK's own `Metric`s, which its exporters take.

Rules
- A bucket is (low, high], as the SDK's.
- An exemplar is the newest sampled measurement of its bucket; it is told once to each reader that is told differences.
- An instrument has at most `MAX_SERIES` series; what comes beyond them is added to one whose only attribute is
  `otel.metric.overflow`, as the SDK does.
- One thread adds while others read: both hold the lock of the set.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)

from analytics.telemetry.catalogue import Instrument

Key = tuple[tuple[str, Any], ...]
"""Attributes of one series."""
Witnessed = tuple[int, int, int]
"""(trace id, span id, time in ns) of a measurement whose trace is sampled."""

MAX_SERIES = 2_000
OVERFLOW: Key = (("otel.metric.overflow", True),)


class Distribution:
    """One series of a histogram."""

    __slots__ = ("bounds", "counts", "exemplars", "max", "min", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.min, self.max = float("inf"), float("-inf")
        self.exemplars: dict[int, tuple[float, Witnessed]] = {}

    def add(self, value: float, witnessed: Witnessed | None = None) -> None:
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.sum += value
        if value < self.min:
            self.min = value
        if value > self.max:
            self.max = value
        if witnessed is not None:
            self.exemplars[bucket] = (value, witnessed)

    def add_many(self, bucket: int, count: int, total: float, least: float, most: float) -> None:
        """`count` measurements of one bucket: their sum, the least and the greatest of them."""
        self.counts[bucket] += count
        self.sum += total
        self.min, self.max = min(self.min, least), max(self.max, most)


class Tally:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class SeriesSet:
    """All series of the instruments of a catalogue."""

    def __init__(self, instruments: Sequence[Instrument], now_ns: int) -> None:
        self.lock = threading.Lock()
        self._instruments = {i.name: i for i in instruments if i.kind in ("histogram", "counter")}
        self._since_ns = now_ns
        self._series: dict[str, dict[Key, Any]] = {name: {} for name in self._instruments}

    def distribution(self, name: str, attributes: Mapping[str, Any]) -> Distribution:
        """The series of a histogram with these attributes. The lock is held."""
        instrument = self._instruments[name]
        series: Distribution = self._at(name, attributes, lambda: Distribution(instrument.bounds))
        return series

    def tally(self, name: str, attributes: Mapping[str, Any]) -> Tally:
        """The series of a counter with these attributes. The lock is held."""
        series: Tally = self._at(name, attributes, Tally)
        return series

    def _at(self, name: str, attributes: Mapping[str, Any], make: Any) -> Any:
        known, key = self._series[name], tuple(attributes.items())
        found = known.get(key)
        if found is None:
            if len(known) >= MAX_SERIES:
                key = OVERFLOW
            found = known.setdefault(key, known.get(key) or make())
        return found

    def reader(self, *, delta_histograms: bool = False, delta_counters: bool = False) -> SeriesReader:
        """Somebody who reads from time to time: all of it so far, or what came since the last time."""
        return SeriesReader(self, delta_histograms=delta_histograms, delta_counters=delta_counters)


class SeriesReader:
    """One reader's view. Readers do not disturb each other."""

    def __init__(self, of: SeriesSet, *, delta_histograms: bool, delta_counters: bool) -> None:
        self._of = of
        self._delta = {"histogram": delta_histograms, "counter": delta_counters}
        self._before: dict[tuple[str, Key], Any] = {}
        self._read_ns = of._since_ns

    def read(self, now_ns: int) -> list[Metric]:
        """Every instrument that has a series."""
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
            if one.max < one.min:  # nothing was added yet
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
                if any(before_counts):  # nobody kept those of the time between
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
                        Exemplar({}, value, at_ns, span_id, trace_id)
                        for value, (trace_id, span_id, at_ns) in exemplars
                        if not delta or at_ns > start_ns
                    ],
                )
            )
        return points

    def _sums(
        self, name: str, series: Mapping[Key, Tally], delta: bool, start_ns: int, now_ns: int
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

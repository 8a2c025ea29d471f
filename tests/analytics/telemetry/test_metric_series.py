"""Bulk series agree with the SDK's instruments, and readers are independent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
)

from streamgauge.analytics.decoding.stream_output import EventColumns
from streamgauge.analytics.measures.stream_latency import inter_chunk_gaps
from streamgauge.analytics.telemetry.metric_definitions import Instrument
from streamgauge.analytics.telemetry.metric_series import (
    MAX_SERIES,
    CombinedExporter,
    Distribution,
    SeriesReader,
    SeriesSet,
    with_metrics,
)
from streamgauge.ingest.guards import Guards

BOUNDS = (0.01, 0.1, 1.0, 10.0)
TIMES = Instrument("times", "histogram", "s", "Times", BOUNDS)
COUNT = Instrument("count", "counter", "{thing}", "Things")


def points(metrics: Sequence[Metric], name: str) -> list[Any]:
    return [p for m in metrics if m.name == name for p in m.data.data_points]


def added(series: SeriesSet, values: Sequence[float], **attributes: Any) -> None:
    with series.lock:
        for at, value in enumerate(values):
            series.distribution("times", attributes).add(value, (1, 2, 100 + at))
            series.counter("count", attributes).value += 1


@given(st.lists(st.one_of(st.sampled_from([0.0, *BOUNDS]), st.floats(0, 100)), min_size=1))
def test_distribution_equals_the_sdks_histogram(values: list[float]) -> None:
    memory = InMemoryMetricReader()
    provider = MeterProvider([memory])
    theirs = provider.get_meter("m").create_histogram("h", explicit_bucket_boundaries_advisory=BOUNDS)
    ours = Distribution(BOUNDS)
    for value in values:
        theirs.record(value)
        ours.add(value)
    data = memory.get_metrics_data()
    assert data is not None
    (point,) = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    provider.shutdown()
    assert list(point.bucket_counts) == ours.counts  # type: ignore[union-attr]
    assert (point.min, point.max) == (ours.min, ours.max)  # type: ignore[union-attr]
    assert point.sum == pytest.approx(ours.sum)  # type: ignore[union-attr]


AT_A_BOUND = [int(bound * 1e9) + more for bound in BOUNDS for more in (-1, 0, 1)]


@given(st.lists(st.integers(0, 3 * 10**9) | st.sampled_from(AT_A_BOUND), min_size=2, max_size=40))
def test_sorted_gaps_are_counted_as_if_added_one_by_one(gaps_ns: list[int]) -> None:
    events, singly, at_once, at_ns = EventColumns(), Distribution(BOUNDS), Distribution(BOUNDS), 0
    for gap_ns in [0, *gaps_ns]:
        at_ns += gap_ns
        events.at_ns.append(at_ns)
        events.kind.append("text")
        events.choice.append(0)
    for gap_ns in gaps_ns:
        singly.add(gap_ns / 1e9)
    at_once.add_sorted_ns(inter_chunk_gaps(events))
    assert at_once.counts == singly.counts
    assert (at_once.min, at_once.max) == (singly.min, singly.max)
    assert at_once.sum == pytest.approx(singly.sum)


def test_cumulative_and_delta_readers_are_independent() -> None:
    series = SeriesSet([TIMES, COUNT], 0)
    whole, differences = series.reader(), series.reader(delta_histograms=True, delta_counters=True)
    added(series, [0.05, 5.0], who="a")

    def counts(reader: SeriesReader, now_ns: int) -> list[Any]:
        found = reader.read(now_ns)
        return [(list(p.bucket_counts), p.sum) for p in points(found, "times")] + [
            p.value for p in points(found, "count")
        ]

    assert counts(whole, 200) == counts(differences, 200) == [([0, 1, 0, 1, 0], 5.05), 2]
    added(series, [0.5], who="a")
    assert counts(whole, 300) == [([0, 1, 1, 1, 0], 5.55), 3]
    assert counts(differences, 300) == [([0, 0, 1, 0, 0], pytest.approx(0.5)), 1]
    assert counts(differences, 400) == []
    assert counts(whole, 400) == [([0, 1, 1, 1, 0], 5.55), 3]


def test_delta_starts_at_the_previous_read_and_has_only_exemplars_since_then() -> None:
    series = SeriesSet([TIMES], 0)
    reader = series.reader(delta_histograms=True)
    with series.lock:
        series.distribution("times", {}).add(0.05, (1, 2, 150))
    reader.read(200)
    with series.lock:
        series.distribution("times", {}).add(5.0, (3, 4, 250))
    (metric,) = reader.read(300)
    (point,) = metric.data.data_points
    assert metric.data.aggregation_temporality is AggregationTemporality.DELTA  # type: ignore[union-attr]
    assert (point.start_time_unix_nano, point.time_unix_nano) == (200, 300)
    assert [(e.trace_id, e.value) for e in point.exemplars] == [(3, 5.0)]


def test_series_beyond_the_limit_share_one_overflow_series() -> None:
    series = SeriesSet([TIMES, COUNT], 0)
    for n in range(MAX_SERIES + 40):
        added(series, [1.0], n=n)
    found = points(series.reader().read(1), "count")
    assert len(found) == MAX_SERIES + 1
    assert {p.value for p in found if p.attributes == {"otel.metric.overflow": True}} == {40}


class _ListExporter(MetricExporter):
    """An exporter that keeps its data in a list."""

    def __init__(self, **preferences: Any) -> None:
        super().__init__(**preferences)
        self.kept: list[MetricsData] = []

    def export(self, metrics_data: MetricsData, *_: Any, **__: Any) -> MetricExportResult:
        self.kept.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **_: Any) -> None:
        self.kept.clear()


def test_delta_temporality_applies_to_bulk_series(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    preferences = OTLPMetricExporter("http://127.0.0.1:1/v1/metrics")._preferred_temporality
    inner, series = _ListExporter(preferred_temporality=preferences), SeriesSet([TIMES, COUNT], 0)
    memory = InMemoryMetricReader()
    provider = MeterProvider([memory])
    provider.get_meter("m").create_counter("c").add(1)
    data = memory.get_metrics_data()
    provider.shutdown()
    assert data is not None
    outer = CombinedExporter(inner, series, Guards().guard("metrics"))
    for values in ([0.05, 0.5], [5.0]):
        added(series, values)
        outer.export(data)
    seen = [m for d in inner.kept for s in d.resource_metrics[0].scope_metrics for m in s.metrics]
    assert [p.count for p in points(seen, "times")] == [2, 1]
    assert [p.value for p in points(seen, "count")] == [2, 1]


def test_no_export_after_sdk_shutdown() -> None:
    series = SeriesSet([COUNT], 0)
    reader = series.reader()
    with series.lock:
        series.counter("count", {}).value += 1
    assert with_metrics(None, reader.read(1)) is None

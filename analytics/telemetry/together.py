"""What the SDK collects by itself and what is counted in bulk, exported as one: an exporter before the exporter.

The receiver's wish for differences (`OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=delta`) holds for both.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.metrics import Counter, Histogram
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)

from analytics.telemetry.series import SeriesSet


class ExportTogether(MetricExporter):
    """An exporter that is given the metrics of a `SeriesSet` too."""

    def __init__(self, exporter: MetricExporter, series: SeriesSet) -> None:
        # What the wrapped one prefers was read from the environment; the SDK's reader asks for it under these names.
        wishes = exporter._preferred_temporality or {}
        super().__init__(preferred_temporality=wishes, preferred_aggregation=exporter._preferred_aggregation)
        delta = AggregationTemporality.DELTA
        self._exporter = exporter
        self._series = series.reader(
            delta_histograms=wishes.get(Histogram) is delta, delta_counters=wishes.get(Counter) is delta
        )

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        data = together(metrics_data, self._series.read(time.time_ns()))
        assert data is not None
        return self._exporter.export(data, timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._exporter.shutdown(timeout_millis=timeout_millis, **kwargs)


def together(data: MetricsData | None, more: Sequence[Metric]) -> MetricsData | None:
    """The data with these metrics in its first scope, which is ours. None when the SDK is shut down."""
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

"""Export the SDK's own metrics and the bulk-counted `SeriesSet` through one exporter.

`OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=delta` applies to both.
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

from streamgauge.analytics.telemetry.metric_series import SeriesSet
from streamgauge.ingest.guards import Guard


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
            delta_histograms=preferred.get(Histogram) is delta, delta_counters=preferred.get(Counter) is delta
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

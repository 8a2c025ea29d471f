"""Metrics of finished streams and of the pipeline, through the OpenTelemetry SDK: over OTLP, and for Prometheus.

Rules
- A stream is counted once, after its row is committed; a NULL is not recorded. So a histogram's count is the number of rows
  with that value since analytics started, and its quantiles are those of `streams` within a bucket.
- Attributes are bounded: model, provider and error type have at most `MAX_VALUES` values each, then `_other`.
- Exemplars are the trace and span of the stream, where its trace is sampled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import polars as pl
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from analytics.outcome import NOT_THE_UPSTREAM
from analytics.semconv import OTHER, OWN, SECONDS_BOUNDS, TOKEN_BOUNDS, Names
from analytics.telemetry_chunks import ChunkTimes, Key
from analytics.telemetry_prometheus import PrometheusEndpoint

log = logging.getLogger(__name__)

MAX_VALUES = 100
ITL_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0, 2.0, 5.0)
TPS_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1000.0)

OWN_HISTOGRAMS: Mapping[str, tuple[str, str, float, tuple[float, ...], str]] = {
    # metric → column of streams, unit, factor to that unit, bounds, description
    OWN + "stream.ttft": ("ttft_ns", "s", 1e-9, SECONDS_BOUNDS, "Time to the first output of any channel"),
    OWN + "stream.ttfo": ("ttfo_ns", "s", 1e-9, SECONDS_BOUNDS, "Time to the first output that is not reasoning"),
    OWN + "stream.itl": ("itl_ns", "s", 1e-9, ITL_BOUNDS, "Inter-token latency"),
    OWN + "stream.tps": ("tps_user", "{token}/s", 1.0, TPS_BOUNDS, "Tokens per second as the reader sees them"),
}  # fmt: skip
OWN_COUNTERS: Mapping[str, tuple[str, str]] = {
    OWN + "streams": ("{stream}", "Finished streams by outcome"),
    OWN + "stream.stalls": ("{stall}", "Stalls in finished streams"),
    OWN + "stream.stalled": ("s", "Time spent in stalls"),
}
OWN_GAUGES: Mapping[str, tuple[str, str]] = {
    OWN + "streams.active": ("{stream}", "Streams in flight"),
    OWN + "pipeline.lag": ("{entry}", "Entries of the log that are not consumed yet"),
    OWN + "pipeline.freshness": ("s", "Age of the newest stored stream's end when it was stored"),
    OWN + "pipeline.since_commit": ("s", "Time since the last commit"),
    OWN + "pipeline.loop_lag": ("s", "Longest pause of a tap's event loop"),
    OWN + "store.size": ("By", "Size of the DuckDB file"),
}
OWN_TOTALS: Mapping[str, tuple[str, str]] = {
    OWN + "pipeline.captured": ("{stream}", "Streams that the taps opened, as far as they told"),
    OWN + "pipeline.stored": ("{stream}", "Rows of streams that were committed by this process"),
    OWN + "pipeline.lost": ("{stream}", "Streams stored as tap_lost by this process"),
    OWN + "pipeline.lost_records": ("{record}", "Records that the taps dropped, as far as they told"),
    OWN + "spans_exported": ("{span}", "Spans that a receiver took"),
    OWN + "spans_dropped": ("{span}", "Spans dropped because the export queue was full"),
    OWN + "spans_failed": ("{span}", "Spans that the receiver did not take"),
    OWN + "spans_not_made": ("{stream}", "Streams whose spans could not be made"),
}


class _Capped:
    """The first so many values keep their name."""

    def __init__(self, most: int = MAX_VALUES) -> None:
        self._most, self._known = most, set[str]()

    def __call__(self, value: str | None) -> str | None:
        if value is None or value in self._known:
            return value
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(value)
        return value


class Metrics:
    """Counted by the consumer's thread, read by the exporters'."""

    def __init__(
        self,
        names: Names,
        resource: Resource,
        *,
        version: str = "",
        exporter: MetricExporter | None = None,
        listen: str | None = None,
        about: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`listen`: HOST:PORT of the Prometheus endpoint (none, with a warning, when in use); `about`: export's counters."""
        self._names, self._about = names, about
        self.chunks = ChunkTimes(names.per_chunk_metric)
        self._memory = InMemoryMetricReader()
        readers: list[Any] = [self._memory]
        if exporter is not None:
            readers.append(PeriodicExportingMetricReader(_WithChunks(exporter, self.chunks)))
        self._provider = MeterProvider(readers, resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("streamgauge", version or None, names.schema_url)
        self._models, self._response_models = _Capped(), _Capped()
        self._providers, self._errors = _Capped(), _Capped()

        def histogram(name: str, unit: str, bounds: Sequence[float], description: str) -> Any:
            return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=bounds)

        self._duration = histogram(names.duration_metric, "s", SECONDS_BOUNDS, "Duration of the operation")
        self._first_chunk = histogram(
            names.first_chunk_metric, "s", SECONDS_BOUNDS, "Time to the first chunk of a streamed answer"
        )
        token_names = dict.fromkeys(names.token_metrics)
        tokens = {n: histogram(n, "{token}", TOKEN_BOUNDS, "Tokens of an operation") for n in token_names}
        self._tokens = [tokens[name] for name in names.token_metrics]
        self._typed_tokens = len(tokens) == 1
        self._own = [
            (histogram(name, unit, bounds, text), column, factor)
            for name, (column, unit, factor, bounds, text) in OWN_HISTOGRAMS.items()
        ]
        self._counters = {
            name: meter.create_counter(name, unit, text) for name, (unit, text) in OWN_COUNTERS.items()
        }
        self._health: dict[str, float] = {}
        self._stored = self._lost = 0
        for name, (unit, text) in OWN_GAUGES.items():
            meter.create_observable_gauge(name, [self._observe(name)], unit, text)
        for name, (unit, text) in OWN_TOTALS.items():
            meter.create_observable_counter(name, [self._observe(name)], unit, text)
        self.endpoint = None
        if listen is not None:
            try:
                self.endpoint = PrometheusEndpoint(listen, self.read)
            except OSError as e:  # streams are measured all the same
                log.warning("no Prometheus endpoint: %s", e)

    def _observe(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observed(_: CallbackOptions) -> Iterable[Observation]:
            own = {OWN + key: value for key, value in self._about().items()}
            own |= {OWN + "pipeline.stored": self._stored, OWN + "pipeline.lost": self._lost}
            value = own.get(name, self._health.get(name))
            return [Observation(value)] if value is not None else []

        return observed

    def tell_health(self, health: Mapping[str, float]) -> None:
        """What the consumer knows of the pipeline by now, by metric name without the prefix."""
        self._health |= {OWN + name: value for name, value in health.items()}

    def count(self, finished: Sequence[tuple[int, Mapping[str, Any]]], events: pl.DataFrame | None) -> None:
        """(t0 on the wall clock, row) of streams that were stored, and their rows of `events`."""
        keys: dict[str, Key] = {}
        newest_ns = 0
        for started_ns, row in finished:
            attributes = self._attributes(row)
            self._count(row, attributes)
            if row.get("streamed") and row["outcome"] != "tap_lost":
                keys[row["stream_id"]] = tuple(attributes.items())
            newest_ns = max(newest_ns, started_ns + (row.get("end_ns") or 0))
        if events is not None and keys:
            self.chunks.count(events, keys)
        self._stored += len(finished)
        self._health[OWN + "pipeline.freshness"] = max(0.0, time.time() - newest_ns / 1e9)

    def _attributes(self, row: Mapping[str, Any]) -> dict[str, Any]:
        names, get = self._names, row.get
        found = {
            names.operation: get("operation") or "request",
            names.provider: self._providers(get("provider")) or "unknown",
            names.request_model: self._models(get("request_model")),
            names.response_model: self._response_models(get("response_model")),
            "server.address": get("server_address"),
            "server.port": get("server_port"),
        }
        return {key: value for key, value in found.items() if value is not None}

    def _count(self, row: Mapping[str, Any], attributes: dict[str, Any]) -> None:
        get, outcome = row.get, row["outcome"]
        self._lost += outcome == "tap_lost"
        own = {OWN + "gateway": get("gateway") or "unknown"}
        own |= {k: v for k, v in attributes.items() if k in (self._names.request_model, self._names.provider)}
        self._counters[OWN + "streams"].add(1, {**own, OWN + "outcome": outcome})
        if outcome == "tap_lost":
            return
        context = _exemplar(row)
        end_ns = get("end_ns")
        if end_ns is not None:
            failed = outcome != "ok" and outcome not in NOT_THE_UPSTREAM
            error = {"error.type": self._errors(get("error_type") or outcome)} if failed else {}
            self._duration.record(end_ns / 1e9, {**attributes, **error}, context)
        if get("ttfc_ns") is not None and get("streamed"):
            self._first_chunk.record(row["ttfc_ns"] / 1e9, attributes, context)
        for column, instrument in zip(("input_tokens", "output_tokens"), self._tokens, strict=True):
            if get(column) is not None:
                kind = {self._names.token_type: column.partition("_")[0]} if self._typed_tokens else {}
                instrument.record(row[column], {**attributes, **kind}, context)
        for instrument, column, factor in self._own:
            value = get(column)
            if value is not None:
                instrument.record(value * factor, own, context)
        if get("stall_count"):
            self._counters[OWN + "stream.stalls"].add(row["stall_count"], own)
            self._counters[OWN + "stream.stalled"].add(row["stalled_ns"] / 1e9, own)

    def read(self) -> MetricsData | None:
        """Everything, cumulative."""
        return with_chunks(self._memory.get_metrics_data(), self.chunks)

    def close(self) -> None:
        """Send once more, and end the threads."""
        if self.endpoint is not None:
            self.endpoint.close()
        self._provider.shutdown(timeout_millis=5_000)


def _exemplar(row: Mapping[str, Any]) -> Context | None:
    if not row.get("trace_id") or not (row.get("trace_flags") or 0) & 1:
        return Context()
    span = SpanContext(int(row["trace_id"], 16), int(row["span_id"], 16), False, TraceFlags(1))
    return set_span_in_context(NonRecordingSpan(span), Context())


def with_chunks(data: MetricsData | None, chunks: ChunkTimes) -> MetricsData | None:
    """The data with the histogram of chunk times among the metrics of our scope."""
    metric = chunks.metric()
    if data is None or not metric.data.data_points:
        return data
    resources = []
    for resource in data.resource_metrics:
        scopes = [
            ScopeMetrics(s.scope, [*s.metrics, metric], s.schema_url) if i == 0 else s
            for i, s in enumerate(resource.scope_metrics)
        ]
        resources.append(ResourceMetrics(resource.resource, scopes, resource.schema_url))
    return MetricsData(resources)


class _WithChunks(MetricExporter):
    """An exporter that is given the chunk times too."""

    def __init__(self, exporter: MetricExporter, chunks: ChunkTimes) -> None:
        # The chunk times are cumulative; so must the rest be.
        super().__init__()
        self._exporter, self._chunks = exporter, chunks

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        data = with_chunks(metrics_data, self._chunks)
        assert data is not None
        return self._exporter.export(data, timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._exporter.shutdown(timeout_millis=timeout_millis, **kwargs)

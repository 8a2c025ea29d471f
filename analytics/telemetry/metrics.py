"""Metrics of finished streams and of the pipeline, through the OpenTelemetry SDK's export: over OTLP, and for Prometheus.

Rules
- A stream is counted once, after its row is committed; a NULL is not recorded. So a histogram's count is the number of rows
  with that value since analytics started, and its quantiles are those of `streams` within a bucket. The one exception is a
  convention's own: `genai-main` wants a usage counter to be there, at 0, also where no usage was reported.
- Attributes are bounded: model, provider and error type have at most `MAX_VALUES` values each, then `_other`.
- Exemplars are the trace and span of the stream, where its trace is sampled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource

from analytics.assembly.stream import FinishedStream
from analytics.schema.outcomes import NOT_ERRORS
from analytics.telemetry.catalogue import OWN_HISTOGRAMS, OWN_OBSERVED, STALLED, STALLS, STREAMS, catalogue
from analytics.telemetry.chunks import count_chunks
from analytics.telemetry.prometheus import PrometheusEndpoint
from analytics.telemetry.semconv import INFERENCE, OTHER, OWN, UNKNOWN_MODALITY, Names
from analytics.telemetry.series import Distribution, SeriesSet, Tally, Witnessed
from analytics.telemetry.together import ExportTogether, together

log = logging.getLogger(__name__)

MAX_VALUES = 100
MAX_GROUPS = 10_000
"""Combinations of attribute values that are remembered; a new start then costs a little time."""
_GROUPED_BY = (
    "operation", "provider", "request_model", "response_model", "server_address", "server_port", "gateway", "outcome",
    "error_type", "streamed",
)  # fmt: skip
COLUMNS = (
    *_GROUPED_BY, "stream_id", "trace_id", "span_id", "trace_flags", "end_ns", "ttfc_ns", "input_tokens", "output_tokens",
    "cached_input_tokens", "reasoning_tokens", "stall_count", "stalled_ns", *(i.column for i in OWN_HISTOGRAMS if i.column),
)  # fmt: skip
"""Columns of `streams` that are counted."""


class _Capped:
    """The first so many values keep their name."""

    def __init__(self) -> None:
        self._known = set[str]()

    def __call__(self, value: str | None) -> str | None:
        if value is None or value in self._known:
            return value
        if len(self._known) >= MAX_VALUES:
            return OTHER
        self._known.add(value)
        return value


class _Group:
    """The series that streams of one kind are added to."""

    def __init__(self) -> None:
        self.lost = False
        self.streams = Tally()
        self.distributions: list[tuple[str, float, Distribution]] = []
        """(column, factor, series)."""
        self.tallies: list[tuple[str, float, Tally]] = []
        self.chunks: Distribution | None = None


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
        self._series = SeriesSet(catalogue(names), time.time_ns())
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._memory, self._all = InMemoryMetricReader(), self._series.reader()
        readers: list[Any] = [self._memory]
        if exporter is not None:
            readers.append(PeriodicExportingMetricReader(ExportTogether(exporter, self._series)))
        self._provider = MeterProvider(readers, resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("streamgauge", version or None, names.schema_url)
        self._models, self._response_models = _Capped(), _Capped()
        self._providers, self._errors = _Capped(), _Capped()
        self._health: dict[str, float] = {}
        self._stored = self._lost = 0
        for i in OWN_OBSERVED:
            create = meter.create_observable_gauge if i.kind == "gauge" else meter.create_observable_counter
            create(i.name, [self._observe(i.name)], i.unit, i.description)
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

    # -- counting ----------------------------------------------------------------------------------------------------

    def count(
        self,
        finished: Sequence[FinishedStream],
        rows: Sequence[Mapping[str, Any]],
    ) -> None:
        """Streams that were stored, and their rows (`COLUMNS` of each, where it has them)."""
        now_ns, newest_ns = time.time_ns(), 0
        with self._series.lock:
            for stream, row in zip(finished, rows, strict=True):
                group = self._group_of(row)
                group.streams.value += 1
                newest_ns = max(newest_ns, stream.started_wall_ns + (row.get("end_ns") or 0))
                if group.lost:
                    self._lost += 1
                    continue
                witnessed = _witnessed(row, now_ns)
                for column, factor, series in group.distributions:
                    value = row.get(column)
                    if value is not None:
                        series.add(value * factor, witnessed)
                for column, factor, tally in group.tallies:
                    tally.value += (row.get(column) or 0) * factor
                if group.chunks is not None and stream.decoder is not None:
                    count_chunks(stream.decoder.events, group.chunks)
        self._stored += len(finished)
        self._health[OWN + "pipeline.freshness"] = max(0.0, (now_ns - newest_ns) / 1e9)

    def _group_of(self, row: Mapping[str, Any]) -> _Group:
        get = row.get
        key = tuple([get(name) for name in _GROUPED_BY])
        found = self._groups.get(key)
        if found is None:
            if len(self._groups) >= MAX_GROUPS:
                self._groups.clear()
            found = self._groups[key] = self._group(row)
        return found

    def _group(self, row: Mapping[str, Any]) -> _Group:
        names, get, outcome = self._names, row.get, row["outcome"]
        group, series = _Group(), self._series
        attributes = self._attributes(row)
        own = {OWN + "gateway": get("gateway") or "unknown"}
        own |= {k: v for k, v in attributes.items() if k in (names.request_model, names.provider)}
        group.streams = series.tally(STREAMS.name, {**own, OWN + "outcome": outcome})
        group.lost = outcome == "tap_lost"
        if group.lost:
            return group
        failed = outcome not in NOT_ERRORS
        generates = attributes[names.operation] in INFERENCE

        def add(metric: str, column: str, factor: float, more: Mapping[str, Any]) -> None:
            group.distributions.append((column, factor, series.distribution(metric, more)))

        error = {"error.type": self._errors(get("error_type") or outcome)} if failed else {}
        duration = names.duration_metric if generates else names.other_duration_metric
        add(duration, "end_ns", 1e-9, {**attributes, **error})
        if get("streamed"):
            add(names.first_chunk_metric, "ttfc_ns", 1e-9, attributes)
            group.chunks = series.distribution(names.per_chunk_metric, attributes)
        if names.failures_have_token_metrics or not failed:
            for column, metric in zip(("input_tokens", "output_tokens"), names.token_metrics, strict=True):
                kind = {names.token_type: column.partition("_")[0]} if names.token_type else {}
                add(metric, column, 1, {**attributes, **kind})
        if generates:
            modality = {names.token_modality: UNKNOWN_MODALITY} if names.token_modality else {}
            for column, metric in names.token_counters.items():
                group.tallies.append((column, 1, series.tally(metric, {**attributes, **modality})))
        for own_one in OWN_HISTOGRAMS:
            assert own_one.column
            add(own_one.name, own_one.column, own_one.factor, own)
        group.tallies.append(("stall_count", 1, series.tally(STALLS.name, own)))
        group.tallies.append(("stalled_ns", 1e-9, series.tally(STALLED.name, own)))
        return group

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

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self) -> MetricsData | None:
        """Everything, cumulative."""
        return together(self._memory.get_metrics_data(), self._all.read(time.time_ns()))

    def close(self) -> None:
        """Send once more, and end the threads."""
        if self.endpoint is not None:
            self.endpoint.close()
        self._provider.shutdown(timeout_millis=5_000)


def _witnessed(row: Mapping[str, Any], now_ns: int) -> Witnessed | None:
    if not row.get("trace_id") or not (row.get("trace_flags") or 0) & 1:
        return None
    return int(row["trace_id"], 16), int(row["span_id"], 16), now_ns

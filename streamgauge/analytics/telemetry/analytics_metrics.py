"""Metrics of finished streams and of the pipeline, exported over OTLP and on the Prometheus endpoint.

Rules
- A stream is counted once, after its commit, and NULL is not recorded. So a histogram counts the rows with a value since the
  start of the process, and its quantiles match those of `streams` within a bucket. There is one exception: the conventions of
  `genai-main` require usage counters, at 0, even if no usage was reported.
- Attributes are bounded: model, provider, error type and each label have at most `MAX_VALUES` values each, then `_other`.
- An exemplar has the trace id and the span id of a stream with a sampled trace.
- Burn rates, error budgets and budgets are read from the views `burn_rates`, `error_budgets` and `budget_spend` (`ObjectiveGauges`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
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

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.dialects.server_stats import reported_ttft_ns
from streamgauge.analytics.measures.open_streams import Phase, Silence, longest
from streamgauge.analytics.measures.outcome import LOST
from streamgauge.analytics.measures.stream_latency import inter_chunk_gaps, output_waits
from streamgauge.analytics.schema.dimensions import INFERENCE, NO_REQUESTS, OTHER
from streamgauge.analytics.schema.outcomes import NOT_ERRORS, REFUSED
from streamgauge.analytics.telemetry.metric_definitions import (
    HOP_HISTOGRAMS,
    OBSERVED,
    SERVER_HISTOGRAMS,
    STREAM_HISTOGRAMS,
    TTFT_DRIFT,
    metric_definitions,
)
from streamgauge.analytics.telemetry.metric_series import (
    CombinedExporter,
    Counter,
    Distribution,
    Sample,
    SeriesSet,
    with_metrics,
)
from streamgauge.analytics.telemetry.objective_gauges import GAUGES, ObjectiveGauges
from streamgauge.analytics.telemetry.prometheus import PrometheusEndpoint, WsgiApp
from streamgauge.analytics.telemetry.semconv import NAMESPACE, UNKNOWN_MODALITY, Names, operation_name
from streamgauge.ingest.guards import Guards

log = logging.getLogger(__name__)

SILENT_AFTER_S = 60.0
MAX_VALUES = 100
MAX_GROUPS = 10_000
"""Cached combinations of attribute values. Beyond it the cache is cleared."""
_GROUPED_BY = (
    "operation", "provider", "request_model", "response_model", "server_address", "server_port", "gateway", "outcome",
    "error_type", "streamed",
)  # fmt: skip


class _Capped:
    """Keeps the first `MAX_VALUES` values and replaces others."""

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
    """The series of streams with the same attributes."""

    def __init__(self) -> None:
        self.lost = False
        self.streams = Counter()
        self.distributions: list[tuple[str, float, Distribution]] = []
        """(column, factor, series)."""
        self.counters: list[tuple[str, float, Counter]] = []
        self.chunks: list[Distribution] = []
        self.cache_input, self.cache_hits = Counter(), Counter()
        self.ttft_drift: Distribution | None = None


class Metrics:
    """The consumer's thread counts, the exporters' threads read."""

    def __init__(
        self,
        names: Names,
        resource: Resource,
        *,
        version: str = "",
        exporter: MetricExporter | None = None,
        listen: str | None = None,
        allowed_hosts: Iterable[str] = (),
        server_metrics: bool = False,
        labels: Iterable[str] = (),
        export_counters: Callable[[], Mapping[str, int]] = dict,
        apps: Mapping[str, WsgiApp] | None = None,
        guards: Guards | None = None,
    ) -> None:
        """`listen`: HOST:PORT of the Prometheus endpoint. If it is in use, a warning is logged and there is no endpoint.

        `server_metrics`: also count `SERVER_HISTOGRAMS`. `labels`: those with metrics. `apps`: applications of the endpoint, by path.
        """
        self._names, self._export_counters = names, export_counters
        self._guards = guards = guards or Guards()
        self._server_histograms = SERVER_HISTOGRAMS if server_metrics else ()
        self._series = SeriesSet(metric_definitions(names), time.time_ns())
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._sdk_reader, self._series_reader = InMemoryMetricReader(), self._series.reader()
        readers: list[Any] = [self._sdk_reader]
        if exporter is not None:
            guard = guards.guard("otlp-metrics")
            exporting = PeriodicExportingMetricReader(CombinedExporter(exporter, self._series, guard))
            guard.silent_after_s = exporting._export_interval_millis / 1000 * 2 + SILENT_AFTER_S
            readers.append(exporting)
        self._provider = MeterProvider(readers, resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("streamgauge", version or None, names.schema_url)
        self._models, self._response_models = _Capped(), _Capped()
        self._providers, self._errors = _Capped(), _Capped()
        self._labels = {label: _Capped() for label in labels}
        self._health: dict[str, float] = {}
        self._stored = self._lost = 0
        self._open: dict[tuple[str, str | None, Phase], tuple[int, float]] = {}
        """(streams, longest silence in s) by gateway, model and phase. Groups without streams stay, at 0."""
        self._incidents: Sequence[Mapping[str, str]] = ()
        self.objectives = objectives = ObjectiveGauges(names)
        grouped: dict[str, Callable[[CallbackOptions], Iterable[Observation]]] = {
            "stream.in_flight": self._observe_open(0),
            "stream.silence": self._observe_open(1),
            **{name: partial(objectives.observe, name) for name in GAUGES},
            "incident.firing": self._observe_incidents,
            "guard.fault": self._observe_faults,
            "guard.failures": self._observe_failures,
        }
        for i in OBSERVED:
            observe = grouped.pop(i.name.removeprefix(NAMESPACE), None) or self._observe(i.name)
            create = meter.create_observable_gauge if i.kind == "gauge" else meter.create_observable_counter
            create(i.name, [observe], i.unit, i.description)
        assert not grouped, f"no such metric: {grouped}"
        self.endpoint = None
        if listen is not None:
            try:
                self.endpoint = PrometheusEndpoint(listen, self.read, allowed_hosts, apps, guards)
            except OSError as e:  # not fatal: streams are still stored
                log.warning("no Prometheus endpoint: %s", e)

    def _observe(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observed(_: CallbackOptions) -> Iterable[Observation]:
            base = {NAMESPACE + key: value for key, value in self._export_counters().items()}
            base |= {NAMESPACE + "pipeline.stored": self._stored, NAMESPACE + "pipeline.lost": self._lost}
            value = base.get(name, self._health.get(name))
            return [Observation(value)] if value is not None else []

        return observed

    def _observe_faults(self, _: CallbackOptions) -> Iterable[Observation]:
        faults = self._guards.faults()
        for name in self._guards.failures().keys() | faults.keys():
            yield Observation(int(name in faults), {NAMESPACE + "guard": name})

    def _observe_failures(self, _: CallbackOptions) -> Iterable[Observation]:
        for name, count in self._guards.failures().items():
            yield Observation(count, {NAMESPACE + "guard": name})

    def _observe_open(self, element: int) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observed(_: CallbackOptions) -> Iterable[Observation]:
            for (gateway, model, phase), values in self._open.items():
                attributes = {NAMESPACE + "gateway": gateway, NAMESPACE + "phase": phase}
                if model is not None:
                    attributes[self._names.request_model] = model
                yield Observation(values[element], attributes)

        return observed

    def update_open_streams(self, found: Iterable[Silence]) -> None:
        """Replace the gauges of streams in flight. The new map is published at once, for the exporters' threads."""
        groups = dict.fromkeys(self._open, (0, 0.0))
        for (gateway, model, phase), (streams, silent_ns) in longest(found).items():
            key = (gateway, self._models(model), phase)
            before = groups.get(key, (0, 0.0))
            groups[key] = (before[0] + streams, max(before[1], silent_ns / 1e9))
        self._open = groups

    def _observe_incidents(self, _: CallbackOptions) -> Iterable[Observation]:
        for labels in self._incidents:
            attributes = {NAMESPACE + name: value for name, value in labels.items() if name != "model"}
            if "model" in labels:
                attributes[self._names.request_model] = labels["model"]
            yield Observation(1, attributes)

    def update_incidents(self, firing: Sequence[Mapping[str, str]]) -> None:
        """Replace the gauges of incidents: their severity, metric and dimension values."""
        self._incidents = firing

    def update_health(self, health: Mapping[str, float]) -> None:
        self._health |= {NAMESPACE + name: value for name, value in health.items()}

    # -- counting ----------------------------------------------------------------------------------------------------

    def count(self, finished: Sequence[FinishedStream], rows: Sequence[Mapping[str, Any]]) -> None:
        """Count committed streams. `rows` are those of `streams`."""
        now_ns, newest_ns = time.time_ns(), 0
        with self._series.lock:
            for stream, row in zip(finished, rows, strict=True):
                group = self._group_of(row)
                newest_ns = max(newest_ns, stream.started_wall_ns + (row.get("end_ns") or 0))
                self._lost += group.lost
                if row.get("operation") in NO_REQUESTS:
                    continue
                group.streams.value += 1
                if self._labels:
                    self._count_labels(row)
                if group.lost:
                    continue
                sample = _sample(row, now_ns)
                for column, factor, series in group.distributions:
                    value = row.get(column)
                    if value is not None:
                        series.add(value * factor, sample)
                for column, factor, counter in group.counters:
                    counter.value += (row.get(column) or 0) * factor
                cached = row.get("cached_input_tokens")
                if cached is not None:
                    group.cache_hits.value += cached
                    group.cache_input.value += row.get("input_tokens") or 0
                _add_drift(group, stream, row, sample)
                if group.chunks and stream.body is not None:
                    events = stream.body.events
                    # All gaps of a stream at once, sorted: a stream has hundreds, and one search per bucket replaces
                    # one per gap.
                    gaps = inter_chunk_gaps(events, output_waits(events, stream.closed))
                    for chunks in group.chunks:
                        chunks.add_sorted_ns(gaps)
        self._stored += len(finished)
        self._health[NAMESPACE + "pipeline.freshness"] = max(0.0, (now_ns - newest_ns) / 1e9)

    def _count_labels(self, row: Mapping[str, Any]) -> None:
        values = row.get("labels") or {}
        for name, capped in self._labels.items():
            if name in values:
                attributes = {NAMESPACE + "label": name, NAMESPACE + "value": capped(values[name])}
                for metric, increment in (
                    ("streams", 1),
                    ("errors", int(row["outcome"] not in NOT_ERRORS)),
                    ("input_tokens", row.get("input_tokens") or 0),
                    ("output_tokens", row.get("output_tokens") or 0),
                ):
                    self._series.counter(f"{NAMESPACE}label.{metric}", attributes).value += increment

    def count_hops(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Count committed rows of `hops`. A negative value counts as 0: the gateway sent output before the model server."""
        with self._series.lock:
            for row in rows:
                attributes = {NAMESPACE + "gateway": row["outer_gateway"] or "unknown"}
                if model := self._models(row["model"]):
                    attributes[self._names.request_model] = model
                for histogram in HOP_HISTOGRAMS:
                    value = row[histogram.column or ""]
                    if value is not None:
                        series = self._series.distribution(histogram.name, attributes)
                        series.add(max(0.0, value * histogram.factor))

    def _group_of(self, row: Mapping[str, Any]) -> _Group:
        get = row.get
        key = tuple([get(name) for name in _GROUPED_BY])
        found = self._groups.get(key)
        if found is None:
            if len(self._groups) >= MAX_GROUPS:
                # All at once: the series themselves stay in the set, so only the look-ups are repeated. An order of use
                # would cost more than it saves.
                self._groups.clear()
            found = self._groups[key] = self._group(row)
        return found

    def _group(self, row: Mapping[str, Any]) -> _Group:
        names, get, outcome = self._names, row.get, row["outcome"]
        group, series = _Group(), self._series
        attributes = self._attributes(row)
        base = {NAMESPACE + "gateway": get("gateway") or "unknown"}
        base |= {k: v for k, v in attributes.items() if k in (names.request_model, names.provider)}
        group.streams = series.counter(NAMESPACE + "streams", {**base, NAMESPACE + "outcome": outcome})
        group.lost = outcome == LOST.outcome
        if group.lost:
            return group
        failed = outcome not in NOT_ERRORS
        generates = attributes[names.operation] in INFERENCE

        def add(metric: str, column: str, factor: float, more: Mapping[str, Any]) -> None:
            group.distributions.append((column, factor, series.distribution(metric, more)))

        error = {"error.type": self._errors(get("error_type") or outcome)} if failed else {}
        if outcome != REFUSED:
            for duration in names.every("duration_metric" if generates else "other_duration_metric"):
                add(duration, "end_ns", 1e-9, {**attributes, **error})
        if get("streamed"):
            for first_chunk in names.every("first_chunk_metric"):
                add(first_chunk, "ttfc_ns", 1e-9, attributes)
            group.chunks = [series.distribution(name, attributes) for name in names.every("per_chunk_metric")]
        for profile in names.profiles:
            if profile.failures_have_token_metrics or not failed:
                for column, metric in zip(
                    ("input_tokens", "output_tokens"), profile.token_metrics, strict=True
                ):
                    kind = {profile.token_type: column.partition("_")[0]} if profile.token_type else {}
                    add(metric, column, 1, {**attributes, **kind})
            if generates:
                modality = {profile.token_modality: UNKNOWN_MODALITY} if profile.token_modality else {}
                for column, metric in profile.token_counters.items():
                    group.counters.append((column, 1, series.counter(metric, {**attributes, **modality})))
        if generates and outcome != REFUSED:
            for histogram in self._server_histograms[: 1 if failed else None]:
                assert histogram.column
                add(histogram.name, histogram.column, histogram.factor, {**attributes, **error})
        for histogram in STREAM_HISTOGRAMS:
            assert histogram.column
            add(histogram.name, histogram.column, histogram.factor, base)
        group.counters.append(("stall_count", 1, series.counter(NAMESPACE + "stream.stalls", base)))
        group.cache_input = series.counter(NAMESPACE + "prompt_cache.input_tokens", base)
        group.cache_hits = series.counter(NAMESPACE + "prompt_cache.hit_tokens", base)
        group.ttft_drift = series.distribution(TTFT_DRIFT.name, base)
        group.counters.append(("stalled_ns", 1e-9, series.counter(NAMESPACE + "stream.stalled", base)))
        return group

    def _attributes(self, row: Mapping[str, Any]) -> dict[str, Any]:
        names, get = self._names, row.get
        found = {
            names.operation: operation_name(get("operation")),
            names.provider: self._providers(get("provider")) or "unknown",
            names.request_model: self._models(get("request_model")),
            names.response_model: self._response_models(get("response_model")),
            "server.address": get("server_address"),
            "server.port": get("server_port"),
        }
        return {key: value for key, value in found.items() if value is not None}

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self) -> MetricsData | None:
        return with_metrics(self._sdk_reader.get_metrics_data(), self._series_reader.read(time.time_ns()))

    def close(self) -> None:
        """Export once more and end the threads."""
        if self.endpoint is not None:
            self.endpoint.close()
        self._provider.shutdown(timeout_millis=5_000)


def _add_drift(group: _Group, stream: FinishedStream, row: Mapping[str, Any], sample: Sample | None) -> None:
    ttft_ns = row.get("ttft_ns")
    if group.ttft_drift is None or ttft_ns is None or stream.body is None:
        return
    reported_ns = reported_ttft_ns(stream.body.server_stats)
    if reported_ns is not None:
        group.ttft_drift.add(max(0.0, (ttft_ns - reported_ns) / 1e9), sample)


def _sample(row: Mapping[str, Any], now_ns: int) -> Sample | None:
    if not row.get("trace_id") or not (row.get("trace_flags") or 0) & 1:
        return None
    return int(row["trace_id"], 16), int(row["span_id"], 16), now_ns

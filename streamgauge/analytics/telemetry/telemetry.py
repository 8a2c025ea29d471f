"""Commit hook that builds spans and exports spans, metrics and exception events.

Rules
1. Spans are built before a commit and stored with it. They are exported, and streams counted, after it. So a crash in between
   can lose exports, but only stored spans are exported.
2. Nothing here fails or delays a commit. A stream whose spans cannot be built is counted.
3. The caller's sampling flag controls export, unless OTEL_TRACES_SAMPLER=always_on. The table has all spans.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import duckdb
import polars as pl
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.commit_hook import CommitHook
from streamgauge.analytics.measures.open_streams import Silence
from streamgauge.analytics.schema.frames import frame_of_rows, with_all_columns
from streamgauge.analytics.schema.stall_limit import StallLimit
from streamgauge.analytics.schema.stream_columns import StreamRow
from streamgauge.analytics.schema.tables import SPANS, STREAMS
from streamgauge.analytics.telemetry import analytics_metrics, otlp_export, spans
from streamgauge.analytics.telemetry.prometheus import PrometheusEndpoint, WsgiApp
from streamgauge.analytics.telemetry.semconv import names_of
from streamgauge.ingest.guards import Guards
from streamgauge.ingest.labels import Label

log = logging.getLogger(__name__)

_DEFAULT_STALL = StallLimit()
_TEXTS = ("output_text", "reasoning_text")
"""Columns that neither spans nor metrics need: rows stay in memory until they are committed, and a text may have megabytes."""


@dataclass(frozen=True, slots=True)
class TelemetryOptions:
    """What the standard OTEL_* variables do not configure."""

    server_metrics: bool
    """Also export `gen_ai.server.*`."""
    metrics: str | None
    """HOST:PORT of the Prometheus endpoint. None: no endpoint."""
    allowed_hosts: Sequence[str]
    """Further names in requests to the endpoint (`streamgauge.ingest.listening`)."""
    labels: Sequence[Label]


class Telemetry(CommitHook):
    """Commit hook that builds and exports telemetry. Not thread-safe."""

    def __init__(
        self,
        options: TelemetryOptions,
        *,
        version: str = "",
        stall: StallLimit = _DEFAULT_STALL,
        apps: Mapping[str, WsgiApp] | None = None,
        guards: Guards | None = None,
    ) -> None:
        """Raises ValueError (one line) for an unknown protocol. A metrics address in use is only a warning here,
        because streams must still be stored (`up` checks the address before it starts anything). `apps`: other applications of the
        metrics address, by path. `guards`: the threads of this process.
        """
        guards = guards or Guards()
        labels = [label.name for label in options.labels if label.prometheus]
        names = names_of(otlp_export.semconv_profile())
        resource = resource_of(version)
        self._respect_sampling = otlp_export.respects_sampling()
        self._build = spans.SpanBuilder(
            names, resource, version=version, stall=stall, content=content_enabled()
        ).build
        self._to_export: list[ReadableSpan] = []
        self._finished: Sequence[FinishedStream] = ()
        self._rows: list[Mapping[str, Any]] = []
        self.failures = 0
        """Streams whose spans could not be built."""
        traces, logs, exporter = map(otlp_export.exporter_of, ("traces", "logs", "metrics"))
        self._spans = None
        if traces is not None:
            self._spans = otlp_export.otlp_queue(traces, SpanExportResult.SUCCESS, "otlp-spans", guards)
        self._exceptions = None
        if logs is not None:
            self._exceptions = otlp_export.ExceptionEvents(logs, resource, names, guards)
        self.metrics: analytics_metrics.Metrics | None = None
        if exporter is not None or options.metrics is not None:
            self.metrics = analytics_metrics.Metrics(
                names,
                resource,
                version=version,
                exporter=exporter,
                listen=options.metrics,
                allowed_hosts=options.allowed_hosts,
                server_metrics=options.server_metrics,
                labels=labels,
                export_counters=self.counters,
                apps=apps,
                guards=guards,
            )

    @property
    def endpoint(self) -> PrometheusEndpoint | None:
        return self.metrics.endpoint if self.metrics is not None else None

    def update_health(self, health: Mapping[str, float]) -> None:
        if self.metrics is not None:
            self.metrics.update_health(health)

    def update_open_streams(self, found: Sequence[Silence]) -> None:
        if self.metrics is not None:
            self.metrics.update_open_streams(found)

    def update_incidents(self, firing: Sequence[Mapping[str, str]]) -> None:
        """The severity, metric and place of each incident that fires."""
        if self.metrics is not None:
            self.metrics.update_incidents(firing)

    def count_hops(self, rows: pl.DataFrame) -> None:
        """Count committed rows of `hops`."""
        if self.metrics is not None:
            self.metrics.count_hops(rows.iter_rows(named=True))

    def read_objectives(self, new_cursor: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        """Update the gauges of burn rates and error budgets. Raises duckdb.Error."""
        if self.metrics is not None:
            with new_cursor() as cursor:
                self.metrics.objectives.read(cursor)

    def update_limits(self, rows: pl.DataFrame, now: datetime) -> None:
        """Update the gauges of rate limits: rows of `streamgauge.analytics.reports.rate_limits.table` as of `now`."""
        if self.metrics is not None:
            self.metrics.objectives.update_limits(rows, now)

    def counters(self) -> dict[str, int]:
        queue, events = self._spans, self._exceptions
        return {
            "spans_exported": queue.exported if queue else 0,
            "spans_dropped": queue.dropped if queue else 0,
            "spans_failed": queue.failed if queue else 0,
            "spans_not_made": self.failures,
            "events_dropped": events.lost if events else 0,
        }

    def rows(
        self, finished: Sequence[FinishedStream], tables: Mapping[str, pl.DataFrame]
    ) -> Mapping[str, pl.DataFrame]:
        """The rows of `spans` for these streams."""
        self._reset()
        streams = tables.get("streams")
        if not finished or streams is None:
            return {}
        rows = with_all_columns(streams, STREAMS).drop(_TEXTS)
        self._finished, self._rows = finished, list(rows.iter_rows(named=True))
        span_rows: list[tuple[Any, ...]] = []
        for stream, row in zip(finished, self._rows, strict=True):
            try:
                built = self._build(stream, cast("StreamRow", row))
                span_rows += spans.span_rows(built)
            except Exception as e:
                self.failures += 1
                log.warning(
                    "building the spans of stream %s failed: %s", stream.stream_id, type(e).__name__,
                    extra={"trace_id": row.get("trace_id"), "span_id": row.get("span_id")},
                )  # fmt: skip
                continue
            if self._spans is not None and built and self._is_exported(row):
                self._to_export += built
        return {"spans": frame_of_rows(SPANS, span_rows)}

    def _is_exported(self, row: Mapping[str, Any]) -> bool:
        return not self._respect_sampling or bool((row.get("trace_flags") or 0) & 1)

    def committed(self) -> None:
        """Export and count the streams of the last `rows` call."""
        if self._spans is not None and self._to_export:
            self._spans.offer(self._to_export)
        if self._exceptions is not None:
            for row in self._rows:
                if self._is_exported(row):
                    self._exceptions.add(row)
        if self.metrics is not None and self._finished:
            try:
                self.metrics.count(self._finished, self._rows)
            except Exception:
                log.exception("counting streams failed: they are missing from the metrics")
        self._reset()

    def _reset(self) -> None:
        self._to_export, self._finished, self._rows = [], (), []

    def close(self) -> None:
        if self._spans is not None:
            self._spans.close()
        if self._exceptions is not None:
            self._exceptions.close()
        if self.metrics is not None:
            self.metrics.close()


def resource_of(version: str) -> Resource:
    """The resource of `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, else service `streamgauge`."""
    attributes: dict[str, str] = {"service.version": version} if version else {}
    if "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "") and not os.environ.get(
        "OTEL_SERVICE_NAME"
    ):
        attributes["service.name"] = "streamgauge"
    return Resource.create(attributes)


def content_enabled() -> bool:
    """Whether the conventions' opt-in variable allows captured text in spans."""
    value = os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "").strip().lower()
    return value in ("true", "1", "span_only", "span_and_event")

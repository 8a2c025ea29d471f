"""What leaves analytics as telemetry: spans into the commit and over OTLP, metrics, exception events. Told by the consumer.

Rules
1. Spans of a commit are made before it and written with it; what is exported or counted is exported and counted after it.
   A process that dies in between has exported too little, never something that was not stored.
2. Nothing here fails or holds up a commit: a stream whose spans cannot be made is counted and has none.
3. The caller's sampling flag decides what is exported (`respect_sampling`); the table keeps every span.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from analytics.semconv import names_of
from analytics.span_table import SpanTable
from analytics.spans import COLUMNS, SpanBuilder
from analytics.stream import FinishedStream
from analytics.telemetry_events import ExceptionEvents
from analytics.telemetry_export import ExportQueue, exporter_of, span_queue, wanted
from analytics.telemetry_metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TelemetryOptions:
    """What of the telemetry is wanted. Where OTLP goes is said by the standard OTEL_* variables."""

    semconv: str = "1.41"
    spans: bool = True
    """Make spans at all (for the table, and for export)."""
    export: bool = True
    """Export over OTLP, where the environment names a receiver."""
    respect_sampling: bool = True
    metrics: str | None = None
    """HOST:PORT of the Prometheus endpoint; None: none."""


class Telemetry:
    """The consumer's witness. One owner thread."""

    def __init__(
        self,
        options: TelemetryOptions,
        *,
        version: str = "",
        stall_floor_ns: int = 500_000_000,
        stall_factor: float = 5.0,
    ) -> None:
        """Raises ValueError or OSError (one line) for a profile or protocol that is none, or an address in use."""
        names = names_of(options.semconv)
        resource = resource_of(version)
        self._respect_sampling = options.respect_sampling
        self._build = SpanBuilder(
            names,
            resource,
            version=version,
            stall_floor_ns=stall_floor_ns,
            stall_factor=stall_factor,
            content=content_wanted(),
        ).build
        self._make_spans = options.spans
        self._table = SpanTable()
        self._to_export: list[ReadableSpan] = []
        self._finished: list[tuple[FinishedStream, Mapping[str, Any]]] = []
        self._events: pl.DataFrame | None = None
        self.failures = 0
        """Streams whose spans could not be made."""
        self._spans: ExportQueue[Any] | None = None
        if options.export and options.spans and wanted("traces"):
            self._spans = span_queue(exporter_of("traces"))
        self._exceptions = (
            ExceptionEvents(exporter_of("logs"), resource) if options.export and wanted("logs") else None
        )
        exporter = exporter_of("metrics") if options.export and wanted("metrics") else None
        self.metrics: Metrics | None = None
        if exporter is not None or options.metrics is not None:
            self.metrics = Metrics(
                names,
                resource,
                version=version,
                exporter=exporter,
                listen=options.metrics,
                about=self.counters,
            )

    @property
    def metrics_url(self) -> str | None:
        """Where Prometheus reads."""
        return self.metrics.endpoint.url if self.metrics is not None and self.metrics.endpoint else None

    def tell_health(self, health: Mapping[str, float]) -> None:
        """What the consumer knows of the pipeline by now."""
        if self.metrics is not None:
            self.metrics.tell_health(health)

    def counters(self) -> dict[str, int]:
        """Counters of the export itself."""
        spans = self._spans
        return {
            "spans_exported": spans.exported if spans else 0,
            "spans_dropped": spans.dropped if spans else 0,
            "spans_failed": spans.failed if spans else 0,
            "spans_not_made": self.failures,
        }

    def rows(
        self, finished: Sequence[FinishedStream], tables: Mapping[str, pl.DataFrame]
    ) -> Mapping[str, pl.DataFrame]:
        """The rows of `spans` of these streams."""
        self._to_export, self._finished, self._events = [], [], None
        streams = tables.get("streams")
        if not finished or streams is None:
            return {}
        known = [name for name in COLUMNS if name in streams.columns]
        rows = streams.select(known).iter_rows(named=True)
        self._finished = list(zip(finished, rows, strict=True))
        self._events = tables.get("events")
        if not self._make_spans:
            return {}
        for stream, row in self._finished:
            try:
                spans = self._build(stream, row)
                self._table.export(spans)
            except Exception as e:
                self.failures += 1
                log.warning(
                    "no spans of stream %s: %s", stream.stream_id, type(e).__name__,
                    extra={"trace_id": row.get("trace_id"), "span_id": row.get("span_id")},
                )  # fmt: skip
                continue
            if self._spans is not None and spans and self._is_exported(spans[0]):
                self._to_export += spans
        return {"spans": self._table.take()}

    def _is_exported(self, span: ReadableSpan) -> bool:
        return not self._respect_sampling or bool(span.context and span.context.trace_flags.sampled)

    def committed(self) -> None:
        """Export and count what `rows` was told of."""
        if self._spans is not None and self._to_export:
            self._spans.offer(self._to_export)
        if self._exceptions is not None:
            for _, row in self._finished:
                if not self._respect_sampling or (row.get("trace_flags") or 0) & 1:
                    self._exceptions.tell(row)
        if self.metrics is not None and self._finished:
            try:
                self.metrics.count([(s.started_wall_ns, row) for s, row in self._finished], self._events)
            except Exception:
                log.exception("streams are missing from the metrics")
        self._to_export, self._finished, self._events = [], [], None

    def close(self) -> None:
        """Send what waits, within seconds; then end the threads."""
        if self._spans is not None:
            self._spans.close()
        if self._exceptions is not None:
            self._exceptions.close()
        if self.metrics is not None:
            self.metrics.close()


def resource_of(version: str) -> Resource:
    """Who tells: `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, else service `streamgauge`."""
    attributes: dict[str, str] = {"service.version": version} if version else {}
    if "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "") and not os.environ.get(
        "OTEL_SERVICE_NAME"
    ):
        attributes["service.name"] = "streamgauge"
    return Resource.create(attributes)


def content_wanted() -> bool:
    """Whether captured text may stand in spans: the conventions' opt-in variable."""
    asked = os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "").strip().lower()
    return asked in ("true", "1", "span_only", "span_and_event")

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

from analytics.assembly.stream import FinishedStream
from analytics.telemetry import metrics as telemetry_metrics
from analytics.telemetry import spans
from analytics.telemetry.exceptions import ExceptionEvents
from analytics.telemetry.export import ExportQueue, exporter_of, span_queue, wanted
from analytics.telemetry.semconv import names_of
from analytics.telemetry.span_table import SpanTable

log = logging.getLogger(__name__)

_COLUMNS = tuple(dict.fromkeys((*spans.COLUMNS, *telemetry_metrics.COLUMNS)))


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
        """Raises ValueError (one line) for a profile or protocol that is none. A metrics address in use is only a warning:
        streams must be measured all the same (`up` refuses it before it starts anything).
        """
        names = names_of(options.semconv)
        resource = resource_of(version)
        self._respect_sampling = options.respect_sampling
        self._build = spans.SpanBuilder(
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
        self._finished: Sequence[FinishedStream] = ()
        self._rows: list[Mapping[str, Any]] = []
        self.failures = 0
        """Streams whose spans could not be made."""
        self._spans: ExportQueue[Any] | None = None
        if options.export and options.spans and wanted("traces"):
            self._spans = span_queue(exporter_of("traces"))
        self._exceptions = (
            ExceptionEvents(exporter_of("logs"), resource, names)
            if options.export and wanted("logs")
            else None
        )
        exporter = exporter_of("metrics") if options.export and wanted("metrics") else None
        self.metrics: telemetry_metrics.Metrics | None = None
        if exporter is not None or options.metrics is not None:
            self.metrics = telemetry_metrics.Metrics(
                names,
                resource,
                version=version,
                exporter=exporter,
                listen=options.metrics,
                about=self.counters,
            )

    @property
    def waiting(self) -> bool:
        """Nothing is committed for the sake of telemetry."""
        return False

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
        """The rows of `spans` of these streams."""
        self._forget()
        streams = tables.get("streams")
        if not finished or streams is None:
            return {}
        known = [name for name in _COLUMNS if name in streams.columns]
        self._finished, self._rows = finished, list(streams.select(known).iter_rows(named=True))
        if not self._make_spans:
            return {}
        for stream, row in zip(finished, self._rows, strict=True):
            try:
                made = self._build(stream, row)
                self._table.export(made)
            except Exception as e:
                self.failures += 1
                log.warning(
                    "no spans of stream %s: %s", stream.stream_id, type(e).__name__,
                    extra={"trace_id": row.get("trace_id"), "span_id": row.get("span_id")},
                )  # fmt: skip
                continue
            if self._spans is not None and made and self._is_exported(row):
                self._to_export += made
        return {"spans": self._table.take()}

    def _is_exported(self, row: Mapping[str, Any]) -> bool:
        return not self._respect_sampling or bool((row.get("trace_flags") or 0) & 1)

    def committed(self) -> None:
        """Export and count what `rows` was told of."""
        if self._spans is not None and self._to_export:
            self._spans.offer(self._to_export)
        if self._exceptions is not None:
            for row in self._rows:
                if self._is_exported(row):
                    self._exceptions.tell(row)
        if self.metrics is not None and self._finished:
            try:
                self.metrics.count(self._finished, self._rows)
            except Exception:
                log.exception("streams are missing from the metrics")
        self._forget()

    def _forget(self) -> None:
        self._to_export, self._finished, self._rows = [], (), []

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

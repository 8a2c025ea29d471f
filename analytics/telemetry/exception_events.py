"""Failed operations as OpenTelemetry events (`gen_ai.client.operation.exception`): log records with trace ids."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from streamgauge.analytics.schema.outcomes import NOT_ERRORS
from streamgauge.analytics.telemetry.otlp_export import ExportQueue
from streamgauge.analytics.telemetry.semconv import Names
from streamgauge.ingest.guards import Guards


class ExceptionEvents:
    """Exports one event per failure through a bounded queue."""

    def __init__(
        self, exporter: LogRecordExporter, resource: Resource, names: Names, guards: Guards | None = None
    ) -> None:
        self._resource, self._names = resource, names
        self._scope = InstrumentationScope("streamgauge")

        def send(batch: Sequence[ReadableLogRecord]) -> bool:
            return exporter.export(batch) is LogRecordExportResult.SUCCESS

        self._queue: ExportQueue[ReadableLogRecord] = ExportQueue(
            send, exporter.shutdown, name="otlp-events", guards=guards
        )

    @property
    def lost(self) -> int:
        """Events that were dropped or rejected."""
        return self._queue.dropped + self._queue.failed

    def add(self, row: Mapping[str, Any]) -> None:
        """Queue an event if the stream with this row is a failure of the upstream."""
        if row["outcome"] in NOT_ERRORS or not row.get("trace_id"):
            return
        names = self._names
        attributes = {
            "exception.type": row.get("error_type") or row["outcome"],
            "exception.message": row.get("error_message"),
            names.operation: row.get("operation"),
            names.provider: row.get("provider"),
            names.request_model: row.get("request_model"),
        }
        context = set_span_in_context(
            NonRecordingSpan(
                SpanContext(
                    int(row["trace_id"], 16),
                    int(row["span_id"], 16),
                    False,
                    TraceFlags(row.get("trace_flags") or 0),
                )
            )
        )
        record = LogRecord(
            observed_timestamp=time.time_ns(),
            context=context,
            severity_number=SeverityNumber.WARN,
            severity_text="WARN",
            attributes={name: value for name, value in attributes.items() if value},
            event_name=names.exception_event,
        )
        self._queue.offer([ReadableLogRecord(record, self._resource, self._scope)])

    def close(self) -> None:
        self._queue.close()

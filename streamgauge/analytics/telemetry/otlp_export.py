"""Export spans and exception events over OTLP on a background thread, configured by the standard `OTEL_*` variables.

Rules
- Export is off unless `OTEL_EXPORTER_OTLP_ENDPOINT` or the signal's own variable is set. `OTEL_SDK_DISABLED` and
  `OTEL_TRACES_EXPORTER=none` (or the variable of another signal) turn it off.
- The SDK's exporter retries a batch with backoff within its timeout. Then the batch is counted as failed.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from streamgauge.analytics.schema.outcomes import NOT_ERRORS
from streamgauge.analytics.telemetry.export_queue import ExportQueue
from streamgauge.analytics.telemetry.semconv import Names
from streamgauge.ingest.guards import Guards

log = logging.getLogger(__name__)

QUEUE_SPANS = 16_384
"""About two seconds at 1,000 streams per second, roughly 2 KiB each."""
BATCH_SPANS = 512
DELAY_S = 1.0
NEWEST = "gen_ai_latest_experimental"
"""Value of OTEL_SEMCONV_STABILITY_OPT_IN."""
_EXPORTERS = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
}
"""The same modules and classes in the packages of both protocols."""


def is_enabled(signal: str) -> bool:
    """Whether the environment enables OTLP export of `traces`, `metrics` or `logs`."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp").strip() != "otlp":
        return False
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    return any(os.environ.get(name, "").strip() for name in names)


def respects_sampling() -> bool:
    """Whether only traces are exported that the caller sampled, as with the SDK's default sampler, `parentbased_always_on`."""
    return os.environ.get("OTEL_TRACES_SAMPLER", "").strip() != "always_on"


def semconv_profile() -> str:
    """The profile of `semconv`. Applications choose the newest GenAI conventions, or both (`/dup`), with the same variable."""
    chosen = {value.strip() for value in os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "").split(",")}
    if f"{NEWEST}/dup" in chosen:
        return "1.41+genai-main"
    return "genai-main" if NEWEST in chosen else "1.41"


def exporter_of(signal: str) -> Any:
    """The OTLP exporter of `traces`, `metrics` or `logs` for the configured protocol (default: http/protobuf).

    None: the environment does not enable the export. Raises ValueError for an unknown protocol.
    """
    if not is_enabled(signal):
        return None
    general = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    protocol = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", general).strip()
    if protocol in ("grpc", "http/protobuf"):
        # Imported only when used: gRPC alone takes longer to import than the rest of telemetry.
        module, name = _EXPORTERS[signal]
        package = f"opentelemetry.exporter.otlp.proto.{protocol.partition('/')[0]}"
        return getattr(importlib.import_module(f"{package}.{module}"), name)()
    raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL {protocol!r} is not supported. Use grpc or http/protobuf")


def otlp_queue(exporter: Any, success: object, name: str, guards: Guards | None = None) -> ExportQueue[Any]:
    """A queue with the sizes of the standard variables. `success` is what the exporter returns for an accepted batch."""
    return ExportQueue(
        lambda batch: exporter.export(batch) is success,
        exporter.shutdown,
        name=name,
        queue_size=_number("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_SPANS),
        batch_size=_number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH_SPANS),
        delay_s=_number("OTEL_BSP_SCHEDULE_DELAY", int(DELAY_S * 1000)) / 1000,
        guards=guards,
    )


def _number(name: str, default: int) -> int:
    try:
        return max(1, int(os.environ.get(name, default)))
    except ValueError:
        log.warning("%s is not a number. Using %d.", name, default)
        return default


class ExceptionEvents:
    """Exports one event per failure through a bounded queue."""

    def __init__(
        self, exporter: LogRecordExporter, resource: Resource, names: Names, guards: Guards | None = None
    ) -> None:
        self._resource, self._names = resource, names
        self._scope = InstrumentationScope("streamgauge")
        self._queue = otlp_queue(exporter, LogRecordExportResult.SUCCESS, "otlp-events", guards)

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
        ids, flags = (int(row["trace_id"], 16), int(row["span_id"], 16)), row.get("trace_flags") or 0
        context = set_span_in_context(NonRecordingSpan(SpanContext(*ids, False, TraceFlags(flags))))
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

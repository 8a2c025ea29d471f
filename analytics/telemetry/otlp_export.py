"""Export spans and exception events over OTLP on a background thread, configured by the standard `OTEL_*` variables.

Rules
- Export is off unless `OTEL_EXPORTER_OTLP_ENDPOINT` or the signal's own variable is set. `OTEL_SDK_DISABLED` and
  `OTEL_TRACES_EXPORTER=none` (or the variable of another signal) turn it off.
- `offer` never blocks. The queue is bounded. If it is full, the oldest items are dropped and counted. The SDK's batch processor
  does not count drops and never exports unsampled spans, so it is not used.
- The SDK's exporter retries a batch with backoff within its timeout. Then the batch is counted as failed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from opentelemetry.sdk.trace.export import SpanExporter

from streamgauge.ingest.guards import Guards, guarded_thread

log = logging.getLogger(__name__)

QUEUE_SPANS = 16_384
"""About two seconds at 1,000 streams per second, roughly 2 KiB each."""
BATCH_SPANS = 512
DELAY_S = 1.0
SILENT_AFTER_S = 300.0
"""One batch may be repeated for minutes: see the pauses of a webhook."""
CLOSE_S = 5.0
"""Time to send the rest when the process stops."""

T = TypeVar("T")


class ExportQueue(Generic[T]):
    """A bounded queue in front of a blocking `send`, which returns whether it succeeded."""

    def __init__(
        self,
        send: Callable[[Sequence[T]], bool],
        shutdown: Callable[[], object],
        *,
        name: str,
        queue_size: int | None = None,
        batch_size: int | None = None,
        delay_s: float | None = None,
        guards: Guards | None = None,
    ) -> None:
        self._send, self._shutdown = send, shutdown
        self._size = queue_size or _number("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_SPANS)
        self._batch = min(batch_size or _number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH_SPANS), self._size)
        self._delay_s = (
            delay_s if delay_s is not None else _number("OTEL_BSP_SCHEDULE_DELAY", int(DELAY_S * 1000)) / 1000
        )
        self._queue: deque[T] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._ended = threading.Event()
        self.exported = self.dropped = self.failed = 0
        self._guard = (guards or Guards()).guard(name, silent_after_s=self._delay_s + SILENT_AFTER_S)
        self._thread = guarded_thread(self._guard, self._run, self._ended)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def offer(self, items: Sequence[T]) -> None:
        """Queue items and drop the oldest ones beyond the limit."""
        with self._lock:
            self._queue.extend(items)
            over = len(self._queue) - self._size
            for _ in range(over):
                self._queue.popleft()
            self.dropped += max(0, over)
            full = len(self._queue) >= self._batch
        if full:
            self._wake.set()

    def _take(self) -> list[T]:
        with self._lock:
            return [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]

    def _run(self) -> None:
        while True:
            closing = self._closing  # read first, so that everything offered before `close` is sent
            while batch := self._take():
                try:
                    good = self._send(batch)
                except Exception as e:
                    self._guard.failed(e)
                    good = False
                if good:
                    self.exported += len(batch)
                else:
                    self.failed += len(batch)
                self._guard.beat()
            if closing:
                self._ended.set()
                return
            self._guard.beat()
            self._wake.wait(self._delay_s)
            self._wake.clear()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Send the queued items for at most `timeout_s`. The rest is counted as dropped."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        self._ended.set()
        with self._lock:
            self.dropped += len(self._queue)
            self._queue.clear()
        self._shutdown()


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
    """The profile of `semconv`. Applications choose the newest GenAI conventions with the same variable."""
    chosen = os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "").split(",")
    return "genai-main" if "gen_ai_latest_experimental" in map(str.strip, chosen) else "1.41"


def exporter_of(signal: str) -> Any:
    """The OTLP exporter of `traces`, `metrics` or `logs` for the configured protocol (default: http/protobuf).

    Raises ValueError for an unknown protocol.
    """
    general = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    protocol = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", general).strip()
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans

        return {"traces": GrpcSpans, "metrics": GrpcMetrics, "logs": GrpcLogs}[signal]()
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans

        return {"traces": HttpSpans, "metrics": HttpMetrics, "logs": HttpLogs}[signal]()
    raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL {protocol!r} is not supported. Use grpc or http/protobuf")


def span_queue(exporter: SpanExporter, guards: Guards | None = None) -> ExportQueue[Any]:
    from opentelemetry.sdk.trace.export import SpanExportResult

    return ExportQueue(
        lambda spans: exporter.export(spans) is SpanExportResult.SUCCESS,
        exporter.shutdown,
        name="otlp-spans",
        guards=guards,
    )


def _number(name: str, default: int) -> int:
    try:
        return max(1, int(os.environ.get(name, default)))
    except ValueError:
        log.warning("%s is not a number. Using %d.", name, default)
        return default

"""What sends alerts to a receiver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from streamgauge.analytics.telemetry.otlp_export import ExportQueue
from streamgauge.ingest.guards import Guards

Notification = Mapping[str, Any]
"""The JSON object of one alert (`history.notification`)."""
QUEUE_SIZE = 100


class Sink:
    """Sends alerts on its own thread, behind a bounded queue."""

    def __init__(
        self,
        send: Callable[[Notification], bool],
        *,
        name: str,
        queue_size: int = QUEUE_SIZE,
        release: Callable[[], object] = lambda: None,
        guards: Guards | None = None,
    ) -> None:
        """`send` says whether the receiver has accepted the alert. `release` is called at the end."""
        self._queue: ExportQueue[Notification] = ExportQueue(
            lambda batch: send(batch[0]), release, name=name, queue_size=queue_size, batch_size=1, delay_s=60.0, guards=guards
        )  # fmt: skip

    def offer(self, notification: Notification) -> None:
        """Queue an alert. Never blocks. A full queue drops the oldest, which is counted."""
        self._queue.offer([notification])

    def health(self) -> dict[str, float]:
        """The counters by metric name without its prefix."""
        queue = self._queue
        return {
            "alerts.sent": float(queue.exported),
            "alerts.send_failed": float(queue.failed),
            "alerts.send_dropped": float(queue.dropped),
        }

    def close(self) -> None:
        """Send what is queued, once each and within the queue's time limit."""
        self._queue.close()

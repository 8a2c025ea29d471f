"""Send alerts to the functions of plugins, each on its own thread behind a bounded queue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from analytics.alerts.sink import QUEUE_SIZE, Notification, Sink
from analytics.telemetry.otlp_export import ExportQueue
from ingest.guards import Guards
from ingest.plugins import ALERT_SINKS, function, load_plugins

log = logging.getLogger(__name__)


class PluginSink:
    """The queue and the thread of one function. If the queue is full, the oldest notification is dropped and counted."""

    def __init__(self, name: str, send: Callable[..., object], guards: Guards | None = None) -> None:
        self._name, self._function = name, send
        self._queue: ExportQueue[Notification] = ExportQueue(
            self._send,
            lambda: None,
            name=f"alert-sink-{name}",
            queue_size=QUEUE_SIZE,
            batch_size=1,
            delay_s=60.0,
            guards=guards,
        )

    def offer(self, notification: Notification) -> None:
        self._queue.offer([notification])

    def health(self) -> dict[str, float]:
        """The counters by metric name without its prefix, as those of the webhook."""
        queue = self._queue
        return {
            "alerts.sent": float(queue.exported),
            "alerts.send_failed": float(queue.failed),
            "alerts.send_dropped": float(queue.dropped),
        }

    def close(self) -> None:
        """Send what is queued, within the queue's time limit."""
        self._queue.close()

    def _send(self, batch: Sequence[Notification]) -> bool:
        try:
            for notification in batch:
                self._function(dict(notification))
        except Exception as e:
            log.warning(
                "cannot send an alert by the plugin %s: %s. Check the plugin", self._name, type(e).__name__
            )
            return False
        return True


def plugin_sinks(guards: Guards | None = None) -> list[Sink]:
    """The sinks of installed plugins."""
    return [PluginSink(name, send, guards) for name, send in load_plugins(ALERT_SINKS, function).items()]

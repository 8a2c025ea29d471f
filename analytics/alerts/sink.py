"""What sends alerts to a receiver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

Notification = Mapping[str, Any]
"""The JSON object of one alert (`history.notification`)."""
QUEUE_SIZE = 100


class Sink(Protocol):
    """Sends alerts on its own thread, behind a bounded queue."""

    def offer(self, notification: Notification) -> None:
        """Queue an alert. Never blocks. A full queue drops the oldest, which is counted."""

    def health(self) -> dict[str, float]:
        """The counters `alerts.sent`, `.send_failed` and `.send_dropped`."""

    def close(self) -> None:
        """Send what is queued within a time limit."""

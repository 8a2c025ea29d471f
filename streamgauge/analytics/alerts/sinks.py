"""Send alerts to webhooks and to the functions of plugins, each on its own thread behind a bounded queue.

Rules
1. `offer` never blocks. The queue is bounded; the oldest notification is dropped and counted.
2. An attempt at the webhook that fails, times out, or gets status 408, 429 or 5xx is repeated with growing pauses, or after the
   response's Retry-After, at most `ATTEMPTS` times. Other responses are final. Redirects are not followed.
3. The webhook's URL is a secret: it is in no message. The response's body is not read.
4. Proxies are those of the environment (HTTPS_PROXY, NO_PROXY).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from streamgauge.analytics.alerts.formats import Notification, body_of, format_of
from streamgauge.analytics.telemetry.export_queue import CLOSE_S, ExportQueue, plugin_queues
from streamgauge.ingest.guards import Guards
from streamgauge.ingest.plugins import ALERT_SINKS

log = logging.getLogger(__name__)

QUEUE_SIZE = 100
ATTEMPTS = 5
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
"""Pauses double. Retry-After is limited to the same maximum."""
TIMEOUT_S = 5.0
"""For connecting, and for each read."""
REPEATED = frozenset((408, 429, 500, 502, 503, 504))


def alert_sinks(
    urls: str | None, routing_key: str | None = None, guards: Guards | None = None
) -> list[ExportQueue[Notification]]:
    """The queues of installed plugins, and of the webhooks: URLs with spaces between them. `routing_key`: of PagerDuty."""
    queues = plugin_queues(
        ALERT_SINKS, "send an alert", name="alert-sink", queue_size=QUEUE_SIZE, guards=guards
    )
    for number, url in enumerate((urls or "").split(), 1):
        name = f"alert-webhook-{number}"
        queues.append(Webhook(url, routing_key=routing_key or "", name=name, guards=guards))
    return queues


class Webhook(ExportQueue[Notification]):
    """The queue of one receiver."""

    def __init__(
        self,
        url: str,
        *,
        routing_key: str = "",
        name: str = "alert-webhook-1",
        queue_size: int = QUEUE_SIZE,
        timeout_s: float = TIMEOUT_S,
        first_pause_s: float = FIRST_PAUSE_S,
        guards: Guards | None = None,
    ) -> None:
        import requests  # only when used: an HTTP client takes longer to import than the rest of alerting

        self._url, self._timeout_s, self._first_pause_s = url, timeout_s, first_pause_s
        form = format_of(url)
        self._body = body_of(form, routing_key)
        self.again = form == "alertmanager"
        """Whether it has to receive the alerts that fire repeatedly."""
        self._stop = threading.Event()
        self._session = requests.Session()
        # Authentication that adds nothing, so that requests does not look for the host in ~/.netrc.
        self._session.auth = lambda request: request
        super().__init__(self._post, self._session.close, name=name, queue_size=queue_size, guards=guards)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        self._stop.set()  # first: a pause between two attempts may be longer than the time limit
        super().close(timeout_s)

    def _post(self, batch: Sequence[Notification]) -> bool:
        from requests import RequestException
        from urllib3.exceptions import HTTPError

        pause_s, why = self._first_pause_s, ""
        for attempt in range(ATTEMPTS):
            if attempt and self._stop.wait(min(pause_s, MAX_PAUSE_S)):
                break
            wait_s: float | None = None
            try:
                with self._session.post(
                    self._url,
                    json=self._body(batch[0]),
                    timeout=self._timeout_s,
                    allow_redirects=False,
                    stream=True,
                ) as response:
                    if 200 <= response.status_code < 300:
                        return True
                    why = f"status {response.status_code}"
                    if response.status_code not in REPEATED:
                        break
                    wait_s = _retry_after_s(response.headers.get("retry-after"))
            except (RequestException, HTTPError, OSError, ValueError) as e:
                why = type(e).__name__  # the message of most of them has the URL
            pause_s = wait_s if wait_s is not None else self._first_pause_s * 2.0**attempt
        log.warning("cannot send an alert to the webhook: %s. Check --alert-webhook and the receiver", why)
        return False


def _retry_after_s(value: str | None) -> float | None:
    """Seconds or a date. None if it is missing or invalid."""
    from urllib3.exceptions import InvalidHeader
    from urllib3.util import Retry

    try:
        return Retry().parse_retry_after(value) if value is not None else None
    except InvalidHeader:
        return None

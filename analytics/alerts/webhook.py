"""Send alerts to a webhook: JSON for Slack, Mattermost and similar receivers, on a background thread.

Rules
1. `offer` never blocks. The queue is bounded; the oldest notification is dropped and counted.
2. An attempt that fails, times out, or gets status 408, 429 or 5xx is repeated with growing pauses, or after the response's
   Retry-After, at most `ATTEMPTS` times. Other responses are final. Redirects are not followed.
3. The URL is a secret: it is in no message. The response's body is not read.
4. Proxies are those of the environment (HTTPS_PROXY, NO_PROXY).
"""

from __future__ import annotations

import logging
import threading

import requests
from urllib3.exceptions import HTTPError, InvalidHeader
from urllib3.util import Retry

from streamgauge.analytics.alerts.sink import QUEUE_SIZE, Notification, Sink
from streamgauge.ingest.guards import Guards

log = logging.getLogger(__name__)

ATTEMPTS = 5
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
"""Pauses double. Retry-After is limited to the same maximum."""
TIMEOUT_S = 5.0
"""For connecting, and for each read."""
REPEATED = frozenset((408, 429, 500, 502, 503, 504))


class Webhook(Sink):
    """The sink of one receiver."""

    def __init__(
        self,
        url: str,
        *,
        queue_size: int = QUEUE_SIZE,
        timeout_s: float = TIMEOUT_S,
        first_pause_s: float = FIRST_PAUSE_S,
        guards: Guards | None = None,
    ) -> None:
        self._url, self._timeout_s, self._first_pause_s = url, timeout_s, first_pause_s
        self._stop = threading.Event()
        self._session = requests.Session()
        self._session.auth = _without_netrc
        super().__init__(
            self._send,
            name="alert-webhook",
            queue_size=queue_size,
            release=self._session.close,
            guards=guards,
        )

    def close(self) -> None:
        self._stop.set()
        super().close()

    def _send(self, notification: Notification) -> bool:
        pause_s, why = self._first_pause_s, ""
        for attempt in range(ATTEMPTS):
            if attempt and self._stop.wait(min(pause_s, MAX_PAUSE_S)):
                break
            wait_s: float | None = None
            try:
                with self._session.post(
                    self._url, json=notification, timeout=self._timeout_s, allow_redirects=False, stream=True
                ) as response:
                    if 200 <= response.status_code < 300:
                        return True
                    why = f"status {response.status_code}"
                    if response.status_code not in REPEATED:
                        break
                    wait_s = _retry_after_s(response.headers.get("retry-after"))
            except (requests.RequestException, HTTPError, OSError, ValueError) as e:
                why = type(e).__name__  # the message of most of them has the URL
            pause_s = wait_s if wait_s is not None else self._first_pause_s * 2.0**attempt
        log.warning("cannot send an alert to the webhook: %s. Check --alert-webhook and the receiver", why)
        return False


def _without_netrc(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Authentication that adds nothing, so that requests does not look for the host in ~/.netrc."""
    return request


def _retry_after_s(value: str | None) -> float | None:
    """Seconds or a date. None if it is missing or invalid."""
    try:
        return Retry().parse_retry_after(value) if value is not None else None
    except InvalidHeader:
        return None

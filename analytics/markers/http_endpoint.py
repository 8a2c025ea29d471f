"""`POST /v1/markers`: store a marker. A WSGI application on the port of `--metrics`, which checks the Host header first.

Rules
1. 201 means stored (`streamgauge.analytics.markers.marker_queue`).
2. With a token, every request needs it. Without one, only requests from this machine are accepted, because the port may be open
   to a metrics scraper.
3. The content type must be JSON. A web page cannot send it without a CORS preflight, which gets no permission here.
4. There are limits on the body's size, the time to send it, requests at a time, waiting markers and markers per hour.
"""

from __future__ import annotations

import datetime as dt
import hmac
import json
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from http import HTTPStatus
from typing import Any

from streamgauge.analytics.markers.marker import Marker, parse_marker
from streamgauge.analytics.markers.marker_queue import MarkerQueue
from streamgauge.ingest.addresses import is_loopback

PATH = "/v1/markers"
MAX_BODY_BYTES = 8192
MAX_REQUESTS = 8
"""At a time."""
STORE_WITHIN_S = 8.0
RETRY_AFTER_S = 1

_JSON = "application/json"


class Refused(Exception):
    """An error response."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class MarkersEndpoint:
    """The WSGI application. Thread-safe."""

    def __init__(self, queue: MarkerQueue, *, token: str | None = None) -> None:
        self._queue, self._token = queue, token
        self._requests = threading.BoundedSemaphore(MAX_REQUESTS)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            self._check(environ)
            content: dict[str, str] = self._store(environ).json()
            status = 201
        except Refused as e:
            self._queue.refuse()
            status, content = e.status, {"error": str(e)}
        headers = [("Content-Type", _JSON)]
        headers += [("Retry-After", str(RETRY_AFTER_S))] if status == 503 else []
        headers += [("WWW-Authenticate", "Bearer")] if status == 401 else []
        headers += [("Allow", "POST")] if status == 405 else []
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [json.dumps(content, ensure_ascii=False).encode() + b"\n"]

    def _check(self, environ: dict[str, Any]) -> None:
        if environ["REQUEST_METHOD"] != "POST":
            raise Refused(405, "the method must be POST")
        if self._token is not None:
            given = environ.get("HTTP_AUTHORIZATION", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                raise Refused(401, "a bearer token is required: the one of --otlp-token")
        elif not is_loopback(environ.get("REMOTE_ADDR", "")):
            raise Refused(403, "requests from other machines need a token. Set --otlp-token")
        if environ.get("CONTENT_TYPE", "").split(";", 1)[0].strip().lower() != _JSON:
            raise Refused(415, f"the content type must be {_JSON}")

    def _store(self, environ: dict[str, Any]) -> Marker:
        if not self._requests.acquire(blocking=False):
            raise Refused(503, "too many requests at a time. Try again")
        try:
            body = _body(environ)
            try:
                marker = parse_marker(body, dt.datetime.now(dt.UTC))
            except ValueError as e:
                raise Refused(400, str(e)) from None
            stored = self._queue.offer(marker)
            if stored is None:
                raise Refused(503, "there are too many markers, or analytics stops. Try again later")
            try:
                if not stored.result(STORE_WITHIN_S):
                    raise Refused(503, "the marker could not be stored. Try again")
            except (TimeoutError, CancelledError):
                stored.cancel()
                raise Refused(503, "timeout while storing the marker. Try again") from None
            return marker
        finally:
            self._requests.release()


def _body(environ: dict[str, Any]) -> bytes:
    length = environ.get("CONTENT_LENGTH", "")
    if not (length.isascii() and length.isdigit()):
        raise Refused(411, "the request has no Content-Length")
    if len(length) > 9 or int(length) > MAX_BODY_BYTES:
        raise Refused(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
    try:
        body: bytes = environ["wsgi.input"].read(int(length))
    except TimeoutError:
        raise Refused(408, "timeout while receiving the body") from None
    except OSError:
        body = b""
    if len(body) < int(length):
        raise Refused(400, "the body is incomplete")
    return body

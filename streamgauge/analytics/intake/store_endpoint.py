"""Small JSON objects that `POST` stores, such as markers and silences.

The endpoint is a WSGI application on the port of `--metrics`, which checks the Host header first.

Rules
1. 201 means stored (`streamgauge.analytics.intake.commit_queue`).
2. With a token, every request needs it. Without one, only requests from this machine are accepted, because the port may be open
   to a metrics scraper.
3. The content type must be JSON (`check_type`).
4. There are limits on the body's size, the time to send it, requests at a time, waiting items and items per hour.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import asdict, astuple
from http import HTTPStatus
from typing import Any

from streamgauge.analytics.intake.commit_queue import (
    STORE_WITHIN_S,
    CommitQueue,
    Refused,
    check_token,
    check_type,
)
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.tables import Table
from streamgauge.analytics.storage.replaced_tables import stored_value
from streamgauge.ingest.listening import is_loopback

MAX_BODY_BYTES = 8192
MAX_REQUESTS = 8
"""At a time. Each waits for the commit on a thread of its own, and the same server answers scrapes."""
MAX_WAITING = 100
MAX_PER_HOUR = 1000
"""A sender in a loop cannot fill the table, whose rows are kept as long as the roll-ups."""
_HOUR_S = 3600.0
_JSON = "application/json"
MAX_TEXT = 200
"""Characters of the longest text."""
MAX_KEY = 64
"""Characters of an unknown key that the error shows."""


def json_object(body: bytes, keys: Sequence[str], example: str) -> Mapping[str, Any]:
    """The JSON object of a request, with some of the keys. Raises ValueError with one line that names the key."""
    try:
        given: Any = json.loads(body)
    except (ValueError, RecursionError):  # also for bytes that are not UTF-8
        given = None
    if not isinstance(given, dict):
        raise ValueError(f"the body is not a JSON object such as {example}")
    unknown = next((key for key in given if key not in keys), None)
    if unknown is not None:
        raise ValueError(f"unknown key {unknown[:MAX_KEY]!r}. Allowed: {', '.join(keys)}")
    return given


def one_line(key: str, value: object, most: int) -> str:
    """A text of a request. Raises ValueError."""
    text = value.strip() if isinstance(value, str) else ""
    if not 0 < len(text) <= most or not text.isprintable():
        raise ValueError(f"{key} is not a text of 1 to {most} characters in one line")
    return text


def item_queue(table: Table, clock: Callable[[], float] = time.monotonic) -> CommitQueue[Any]:
    """The queue of a table's items: dataclasses with the table's columns. `clock`: seconds."""
    entered_s: deque[float] = deque(maxlen=MAX_PER_HOUR)

    def may_enter() -> bool:
        now_s = clock()
        if len(entered_s) == MAX_PER_HOUR and now_s - entered_s[0] < _HOUR_S:
            return False
        entered_s.append(now_s)
        return True

    return CommitQueue(
        table.name,
        lambda items: frame_of_rows(table, [[*map(stored_value, astuple(item))] for item in items]),
        name=table.name,
        counters=("stored", "refused"),
        max_items=MAX_WAITING,
        may_enter=may_enter,
    )


def _shown(value: Any) -> Any:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, dt.datetime) else value


class StoreEndpoint:
    """A WSGI application that stores the item of each request. Thread-safe."""

    def __init__(
        self,
        queue: CommitQueue[Any],
        parse: Callable[[bytes, dt.datetime], Any],
        *,
        token: str | None = None,
    ) -> None:
        """`parse`: body and time → item, which is the answer, too. Raises ValueError with one line."""
        self._queue, self._parse, self._token = queue, parse, token
        self._noun = queue.name.removesuffix("s")
        self._requests = threading.BoundedSemaphore(MAX_REQUESTS)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        fields: Mapping[str, str] = {}
        try:
            self._check(environ)
            item = asdict(self._store(environ))
            status, content = 201, {name: _shown(value) for name, value in item.items()}
        except Refused as e:
            self._queue.count(refused=1)
            status, content, fields = e.status, {"error": str(e)}, e.headers()
        allow = {"Allow": "POST"} if status == 405 else {}
        headers = {"Content-Type": _JSON, **fields, **allow}
        start_response(f"{status} {HTTPStatus(status).phrase}", list(headers.items()))
        return [json.dumps(content, ensure_ascii=False).encode() + b"\n"]

    def _check(self, environ: dict[str, Any]) -> None:
        if environ["REQUEST_METHOD"] != "POST":
            raise Refused(405, "the method must be POST")
        check_token(environ.get("HTTP_AUTHORIZATION", ""), self._token)
        if self._token is None and not is_loopback(environ.get("REMOTE_ADDR", "")):
            raise Refused(403, "requests from other machines need a token. Set --otlp-token")
        check_type(environ.get("CONTENT_TYPE", ""), _JSON)

    def _store(self, environ: dict[str, Any]) -> Any:
        if not self._requests.acquire(blocking=False):
            raise Refused(503, "too many requests at a time. Try again")
        try:
            body = _body(environ)
            try:
                item = self._parse(body, dt.datetime.now(dt.UTC))
            except ValueError as e:
                raise Refused(400, str(e)) from None
            stored = self._queue.offer([item])
            if stored is None:
                raise Refused(
                    503, f"there are too many {self._queue.name}, or analytics stops. Try again later"
                )
            try:
                if not stored.result(STORE_WITHIN_S):
                    raise Refused(503, f"the {self._noun} could not be stored. Try again")
            except (TimeoutError, CancelledError):
                stored.cancel()
                raise Refused(503, f"timeout while storing the {self._noun}. Try again") from None
            return item
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

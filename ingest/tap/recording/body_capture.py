"""Decide which body bytes are captured.

Request: the first bytes (64 KiB by default) of JSON and text. Response: event streams (also Amazon's binary ones) and ndjson
whole; JSON, text and every body with a status of 400 or more up to 4 MiB. All other bytes are only counted.
"""

from __future__ import annotations

from functools import lru_cache

from streamgauge.ingest.tap.http.heads import RequestHead
from streamgauge.ingest.tap.http.receive_buffer import appended

MAX_PLAIN_BODY_BYTES = 4 * 2**20
UNLIMITED = 1 << 62
_TEXT_PREFIXES = (
    b"text/",
    b"application/json",
    b"application/x-ndjson",
    b"application/ndjson",
    b"application/jsonl",
)
_STREAM_TYPES = (
    b"text/event-stream",
    b"application/x-ndjson",
    b"application/ndjson",
    b"application/vnd.amazon.eventstream",
)


def capture_content(head: RequestHead) -> bool | None:
    """`Opened.capture_content`: False when the client sent `x-streamgauge-capture: none`, else None."""
    value = head.known.get(b"x-streamgauge-capture")
    return False if value is not None and value.lower() == b"none" else None


@lru_cache(maxsize=256)
def response_limit(content_type: bytes, is_error: bool) -> tuple[int, bool]:
    """(number of bytes to capture of a response, whether it is a stream of SSE events)."""
    kind = content_type.split(b";", 1)[0].strip().lower()
    if kind in _STREAM_TYPES:
        return UNLIMITED, kind == b"text/event-stream"
    return MAX_PLAIN_BODY_BYTES if is_error or _is_text(content_type) else 0, False


@lru_cache(maxsize=256)
def _is_text(content_type: bytes) -> bool:
    kind = content_type.split(b";", 1)[0].strip().lower()
    return kind.startswith(_TEXT_PREFIXES) or kind.endswith((b"+json", b"/json"))


class RequestCapture:
    """Collects the first bytes of a request's body in one buffer, so many small parts cost no more than the limit."""

    __slots__ = ("_body", "_enabled", "_limit", "_taken", "full", "truncated")

    def __init__(self, head: RequestHead, limit_bytes: int) -> None:
        content_type = head.known.get(b"content-type")
        # A body without a content type may be JSON, because curl users forget the header. Analytics handles other bodies.
        self._enabled = limit_bytes > 0 and (content_type is None or _is_text(content_type))
        self._limit = limit_bytes
        self._body: bytes | bytearray = b""
        self._taken = False
        self.full = False
        self.truncated = False

    @property
    def size_bytes(self) -> int:
        """Bytes kept."""
        return len(self._body)

    def feed(self, payload: bytes) -> None:
        """Add the next part of the body."""
        if not self._enabled or self._taken or self.full or not payload:
            if self.full and payload:
                self.truncated = True
            return
        free_bytes = self._limit - len(self._body)
        if len(payload) > free_bytes:
            payload = payload[:free_bytes]
            self.truncated = True
        self._body = appended(self._body, payload)
        self.full = len(self._body) >= self._limit

    def take(self, *, over: bool) -> bytes | None:
        """The collected bytes, once. None: nothing was collected, or it was taken. `over`: the body has ended."""
        if self._taken or not self._body:
            return None
        self._taken = True
        self.truncated = self.truncated or not over
        body, self._body = self._body, b""
        return bytes(body)


def is_heartbeat(payload: bytes) -> bool:
    """Whether a read holds only SSE comment lines. Those do not count as output for the `idle_output` limit."""
    return payload[:1] == b":" and all(line[:1] in (b"", b":") for line in payload.splitlines())

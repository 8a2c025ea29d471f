"""What of the bodies is mirrored.

The rules: a request's first bytes (64 KiB by default) if it is JSON or text. Of a response: event streams, JSON, ndjson,
text, and whatever comes with a status of 400 or more, because errors are what operators look for; everything else is
only counted. What is no event stream is mirrored up to 4 MiB, then counted. A read that holds nothing but SSE comment
lines is a heartbeat: it is no output for the coarse `idle_output` limit.
"""

from __future__ import annotations

from ingest.headers import first
from ingest.http_head import RequestHead, ResponseHead
from ingest.mirror import StreamMirror

MAX_PLAIN_BODY_BYTES = 4 * 2**20
_TEXT_PREFIXES = (
    b"text/",
    b"application/json",
    b"application/x-ndjson",
    b"application/ndjson",
    b"application/jsonl",
)
_STREAM_TYPES = (b"text/event-stream", b"application/x-ndjson", b"application/ndjson")
_EVER = 1 << 62


def _is_text(content_type: bytes) -> bool:
    kind = content_type.split(b";", 1)[0].strip().lower()
    return kind.startswith(_TEXT_PREFIXES) or kind.endswith((b"+json", b"/json"))


class RequestCapture:
    """Collects the first bytes of a request's body."""

    __slots__ = ("_limit", "_parts", "_size", "_taken", "_wanted", "full", "truncated")

    def __init__(self, head: RequestHead, limit_bytes: int) -> None:
        content_type = head.known.get(b"content-type")
        # Without a type it may well be JSON (curl users forget it); what it is not is for analytics to see.
        self._wanted = limit_bytes > 0 and (content_type is None or _is_text(content_type))
        self._limit = limit_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._taken = False
        self.full = False
        self.truncated = False

    def feed(self, payload: bytes) -> None:
        """Payload of the body, in order."""
        if not self._wanted or self._taken or self.full or not payload:
            if self.full and payload:
                self.truncated = True
            return
        room = self._limit - self._size
        if len(payload) > room:
            payload = payload[:room]
            self.truncated = True
        self._parts.append(payload)
        self._size += len(payload)
        self.full = self._size >= self._limit

    def take(self, *, over: bool) -> bytes | None:
        """What was collected, once; None when there is nothing (more). `over`: the body has ended."""
        if self._taken or not self._parts:
            return None
        self._taken = True
        self.truncated = self.truncated or not over
        body = b"".join(self._parts)
        self._parts = []
        return body


class ResponseCapture:
    """Decides, read by read, whether a response's payload is mirrored or counted."""

    __slots__ = ("_event_stream", "_left", "_mirror", "last_output_ns")

    def __init__(self, mirror: StreamMirror, head: ResponseHead) -> None:
        content_type = first(head.fields, b"content-type") or b""
        kind = content_type.split(b";", 1)[0].strip().lower()
        self._mirror = mirror
        self._event_stream = kind == b"text/event-stream"
        if kind in _STREAM_TYPES:
            self._left = _EVER
        elif head.status >= 400 or _is_text(content_type):
            self._left = MAX_PLAIN_BODY_BYTES
        else:
            self._left = 0
        self.last_output_ns = 0
        """When the last read came that was more than heartbeats, by the monotonic clock."""

    def feed(self, payload: bytes, at_ns: int, now_ns: int) -> None:
        """One read's payload, `at_ns` from t0."""
        left = self._left
        size = len(payload)
        if size <= left:
            self._mirror.frame(at_ns, payload, now_ns)
            if left != _EVER:
                self._left = left - size
        else:
            if left:
                self._mirror.frame(at_ns, payload[:left], now_ns)
                self._left = 0
            self._mirror.uncaptured(size - left, now_ns)
        if not (self._event_stream and payload[:1] == b":" and _only_comments(payload)):
            self.last_output_ns = now_ns


def _only_comments(payload: bytes) -> bool:
    return all(line[:1] in (b"", b":") for line in payload.splitlines())

"""What of the bodies is mirrored.

The rules: a request's first bytes (64 KiB by default) if it is JSON or text. Of a response: event streams, JSON, ndjson,
text, and whatever comes with a status of 400 or more, because errors are what operators look for; everything else is
only counted. What is no event stream is mirrored up to 4 MiB, then counted.
"""

from __future__ import annotations

from functools import lru_cache

from ingest.tap.http_head import RequestHead

MAX_PLAIN_BODY_BYTES = 4 * 2**20
EVER = 1 << 62
"""More than any body has."""
_TEXT_PREFIXES = (
    b"text/",
    b"application/json",
    b"application/x-ndjson",
    b"application/ndjson",
    b"application/jsonl",
)
_STREAM_TYPES = (b"text/event-stream", b"application/x-ndjson", b"application/ndjson")


def asked_for(head: RequestHead) -> bool | None:
    """What the client says about recording this exchange: False when it sent `x-streamgauge-capture: none`."""
    asked = head.known.get(b"x-streamgauge-capture")
    return False if asked is not None and asked.lower() == b"none" else None


@lru_cache(maxsize=256)
def response_limit(content_type: bytes, *, is_error: bool) -> tuple[int, bool]:
    """How many bytes of such a response are mirrored, and whether it is a stream of SSE events."""
    kind = content_type.split(b";", 1)[0].strip().lower()
    if kind in _STREAM_TYPES:
        return EVER, kind == b"text/event-stream"
    return MAX_PLAIN_BODY_BYTES if is_error or _is_text(content_type) else 0, False


@lru_cache(maxsize=256)
def _is_text(content_type: bytes) -> bool:
    kind = content_type.split(b";", 1)[0].strip().lower()
    return kind.startswith(_TEXT_PREFIXES) or kind.endswith((b"+json", b"/json"))


class RequestCapture:
    """Collects the first bytes of a request's body. They are kept as one: bounded by the limit, however small they come."""

    __slots__ = ("_body", "_limit", "_taken", "_wanted", "full", "truncated")

    def __init__(self, head: RequestHead, limit_bytes: int) -> None:
        content_type = head.known.get(b"content-type")
        # Without a type it may well be JSON (curl users forget it); what it is not is for analytics to see.
        self._wanted = limit_bytes > 0 and (content_type is None or _is_text(content_type))
        self._limit = limit_bytes
        self._body = b""
        self._taken = False
        self.full = False
        self.truncated = False

    @property
    def size_bytes(self) -> int:
        """What is kept."""
        return len(self._body)

    def feed(self, payload: bytes) -> None:
        """Payload of the body, in order."""
        if not self._wanted or self._taken or self.full or not payload:
            if self.full and payload:
                self.truncated = True
            return
        room = self._limit - len(self._body)
        if len(payload) > room:
            payload = payload[:room]
            self.truncated = True
        self._body += payload
        self.full = len(self._body) >= self._limit

    def take(self, *, over: bool) -> bytes | None:
        """What was collected, once; None when there is nothing (more). `over`: the body has ended."""
        if self._taken or not self._body:
            return None
        self._taken = True
        self.truncated = self.truncated or not over
        body, self._body = self._body, b""
        return body


def is_heartbeat(payload: bytes) -> bool:
    """A read that holds nothing but SSE comment lines: no output for the coarse `idle_output` limit."""
    return payload[:1] == b":" and all(line[:1] in (b"", b":") for line in payload.splitlines())

"""Decide which body bytes are captured.

Request: the first bytes (64 KiB by default) of text; JSON is condensed if it is longer. Response: event streams (also Amazon's
binary ones) and ndjson whole; JSON, text and every body with a status of 400 or more up to 4 MiB. All other bytes are only counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

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


def capture_content(known: Mapping[bytes, bytes]) -> bool | None:
    """`Opened.capture_content`: False when the client sent `x-streamgauge-capture: none`, else None."""
    value = known.get(b"x-streamgauge-capture")
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


def request_limit(content_type: bytes | None, limit_bytes: int) -> int:
    """Number of bytes to capture of a request."""
    # A body without a content type may be JSON, because curl users forget the header. Analytics handles other bodies.
    return limit_bytes if content_type is None or _is_text(content_type) else 0

"""Decide which body bytes are captured.

Content types are often missing or wrong, so the first bytes of a body decide, at most `LOOK_BYTES` of them, without its content
coding. The content type decides only where they do not.

Request: the first bytes (64 KiB by default) of text and of JSON; JSON is condensed if it is longer. Response: event streams (also
Amazon's binary ones) and the lines of JSON that answer a POST whole; other JSON, text and every body with a status of 400 or more
up to 4 MiB. All other bytes are only counted.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Literal

import brotli
import zstandard

from streamgauge.ingest.facts import FieldFacts
from streamgauge.ingest.records import coding_of
from streamgauge.ingest.result_cache import ResultCache

LOOK_BYTES = 4096
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


def response_limit(content_type: bytes) -> tuple[int, bool]:
    """(number of bytes to capture of a response without an error, whether it is a stream of SSE events)."""
    kind = content_type.split(b";", 1)[0].strip().lower()
    if kind in _STREAM_TYPES:
        return UNLIMITED, kind == b"text/event-stream"
    return MAX_PLAIN_BODY_BYTES if _is_text(content_type) else 0, False


def _is_text(content_type: bytes) -> bool:
    kind = content_type.split(b";", 1)[0].strip().lower()
    return kind.startswith(_TEXT_PREFIXES) or kind.endswith((b"+json", b"/json"))


response_limits = ResultCache(response_limit, 256)
_text_types = ResultCache(_is_text, 256)


BodyKind = Literal["sse", "lines", "json", "text", "binary"]

_BLANKS = b" \t\r\n\x1e"
_BOM = b"\xef\xbb\xbf"
_CONTROLS = bytes({*range(32), 0x7F} - {*b"\t\n\r\x1b\x1e"})
_COMMENTS = re.compile(rb"(?::[^\r\n]*+[\r\n]++)*+")
_FIELDS = (b"data:", b"event:", b"id:", b"retry:")
_JSON = re.compile(rb"\{[ \t\r\n]*+(?:[\"}]|\Z)|\[[ \t\r\n]*+(?:[\[{\"\]0-9-]|\Z)")


def body_kind(start: bytes, more: bool) -> BodyKind | None:
    """What a body is, by its first bytes. None: too few of them. `more`: others may follow."""
    text = start
    if not text.startswith(b"{"):
        text = text.removeprefix(_BOM).lstrip(_BLANKS)
    is_json = text.startswith(b'{"') or _JSON.match(text) is not None  # nearly all JSON begins like this
    line_end = text.find(b"\n") if is_json else -1
    if is_json and line_end < 0 and more:
        return None
    if len(start.translate(None, _CONTROLS)) < len(start):
        return "binary"
    if is_json:
        return "lines" if line_end >= 0 and text[:line_end].rstrip().endswith((b"}", b"]")) else "json"
    text = text[_COMMENTS.match(text).end() :]  # type: ignore[union-attr] # matches anywhere
    if text.startswith(_FIELDS):
        return "sse"
    return None if more and _may_begin_events(text) else "text"


def _may_begin_events(text: bytes) -> bool:
    return text[:1] == b":" or any(field.startswith(text) for field in (*_FIELDS, _BOM))


def named_coding(fields: Sequence[FieldFacts]) -> bytes:
    """The value of `content-encoding`."""
    for field in fields:
        if field.name == b"content-encoding":
            return field.value
    return b""


def _without_coding(start: bytes, named: bytes) -> bytes:
    """The first bytes without their content coding, if the header names one and they have it. Empty: too few of them."""
    if not named:
        return start
    if len(start) < 4:
        return b""
    try:
        coding = coding_of(start)
        if coding == "gzip":
            return zlib.decompressobj(31).decompress(start, LOOK_BYTES)
        if coding == "zstd":
            return zstandard.ZstdDecompressor(max_window_size=2**23).stream_reader(start).read(LOOK_BYTES)
        if named.strip().lower() == b"br":
            return bytes(brotli.Decompressor().process(start, output_buffer_limit=LOOK_BYTES))
    except (zlib.error, zstandard.ZstdError, brotli.error):
        pass
    return start


def captures_request(content_type: bytes | None, fields: Sequence[FieldFacts], start: bytes) -> bool:
    """Whether to capture a request that begins like this."""
    if content_type is not None and _text_types[content_type]:
        return True
    kind = body_kind(_without_coding(start[:LOOK_BYTES], named_coding(fields)), True)
    # curl and fetch name JSON a form or text. Without a content type, analytics handles any text.
    return kind != "binary" if content_type is None else kind is None or kind in ("json", "lines")


class ResponseLook:
    """Decides by the first bytes of a response how many of them to capture."""

    def __init__(self, method: str, coding: bytes, limit_bytes: int) -> None:
        """`coding`: `named_coding` of the response. `limit_bytes`: what its content type allows."""
        self._is_post = method == "POST"
        self._coding = coding
        self._limit_bytes = limit_bytes
        self._start = b""

    def feed(self, payload: bytes) -> tuple[int, bool] | None:
        """As `response_limit`; None: not decided. What was passed before is captured, it is less than `LOOK_BYTES`."""
        start = payload if len(payload) <= LOOK_BYTES else payload[:LOOK_BYTES]
        if self._start:
            start = self._start + start
        self._start = start
        plain = _without_coding(start[:LOOK_BYTES], self._coding) if self._coding else start
        more = len(plain) < LOOK_BYTES and len(start) < LOOK_BYTES
        kind = body_kind(plain, more) if plain or more else "json"  # a block of zstd may be longer
        if kind == "sse":
            return UNLIMITED, True
        if kind == "lines" and self._is_post:  # a file that is downloaded may have lines, too
            return UNLIMITED, False
        if kind in ("lines", "json"):
            return MAX_PLAIN_BODY_BYTES, False
        if kind is None:
            return None
        return (0 if kind == "binary" and not self._coding else self._limit_bytes), False

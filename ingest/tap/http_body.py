"""Find the end of a message's body and remove its transfer coding for the recorder. No I/O, no clock.

The tap forwards bodies as received, including chunk framing. `feed(data)` returns the payload of a read. Afterwards `complete`
says whether the message has ended, and `excess` how many bytes at the end of `data` do not belong to it.

Chunked bodies are parsed strictly: a chunk line that another server may parse differently is refused. `native_relay.ChunkedBody`
has the same grammar; responses use it unless the Python code is selected.
"""

from __future__ import annotations

import re
from typing import Protocol

from ingest.tap.http_head import CHUNKED, UNTIL_CLOSE, BadRequest, BadUpstream, Body
from ingest.tap.http_header_fields import reads_as_framing
from ingest.tap.relay_choice import native_relay

_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})((?:;[\t\x20-\x7e\x80-\xff]*)?)\r\n")
_TRAILER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[\t\x20-\x7e\x80-\xff]*\r\n")
MAX_CHUNK_LINE_BYTES = 4096
MAX_TRAILER_BYTES = 16_384


class BodyReader(Protocol):
    """Reads one body."""

    complete: bool
    excess: int

    def feed(self, data: bytes) -> bytes:
        """The payload in one read."""


class LengthBody:
    """A body of known length. Length 0: no body."""

    __slots__ = ("complete", "excess", "remaining_bytes")

    def __init__(self, length: int) -> None:
        self.remaining_bytes = length
        self.complete = length == 0
        self.excess = 0

    def feed(self, data: bytes) -> bytes:
        self.remaining_bytes -= len(data)
        if self.remaining_bytes > 0:
            return data
        self.complete = True
        if self.remaining_bytes == 0:
            return data
        self.excess = -self.remaining_bytes
        self.remaining_bytes = 0
        return data[: -self.excess]


class CloseBody:
    """A body that ends with the connection."""

    __slots__ = ("complete", "excess")

    def __init__(self) -> None:
        self.complete = False
        self.excess = 0

    def feed(self, data: bytes) -> bytes:
        return data


class ChunkedRequestBody:
    """The chunked body of a request. Raises `BadRequest` for anything but the grammar of RFC 9112 §7.1."""

    __slots__ = ("_in_trailer", "_partial_line", "_remaining", "_trailer_bytes", "complete", "excess")

    def __init__(self) -> None:
        self._remaining = 0  # payload bytes left in this chunk plus 2 for its CRLF; 0 between chunks
        self._partial_line = b""  # an incomplete line
        self._in_trailer = False
        self._trailer_bytes = 0
        self.complete = False
        self.excess = 0

    def feed(self, data: bytes) -> bytes:
        if not self._remaining and not self._partial_line and not self._in_trailer:
            line = _CHUNK_LINE.match(data)
            if line is not None:  # most reads are one chunk
                start, end = line.end(), len(data) - 2
                if (
                    end - start == int(line[1], 16) > 0
                    and data[end:] == b"\r\n"
                    and start <= MAX_CHUNK_LINE_BYTES
                ):
                    return data[start:end]
        payload: list[bytes] = []
        at = 0
        if self._partial_line:
            data = self._partial_line + data
            self._partial_line = b""
        size = len(data)
        while at < size and not self.complete:
            if self._remaining:
                at = self._take_chunk(data, at, payload)
            elif self._in_trailer:
                at = self._take_trailer(data, at)
            else:
                at = self._take_size(data, at)
        if self.complete:
            self.excess = size - at
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def _take_chunk(self, data: bytes, at: int, payload: list[bytes]) -> int:
        if self._remaining > 2:
            piece = data[at : at + self._remaining - 2]
            payload.append(piece)
            at += len(piece)
            self._remaining -= len(piece)
        if self._remaining <= 2:
            expected = b"\r\n"[2 - self._remaining :]
            received = data[at : at + self._remaining]
            if not expected.startswith(received):
                raise self._malformed(400, "a chunk is not followed by CRLF")
            at += len(received)
            self._remaining -= len(received)
        return at

    def _take_size(self, data: bytes, at: int) -> int:
        line = _CHUNK_LINE.match(data, at)
        if line is None:
            self._keep_partial(data, at, MAX_CHUNK_LINE_BYTES, _CHUNK_LINE_START)
            return len(data)
        if line.end() - at > MAX_CHUNK_LINE_BYTES:
            raise self._malformed(400, "a chunk line is too long")
        length = int(line[1], 16)
        if length >= 1 << 62:
            raise self._malformed(400, "a chunk is too large")
        if length:
            self._remaining = length + 2
        else:
            self._in_trailer = True
        return line.end()

    def _take_trailer(self, data: bytes, at: int) -> int:
        if data.startswith(b"\r\n", at):
            self.complete = True
            return at + 2
        line = _TRAILER.match(data, at)
        if line is None:
            self._keep_partial(data, at, max(1, MAX_TRAILER_BYTES - self._trailer_bytes), _TRAILER_START)
            return len(data)
        self._trailer_bytes += line.end() - at
        if self._trailer_bytes > MAX_TRAILER_BYTES:
            raise self._malformed(431, "the trailer is too large")
        if reads_as_framing(line[1].lower()):
            raise self._malformed(400, "a trailer reads as Content-Length or Transfer-Encoding")
        return line.end()

    def _malformed(self, status: int, reason: str) -> Exception:
        return BadRequest(status, reason)

    def _keep_partial(self, data: bytes, at: int, limit: int, start: re.Pattern[bytes]) -> None:
        """Keep an incomplete line for the next read if it can still become valid."""
        rest = data[at:]
        if len(rest) > limit or not start.fullmatch(rest):
            raise self._malformed(400, "a chunk line or trailer is malformed")
        self._partial_line = rest


_CHUNK_LINE_START = re.compile(rb"[0-9A-Fa-f]{1,16}(?:;[\t\x20-\x7e\x80-\xff]*)?\r?")
_TRAILER_START = re.compile(rb"\r|[!#$%&'*+\-.^_`|~0-9A-Za-z]+(?::[\t\x20-\x7e\x80-\xff]*\r?)?")


class ChunkedResponseBody(ChunkedRequestBody):
    """The chunked body of a response. Raises `BadUpstream`."""

    __slots__ = ()

    def _malformed(self, status: int, reason: str) -> Exception:
        return BadUpstream(reason)


def request_reader(body: Body, length: int) -> BodyReader:
    return ChunkedRequestBody() if body is CHUNKED else LengthBody(length)


def response_reader(body: Body, length: int, *, native: bool) -> BodyReader:
    """`native`: parse chunked bodies with native code."""
    if body is CHUNKED:
        return native_relay.ChunkedBody() if native else ChunkedResponseBody()
    return CloseBody() if body is UNTIL_CLOSE else LengthBody(length)

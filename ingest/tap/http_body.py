"""Find where the body of a message ends, and take its transfer coding off for the mirror. No I/O, no clock.

The rules: bodies are forwarded as they came (chunk framing included), so a reader only tells what part of a read
belongs to the message, and what the payload in it is. `feed(data)` returns the payload; afterwards `over` says that the
message has ended and `excess` how many bytes at the end of `data` are not part of it. Requests are read by a strict
reader of our own (a chunk line that another reader may read differently is refused); responses by llhttp, which is
five times as fast where many chunks share a read.
"""

from __future__ import annotations

import re
from typing import Protocol

import httptools

from ingest.tap.http_head import BadRequest, BadUpstream, Body

_CHUNK_LINE = re.compile(
    rb"([0-9A-Fa-f]{1,16})((?:;[\t\x20-\x7e\x80-\xff]*)?)\r\n",
)
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n")
MAX_CHUNK_LINE_BYTES = 4096
MAX_TRAILER_BYTES = 16_384


class BodyReader(Protocol):
    """Reads one body. `over`: the message has ended; `excess`: bytes at the end of the last read beyond it."""

    complete: bool
    excess: int

    def feed(self, data: bytes) -> bytes:
        """Take one read, return the payload in it."""


class NoBody:
    """A message without a body: over before it begins."""

    __slots__ = ("complete", "excess")

    def __init__(self) -> None:
        self.complete = True
        self.excess = 0

    def feed(self, data: bytes) -> bytes:
        self.excess = len(data)
        return b""


class LengthBody:
    """A body of a known length."""

    __slots__ = ("_left", "complete", "excess")

    def __init__(self, length: int) -> None:
        self._left = length
        self.complete = length == 0
        self.excess = 0

    def feed(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left > 0:
            return data
        self.complete = True
        if self._left == 0:
            return data
        self.excess = -self._left
        self._left = 0
        return data[: -self.excess]


class CloseBody:
    """A body that ends with the connection."""

    __slots__ = ("complete", "excess")

    def __init__(self) -> None:
        self.complete = False
        self.excess = 0

    def feed(self, data: bytes) -> bytes:
        return data


class StrictChunks:
    """A chunked body, read by the letter of RFC 9112 §7.1. Raises `BadRequest` on anything else."""

    __slots__ = ("_held", "_in_trailer", "_left", "_trailer_bytes", "complete", "excess")

    def __init__(self) -> None:
        self._left = 0  # payload bytes of this chunk still to come, its CRLF included once > 0
        self._held = b""  # an unfinished line
        self._in_trailer = False
        self._trailer_bytes = 0
        self.complete = False
        self.excess = 0

    def feed(self, data: bytes) -> bytes:
        payload: list[bytes] = []
        at = 0
        if self._held:
            data = self._held + data
            self._held = b""
        size = len(data)
        while at < size and not self.complete:
            if self._left:
                at = self._take_chunk(data, at, payload)
            elif self._in_trailer:
                at = self._take_trailer(data, at)
            else:
                at = self._take_size(data, at)
        if self.complete:
            self.excess = size - at
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def _take_chunk(self, data: bytes, at: int, payload: list[bytes]) -> int:
        if self._left > 2:
            piece = data[at : at + self._left - 2]
            payload.append(piece)
            at += len(piece)
            self._left -= len(piece)
        if self._left <= 2:
            want = b"\r\n"[2 - self._left :]
            got = data[at : at + self._left]
            if not want.startswith(got):
                raise BadRequest(400, "a chunk is not followed by CRLF")
            at += len(got)
            self._left -= len(got)
        return at

    def _take_size(self, data: bytes, at: int) -> int:
        line = _CHUNK_LINE.match(data, at)
        if line is None:
            self._hold(data, at, MAX_CHUNK_LINE_BYTES, _CHUNK_LINE_START)
            return len(data)
        if line.end() - at > MAX_CHUNK_LINE_BYTES:
            raise BadRequest(400, "a chunk line is too long")
        length = int(line[1], 16)
        if length >= 1 << 62:
            raise BadRequest(400, "a chunk is too large")
        if length:
            self._left = length + 2
        else:
            self._in_trailer = True
        return line.end()

    def _take_trailer(self, data: bytes, at: int) -> int:
        if data.startswith(b"\r\n", at):
            self.complete = True
            return at + 2
        line = _TRAILER.match(data, at)
        if line is None:
            self._hold(data, at, MAX_TRAILER_BYTES, _TRAILER_START)
            return len(data)
        self._trailer_bytes += line.end() - at
        if self._trailer_bytes > MAX_TRAILER_BYTES:
            raise BadRequest(431, "the trailer is too large")
        return line.end()

    def _hold(self, data: bytes, at: int, limit: int, start: re.Pattern[bytes]) -> None:
        """Keep an unfinished line for the next read, if it can still become a good one."""
        rest = data[at:]
        if len(rest) > limit or not start.fullmatch(rest):
            raise BadRequest(400, "a chunk line or trailer is malformed")
        self._held = rest


_CHUNK_LINE_START = re.compile(rb"[0-9A-Fa-f]{1,16}(?:;[\t\x20-\x7e\x80-\xff]*)?\r?")
_TRAILER_START = re.compile(
    rb"\r|[!#$%&'*+\-.^_`|~0-9A-Za-z]+(?::[\t\x20-\x7e\x80-\xff]*\r?)?",
)
_END_OF_CHUNKS = re.compile(rb"(?:^|\r\n)0+(?:;[^\r\n]*)?\r\n(?:[^\r\n]+\r\n)*\r\n")
# llhttp reads a chunked body the same in both directions; this head makes it stop at the end of the message.
_CHUNKED_HEAD = b"POST / HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"


class FastChunks:
    """A response's chunked body, read by llhttp. Raises `BadUpstream` where it is not chunked.

    llhttp does not say where in a read the message ended. Bytes after it are a fault of the upstream, so only then the
    end is looked for: the first possible one after the last payload. Line ends after it llhttp swallows in silence: the
    last line's end and the empty line are the only four that belong to the message.
    """

    __slots__ = ("_before", "_complete", "_feed", "_pieces", "complete", "excess")

    def __init__(self) -> None:
        self._before = b""  # the end of what was read before, for a last line that is cut
        self._pieces: list[bytes] = []
        self._complete: list[int] = []
        self._feed = httptools.HttpRequestParser(_Callbacks(self._pieces, self._complete)).feed_data
        self._feed(_CHUNKED_HEAD)
        self.complete = False
        self.excess = 0

    def feed(self, data: bytes) -> bytes:
        pieces = self._pieces
        try:
            self._feed(data)
        except httptools.HttpParserError:
            if not self._complete:
                raise BadUpstream("the chunked body is malformed") from None
            self.excess = len(data) - _end_of_chunks(self._before, data, pieces)
        if self._complete:
            self.complete = True
            tail = self._before + data
            self.excess = max(self.excess, len(tail) - len(tail.rstrip(b"\r\n")) - len(b"\r\n\r\n"))
        elif len(data) > 3:
            self._before = data[-4:]
        else:
            self._before = (self._before + data)[-4:]
        if len(pieces) == 1:
            return pieces.pop()
        payload = b"".join(pieces)
        pieces.clear()
        return payload


def _end_of_chunks(before: bytes, data: bytes, pieces: list[bytes]) -> int:
    """Where the body ended in a read that goes on after it, whose payload is `pieces`; `before` came just before it."""
    seen = before + data
    at = 0
    for piece in pieces:
        at = seen.find(piece, max(at, len(before))) + len(piece)
    found = _END_OF_CHUNKS.search(seen, at)
    end = found.end() if found else seen.find(b"\r\n\r\n", at) + len(b"\r\n\r\n")
    return end - len(before)


class _Callbacks:
    """What llhttp calls; built-in methods, because a Python function for each chunk would cost more than the parsing."""

    def __init__(self, pieces: list[bytes], complete: list[int]) -> None:
        self.on_body = pieces.append
        self._complete = complete

    def on_message_complete(self) -> None:
        self._complete.append(1)


def request_reader(body: Body, length: int) -> BodyReader:
    """The reader of a request's body."""
    if body is Body.NONE:
        return NoBody()
    return LengthBody(length) if body is Body.LENGTH else StrictChunks()


def response_reader(body: Body, length: int) -> BodyReader:
    """The reader of a response's body."""
    if body is _LENGTH:
        return LengthBody(length)
    if body is _CHUNKED:
        return FastChunks()
    return CloseBody() if body is Body.CLOSE else NoBody()


_LENGTH, _CHUNKED = Body.LENGTH, Body.CHUNKED

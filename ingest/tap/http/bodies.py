"""Find the end of a message's body and remove its transfer coding for the recorder. No I/O, no clock.

The tap forwards bodies as received, including chunk framing. `feed(data)` returns the payload of a read. Afterwards `complete`
says whether the message has ended, and `excess` how many bytes at the end of `data` do not belong to it.

Chunked bodies are parsed strictly: a chunk line that another server may parse differently is refused. `native_relay.ChunkedBody`
has the same grammar, and is used unless the Python code is selected.
"""

from __future__ import annotations

import re
from typing import Protocol

from streamgauge.ingest.tap.http.fields import TOKEN, reads_as_framing
from streamgauge.ingest.tap.http.heads import CHUNKED, UNTIL_CLOSE, BadRequest, BadUpstream, Body
from streamgauge.ingest.tap.http.receive_buffer import appended
from streamgauge.ingest.tap.relay.choice import native_relay

_TEXT = rb"[\t\x20-\x7e\x80-\xff]*"
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;" + _TEXT + rb")?\r\n")
_TRAILER = re.compile(rb"(" + TOKEN + rb"+):" + _TEXT + rb"\r\n")
# What an incomplete line may be: a whole start, or the continuation of a trailer's name, or of the text after a separator.
_CHUNK_LINE_START = re.compile(rb"[0-9A-Fa-f]{1,16}(?:;" + _TEXT + rb")?\r?")
_TRAILER_START = re.compile(rb"\r|" + TOKEN + rb"+(?::" + _TEXT + rb"\r?)?")
_NAME_CONTINUED = re.compile(TOKEN + rb"*(?::" + _TEXT + rb"\r?)?")
_TEXT_CONTINUED = re.compile(_TEXT + rb"\r?")
# A run of chunks of 1 to 15 bytes, and the payload of each. Python code for each of them would make small chunks expensive.
_SMALL_SIZES = [(b"[%x%X]" % (n, n), n) for n in range(1, 16)]
_SMALL_CHUNKS = re.compile(
    rb"(?:0{0,15}(?:" + b"|".join(rb"%b\r\n.{%d}" % size for size in _SMALL_SIZES) + rb")\r\n){4,}+",
    re.DOTALL,
)
_SMALL_PAYLOAD = re.compile(
    rb"0*[1-9A-Fa-f]\r\n(" + b"|".join(rb"(?<=%b\r\n).{%d}" % size for size in _SMALL_SIZES) + rb")\r\n",
    re.DOTALL,
)
MAX_CHUNK_LINE_BYTES = 4096
MAX_TRAILER_BYTES = 16_384
_FEW_CHUNKS = 4  # in one read, after which runs of small ones are looked for


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

    __slots__ = (
        "_in_text",
        "_in_trailer",
        "_partial_line",
        "_remaining",
        "_trailer_bytes",
        "complete",
        "excess",
    )

    def __init__(self) -> None:
        self._remaining = 0  # payload bytes left in this chunk plus 2 for its CRLF; 0 between chunks
        self._partial_line: bytes | bytearray = b""  # an incomplete line
        self._in_text = False  # its separator, after which text follows, has arrived
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
            if b"\n" not in data:
                self._keep_partial(data)
                return b""
            data = bytes(self._partial_line) + data
            self._partial_line, self._in_text = b"", False
        size = len(data)
        while at < size and not self.complete:
            if self._remaining:
                at = self._take_chunk(data, at, payload)
            elif self._in_trailer:
                at = self._take_trailer(data, at)
            elif len(payload) < _FEW_CHUNKS or (run := _SMALL_CHUNKS.match(data, at)) is None:
                at = self._take_size(data, at, payload)
            else:
                payload += _SMALL_PAYLOAD.findall(data, at, run.end())
                at = run.end()
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

    def _take_size(self, data: bytes, at: int, payload: list[bytes]) -> int:
        """Take a chunk's line, and the chunk if all of it is here."""
        line = _CHUNK_LINE.match(data, at)
        if line is None:
            self._keep_partial(data[at:])
            return len(data)
        if line.end() - at > MAX_CHUNK_LINE_BYTES:
            raise self._malformed(400, "a chunk line is too long")
        length = int(line[1], 16)
        if length >= 1 << 62:
            raise self._malformed(400, "a chunk is too large")
        start, end = line.end(), line.end() + length
        if not length:
            self._in_trailer = True
        elif data[end : end + 2] == b"\r\n":
            payload.append(data[start:end])
            return end + 2
        else:
            self._remaining = length + 2
        return start

    def _take_trailer(self, data: bytes, at: int) -> int:
        if data.startswith(b"\r\n", at):
            self.complete = True
            return at + 2
        line = _TRAILER.match(data, at)
        if line is None:
            self._keep_partial(data[at:])
            return len(data)
        self._trailer_bytes += line.end() - at
        if self._trailer_bytes > MAX_TRAILER_BYTES:
            raise self._malformed(431, "the trailer is too large")
        if reads_as_framing(line[1].lower()):
            raise self._malformed(400, "a trailer reads as Content-Length or Transfer-Encoding")
        return line.end()

    def _malformed(self, status: int, reason: str) -> Exception:
        return BadRequest(status, reason)

    def _keep_partial(self, piece: bytes) -> None:
        """Keep (the next part of) an incomplete line if it can still become valid. Only `piece` is examined."""
        kept, in_trailer = self._partial_line, self._in_trailer
        limit = max(1, MAX_TRAILER_BYTES - self._trailer_bytes) if in_trailer else MAX_CHUNK_LINE_BYTES
        if self._in_text:
            valid = _TEXT_CONTINUED.fullmatch(piece)
        elif in_trailer:
            valid = (_NAME_CONTINUED if kept else _TRAILER_START).fullmatch(piece)
        else:
            # Without a separator, at most 16 digits are kept.
            valid = _CHUNK_LINE_START.fullmatch(kept + piece)
        if valid is None or len(kept) + len(piece) > limit or kept.endswith(b"\r"):
            raise self._malformed(400, "a chunk line or trailer is malformed")
        self._in_text = self._in_text or (b":" if in_trailer else b";") in piece
        self._partial_line = appended(kept, piece)


class ChunkedResponseBody(ChunkedRequestBody):
    """The chunked body of a response. Raises `BadUpstream`."""

    __slots__ = ()

    def _malformed(self, status: int, reason: str) -> Exception:
        return BadUpstream(reason)


def request_reader(body: Body, length: int, *, native: bool) -> BodyReader:
    """`native`: parse chunked bodies with native code."""
    if body is CHUNKED:
        return native_relay.ChunkedBody(True) if native else ChunkedRequestBody()
    return LengthBody(length)


def response_reader(body: Body, length: int, *, native: bool) -> BodyReader:
    """As `request_reader`."""
    if body is CHUNKED:
        return native_relay.ChunkedBody() if native else ChunkedResponseBody()
    return CloseBody() if body is UNTIL_CLOSE else LengthBody(length)

"""Undo the content coding of a response body (`content-encoding`), read by read, for measuring. Clients get the original.

Supported: gzip (several members), deflate (with or without its zlib wrapper), br and zstd, also stacked ("gzip, br"), and
Amazon's binary event stream, which becomes SSE. A body whose first bytes contradict the header is used unchanged. Invalid
bytes end the decoding and set `broken`. A body that expands beyond `FREE_BYTES` plus `MAX_RATIO` times its size also ends the
decoding, and sets `bomb`. A legitimate stream of similar chunks compresses about 50 times, a quarter of the limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Protocol

import brotli
import zstandard

from streamgauge.ingest.amazon_event_stream import AmazonEventStream, InvalidMessage
from streamgauge.ingest.records import AMAZON_EVENT_STREAM, CODING_STARTS

FREE_BYTES = 64 * 2**20
MAX_RATIO = 200
_SLICE_BYTES = 512
"""zstd returns all output of its input, up to 128 KiB for 3 bytes. Small slices limit the output of one call."""
_CHUNK_BYTES = 2**20


class _Decompressor(Protocol):
    def feed(self, data: bytes, limit: int) -> bytes:
        """Decode; may stop after about `limit` bytes. Raises on invalid bytes."""

    @property
    def complete(self) -> bool:
        """Whether the end of the coding has been reached."""


class _Zlib:
    def __init__(self, gzip: bool) -> None:
        self._gzip = gzip
        self._raw = False
        self._started = False
        self._held = b""
        self._z = self._new()

    def _new(self) -> zlib._Decompress:
        return zlib.decompressobj(31 if self._gzip else -15 if self._raw else 15)

    @property
    def complete(self) -> bool:
        return self._z.eof or not self._started

    def feed(self, data: bytes, limit: int) -> bytes:
        if not self._started and not self._gzip:
            data = self._held + data
            if len(data) < 2:
                self._held = data
                return b""
            # Servers disagree about deflate. A zlib header is a multiple of 31 with method 8; anything else is raw.
            self._raw = not (data[0] & 15 == 8 and (data[0] * 256 + data[1]) % 31 == 0)
            self._z = self._new()
        self._started = True
        out: list[bytes] = []
        out_bytes = 0
        while data:
            if self._z.eof:
                if not self._gzip or data.strip(b"\0") == b"":
                    break
                self._z = self._new()
            piece = self._z.decompress(data, _CHUNK_BYTES)
            out.append(piece)
            out_bytes += len(piece)
            data = self._z.unconsumed_tail or self._z.unused_data
            if out_bytes > limit:
                break
        return b"".join(out)


class _Brotli:
    def __init__(self) -> None:
        self._d = brotli.Decompressor()

    @property
    def complete(self) -> bool:
        return bool(self._d.is_finished())

    def feed(self, data: bytes, limit: int) -> bytes:
        # Output in chunks, so that a body of a few bytes cannot expand to gigabytes before the limit is checked.
        out = [self._d.process(data, output_buffer_limit=_CHUNK_BYTES)]
        out_bytes = len(out[0])
        while not self._d.can_accept_more_data() and out_bytes <= limit:
            out.append(self._d.process(b"", output_buffer_limit=_CHUNK_BYTES))
            out_bytes += len(out[-1])
        return b"".join(out)


class _Zstd:
    def __init__(self) -> None:
        self._d = self._new()

    @staticmethod
    def _new() -> zstandard.ZstdDecompressionObj:
        # RFC 9659 limits the window of this content coding to 8 MiB.
        return zstandard.ZstdDecompressor(max_window_size=2**23).decompressobj()

    @property
    def complete(self) -> bool:
        return self._d.eof

    def feed(self, data: bytes, limit: int) -> bytes:
        out: list[bytes] = []
        out_bytes = 0
        pending = [data[i : i + _SLICE_BYTES] for i in range(0, len(data), _SLICE_BYTES)]
        pending.reverse()
        while pending and out_bytes <= limit:
            if self._d.eof:
                self._d = self._new()
            piece = self._d.decompress(pending.pop())
            out.append(piece)
            out_bytes += len(piece)
            if self._d.unused_data:
                pending.append(self._d.unused_data)
        return b"".join(out)


_MAKERS: dict[str, Callable[[], _Decompressor]] = {
    "gzip": lambda: _Zlib(True),
    "x-gzip": lambda: _Zlib(True),
    "deflate": lambda: _Zlib(False),
    "br": _Brotli,
    "zstd": _Zstd,
    AMAZON_EVENT_STREAM: AmazonEventStream,
}
_MAGIC = {**CODING_STARTS, "x-gzip": CODING_STARTS["gzip"], AMAZON_EVENT_STREAM: b"\0"}


class BodyDecoder:
    """Decodes one body according to its `content-encoding` header."""

    def __init__(
        self, content_encoding: str, *, free_bytes: int = FREE_BYTES, max_ratio: int = MAX_RATIO
    ) -> None:
        names = [n.strip().lower() for n in content_encoding.split(",")]
        self._names = [n for n in names if n not in ("", "identity")]
        self.broken = any(n not in _MAKERS for n in self._names) or len(self._names) > 4
        """The coding is not supported, or the bytes are invalid. Only the size of the rest is measured."""
        self.bomb = False
        self._chain: list[_Decompressor] | None = None
        self._first_bytes = b""
        self._in = self._out = 0
        self._free, self._ratio = free_bytes, max_ratio

    @property
    def plain(self) -> bool:
        """No coding: the caller may skip `feed`."""
        return not self._names and not self.broken

    def feed(self, data: bytes) -> bytes:
        """Decode one read, as far as possible."""
        if self.plain or self.broken or self.bomb:
            return data if self.plain else b""
        self._in += len(data)
        if self._chain is None:
            data = self._first_bytes + data
            if not self._start(data):
                self._first_bytes = data
                return b""
            self._first_bytes = b""
            if not self._names:  # the bytes contradict the header
                return data
        for decompressor in self._chain or ():
            try:
                data = decompressor.feed(data, self._free + self._ratio * self._in - self._out)
            except InvalidMessage as fault:
                self.broken = True
                return fault.decoded
            except (zlib.error, brotli.error, zstandard.ZstdError):
                self.broken = True
                return b""
        self._out += len(data)
        if self._out > self._free + self._ratio * self._in:
            self.bomb = True
        return data

    @property
    def unfinished(self) -> bool:
        """The body ended before the end of its content coding."""
        return bool(self._first_bytes) or any(not d.complete for d in self._chain or ())

    def _start(self, data: bytes) -> bool:
        magic = _MAGIC.get(self._names[-1], b"")
        if len(data) < len(magic) and magic.startswith(data):
            return False
        if not data.startswith(magic):
            self._names = []
            return True
        self._chain = [_MAKERS[n]() for n in reversed(self._names)]
        return True

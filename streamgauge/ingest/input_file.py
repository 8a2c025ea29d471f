"""Read a file in order, with its gzip or zstd compression undone. Holds one piece of it in memory.

A fault ends the file, and `problem` then names it: what was read before is valid. Opening raises OSError.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import zstandard

from streamgauge.ingest.records import coding_of

EXPANDED_BYTES, MAX_RATIO = 2**30, 200
"""A compressed file is read up to this many bytes of its content, or up to this many times its own size, if that is more."""
_PIECE_BYTES = 2**16
_ZSTD_BYTES = 512
"""zstd returns all output of its input, up to 128 KiB for 3 bytes. Small slices limit the output of one call."""


class InputFile(io.RawIOBase):
    """Use it as a context manager, and in `io.BufferedReader` for small reads."""

    def __init__(
        self, path: Path, progress: Callable[[int, int], object] = lambda read_bytes, size_bytes: None
    ) -> None:
        """`progress` is called after each piece, with the bytes of the file that were read, and all."""
        self._file = path.open("rb")
        self.size_bytes = path.stat().st_size
        self.problem: str | None = None
        self.coding = coding_of(self._file.peek(4))
        self._pieces = {"gzip": _gzip, "zstd": _zstd}.get(self.coding or "", _plain)(self._file)
        self._held = memoryview(b"")
        self._left_bytes = max(EXPANDED_BYTES, MAX_RATIO * self.size_bytes)
        self._progress = progress

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    @property
    def read_bytes(self) -> int:
        """Bytes of the file that have been read."""
        return self._file.tell()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # `RawIOBase` and `BufferedReader` pass one
        if not self._held:
            self._held = memoryview(self._next())
        data, self._held = self._held[: len(buffer)], self._held[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)

    def _next(self) -> bytes:
        """The next piece; b"" at the end or a fault."""
        if self.problem is not None:
            return b""
        try:
            piece = next(self._pieces, b"")
        except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as e:
            self.problem = f"its {self.coding} data is damaged: {e}"
            return b""
        except OSError as e:
            self.problem = f"the disk cannot read it: {e.strerror or e}"
            return b""
        self._progress(self.read_bytes, self.size_bytes)
        if self.coding is not None:
            self._left_bytes -= len(piece)
            if self._left_bytes < 0:
                limit = max(EXPANDED_BYTES, MAX_RATIO * self.size_bytes) / 2**30
                self.problem = f"it expands to more than {limit:,.4g} GiB, the limit. Decompress it before to read all of it"
                return piece[: self._left_bytes]
        return piece


def _plain(file: io.BufferedReader) -> Iterator[bytes]:
    return iter(partial(file.read1, _PIECE_BYTES), b"")


def _gzip(file: BinaryIO) -> Iterator[bytes]:
    return iter(partial(gzip.GzipFile(fileobj=file).read1, _PIECE_BYTES), b"")


def _zstd(file: BinaryIO) -> Iterator[bytes]:
    decoder = zstandard.ZstdDecompressor().decompressobj()
    while data := file.read(_ZSTD_BYTES):
        while data:
            if decoder.eof:
                decoder = zstandard.ZstdDecompressor().decompressobj()
            if piece := decoder.decompress(data):
                yield piece
            data = decoder.unused_data
    if not decoder.eof:
        raise EOFError("it ends within a frame")

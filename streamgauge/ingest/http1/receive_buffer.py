"""Collect bytes that arrive in pieces. No I/O, no clock.

Costs grow with the bytes, however many reads they are split into: no byte is searched or copied again at each read (compare
h11's `_receivebuffer`). Bytes that arrive in one read are not copied.
"""

from __future__ import annotations

from collections.abc import Callable

BLANK_LINE = b"\r\n\r\n"
"""The end of a head, with the end of its last line."""


def appended(kept: bytes | bytearray, data: bytes) -> bytes | bytearray:
    """`kept` and then `data`. It may change `kept`, which must have no other user."""
    if not kept:
        return data
    # The first read is kept as it came: most heads and bodies arrive in one. From the second on, a bytearray grows in
    # place; `bytes + bytes` would copy everything at each read, the square of the size in all.
    if isinstance(kept, bytes):
        kept = bytearray(kept)
    kept += data
    return kept


class ReceiveBuffer:
    """The unprocessed bytes of a connection. Heads are taken from its start.

    `check(partial, known)` raises if an incomplete head can no longer become valid. It is called for each read, and has checked
    the first `known` bytes before. `skip_empty_line`: one empty line may precede a head (RFC 9112 §2.2).
    """

    __slots__ = ("_check", "_data", "_may_skip", "_searched", "_skip_empty_line", "_start")

    def __init__(
        self, check: Callable[[bytes | bytearray, int], None], *, skip_empty_line: bool = False
    ) -> None:
        self._check = check
        self._skip_empty_line = self._may_skip = skip_empty_line
        self._data: bytes | bytearray = b""
        self._start = 0  # bytes before it are taken
        self._searched = 0  # no blank line starts before it, except in the last three bytes

    def __len__(self) -> int:
        return len(self._data) - self._start

    def add(self, data: bytes) -> None:
        # Nothing is left: the new read becomes the buffer, without a copy.
        if self._start == len(self._data):
            self._data, self._start, self._searched = data, 0, 0
            return
        if self._start:
            self._compact()
        self._data = appended(self._data, data)

    def head(self) -> bytes | None:
        """The bytes up to and including the next blank line, which stay in the buffer. None: they are incomplete."""
        data, start = self._data, self._start
        if self._may_skip and self._searched - start < 2 and data.startswith(b"\r\n", start):
            start = self._start = start + 2
            self._may_skip = False
        # The last three bytes again: a blank line may be cut by a read anywhere.
        end = data.find(BLANK_LINE, max(start, self._searched - 3)) + 4
        if end >= 4:
            # One less than the end: a caller that only looked must find the same blank line again.
            self._searched = end - 1
            return bytes(data[start:end])
        if start:
            self._compact()
        self._check(self._data, self._searched)
        self._searched = len(self._data)
        return None

    def take(self, size: int | None = None) -> bytes:
        """Remove and return the first `size` bytes, or all."""
        start = self._start
        if size is None or size >= len(self._data) - start:
            taken = self._data[start:] if start else self._data
            self._data, self._start, self._searched = b"", 0, 0
        else:
            self._start = self._searched = start + size
            taken = self._data[start : self._start]
        return bytes(taken)

    def skip(self, size: int) -> None:
        """Remove the first `size` bytes: a head."""
        self._may_skip = self._skip_empty_line
        self._start = self._searched = self._start + size
        if self._start == len(self._data):
            self._data, self._start, self._searched = b"", 0, 0

    def put_back(self, data: bytes) -> None:
        """Undo the end of the last `take`."""
        if self:
            self._start = self._searched = self._start - len(data)
        else:
            self.add(data)

    def _compact(self) -> None:
        """Drop the bytes that are taken. A bytearray drops them without copying the rest."""
        if isinstance(self._data, bytes):
            self._data = self._data[self._start :]
        else:
            del self._data[: self._start]
        self._searched = max(0, self._searched - self._start)
        self._start = 0

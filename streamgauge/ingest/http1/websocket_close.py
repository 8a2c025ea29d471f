"""Find the Close frame of a WebSocket (RFC 6455 section 5.2) in one direction, from the frame headers alone.

Payloads are skipped, so they may be masked, compressed or of any extension. A stream that is no WebSocket costs no more and
may give a wrong answer, never an exception. A read with more than `MAX_FRAMES` frames ends the search, so that tiny frames do
not delay other streams.
"""

from __future__ import annotations

_OPCODE, _CLOSE = 0x0F, 0x08
_MASKED, _LENGTH = 0x80, 0x7F
_MASK_BYTES = 4
_EXTENDED_LENGTH_BYTES = {126: 2, 127: 8}
_MAX_LENGTH = 1 << 62
"""An invalid frame may claim more than the compiled code can count."""
MAX_FRAMES = 4096
"""Frames of one read, about 5 ms."""


class CloseFrameFinder:
    """Reads the bytes of one direction in any pieces. `found`: a Close frame began. `gave_up`: unknown whether one did, as from the
    start on if they are no WebSocket."""

    def __init__(self, is_websocket: bool = True) -> None:
        self.found = False
        self.gave_up = not is_websocket
        self._skip_bytes = 0
        """Bytes until the next frame."""
        self._header = b""
        """The first part of a frame header."""

    def feed(self, data: bytes) -> None:
        if self.found or self.gave_up:
            return
        frames = 0
        at, size = self._skip_bytes, len(data)
        if self._header:
            data = self._header + data
            self._header, size = b"", len(data)
        while at < size:
            frames += 1
            if frames > MAX_FRAMES:
                self.gave_up = True
                return
            if data[at] & _OPCODE == _CLOSE:
                self.found = True
                return
            end = at + 2
            if end <= size:
                second = data[at + 1]
                length = second & _LENGTH
                extended = _EXTENDED_LENGTH_BYTES.get(length, 0)
                end += extended
                if extended and end <= size:
                    length = min(int.from_bytes(data[at + 2 : end], "big"), _MAX_LENGTH)
                if second & _MASKED:
                    end += _MASK_BYTES
            if end > size:
                self._header, self._skip_bytes = data[at:], 0
                return
            at = end + length
        self._skip_bytes = at - size

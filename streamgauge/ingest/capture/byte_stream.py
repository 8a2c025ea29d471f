"""Reassemble one direction of a TCP connection. Pure.

Positions are sequence numbers that do not wrap around. Bytes that arrive twice, or overlap, are taken once. Bytes that arrive before
their turn are kept until the missing ones arrive; who uses the stream decides how long (`missing_bytes`).
"""

from __future__ import annotations

from bisect import insort

_HALF, _MASK = 1 << 31, (1 << 32) - 1
_OVERHEAD_BYTES = 100  # of a piece that is kept: it bounds the number of tiny pieces, too


class ByteStream:
    """The bytes that one side sends."""

    __slots__ = ("_ahead", "acknowledged", "ahead_bytes", "at", "ends_at", "first_seq")

    def __init__(self) -> None:
        self.first_seq = -1
        """Sequence number of the first byte that was expected."""
        self.at = -1
        """Position of the next byte; -1 before `start`."""
        self.acknowledged = -1
        """The other side has acknowledged the bytes before this position."""
        self.ends_at = -1
        """Position of the FIN; -1: none was seen."""
        self._ahead: list[tuple[int, bytes]] = []
        self.ahead_bytes = 0

    def start(self, seq: int) -> None:
        """The next byte has this sequence number. Forget what is known of earlier ones."""
        # Never negative: the first position may be below the sequence number.
        self.at = self.acknowledged = _MASK + 1 + seq
        self.ends_at = -1
        self._ahead, self.ahead_bytes = [], 0
        if self.first_seq < 0:
            self.first_seq = seq

    def position(self, seq: int) -> int:
        """The position near the next byte with this sequence number."""
        return self.at + ((seq - self.at + _HALF) & _MASK) - _HALF

    @property
    def ended(self) -> bool:
        return 0 <= self.at == self.ends_at

    @property
    def missing_bytes(self) -> int:
        """Bytes between those that were taken and the next that are known to exist."""
        known_at = self._ahead[0][0] if self._ahead else max(self.acknowledged, self.ends_at)
        if self.ends_at >= 0 and known_at > self.ends_at:  # a FIN is acknowledged like a byte
            known_at = self.ends_at
        return max(0, known_at - self.at)

    def skip_gap(self) -> None:
        """Give up the missing bytes, and those that have arrived after them."""
        self.at = max(self.at, self.acknowledged, *(at + len(payload) for at, payload in self._ahead))
        if 0 <= self.ends_at < self.at:  # a FIN is acknowledged like a byte
            self.at = self.ends_at
        self._ahead, self.ahead_bytes = [], 0

    def skip_to(self, position: int) -> bytes:
        """Give up what is missing before a position. Returns the bytes whose turn it is then."""
        self.at = max(self.at, position)
        return self.take(self.at & _MASK, b"")

    def take(self, seq: int, payload: bytes) -> bytes:
        """The bytes whose turn it is, after these have arrived."""
        position, at = self.position(seq), self.at
        if position > at:
            insort(self._ahead, (position, payload))
            self.ahead_bytes += len(payload) + _OVERHEAD_BYTES
            return b""
        if position < at:
            payload = payload[at - position :]
        if not self._ahead:
            self.at = at + len(payload)
            return payload
        parts = [payload]
        at += len(payload)
        while self._ahead and self._ahead[0][0] <= at:
            position, payload = self._ahead.pop(0)
            self.ahead_bytes -= len(payload) + _OVERHEAD_BYTES
            if new := payload[at - position :]:
                parts.append(new)
                at += len(new)
        self.at = at
        return b"".join(parts)

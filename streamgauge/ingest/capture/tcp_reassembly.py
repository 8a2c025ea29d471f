"""One side of a captured TCP connection: its state, and the bytes that it sends, in order. Pure.

Positions are sequence numbers without wraparound. Of repeated or overlapping bytes, the first ones count. Bytes that arrive out of order
are kept until the missing ones arrive, or are lost (`lost_bytes`).
"""

from __future__ import annotations

from bisect import insort
from typing import Final

MAX_AHEAD_BYTES = 2**20
"""Bytes of one direction that wait for missing ones."""
_HALF, _MASK = 1 << 31, (1 << 32) - 1
_OVERHEAD_BYTES = 100  # of a kept piece, so that the limit also bounds the number of tiny pieces
_COMPARED_BYTES = 512

# --- states, as in Zeek

# INACTIVE: no packet has shown the next sequence number
# PARTIAL: its SYN was not captured
# CLOSED: all bytes before its FIN are taken, or are lost
INACTIVE, PARTIAL, ESTABLISHED, CLOSED, RESET = range(5)

STATES: Final = ("inactive", "partial", "established", "closed", "reset")


class Endpoint:
    """One side of a connection."""

    __slots__ = (
        "_ahead",
        "_tail",
        "acknowledged",
        "ahead_bytes",
        "at",
        "ends_at",
        "first_seq",
        "inconsistent",
        "state",
    )

    def __init__(self) -> None:
        self.state = INACTIVE
        self.first_seq = -1
        """Sequence number of the first byte that was expected; -1 while inactive."""
        self.at = -1
        """Position of the next byte; -1 while inactive."""
        self.acknowledged = -1
        """The other side has acknowledged the bytes before this position."""
        self.ends_at = -1
        """Position of the FIN; -1: none was captured."""
        self._ahead: list[tuple[int, bytes]] = []
        self.ahead_bytes = 0
        self._tail = b""
        """The last bytes that were taken, to compare them with repeated ones."""
        self.inconsistent = 0
        """Segments whose bytes differ from earlier ones at the same position, as far as the earlier ones are kept."""

    def __repr__(self) -> str:
        return f"<{STATES[self.state]}, {self.at - (self.first_seq + _MASK + 1)} bytes taken, {self.missing_bytes} missing>"

    def start(self, seq: int, state: int) -> None:
        """Continue at this sequence number, and discard what is known of earlier bytes. `state`: new state of an inactive side."""
        # Never negative: the first position may be below the sequence number.
        self.at = self.acknowledged = _MASK + 1 + seq
        self.ends_at = -1
        self._ahead, self.ahead_bytes, self._tail = [], 0, b""
        if self.state == INACTIVE:
            self.first_seq, self.state = seq, state
        elif self.state == CLOSED:  # The new bytes show that the connection continues.
            self.state = PARTIAL

    def position(self, seq: int) -> int:
        """The position near the next byte with this sequence number."""
        return self.at + ((seq - self.at + _HALF) & _MASK) - _HALF

    def end(self, seq: int) -> None:
        """Set the sequence number of its FIN."""
        self.ends_at = self.position(seq)
        self._check_end()

    def _check_end(self) -> None:
        if self.at == self.ends_at and self.state < CLOSED:
            self.state = CLOSED

    @property
    def missing_bytes(self) -> int:
        """Bytes between the delivered ones and the next ones that are known to exist."""
        known_at = self._ahead[0][0] if self._ahead else max(self.acknowledged, self.ends_at)
        if self.ends_at >= 0 and known_at > self.ends_at:  # a FIN is acknowledged like a byte
            known_at = self.ends_at
        return max(0, known_at - self.at)

    def lost_bytes(self, *, at_once: bool) -> int:
        """Number of bytes that are lost at this position. The caller skips them.

        Missing bytes are lost if their receiver acknowledged them, if too many bytes wait for them, or if nothing more arrives (`at_once`).
        """
        size_bytes = self.missing_bytes
        if not (at_once or self.acknowledged > self.at or self.ahead_bytes > MAX_AHEAD_BYTES):
            return 0
        if size_bytes == 1 and not self.ahead_bytes:  # the FIN
            self.skip_gap()
            return 0
        return size_bytes

    def skip_gap(self) -> None:
        """Skip the missing bytes and those that have arrived after them."""
        self.at = max(self.at, self.acknowledged, *(at + len(payload) for at, payload in self._ahead))
        if 0 <= self.ends_at < self.at:  # a FIN is acknowledged like a byte
            self.at = self.ends_at
        self._ahead, self.ahead_bytes, self._tail = [], 0, b""
        self._check_end()

    def skip_to(self, position: int) -> bytes:
        """Skip the missing bytes before a position. Returns the bytes that are then in order."""
        if position > self.at:
            self.at, self._tail = position, b""
        return self.take(self.at & _MASK, b"")

    def take(self, seq: int, payload: bytes) -> bytes:
        """Add a segment. Returns the bytes that are in order."""
        position, at = self.position(seq), self.at
        if position > at:
            insort(self._ahead, (position, payload))
            self.ahead_bytes += len(payload) + _OVERHEAD_BYTES
            return b""
        if position < at:
            payload = self._new_bytes(position, payload)
        if self._ahead:
            payload = self._with_next(payload)
        if payload:
            self.at = at + len(payload)
            self._tail = payload[-_COMPARED_BYTES:]
            if self.ends_at >= 0:
                self._check_end()
        return payload

    def _with_next(self, payload: bytes) -> bytes:
        """These bytes, and those that waited for them."""
        parts, begin = [payload], self.at
        while self._ahead and self._ahead[0][0] <= self.at + len(parts[-1]):
            self.at += len(parts[-1])
            self._tail = parts[-1] or self._tail
            position, ahead = self._ahead.pop(0)
            self.ahead_bytes -= len(ahead) + _OVERHEAD_BYTES
            parts.append(self._new_bytes(position, ahead))
        self.at = begin
        return b"".join(parts)

    def _new_bytes(self, position: int, payload: bytes) -> bytes:
        """The bytes of a segment that are new. The repeated ones are compared with the earlier ones, as far as those are kept."""
        repeated = payload[: self.at - position]
        tail_at = self.at - len(self._tail)
        begin, end = max(position, tail_at), position + len(repeated)
        if begin < end and len(repeated) > 1:  # a probe repeats one byte, of any value
            kept = self._tail[begin - tail_at : end - tail_at]
            self.inconsistent += repeated[begin - position :] != kept
        return payload[len(repeated) :]

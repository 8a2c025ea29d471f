"""The keyed hash of a segment of a prompt. Pure.

The bytes are reduced to 64 bits. The hash is SipHash-2-4 of these and the size, so a text cannot be derived or tested without the key.
The reduction is fast (less than an instruction per byte in compiled code). It does not protect against a client that constructs two texts
with one hash. Each of its steps is reversible, so two texts of one size that differ in one word of 8 bytes never have the same hash.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache

_BITS = 0xFFFF_FFFF_FFFF_FFFF
_FACTOR = 0x9E37_79B9_7F4A_7C15
_A, _B, _C, _D = 0x736F_6D65_7073_6575, 0x646F_7261_6E64_6F6D, 0x6C79_6765_6E65_7261, 0x7465_6462_7974_6573
_LENGTH = 16 << 56
_pack = struct.Struct("<Q").pack
_COMPILED = not __file__.endswith(".py")


@lru_cache(maxsize=16)
def hash_keys(key: bytes) -> tuple[int, ...]:
    """The keys of segments, derived from the key of client ids: two of SipHash, and the initial state."""
    return struct.unpack("<3Q", hashlib.blake2b(key=key[:64], digest_size=24, person=b"segment").digest())


class SegmentHash:
    """Hashes one segment after the other."""

    def __init__(self, keys: tuple[int, ...]) -> None:
        """`keys`: `hash_keys`."""
        self._key_0, self._key_1, self._start = keys
        self.size = 0
        """Number of bytes so far."""
        self.begin()

    def begin(self) -> None:
        """Start a new segment."""
        self._state, self._word, self._bits, self.size = self._start, 0, 0, 0

    def set_to(self, other: SegmentHash) -> None:
        """Copy the state of another hash with the same key."""
        self._state, self._word, self._bits, self.size = other._state, other._word, other._bits, other.size

    def feed(self, data: bytes, start: int, end: int) -> None:
        """Add the bytes `data[start:end]`. Raises IndexError if `data` is shorter."""
        if start < 0 or end > len(data):
            raise IndexError("bytes beyond the data")
        if start >= end:
            return
        text = data  # in compiled code a pointer
        state, word, bits = self._state, self._word, self._bits
        self.size += end - start
        while start < end and bits:
            byte = text[start]
            word |= byte << bits
            bits = (bits + 8) & 63
            start += 1
            if not bits:
                state = ((state ^ word) * _FACTOR) & _BITS
                state ^= state >> 32
                word = 0
        if not _COMPILED:
            for word in struct.unpack_from(f"<{(end - start) // 8}Q", data, start):
                state = ((state ^ word) * _FACTOR) & _BITS
                state ^= state >> 32
            start, word = end - (end - start) % 8, 0 if end - start >= 8 else word
        while end - start >= 8:
            word = word_at(text + start)  # type: ignore # noqa: F821 - of the .pxd, only in compiled code
            state = (state ^ word) * _FACTOR
            state ^= state >> 32
            start, word = start + 8, 0
        while start < end:
            byte = text[start]
            word |= byte << bits
            bits += 8
            start += 1
        self._state, self._word, self._bits = state, word, bits

    def digest(self) -> bytes:
        """8 bytes."""
        state = ((self._state ^ self._word) * _FACTOR) & _BITS
        return _pack(siphash(self._key_0, self._key_1, state ^ (state >> 32), self.size))


def siphash(key_0: int, key_1: int, first: int, second: int) -> int:
    """SipHash-2-4 of two words of 8 bytes."""
    a, b, c, d = key_0 ^ _A, key_1 ^ _B, key_0 ^ _C, key_1 ^ _D
    for n in range(10):
        if n == 0:
            d ^= first
        elif n == 2:
            a ^= first
            d ^= second
        elif n == 4:
            a ^= second
            d ^= _LENGTH
        elif n == 6:
            a ^= _LENGTH
            c ^= 0xFF
        a = (a + b) & _BITS
        c = (c + d) & _BITS
        b = ((b << 13 | b >> 51) & _BITS) ^ a
        d = ((d << 16 | d >> 48) & _BITS) ^ c
        a = a << 32 & _BITS | a >> 32
        c = (c + b) & _BITS
        a = (a + d) & _BITS
        b = ((b << 17 | b >> 47) & _BITS) ^ c
        d = ((d << 21 | d >> 43) & _BITS) ^ a
        c = c << 32 & _BITS | c >> 32
    return a ^ b ^ c ^ d

"""Identifiers of streams, traces and spans, and the time in a UUIDv7.

Identifiers are unique, not secret. Only one thread, the event loop's, may call the functions that create them. They fetch
random digits from the operating system in blocks, because one call per identifier would dominate the cost.
"""

from __future__ import annotations

import os

_BLOCK_BYTES = 8192

_digits = ""
_used = 0
_quarter = -1
_prefix = ""
_PAIRS = [f"{value:02x}" for value in range(256)]


def random_hex(count: int) -> str:
    """`count` random hex digits (at most 2 x `_BLOCK_BYTES`)."""
    global _digits, _used
    start = _used
    end = start + count
    if end > len(_digits):
        _digits = os.urandom(_BLOCK_BYTES).hex()
        start, end = 0, count
    _used = end
    return _digits[start:end]


def uuid7(wall_ns: int) -> str:
    """A textual UUIDv7 (RFC 9562 section 5.7) with this time and 72 random bits."""
    global _quarter, _prefix
    # Most of the time changes every 256 ms. Formatting the whole would be half of the work.
    millisecond = wall_ns // 1_000_000
    quarter = millisecond >> 8
    if quarter != _quarter:
        _quarter, _prefix = quarter, f"{quarter >> 8 & 0xFFFFFFFF:08x}-{quarter & 0xFF:02x}"
    return f"{_prefix}{_PAIRS[millisecond & 0xFF]}-7{random_hex(3)}-8{random_hex(3)}-{random_hex(12)}"


def uuid7_wall_ns(uuid: str) -> int:
    """The time in a textual UUIDv7, in ns since 1970 (resolution 1 ms). Raises ValueError if the text is not hex."""
    return int(uuid[:8] + uuid[9:13], 16) * 1_000_000


def smallest_uuid7(wall_s: float) -> str:
    """The lower bound of all UUIDv7 of this millisecond. Times before 1970 count as 1970."""
    digits = f"{max(int(wall_s * 1000), 0) & 0xFFFFFFFFFFFF:012x}"
    return f"{digits[:8]}-{digits[8:]}-0000-0000-000000000000"

"""Make the identifiers of streams, spans and incarnations.

They need to be unique, not secret: random bits come from a generator that each process seeds from the system.
"""

from __future__ import annotations

import os
import random

_random = random.Random(os.urandom(32))  # noqa: S311 - not for secrets, see above
_bits = _random.getrandbits


def seed_again() -> None:
    """To be called in a process made by fork: it must not repeat its parent's numbers."""
    _random.seed(os.urandom(32))


def uuid7(wall_ns: int) -> str:
    """A UUIDv7 of this instant, textual (RFC 9562 §5.7)."""
    value = (
        (wall_ns // 1_000_000 & 0xFFFFFFFFFFFF) << 80 | 0x7 << 76 | _bits(12) << 64 | 0x2 << 62 | _bits(62)
    )
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_trace_id() -> str:
    """32 hex digits, never all zero."""
    return f"{_bits(128) or 1:032x}"


def new_span_id() -> str:
    """16 hex digits, never all zero."""
    return f"{_bits(64) or 1:016x}"

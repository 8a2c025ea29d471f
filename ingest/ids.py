"""Make the identifiers of streams, traces, spans.

They need to be unique, not secret. Random digits are taken from the system in blocks, because a call for each would cost
more than all the rest of an identifier. For the event loop's thread alone.
"""

from __future__ import annotations

import os

_BLOCK_BYTES = 8192

_digits = ""
_used = 0
_millisecond = -1
_beginning = ""


def seed_again() -> None:
    """To be called in a process made by fork: it must not repeat its parent's numbers."""
    global _digits, _used
    _digits, _used = "", 0


def random_hex(count: int) -> str:
    """So many random hex digits (at most 2 x `_BLOCK_BYTES`)."""
    global _digits, _used
    start = _used
    end = start + count
    if end > len(_digits):
        _digits = os.urandom(_BLOCK_BYTES).hex()
        start, end = 0, count
    _used = end
    return _digits[start:end]


def uuid7(wall_ns: int) -> str:
    """A UUIDv7 of this instant, textual (RFC 9562 §5.7); 72 bits of it are random."""
    global _millisecond, _beginning
    millisecond = wall_ns // 1_000_000
    if millisecond != _millisecond:
        digits = f"{millisecond & 0xFFFFFFFFFFFF:012x}"
        _millisecond, _beginning = millisecond, f"{digits[:8]}-{digits[8:]}-7"
    tail = random_hex(18)
    return f"{_beginning}{tail[:3]}-8{tail[3:6]}-{tail[6:]}"


def new_trace_and_span() -> tuple[str, str]:
    """A trace id (32 hex digits) and a span id (16)."""
    digits = random_hex(48)
    return digits[:32], digits[32:]


def new_span_id() -> str:
    """16 hex digits."""
    return random_hex(16)

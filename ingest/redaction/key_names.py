"""How much of a JSON key stays, and filler for the rest."""

from __future__ import annotations

import re
from bisect import bisect

from ingest.redaction import filler
from ingest.redaction.key_rules import Context, Known

MAX_NUMBER_KEY_BYTES = 64
_NUMBER_KEY = re.compile(rb"[A-Za-z0-9_.$@-]*+")
_NAMES = b"abcdefghijklmnopqrstuvwxyz0123456789"


def staying(key: bytes, context: int, known: Known) -> int:
    """Number of bytes of a key (or its start) that may stay: the common prefix with an allow-listed key."""
    if context == Context.CONTENT:
        return 0
    if context == Context.NUMBERS:
        found = _NUMBER_KEY.match(key, 0, MAX_NUMBER_KEY_BYTES)
        assert found is not None
        return found.end()
    index = bisect(known.ordered, key)
    return max(_shared(key, near) for near in known.ordered[max(0, index - 1) : index + 1])


def filled(run: bytes, start: int, kept: int, number: int) -> bytes:
    """Filler for the bytes of a key from `start` on. `number` makes it unique if it is long enough."""
    made = bytearray(filler.plain(run))
    for at, byte in enumerate(made):
        position = start + at - kept
        if position < 0:
            made[at] = run[at]
        elif byte == 0x78:
            made[at] = _NAMES[number // 36 ** min(position, 12) % 36]
    return bytes(made)


def _shared(one: bytes, other: bytes) -> int:
    """Length of the common prefix."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length

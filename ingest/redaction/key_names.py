"""The names of keys: how much of one stays, and filler for the rest."""

from __future__ import annotations

import re
from bisect import bisect

from ingest.redaction import filler
from ingest.redaction.key_rules import Context, Known

MAX_NUMBER_KEY_BYTES = 64
_NUMBER_KEY = re.compile(rb"[A-Za-z0-9_.$@-]*+")
_NAMES = b"abcdefghijklmnopqrstuvwxyz0123456789"


def staying(key: bytes, context: int, known: Known) -> int:
    """How much of a key, as far as it was read, may stay: what it shares with a key of the list."""
    if context == Context.CONTENT:
        return 0
    if context == Context.NUMBERS:
        found = _NUMBER_KEY.match(key, 0, MAX_NUMBER_KEY_BYTES)
        assert found is not None
        return found.end()
    place = bisect(known.ordered, key)
    return max(_shared(key, near) for near in known.ordered[max(0, place - 1) : place + 1])


def filled(run: bytes, start: int, kept: int, number: int) -> bytes:
    """Filler for the bytes of a key from `start` on. `number` tells it from others, if it is long enough."""
    made = bytearray(filler.plain(run))
    for at, byte in enumerate(made):
        place = start + at - kept
        if place < 0:
            made[at] = run[at]
        elif byte == 0x78:
            made[at] = _NAMES[number // 36 ** min(place, 12) % 36]
    return bytes(made)


def _shared(one: bytes, other: bytes) -> int:
    """Length of the common beginning."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length

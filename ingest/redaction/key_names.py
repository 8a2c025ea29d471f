"""Decide how much of a JSON key is kept, and fill the rest."""

from __future__ import annotations

import re
from bisect import bisect

from streamgauge.ingest.redaction import filler
from streamgauge.ingest.redaction.key_rules import Context, KeyRules

MAX_NUMBER_KEY_BYTES = 64
_NUMBER_KEY = re.compile(rb"[A-Za-z0-9_.$@-]*+")
_NAMES = b"abcdefghijklmnopqrstuvwxyz0123456789"


def kept_length(key: bytes, context: int, rules: KeyRules, *, whole: bool = False) -> int:
    """Number of bytes kept of a key (or its start, unless `whole`): the common prefix with an allow-listed key.

    Among numbers, a whole key is kept or filled completely.
    """
    if context == Context.CONTENT:
        return 0
    if context == Context.NUMBERS:
        found = _NUMBER_KEY.match(key, 0, MAX_NUMBER_KEY_BYTES)
        assert found is not None
        return found.end() if found.end() == len(key) or not whole else 0
    index = bisect(rules.ordered, key)
    return max(_common_prefix(key, near) for near in rules.ordered[max(0, index - 1) : index + 1])


def filled(run: bytes, start: int, kept: int, number: int) -> bytes:
    """Fill the bytes of a key from `start` on, after its `kept` bytes. `number` makes a key of sufficient length unique."""
    out = bytearray(filler.plain(run))
    for at, byte in enumerate(out):
        position = start + at - kept
        if position < 0:
            out[at] = run[at]
        elif byte == 0x78:
            out[at] = _NAMES[number // 36 ** min(position, 12) % 36]
    return bytes(out)


def _common_prefix(first: bytes, second: bytes) -> int:
    """Length of the common prefix."""
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length

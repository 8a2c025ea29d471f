"""Decide how much of an allow-listed string is kept: alphabet and length for each `Keep`."""

from __future__ import annotations

import re

from ingest.redaction.key_rules import Keep

KEPT_ALPHABET: dict[int, bytes] = {
    Keep.NUMBER: rb"-+0-9.eE",
    Keep.WORD: rb"A-Za-z0-9_.:/@+=~%#-",
    Keep.NAME: rb"A-Za-z0-9_.:/@+=~%#() -",
    Keep.PATH: rb"A-Za-z0-9_$.\[\]",
    Keep.TITLE: rb"A-Za-z0-9_.:/@+=~%#() -",
}
"""Allowed bytes, as the inside of a character class."""
MAX_KEPT_BYTES: dict[int, int] = {
    Keep.NUMBER: 64,
    Keep.WORD: 256,
    Keep.NAME: 256,
    Keep.PATH: 256,
    Keep.TITLE: 64,
}
"""Maximum length in bytes."""
_KEPT = {keep: re.compile(b"[%b]*+" % alphabet) for keep, alphabet in KEPT_ALPHABET.items()}


def kept_length(value: bytes, keep: Keep, taken: int = 0) -> int:
    """Number of bytes kept of this part of a string. `taken`: bytes of the string before this part."""
    found = _KEPT[keep].match(value, 0, max(0, MAX_KEPT_BYTES[keep] - taken))
    assert found is not None
    return found.end()

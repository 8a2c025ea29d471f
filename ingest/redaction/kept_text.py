"""Decide how much of an allow-listed string is kept: alphabet and length for each `Keep`.

Words follow the policy of `ingest.identifiers`: a word is kept whole or not at all. Where a read cuts a word, its end is
unknown: the start is kept as far as it is an identifier.
"""

from __future__ import annotations

import re

from ingest import identifiers
from ingest.redaction.key_rules import Keep

_WORD = identifiers.ALPHABET.encode()
KEPT_ALPHABET: dict[int, bytes] = {
    Keep.NUMBER: rb"-+0-9.eE",
    Keep.WORD: _WORD,
    Keep.NAME: _WORD,
    Keep.PATH: rb"A-Za-z0-9_$.\[\]",
    Keep.TITLE: _WORD,
}
"""Allowed bytes, as the inside of a character class."""
MAX_KEPT_BYTES: dict[int, int] = {
    Keep.NUMBER: 64,
    Keep.WORD: identifiers.MAX_CHARS,
    Keep.NAME: identifiers.MAX_CHARS,
    Keep.PATH: 256,
    Keep.TITLE: identifiers.MAX_CHARS,
}
"""Maximum length in bytes."""
WORDS = frozenset({Keep.WORD, Keep.NAME, Keep.TITLE})
NO_WORD = b"?"
"""Filler of words that are not kept. No identifier has it, so readers still see that the value is none."""
_NO_KEY = b"(?!%b)" % identifiers.KEY_START.encode()
PATTERNS = {
    keep: b"%b[%b]{0,%d}+" % (_NO_KEY if keep in WORDS else b"", alphabet, MAX_KEPT_BYTES[keep])
    for keep, alphabet in KEPT_ALPHABET.items()
}
"""A complete string that is kept."""
_WHOLE = {keep: re.compile(pattern) for keep, pattern in PATTERNS.items()}
_START = {keep: re.compile(b"[%b]*+" % alphabet) for keep, alphabet in KEPT_ALPHABET.items()}
_REASON_PHRASES = frozenset(phrase.encode() for phrase in identifiers.REASON_PHRASES)


def kept_of_start(value: bytes, keep: Keep, taken: int = 0) -> int:
    """Number of bytes kept of a part of a string that a read cuts. `taken`: bytes of the string before this part."""
    found = _START[keep].match(value, 0, max(0, MAX_KEPT_BYTES[keep] - taken))
    assert found is not None
    return found.end()


def kept_of_whole(value: bytes, keep: Keep) -> int:
    """Number of bytes kept of the inside of a complete string."""
    if keep not in WORDS:
        return kept_of_start(value, keep)
    if _WHOLE[keep].fullmatch(value) is not None:
        return len(value) if keep is not Keep.NAME or not value or identifiers.is_name(value.decode()) else 0
    return len(value) if keep is Keep.TITLE and value in _REASON_PHRASES else 0

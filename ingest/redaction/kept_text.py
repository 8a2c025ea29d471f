"""Decide how much of an allow-listed string is kept: alphabet and length for each `Keep`.

Words follow the policy of `streamgauge.ingest.identifiers`: a word is kept whole or not at all. Where a read cuts a word, its end is
unknown: its start is kept up to anything that may become a key.
"""

from __future__ import annotations

import re

from streamgauge.ingest import identifiers
from streamgauge.ingest.redaction.key_rules import Keep

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
PATTERNS: dict[int, bytes] = {
    keep: b"[%b]{0,%d}+" % (alphabet, MAX_KEPT_BYTES[keep]) for keep, alphabet in KEPT_ALPHABET.items()
} | {
    Keep.WORD: b"(?:%b)?+" % identifiers.IDENTIFIER.encode(),
    Keep.NAME: b"(?:%b)?+" % identifiers.NAME.encode(),
    Keep.TITLE: b"(?:%b)?+" % identifiers.NAME.encode(),
}
"""A complete string that is kept. The caller checks what follows."""
_WHOLE = {keep: re.compile(pattern) for keep, pattern in PATTERNS.items()}
_STARTS: dict[int, bytes] = {keep: b"[%b]*+" % alphabet for keep, alphabet in KEPT_ALPHABET.items()} | {
    Keep.WORD: identifiers.START_OF_IDENTIFIER.encode(),
    Keep.NAME: identifiers.START_OF_NAME.encode(),
    Keep.TITLE: identifiers.START_OF_NAME.encode(),
}
_START = {keep: re.compile(pattern) for keep, pattern in _STARTS.items()}
_REASON_PHRASES = frozenset(phrase.encode() for phrase in identifiers.REASON_PHRASES)


def kept_of_start(value: bytes, keep: Keep, before: bytes = b"") -> int:
    """Number of bytes kept of a part of a string that a read cuts. `before`: the part in earlier reads, which was kept."""
    found = _START[keep].match(before + value, 0, MAX_KEPT_BYTES[keep])
    assert found is not None
    return max(0, found.end() - len(before))


def kept_of_whole(value: bytes, keep: Keep) -> int:
    """Number of bytes kept of the inside of a complete string."""
    if keep not in WORDS:
        return kept_of_start(value, keep)
    kept = _WHOLE[keep].fullmatch(value) is not None or (keep is Keep.TITLE and value in _REASON_PHRASES)
    return len(value) if kept else 0

"""Filler of the same length as the text it replaces: in bytes, in characters, and when JSON is encoded again.

ASCII becomes `x`. A multi-byte character becomes one fixed character of the same length. Bytes that are not UTF-8 stay
equally invalid, because decoders count the characters that they replace. An escape becomes an escape of its class: `\\n` for
characters that JSON must escape, `\\u0078` for others, surrogates for surrogates.
"""

from __future__ import annotations

import re


def _classes() -> bytes:
    """Maps each byte to the representative of its class in UTF-8. Stateless, so text may be cut anywhere."""
    table = bytearray(b"x" * 256)
    for byte in range(128, 256):
        if byte < 0xC0:
            kept = 0x80 if byte < 0x90 else 0x90 if byte < 0xA0 else 0xA0
        elif byte < 0xE0:
            kept = 0xC0 if byte < 0xC2 else 0xC3
        elif byte < 0xF0:
            kept = byte if byte in (0xE0, 0xED) else 0xE1
        else:
            kept = byte if byte in (0xF0, 0xF4) else 0xF1 if byte < 0xF4 else 0xFF
        table[byte] = kept
    return bytes(table)


EVERY_BYTE = _classes()
"""Table for payloads that are not JSON."""
IN_STRING = bytes(range(32)) + EVERY_BYTE[32:]
"""Table for JSON strings. It keeps control characters: they are errors there and must remain errors."""
DIGITS = bytes.maketrans(b"123456789", b"111111111")
"""Table for numbers: the result has the same length and is still valid."""

_CANONICAL = (
    (re.compile(rb"(?:\xf0[\x90\xa0]|\xf1[\x80\x90\xa0]|\xf4\x80)[\x80\x90\xa0]{2}"), b"\xf1\x80\x80\x80"),
    (re.compile(rb"(?:\xe0\xa0|\xe1[\x80\x90\xa0]|\xed[\x80\x90])[\x80\x90\xa0]"), b"\xe1\x80\x80"),
    (re.compile(rb"\xc3[\x80\x90\xa0]"), b"\xc3\x80"),
)
_ESCAPE = re.compile(rb"(\\(?:u[0-9a-fA-F]{4}|.))", re.DOTALL)


def plain(run: bytes, table: bytes = IN_STRING) -> bytes:
    """Filler for bytes without escapes."""
    filled = run.translate(table)
    if not filled.isascii():
        for whole, canonical in _CANONICAL:
            filled = whole.sub(canonical, filled)
    return filled


def string(inside: bytes) -> bytes:
    """Filler for the complete inside of a JSON string.

    If it starts with an opening brace, that brace and all closing braces are kept: readers detect complete arguments by them.
    """
    braced = inside[:1] == b"{"
    if b"\\" not in inside:
        return braces(inside, plain(inside), opening=True) if braced else plain(inside)
    parts = _ESCAPE.split(inside)
    parts[1::2] = [escape(part) for part in parts[1::2]]
    for at in range(0, len(parts), 2):
        filled = plain(parts[at])
        parts[at] = braces(parts[at], filled, opening=not at) if braced else filled
    return b"".join(parts)


def braces(run: bytes, filled: bytes, *, opening: bool) -> bytes:
    """Restore the braces of a string that started with an opening brace. `opening`: the run is the start of the string."""
    if not opening and b"}" not in run:
        return filled
    kept = bytearray(filled)
    if opening:
        kept[0] = 0x7B
    at = run.find(b"}")
    while at >= 0:
        kept[at] = 0x7D
        at = run.find(b"}", at + 1)
    return bytes(kept)


def escape(whole: bytes) -> bytes:
    """Filler for one escape, including its backslash."""
    out, state = b"", BACKSLASH
    for byte in whole[1:]:
        made, state = next_of_escape(state, byte)
        out += made
    return b"\\" + out


NO_ESCAPE, BACKSLASH = "", "\\"
"""States of an escape. The other states are those of the digits after `\\u`, named after their output."""

_CHARACTERS = frozenset('xyzwvutsrqpo?{}/\n"\\\x01#X\u00c0\u1000\ud000\U00040000\U0001f400\ufffd')


def is_filler(text: str) -> bool:
    """Whether redaction may have made this text. True for short texts that happen to have only its characters."""
    return _CHARACTERS.issuperset(text)


_DIGIT: dict[str, dict[str, tuple[str, str]]] = {
    # state → digit → (output, next state). "" is any other digit. A state's name is its class and the number of digits to come.
    "u4": {"0": ("0", "zero3"), "d": ("d", "d3"), "": ("0", "plain3")},
    "zero3": {"0": ("0", "zero2"), "": ("0", "plain2")},
    "zero2": {
        "0": ("0", "control1"),
        "1": ("0", "other1"),
        "2": ("2", "quote1"),
        "5": ("5", "slash1"),
        "": ("7", "plain1"),
    },
    "control1": {**dict.fromkeys("89acd", ("a", NO_ESCAPE)), "": ("1", NO_ESCAPE)},
    "other1": {"": ("1", NO_ESCAPE)},
    "quote1": {"2": ("2", NO_ESCAPE), "": ("3", NO_ESCAPE)},
    "slash1": {"c": ("c", NO_ESCAPE), "": ("8", NO_ESCAPE)},
    "d3": {
        **dict.fromkeys("89ab", ("8", "high2")),
        **dict.fromkeys("cdef", ("c", "low2")),
        "": ("0", "low2"),
    },
    "high2": {"": ("3", "high1")},
    "high1": {"": ("d", NO_ESCAPE)},
    "low2": {"": ("0", "low1")},
    "low1": {"": ("0", NO_ESCAPE)},
    "plain3": {"": ("0", "plain2")},
    "plain2": {"": ("7", "plain1")},
    "plain1": {"": ("8", NO_ESCAPE)},
}


def next_of_escape(state: str, byte: int) -> tuple[bytes, str]:
    """(filler of the next byte of an escape, next state). An invalid escape stays invalid."""
    digit = chr(byte).lower()
    if state == BACKSLASH:
        if digit == "u" and byte == 0x75:
            return b"u", "u4"
        return (
            b"n" if byte in b'"\\bfnrt' else b"/" if byte == 0x2F else EVERY_BYTE[byte : byte + 1]
        ), NO_ESCAPE
    if digit not in "0123456789abcdef":
        return EVERY_BYTE[byte : byte + 1], NO_ESCAPE
    transitions = _DIGIT[state]
    made, after = transitions.get(digit, transitions[""])
    return made.encode(), after

"""Where in a statement an error of DuckDB is. Pure.

DuckDB quotes the line and puts a caret below it. Of a long line it shows 60 columns on each side of the caret. The caret
is placed by columns of a terminal: East Asian characters take two, combining and control characters none.
"""

from __future__ import annotations

import re
import unicodedata

_QUOTED = re.compile(r"\nLINE (?P<line>\d+): (?P<text>[^\n]*)\n(?P<indent> *)\^\s*\Z")
_CUT = "..."


def position_of(error: str, statement: str) -> int | None:
    """The index of the character above the caret, or None if the error quotes no line of the statement."""
    found = _QUOTED.search(error)
    lines = statement.split("\n")
    if found is None or int(found["line"]) > len(lines):
        return None
    text = found["text"]
    before = _characters(text, len(found["indent"]) - len(f"LINE {found['line']}: "))
    line = lines[int(found["line"]) - 1]
    if not line.startswith(text):
        left = len(_CUT) if text.startswith(_CUT) else 0
        shown = text[left:].removesuffix(_CUT)
        start = line.find(shown)
        if start < 0:
            return None
        before += start - left
    return sum(len(one) + 1 for one in lines[: int(found["line"]) - 1]) + min(max(before, 0), len(line))


def in_part(position: int | None, statement: str, part: str, *, start: int) -> int | None:
    """The position in `statement` of a position in another text that contains `part` of it at `start`."""
    if position is None or not start <= position <= start + len(part):
        return None
    return statement.find(part) + position - start


def of_byte(statement: str, offset: object) -> int | None:
    """The position of a byte offset that the parser reports. Unknown offsets are 2**64 - 1."""
    encoded = statement.encode(errors="replace")
    if not isinstance(offset, int) or not 0 <= offset <= len(encoded):
        return None
    return len(encoded[:offset].decode(errors="ignore"))


def _characters(text: str, columns: int) -> int:
    """The number of characters that take this number of columns."""
    for count, character in enumerate(text):
        width = _columns(character)
        if columns <= 0 and width:
            return count
        columns -= width
    return len(text)


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) == "Cc":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1

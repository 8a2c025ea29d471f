"""Condense a JSON body while it streams: its structure stays, long texts do not. Pure.

The result is JSON with the members of the body that analytics reads from a request: parameters, ids, the roles and kinds of its messages.
A long string becomes `""`, and a container that is nested deeper than `MAX_DEPTH` becomes empty. Bytes that are no JSON give
bytes that are no JSON. The state is bounded, and no byte is read twice.
"""

from __future__ import annotations

MAX_DEPTH = 6
"""Gemini's Code Assist has the kind of a part at depth 6: `{"request": {"contents": [{"parts": [{"functionResponse": …`."""
MAX_STRING_BYTES = 32
"""Longer strings are removed, except from the first two levels, which have the ids. With both quotes."""
MAX_ID_BYTES = 1026
_ID_DEPTH = 2

# Typed in the .pxd. Compiled code reads other globals from the module's dict.
_QUOTE, _ESCAPE = ord('"'), ord("\\")
_BRACE, _END_BRACE, _BRACKET, _END_BRACKET = b"{}[]"
_DEEPEST, _SHORT, _LONG, _LEVELS = MAX_DEPTH, MAX_STRING_BYTES, MAX_ID_BYTES, _ID_DEPTH


class CondensedBody:
    """Condenses one body."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False
        self._held = b""
        """Start of a string that an earlier read has not ended."""

    def feed(self, data: bytes) -> bytes:
        """The next bytes of the result. A string follows with the read that ends it."""
        depth, in_string, escaped, held = self._depth, self._in_string, self._escaped, self._held
        kept = bytearray()
        start = 0
        """Bytes before it are kept or dropped."""
        string_from = 0
        at, size = 0, len(data)
        while at < size:
            if in_string and not escaped:
                at = _text_end(data, at, size)
                if at == size:
                    break
            c = data[at]
            if escaped:
                escaped = False
            elif in_string:
                escaped = c == _ESCAPE
                in_string = escaped
                if not in_string and depth <= _DEEPEST:
                    is_long = len(held) + at - string_from >= (_LONG if depth <= _LEVELS else _SHORT)
                    if is_long or held:
                        kept += data[start:string_from]
                        kept += b'""' if is_long else held + data[: at + 1]
                        start = at + 1
                    held = b""
            elif c == _QUOTE:
                in_string, string_from = True, at
            elif c in (_BRACE, _BRACKET):
                depth += 1
                if depth == _DEEPEST + 1:
                    kept += data[start : at + 1]
            elif c in (_END_BRACE, _END_BRACKET):
                depth -= 1
                if depth == _DEEPEST:
                    start = at
            at += 1
        if depth <= _DEEPEST:
            if in_string:
                kept += data[start:string_from]
                held = (held + data[string_from:])[:_LONG]
            else:
                kept += data[start:]
        self._depth, self._in_string, self._escaped, self._held = depth, in_string, escaped, held
        return bytes(kept)


def _text_end(data: bytes, at: int, size: int) -> int:
    """The next quote or backslash: most bytes of a body are text, which this loop reads in half the time."""
    while at < size and data[at] != _QUOTE and data[at] != _ESCAPE:
        at += 1
    return at

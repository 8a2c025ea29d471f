"""Join arguments that arrive as (path, value) pieces into JSON text, piece by piece (Gemini's `partialArgs`).

    $.recipe.name ← "Lasa" …      {"recipe":{"name":"Lasa
    $.recipe.name ← "gna"         gna
    $.recipe.steps[0] ← "Cook"    ","steps":["Cook
    end                           "]}}

The model generated the values; the JSON between them is inserted. Pieces arrive in document order; a piece for a position
that is already closed is dropped.
"""

from __future__ import annotations

import json
import re
from typing import Any

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\[\"((?:[^\"\\]|\\.)*)\"\]")
MAX_DEPTH = 64

Step = str | int


class ArgumentJoiner:
    """Joins the arguments of one call."""

    def __init__(self) -> None:
        self._path: list[Step] | None = None
        self._in_string = False
        self._closed = True  # the value at `_path` is complete

    def add(self, path: str, value: Any, *, will_continue: bool) -> tuple[str, str]:
        """Return (inserted JSON, value as JSON text) of the next piece. `value` is a str, a number, a bool or None."""
        steps = _steps(path)
        if not steps or len(steps) > MAX_DEPTH:
            return "", ""
        if steps == self._path:
            if self._closed or not isinstance(value, str):
                return "", ""
            self._closed = not will_continue
            return "", _string_content(value)
        inserted_json = self._move(steps)
        if inserted_json is None:
            return "", ""
        self._path = steps
        if isinstance(value, str):
            self._in_string, self._closed = True, not will_continue
            return inserted_json + '"', _string_content(value)
        self._in_string, self._closed = False, True
        return inserted_json, json.dumps(value)

    def finish(self) -> str:
        """Return the JSON that closes the arguments."""
        path, self._path = self._path, None
        if path is None:
            return "{}"
        return ('"' if self._in_string else "") + "".join(
            "]" if isinstance(s, int) else "}" for s in reversed(path)
        )

    def _move(self, new: list[Step]) -> str | None:
        """The JSON between the value at the last path and the one at `new`; None if `new` is already closed."""
        old = self._path
        if old is None:
            return ("[" if isinstance(new[0], int) else "{") + _open(new, 0)
        shared = 0
        while shared < min(len(old), len(new)) and old[shared] == new[shared]:
            shared += 1
        if shared == len(old) or shared == len(new) or type(old[shared]) is not type(new[shared]):
            return None
        before, after = old[shared], new[shared]
        if isinstance(before, int) and isinstance(after, int) and after < before:
            return None
        closing = "".join("]" if isinstance(s, int) else "}" for s in reversed(old[shared + 1 :]))
        return ('"' if self._in_string else "") + closing + "," + _open(new, shared)


def _open(steps: list[Step], start: int) -> str:
    """The JSON from inside the container of step `start` to the start of its value."""
    text = ""
    for index in range(start, len(steps)):
        step = steps[index]
        if index > start:
            text += "[" if isinstance(step, int) else "{"
        if isinstance(step, str):
            text += json.dumps(step) + ":"
    return text


def _string_content(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _steps(path: str) -> list[Step] | None:
    if not path.startswith("$"):
        return None
    steps: list[Step] = []
    at = 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            return None
        at = found.end()
        name, number, single, double = found.groups()
        steps.append(int(number) if number is not None else name or single or double or "")
    return steps

"""The keys of `top`: the order of the rows, a filter of them, and the end. Only `pressed_keys` does I/O."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SORTS: dict[str, str | None] = {
    "affected": None,
    "errors": "error_rate",
    "TTFT p95": "ttft_p95_ns",
    "ITL p50": "itl_p50_ns",
    "requests": "requests_per_s",
    "in flight": "in_flight",
    "tokens": "tokens_per_s",
}
"""Order of the rows → the column that is sorted, highest first. "affected": those that the causes name, then the busiest."""
MAX_FILTER = 60
BACKSPACE, ESCAPE, ENTER = "\x7f\b", "\x1b", "\r\n"


@dataclass
class View:
    """What the reader has chosen by keys."""

    sort: str = "affected"
    filter: str = ""
    """Rows have it in their model or gateway, in any case."""
    is_typing: bool = False
    ends: bool = False

    def press(self, keys: str) -> None:
        """Change the view by keys in the order in which they were pressed."""
        if keys.startswith(ESCAPE) and len(keys) > 1:  # an arrow or function key
            return
        for key in keys:
            if not self.is_typing:
                self._command(key)
            elif key in ENTER + ESCAPE:
                self.is_typing = False
                self.filter = "" if key == ESCAPE else self.filter
            elif key in BACKSPACE:
                self.filter = self.filter[:-1]
            elif key.isprintable():
                self.filter = (self.filter + key)[:MAX_FILTER]

    def _command(self, key: str) -> None:
        names = list(SORTS)
        if key in "qQ":
            self.ends = True
        elif key in "sS":
            step = 1 if key == "s" else -1
            self.sort = names[(names.index(self.sort) + step) % len(names)]
        elif key == "/":
            self.is_typing = True
        elif key == ESCAPE:
            self.filter = ""

    def rows(
        self, rows: Sequence[Mapping[str, Any]], is_affected: Callable[[Mapping[str, Any]], bool]
    ) -> list[Mapping[str, Any]]:
        """The rows with the filter's text, in order. Unknown values are last."""
        text, column = self.filter.lower(), SORTS[self.sort]
        found = [row for row in rows if text in f"{row['model']} {row['gateway']}".lower()]
        if column is None:
            return sorted(found, key=lambda row: not is_affected(row))
        return sorted(found, key=lambda row: (row[column] is None, -(row[column] or 0)))

    @property
    def footer(self) -> str:
        """The keys, and what they have chosen."""
        if self.is_typing:
            return f"filter: {self.filter}▏ Enter keeps it, Esc removes it."
        return f"q quit · s sort: {self.sort} · / filter{f': {self.filter}' if self.filter else ''}"


@contextlib.contextmanager
def pressed_keys() -> Iterator[Callable[[float], str]]:
    """A function that waits for keys, at most for the given seconds. Without a terminal as input there are none."""
    inputs = [sys.stdin.fileno()] if sys.stdin.isatty() else []

    def keys(seconds: float) -> str:
        ready, _, _ = select.select(inputs, [], [], seconds)
        return os.read(ready[0], 256).decode(errors="ignore") if ready else ""

    if not inputs:
        yield keys
        return
    before = termios.tcgetattr(inputs[0])
    tty.setcbreak(inputs[0])
    try:
        yield keys
    finally:
        termios.tcsetattr(inputs[0], termios.TCSADRAIN, before)

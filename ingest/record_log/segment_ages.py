"""How old each segment is: since its newest entry. A wall clock that steps while we run changes no age.

A segment that is seen for the first time is as old as its files say (they were written by an earlier run, so nothing but
the wall clock can tell); from then on CLOCK_MONOTONIC counts. Files from the future are new.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path


class SegmentAges:
    """Ages of the segments that one writer sees."""

    def __init__(self) -> None:
        self._ended_s: dict[Path, float] = {}

    def age_s(self, path: Path) -> float:
        """Seconds since the newest entry of a segment that is complete; 0 when it has gone."""
        now_s = time.monotonic()
        if path not in self._ended_s:
            try:
                written_s = path.stat().st_mtime
            except FileNotFoundError:
                return 0.0
            self._ended_s[path] = now_s - max(0.0, time.time() - written_s)
        return now_s - self._ended_s[path]

    def renew(self, path: Path) -> None:
        """From now on it counts as new."""
        self._ended_s[path] = time.monotonic()

    def keep(self, paths: Iterable[Path]) -> None:
        """Forget all others."""
        self._ended_s = {path: self._ended_s[path] for path in paths if path in self._ended_s}

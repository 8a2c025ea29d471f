"""Age of each segment: the time since its newest entry.

A segment from an earlier run starts with the age of its file by the wall clock. From then on CLOCK_MONOTONIC is used, so clock
steps do not change ages. A file with a future time counts as new.
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
        """Seconds since the newest entry of a complete segment; 0 when the segment is deleted."""
        now_s = time.monotonic()
        if path not in self._ended_s:
            try:
                written_s = path.stat().st_mtime
            except FileNotFoundError:
                return 0.0
            self._ended_s[path] = now_s - max(0.0, time.time() - written_s)
        return now_s - self._ended_s[path]

    def renew(self, path: Path) -> None:
        """Treat the segment as new."""
        self._ended_s[path] = time.monotonic()

    def keep(self, paths: Iterable[Path]) -> None:
        """Remove all other segments from the table."""
        self._ended_s = {path: self._ended_s[path] for path in paths if path in self._ended_s}

"""End a query that takes too long, or lets the process grow too far.

DuckDB's memory limit holds for its buffers alone. What some aggregates gather (`quantile_cont`, `mode`, …) lives
outside of it, and grows by half a GB a second; so the process itself is watched. An interrupt takes effect between two
vectors of rows: what one function makes of one vector is the guard's affair (`analytics.serving.guard`).
"""

from __future__ import annotations

import os
import threading
import time
from enum import Enum
from pathlib import Path

import duckdb

LOOK_S = 0.05
GROWTH = 1.5
"""Of DuckDB's own limit, which a query may fill: the rest is for what lives outside of it."""
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


class Ended(Enum):
    """Why a watch ended its query."""

    TIME = "time"
    MEMORY = "memory"


class Watch:
    """Interrupts what `cursor` runs, from a thread of its own, until `done` is called."""

    def __init__(
        self, cursor: duckdb.DuckDBPyConnection, *, deadline_s: float, growth_bytes: int | None = None
    ) -> None:
        """`deadline_s` is of `time.monotonic`; `growth_bytes`: by how much the process may grow meanwhile."""
        self.ended: Ended | None = None
        self._cursor = cursor
        self._deadline_s = deadline_s
        self._growth_bytes = growth_bytes
        self._done = threading.Event()
        threading.Thread(target=self._look, name="watch", daemon=True).start()

    def done(self) -> None:
        """The query has ended."""
        self._done.set()

    def _look(self) -> None:
        at_first = resident_bytes()
        while not self._done.wait(LOOK_S if self.ended else self._next_s()):
            if time.monotonic() >= self._deadline_s:
                self.ended = self.ended or Ended.TIME
            elif self._growth_bytes is not None and resident_bytes() - at_first > self._growth_bytes:
                self.ended = self.ended or Ended.MEMORY
            if self.ended:
                self._cursor.interrupt()  # again and again: one that had not begun is missed

    def _next_s(self) -> float:
        left_s = max(self._deadline_s - time.monotonic(), 0.0)
        return min(left_s, LOOK_S) if self._growth_bytes is not None else left_s


def growth_bytes(connection: duckdb.DuckDBPyConnection) -> int:
    """By how much queries may let the process grow: in proportion to the database's memory limit."""
    row = connection.execute("SELECT parse_formatted_bytes(current_setting('memory_limit'))").fetchone()
    return int(GROWTH * row[0]) if row else 2**31


def resident_bytes() -> int:
    """Memory that this process has now; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def be_ended_first() -> None:
    """Where memory runs out after all, let the system end this process rather than a gateway beside it."""
    try:
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(max(int(score.read_text()), 500)))
    except (OSError, ValueError):
        return

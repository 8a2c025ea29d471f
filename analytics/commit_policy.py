"""How often analytics commits rows and log positions, and how often it replaces the file of open streams.

Commits are at least `commit_interval_s` apart and take at most `COMMIT_SHARE` of one core, or a third of it while a backlog
is read. The clock does not count: on a busy machine commits take long, but rows must stay fresh. Positions without rows are
committed every `POSITIONS_EVERY_S`.
"""

from __future__ import annotations

from dataclasses import dataclass

OPEN_STREAMS_EVERY_S = 0.5
OBSERVE_EVERY_S = 1.0
OBSERVE_SHARE = 0.05
"""Streams in flight are observed this often, with at most this share of one core."""
POSITIONS_EVERY_S = 5.0
"""After a crash the log is read again from the last position, so it need not be recent."""
COMMIT_SHARE = 0.15
MAX_PAUSE_S = 0.6
"""Longest pause between commits, however long the last one took."""
END_OF_LOG_S = 0.1
"""If no entry arrives for this long while rows wait, the backlog is considered read."""
IDLE_WAIT_S = 0.25


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """Limits that start a commit, and the time after which silent taps count as lost."""

    commit_interval_s: float = 0.25
    commit_events: int = 200_000
    commit_bytes: int = 32 * 2**20
    """A commit is made early if this many events are finished or this many log bytes are read."""
    lost_after_s: float = 60.0
    writers_are_local: bool = True
    """Whether taps write the log directly (embedded log). Then a silent log means that its writer died."""

"""Which streams a diagnosis is about, and how its time is divided."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

BUCKETS = 30
"""Buckets of the range."""
EARLIER_BUCKETS = 6
"""Wider buckets of the period of the same length before the range, the baseline."""
OPEN_AT_MOST = timedelta(hours=1)
"""Streams that started longer before the data do not matter."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Streams in [since, until) that meet an SQL condition. The period of the same length before it is the baseline."""

    since: datetime
    until: datetime
    filters: str = "TRUE"
    """SQL condition over the columns that `streams` and `open_streams` share: `Selection.filters()` of the dashboard."""

    @property
    def length(self) -> timedelta:
        return self.until - self.since

    @property
    def begin(self) -> datetime:
        """The begin of the baseline."""
        return self.since - self.length

    def edges(self) -> list[datetime]:
        """The begins of all buckets, and the end of the last one."""
        earlier = [self.begin + self.length * i / EARLIER_BUCKETS for i in range(EARLIER_BUCKETS)]
        return earlier + [self.since + self.length * i / BUCKETS for i in range(BUCKETS + 1)]

"""Outer streams whose inner streams are not found yet, and when to look for them. Bounded. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from streamgauge.analytics.hop_matching.candidate import Candidate

DELAYS_S = (1.0, 4.0, 15.0, 60.0)
"""Before each attempt. The first one gives other processes time to commit the inner streams. The last one is only for streams whose
client left: the gateway may read on."""
MAX_PENDING = 20_000


class Due(NamedTuple):
    stream: Candidate
    attempt: int
    is_last: bool
    """Nothing is attempted after this."""


class Pending:
    """One queue for each delay, in which all streams wait equally long."""

    def __init__(self, delays_s: Sequence[float] = DELAYS_S) -> None:
        self._delays_s = delays_s
        self._queues: list[deque[tuple[float, Candidate]]] = [deque() for _ in delays_s]
        self.dropped = 0
        """Streams that did not fit. The oldest are dropped."""

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    def add(self, streams: Iterable[Candidate], now_s: float, attempt: int = 0) -> None:
        self._queues[attempt].extend((now_s + self._delays_s[attempt], stream) for stream in streams)
        for queue in reversed(self._queues):
            while queue and len(self) > MAX_PENDING:
                queue.popleft()
                self.dropped += 1

    def due(self, now_s: float, limit: int) -> list[Due]:
        """Remove and return at most `limit` due streams."""
        found: list[Due] = []
        for attempt, queue in enumerate(self._queues):
            while queue and queue[0][0] <= now_s and len(found) < limit:
                _, stream = queue.popleft()
                last = len(self._delays_s) - (1 if stream.outcome == "client_abort" else 2)
                found.append(Due(stream, attempt, attempt >= last))
        return found

    def retry(self, due: Due, now_s: float) -> None:
        """Wait for the next attempt."""
        self.add((due.stream,), now_s, min(due.attempt + 1, len(self._delays_s) - 1))

    def postpone(self, due: Iterable[Due], now_s: float) -> None:
        """Wait for the same attempt again."""
        for each in due:
            self.add((each.stream,), now_s, each.attempt)

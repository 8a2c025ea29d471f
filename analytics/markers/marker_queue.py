"""A bounded queue of markers between the senders' threads and the consumer. It is a commit hook of the consumer.

Rules
1. The consumer's next transaction stores the markers. A sender gets a success only after that commit. If a sender stops
   waiting, its marker is dropped unless the consumer has already taken it.
2. At most `MAX_WAITING` markers wait, and at most `MAX_PER_HOUR` are accepted in an hour, so a sender in a loop cannot fill the
   table. Others are refused and counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import polars as pl

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.markers.marker import Marker
from streamgauge.analytics.schema.tables import MARKERS, frame_of_rows

MAX_WAITING = 100
MAX_PER_HOUR = 1000
_HOUR_S = 3600.0

Waiting = tuple[Marker, "Future[bool]"]


class MarkerQueue:
    """`offer`, `refuse` and `health` are thread-safe. The consumer's thread calls the methods of the commit hook."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[Waiting] = []
        self._taken: list[Waiting] = []
        self._accepted_s: deque[float] = deque(maxlen=MAX_PER_HOUR)
        self._stored = self._refused = 0
        self._closed = False

    def health(self) -> dict[str, float]:
        """The counters by metric name without its prefix."""
        with self._lock:
            return {"markers.stored": float(self._stored), "markers.refused": float(self._refused)}

    # -- senders -------------------------------------------------------------------------------------------------------

    def offer(self, marker: Marker) -> Future[bool] | None:
        """Queue a marker. The future says whether it was stored. None if the queue is full or the hour's limit is reached."""
        now_s = self._clock()
        with self._lock:
            too_many = len(self._accepted_s) == MAX_PER_HOUR and now_s - self._accepted_s[0] < _HOUR_S
            if self._closed or too_many or len(self._waiting) >= MAX_WAITING:
                return None
            self._accepted_s.append(now_s)
            stored: Future[bool] = Future()
            self._waiting.append((marker, stored))
        return stored

    def refuse(self) -> None:
        """Count a request that was refused."""
        with self._lock:
            self._refused += 1

    # -- commit hook ---------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def increments(self) -> Mapping[str, int]:
        return {}

    def rows(
        self, finished: Sequence[FinishedStream], tables: Mapping[str, pl.DataFrame]
    ) -> Mapping[str, pl.DataFrame]:
        """The queued markers."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        self._taken = [one for one in waiting if one[1].set_running_or_notify_cancel()]
        if not self._taken:
            return {}
        rows = [(_microseconds(marker), marker.text, marker.source) for marker, _ in self._taken]
        return {"markers": frame_of_rows(MARKERS, rows)}

    def committed(self) -> None:
        """Acknowledge the markers of the last `rows` call."""
        taken, self._taken = self._taken, []
        with self._lock:
            self._stored += len(taken)
        for _, stored in taken:
            stored.set_result(True)

    def close(self) -> None:
        """Refuse all queued and further markers."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, []
        taken, self._taken = self._taken, []
        for _, stored in taken + [one for one in waiting if one[1].set_running_or_notify_cancel()]:
            stored.set_result(False)


def _microseconds(marker: Marker) -> int:
    return round(marker.at.timestamp() * 1e6)

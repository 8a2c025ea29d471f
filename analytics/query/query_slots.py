"""Admission of queries: some run, some wait, and further ones are rejected at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from streamgauge.analytics.query.errors import QueryRejected, QueryTimeout
from streamgauge.analytics.query.limits import Limits


class QuerySlots:
    """`Limits.concurrent` slots. Threads may share it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._slots = threading.BoundedSemaphore(limits.concurrent)
        self._lock = threading.Lock()
        self._waiting = 0

    @contextmanager
    def slot(self, timeout_s: float) -> Iterator[None]:
        """Hold a slot. Raises QueryRejected if too many queries wait, QueryTimeout without a slot in time."""
        if not self._slots.acquire(blocking=False):
            self._wait(timeout_s)
        try:
            yield
        finally:
            self._slots.release()

    def _wait(self, timeout_s: float) -> None:
        with self._lock:
            if self._waiting >= self._limits.waiting:
                raise QueryRejected(
                    f"busy: {self._waiting} queries are already waiting. Try again in a few seconds."
                )
            self._waiting += 1
        try:
            if not self._slots.acquire(timeout=max(timeout_s, 0.0)):
                raise QueryTimeout(
                    f"busy: the query waited {timeout_s:g} s for {self._limits.concurrent} others to finish. Try again later."
                )
        finally:
            with self._lock:
                self._waiting -= 1

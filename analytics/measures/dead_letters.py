"""Log content that could not be processed: reason, size and hash, never the text."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter

import polars as pl

from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.tables import DEAD_LETTERS, LOSSES

log = logging.getLogger(__name__)

MAX_ROWS = 1_000
"""Rows per commit. Further dead letters are only counted, so that invalid input cannot fill the table."""


_Row = tuple[int, str, int, str | None, str, int, str]
"""A row without `log_id`."""


class DeadLetters:
    """Dead letters since the last commit. Truthy if there are any."""

    def __init__(self) -> None:
        self._letters: list[_Row] = []
        self._damaged_ranges: list[tuple[str, int, int]] = []
        self.counters: Counter[str] = Counter()
        """Since the last `clear`: `dead_letters`, and `dead_letters_not_kept`, the number of them without a row."""

    def __bool__(self) -> bool:
        return bool(self._letters)

    def add(
        self, partition: str, offset: int, stream_id: str | None, reason: str, size: int, payload: bytes
    ) -> None:
        """Add letter. `offset` -1: not an entry of the log. `size`: bytes of the rejected content."""
        self.counters["dead_letters"] += 1
        # Anyone who can write to the broker can send invalid entries, so rows are bounded, and counters are not.
        if len(self._letters) < MAX_ROWS:
            digest = hashlib.sha256(payload).hexdigest()
            self._letters.append((time.time_ns() // 1000, partition, offset, stream_id, reason, size, digest))
        else:
            self.counters["dead_letters_not_kept"] += 1

    def add_failed(self, step: str, partition: str, offset: int, payload: bytes, error: Exception) -> None:
        """Log and add content that raised an exception in a step, which is a bug."""
        log.error("%s: entry %d of partition %s cannot be processed", step, offset, partition, exc_info=error)
        self.add(partition, offset, None, f"{step}: {type(error).__name__}", len(payload), payload)

    def add_damaged_range(
        self, partition: str, offset: int, damaged: tuple[str, int, int], payload: bytes = b""
    ) -> None:
        """Add unreadable log entries: (partition, first, end). The streams in them are unknown."""
        _, first, end = damaged
        if len(self._letters) < MAX_ROWS:
            self._damaged_ranges.append(damaged)
        self.add(partition, offset, None, "damaged_segment", end - first, payload)

    def loss_rows(self) -> pl.DataFrame:
        """Rows of the table `losses` for the damaged ranges, without a stream."""
        at_us = time.time_ns() // 1000
        return frame_of_rows(
            LOSSES,
            [
                (None, None, partition, first, end - 1, "log_damaged", None, at_us)
                for partition, first, end in self._damaged_ranges
            ],
        )

    def rows(self, log_id: str) -> pl.DataFrame:
        """Rows of the table `dead_letters`."""
        return frame_of_rows(DEAD_LETTERS, [(at_us, log_id, *rest) for at_us, *rest in self._letters])

    def clear(self) -> None:
        self._letters.clear()
        self._damaged_ranges.clear()
        self.counters.clear()

"""Log content that could not be processed: reason, size and hash, never the text."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from dataclasses import dataclass, field

import polars as pl

from streamgauge.analytics.schema.tables import LOSSES, frame

log = logging.getLogger(__name__)

MAX_ROWS = 1_000
"""Rows per commit. Further dead letters are only counted, so that invalid input cannot fill the table."""


@dataclass(frozen=True, slots=True)
class _DeadLetter:
    partition: str
    offset: int
    stream_id: str | None
    reason: str
    size: int
    sha256: str
    at_ns: int = field(default_factory=time.time_ns)


class DeadLetters:
    """Dead letters since the last commit. Truthy if there are any."""

    def __init__(self) -> None:
        self._letters: list[_DeadLetter] = []
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
        if len(self._letters) < MAX_ROWS:
            digest = hashlib.sha256(payload).hexdigest()
            self._letters.append(_DeadLetter(partition, offset, stream_id, reason, size, digest))
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
        ranges, at_us = self._damaged_ranges, time.time_ns() // 1000
        return frame(
            LOSSES,
            {
                "stream_id": [None] * len(ranges),
                "tap": [None] * len(ranges),
                "partition": [partition for partition, _, _ in ranges],
                "first_seq": [first for _, first, _ in ranges],
                "last_seq": [end - 1 for _, _, end in ranges],
                "cause": ["log_damaged"] * len(ranges),
                "bytes": [None] * len(ranges),
                "lost_at": [at_us] * len(ranges),
            },
        )

    def rows(self, log_id: str) -> pl.DataFrame:
        letters = self._letters
        return pl.DataFrame(
            {
                "set_aside_at": [letter.at_ns // 1000 for letter in letters],
                "log_id": [log_id] * len(letters),
                "partition": [letter.partition for letter in letters],
                "log_offset": [letter.offset for letter in letters],
                "stream_id": [letter.stream_id for letter in letters],
                "reason": [letter.reason for letter in letters],
                "size": [letter.size for letter in letters],
                "sha256": [letter.sha256 for letter in letters],
            },
            schema_overrides={"stream_id": pl.String, "set_aside_at": pl.Int64},
        ).with_columns(pl.col("set_aside_at").cast(pl.Datetime("us", "UTC")))

    def clear(self) -> None:
        self._letters.clear()
        self._damaged_ranges.clear()
        self.counters.clear()

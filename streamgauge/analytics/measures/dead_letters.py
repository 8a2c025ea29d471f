"""Log content that could not be processed: reason, size and hash, never the text.

Each dead letter is one in `losses`, too. With a stream, its row is one of this stream. Without, it is a row with the offset of the
entry, or beyond `MAX_ROWS` it is counted in a row of its partition and reason.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter

import polars as pl

from streamgauge.analytics.assembly.record_validation import Failure
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.tables import DEAD_LETTERS, LOSSES

log = logging.getLogger(__name__)

MAX_ROWS = 1_000
"""Rows per commit and table. Further dead letters are only counted, so that invalid input cannot fill the tables."""


_Row = tuple[int, str, int, str | None, str, int, str]
"""A row without `log_id`."""


class DeadLetters:
    """Dead letters since the last commit. Truthy if there are any."""

    def __init__(self) -> None:
        self._letters: list[_Row] = []
        self._entries: Counter[tuple[str, int, int, str]] = Counter()
        """Losses without a stream: (partition, first and last entry, cause) → dead letters."""
        self._beyond: dict[tuple[str, str], tuple[int, int, int]] = {}
        """Losses beyond `MAX_ROWS`: (partition, cause) → (first and last entry, dead letters)."""
        self._unmeasured: list[tuple[str, str | None, str]] = []
        """(stream, tap, partition)."""
        self.counters: Counter[str] = Counter()
        """Since the last `clear`: `dead_letters`, and `dead_letters_not_kept`, the number of them without a row."""

    def __bool__(self) -> bool:
        return bool(self._letters)

    def add(self, partition: str, offset: int, reason: str, size: int, payload: bytes) -> None:
        """Add content of unknown streams. `size`: bytes of the rejected content."""
        self._lose(partition, offset, offset, reason)
        self._add(partition, offset, None, reason, size, hashlib.sha256(payload).hexdigest())

    def add_failure(self, failure: Failure) -> None:
        """Add a record. If it has a stream, the assembler has its loss."""
        if failure.stream_id is None:
            self._lose(failure.partition, failure.offset, failure.offset, failure.reason)
        self._add(
            failure.partition, failure.offset, failure.stream_id, failure.reason, failure.size, failure.sha256
        )

    def add_failed(self, step: str, partition: str, offset: int, payload: bytes, error: Exception) -> None:
        """Log and add an entry that raised an exception in a step, which is a bug."""
        log.error("%s: entry %d of partition %s cannot be processed", step, offset, partition, exc_info=error)
        self.add(partition, offset, failed(step, error), len(payload), payload)

    def add_unrestored(self, partition: str, stream_id: str, payload: bytes, error: Exception) -> str:
        """Log and add a stream whose checkpoints raised an exception, which is a bug. Returns the cause of its loss."""
        log.error("the stream %s of partition %s cannot be restored", stream_id, partition, exc_info=error)
        reason, digest = failed("restore", error), hashlib.sha256(payload).hexdigest()
        self._add(partition, -1, stream_id, reason, len(payload), digest)
        return reason

    def add_damaged_range(
        self, partition: str, offset: int, damaged: tuple[str, int, int], payload: bytes = b""
    ) -> None:
        """Add unreadable log entries: (partition, first, end). The streams in them are unknown."""
        damaged_partition, first, end = damaged
        self._lose(damaged_partition, first, end - 1, "log_damaged")
        digest = hashlib.sha256(payload).hexdigest()
        self._add(partition, offset, None, DAMAGED_REASON, end - first, digest)

    def add_unmeasured(self, partition: str, stream_id: str, tap: str | None, error: Exception) -> None:
        """Add a stream that cannot be measured, which is a bug: none of its records are missing, but its measures are."""
        self._unmeasured.append((stream_id, tap, partition))
        digest = hashlib.sha256(stream_id.encode()).hexdigest()
        self._add(partition, -1, stream_id, failed("measure", error), 0, digest)

    def _add(self, *row: *tuple[str, int, str | None, str, int, str]) -> None:
        self.counters["dead_letters"] += 1
        # Anyone who can write to the broker can send invalid entries, so rows are bounded, and counters are not.
        if len(self._letters) < MAX_ROWS:
            self._letters.append((time.time_ns() // 1000, *row))
        else:
            self.counters["dead_letters_not_kept"] += 1

    def _lose(self, partition: str, first: int, last: int, cause: str) -> None:
        key = partition, first, last, cause
        if key in self._entries or len(self._entries) < MAX_ROWS:
            self._entries[key] += 1
        else:
            lowest, highest, count = self._beyond.get((partition, cause), (first, last, 0))
            self._beyond[partition, cause] = min(first, lowest), max(last, highest), count + 1

    def loss_rows(self) -> pl.DataFrame:
        """Rows of the table `losses` without a stream, and those of streams that cannot be measured."""
        at_us = time.time_ns() // 1000
        entries = [(*entry, count) for entry, count in self._entries.items()]
        entries += [(p, first, last, cause, n) for (p, cause), (first, last, n) in self._beyond.items()]
        rows = [(None, None, *entry, None, at_us, count) for *entry, count in entries]
        rows += [(*of, None, None, "not_measured", None, at_us, None) for of in self._unmeasured]
        return frame_of_rows(LOSSES, rows)

    def rows(self, log_id: str) -> pl.DataFrame:
        """Rows of the table `dead_letters`."""
        return frame_of_rows(DEAD_LETTERS, [(at_us, log_id, *rest) for at_us, *rest in self._letters])

    def clear(self) -> None:
        self._letters.clear()
        self._entries.clear()
        self._beyond.clear()
        self._unmeasured.clear()
        self.counters.clear()


DAMAGED_REASON = "damaged_segment"


def failed(step: str, error: Exception) -> str:
    """The reason of a dead letter that raised an exception in a step."""
    return f"{step}: {type(error).__name__}"

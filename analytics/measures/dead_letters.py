"""What the log held and nobody could use: noted by reason, size and hash, never by its text."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from dataclasses import dataclass, field

import polars as pl

from analytics.schema.tables import LOSSES, frame

MAX_ROWS = 1_000
"""Rows per commit; further ones are only counted (a garbage producer must not fill the table)."""
MAX_REASON_CHARS = 100


@dataclass(frozen=True, slots=True)
class _Dead:
    partition: str
    offset: int
    stream_id: str | None
    reason: str
    size: int
    sha256: str
    at_ns: int = field(default_factory=time.time_ns)


class DeadLetters:
    """Those since the last commit. True when there are any."""

    def __init__(self) -> None:
        self._dead: list[_Dead] = []
        self._holes: list[tuple[str, int, int]] = []
        self.counters: Counter[str] = Counter()
        """dead_letters, and of these dead_letters_not_kept, since the last `clear`."""

    def __bool__(self) -> bool:
        return bool(self._dead)

    def bury(
        self, partition: str, offset: int, stream_id: str | None, reason: str, size: int, payload: bytes
    ) -> None:
        """Note one. `offset` -1: it is no entry of the log; `size` is of what was set aside."""
        self.counters["dead_letters"] += 1
        if len(self._dead) < MAX_ROWS:
            digest = hashlib.sha256(payload).hexdigest()
            self._dead.append(_Dead(partition, offset, stream_id, reason[:MAX_REASON_CHARS], size, digest))
        else:
            self.counters["dead_letters_not_kept"] += 1

    def bury_damage(
        self, partition: str, offset: int, damaged: tuple[str, int, int], payload: bytes = b""
    ) -> None:
        """Note entries [first, end) of a partition of some log that could not be read: a hole in streams that nobody knows."""
        _, first, end = damaged
        if len(self._dead) < MAX_ROWS:
            self._holes.append(damaged)
        self.bury(partition, offset, None, "damaged_segment", end - first, payload)

    def holes(self) -> pl.DataFrame:
        """Rows of the table `losses`, without a stream: what could not be read, by its entries."""
        holes, at_us = self._holes, time.time_ns() // 1000
        return frame(
            LOSSES,
            {
                "stream_id": [None] * len(holes),
                "tap": [None] * len(holes),
                "partition": [partition for partition, _, _ in holes],
                "first_seq": [first for _, first, _ in holes],
                "last_seq": [end - 1 for _, _, end in holes],
                "cause": ["log_damaged"] * len(holes),
                "bytes": [None] * len(holes),
                "lost_at": [at_us] * len(holes),
            },
        )

    def rows(self, log_id: str) -> pl.DataFrame:
        """Rows of the table `dead_letters`."""
        dead = self._dead
        return pl.DataFrame(
            {
                "set_aside_at": [d.at_ns // 1000 for d in dead],
                "log_id": [log_id] * len(dead),
                "partition": [d.partition for d in dead],
                "log_offset": [d.offset for d in dead],
                "stream_id": [d.stream_id for d in dead],
                "reason": [d.reason for d in dead],
                "size": [d.size for d in dead],
                "sha256": [d.sha256 for d in dead],
            },
            schema_overrides={"stream_id": pl.String, "set_aside_at": pl.Int64},
        ).with_columns(pl.col("set_aside_at").cast(pl.Datetime("us", "UTC")))

    def clear(self) -> None:
        """They are committed."""
        self._dead.clear()
        self._holes.clear()
        self.counters.clear()

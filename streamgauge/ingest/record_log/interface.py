"""Interface of the record log, with two implementations: SQLite segments on this machine, and a Kafka topic.

A log is a set of partitions. A partition is a sequence of entries with growing offsets. An entry is a packed batch of records
(`streamgauge.ingest.records`). All records of one stream are in one partition, in order. Offsets belong to one log, identified by
`log_id`: a position read under another id is invalid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_UNREADABLE_RANGES = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a log. `offset` grows within its partition, not always by one."""

    partition: str
    offset: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class UnreadableRange:
    """Entries [first, end) of a partition that cannot be read, permanently."""

    partition: str
    first: int
    end: int
    reason: str
    """checksum | retention | replaced | unreadable | SQLite's message about a damaged segment"""


class UnreadableRanges:
    """Ranges found since the last `take`. Bounded: the first of a damaged log say where it is, and all of them are logged."""

    def __init__(self) -> None:
        self._found: list[UnreadableRange] = []

    def add(self, partition: str, first: int, end: int, reason: str) -> None:
        if len(self._found) < MAX_UNREADABLE_RANGES:
            self._found.append(UnreadableRange(partition, first, end, reason))

    def take(self) -> list[UnreadableRange]:
        taken, self._found = self._found, []
        return taken


class LogReader(Protocol):
    """One reader's view of a log. Not thread-safe: one owner."""

    @property
    def log_id(self) -> str:
        """Identity of the log that the offsets belong to."""

    def partitions(self) -> Sequence[str]:
        """The partitions that this reader reads now. The list may grow."""

    def seek(self, partition: str, offset: int) -> None:
        """Let the next poll start at `offset`. Without a seek it starts at the oldest entry."""

    def poll(self, timeout_s: float, max_bytes: int = 8 * 2**20) -> list[Entry]:
        """Next entries of all partitions, in order within each. Waits up to `timeout_s` for the first."""

    def range(self, partition: str, start: int, end: int) -> list[Entry]:
        """Entries with start ≤ offset < end, for the replay after a restart. The poll position does not change."""

    def end(self, partition: str) -> int:
        """Offset that the next appended entry will have, or a lower bound. The lag is `end` - position."""

    def release(self, partition: str, offset: int) -> None:
        """Declare entries before `offset` as no longer needed by this reader: the log may delete them."""

    def take_unreadable(self) -> list[UnreadableRange]:
        """Unreadable ranges found since the last call, except those that `Lost` records report."""

    def close(self) -> None: ...


class LogWriter(Protocol):
    """Appends entries. Blocking: call it off the event loop."""

    def append(self, payloads: Sequence[bytes]) -> None:
        """Append entries in order, in one transaction. After the return they survive a kill of the process.

        Raises `LogFull` when the cap is reached and nothing may be dropped, `OSError` or `LogBroken` when the disk fails.
        """

    def close(self) -> None: ...


class LogFull(Exception):
    """The log has reached its cap."""


class LogBroken(Exception):
    """The log cannot be written or read. The message says what to do."""


class LogChanged(LogBroken):
    """Another log has replaced this one: positions are invalid. Open a new reader."""


class LogInUse(OSError):
    """Another process holds the lock. The message names the folder or the reader."""

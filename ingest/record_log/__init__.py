"""One small interface, two homes: `embedded` (SQLite segments on this machine) and `kafka` (a topic).

A log is a set of partitions; a partition is a sequence of entries with growing offsets; an entry is a packed batch of
records (`ingest.records`). All records of one stream are in one partition, in order. Offsets belong to one log: `log_id`
says which, and a position read under another id means nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a log. `offset` grows within its partition, not always by one."""

    partition: str
    offset: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Damage:
    """Entries [first, end) of a partition that cannot be read, and will never be."""

    partition: str
    first: int
    end: int
    reason: str
    """checksum | retention | what the database said of a damaged segment"""


class LogReader(Protocol):
    """One reader's view of a log. Not thread-safe: one owner."""

    @property
    def log_id(self) -> str:
        """Identity of the log that the offsets belong to."""

    def partitions(self) -> Sequence[str]:
        """The partitions that this reader reads now; may grow while it lives."""

    def seek(self, partition: str, offset: int) -> None:
        """The next poll returns entries of `partition` from `offset` on (default: from the oldest there is)."""

    def poll(self, timeout_s: float, max_bytes: int = 8 * 2**20) -> list[Entry]:
        """Next entries of all partitions, each partition's in order; waits up to `timeout_s` for the first."""

    def range(self, partition: str, start: int, end: int) -> list[Entry]:
        """Entries with start ≤ offset < end, for the replay after a restart; leaves the poll position alone."""

    def end(self, partition: str) -> int:
        """The offset that the next appended entry will have, as far as known: lag is `end` - position."""

    def release(self, partition: str, offset: int) -> None:
        """Entries before `offset` are no longer needed by this reader: the log may trim them."""

    def take_damage(self) -> list[Damage]:
        """Holes that were met since the last call, beside those that `Lost` records tell."""

    def close(self) -> None: ...


class LogWriter(Protocol):
    """Appends entries. Blocking: call it off the event loop."""

    def append(self, payloads: Sequence[bytes]) -> None:
        """Append entries in order, as one transaction; on return they survive a kill of the process.

        Raises `LogFull` when the cap is reached and nothing may be dropped, `OSError` or `LogBroken` when the
        disk does not take it.
        """

    def close(self) -> None: ...


class LogFull(Exception):
    """The log's cap on bytes is reached."""


class LogBroken(Exception):
    """The log cannot be written or read; the message says what to do."""


class LogChanged(LogBroken):
    """Another log stands where this one was: positions mean nothing any more. Open a new reader."""

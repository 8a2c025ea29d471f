"""Read the embedded log, also from another process while it is written.

Rules
 1. A reader never writes to a segment. It may delete segments that all readers have released, and quarantine damaged ones.
 2. Entries are in order within a partition. Entries with a wrong checksum and the unreadable part of a damaged segment are
    skipped and reported. One poll returns entries before the damage or after it, never both.
 3. The newest segment of a running writer is never quarantined: the reader waits until the writer has a newer one.
 4. A segment that is dropped at the cap while we read it is skipped. `Lost` records in a later segment report its streams.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path

from streamgauge.ingest.record_log import segments
from streamgauge.ingest.record_log.interface import (
    Entry,
    LogBroken,
    LogInUse,
    UnreadableRange,
    UnreadableRanges,
)
from streamgauge.ingest.record_log.reader_cursors import Cursors

log = logging.getLogger(__name__)

_PAUSE_S, _QUIET_PAUSE_S, _QUIET_S = 0.02, 0.05, 1.0
"""Pause between polls of an idle log, and of a log that is idle for more than a second. A poll costs 50 µs per partition."""
_NEW_PARTITIONS_S = 0.25
_NEW_SEGMENT_S = 0.1
_RETRY_S = 1.0


@dataclass(slots=True)
class _Tail:
    """Read position in one partition."""

    partition: str
    position: int = 0
    segment: segments.Segment | None = None
    connection: sqlite3.Connection | None = None
    blocked_until_s: float = 0.0
    warned_segment: int = -1
    newest_at_s: float = 0.0
    """When `segment` was last found to be the newest, in this poll."""

    def close_segment(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = self.segment = None
        self.newest_at_s = 0.0


class EmbeddedReader(AbstractContextManager["EmbeddedReader"]):
    """A named `LogReader`. Not thread-safe: one owner, which may be any thread.

    Raises `LogInUse` (an OSError) when another process reads under that name. `seek` to `released(partition)` continues the
    reader's last run. `sole`: take over the positions of readers that do not run (`analyze` before Kafka was introduced, or
    `ship` after it was removed).
    """

    def __init__(self, log_dir: Path, name: str, *, sole: bool = False) -> None:
        self._log_dir = log_dir
        self.log_id = segments.log_identity(log_dir)
        self._cursors = Cursors(log_dir, name, sole=sole)
        self._tails: dict[str, _Tail] = {}
        self._last_check_s = self._last_message_s = float("-inf")
        self._first_partition = 0
        self._unreadable = UnreadableRanges()
        self.entries = self.trimmed_segments = 0
        """Read entries, and segments that a release has deleted."""

    def partitions(self) -> Sequence[str]:
        self._find_partitions()
        return list(self._tails)

    def seek(self, partition: str, offset: int) -> None:
        tail = self._tail(partition)
        tail.close_segment()
        tail.position, tail.blocked_until_s = max(0, offset), 0.0

    def released(self, partition: str) -> int:
        """Entries before this offset were released by this or an earlier run."""
        return self._cursors.get(partition)

    def poll(self, timeout_s: float, max_bytes: int = 8 * 2**20) -> list[Entry]:
        deadline_s = time.monotonic() + timeout_s
        for tail in self._tails.values():
            tail.newest_at_s = 0.0
        while True:
            entries = self._read(max_bytes)
            now_s = time.monotonic()
            if entries:
                self._last_message_s = now_s
            if entries or now_s >= deadline_s:
                return entries
            pause_s = _PAUSE_S if now_s - self._last_message_s < _QUIET_S else _QUIET_PAUSE_S
            time.sleep(min(pause_s, deadline_s - now_s))

    def range(self, partition: str, start: int, end: int) -> list[Entry]:
        listed = segments.list_segments(self._log_dir / partition)
        entries: list[Entry] = []
        for segment, newer in zip(listed, [*listed[1:], None], strict=False):
            if segment.first >= end or (newer is not None and newer.first <= start):
                continue
            try:
                with closing(segments.open_segment(segment.path, complete=newer is not None)) as connection:
                    rows, error = segments.read_rows(connection, start, 2**63 - 1, end)
            except FileNotFoundError:
                continue
            except sqlite3.DatabaseError as raised:
                if not segment.path.exists():
                    continue
                rows, error = [], raised
            entries += self._entries(partition, rows, segment.path)
            if error is not None:
                if not segments.is_damage(error):
                    raise LogBroken(f"cannot read {segment.path}: {error}") from error
                at = rows[-1][0] + 1 if rows else max(start, segment.first)
                self._quarantine(partition, segment, newer, at, error)
        return entries

    def end(self, partition: str) -> int:
        for segment in reversed(segments.list_segments(self._log_dir / partition)):
            try:
                with closing(segments.open_segment(segment.path)) as connection:
                    last = segments.last_offset(connection)
            except (FileNotFoundError, sqlite3.Error):
                continue
            if last is not None:
                return last + 1
        return self._tail(partition).position

    def release(self, partition: str, offset: int) -> None:
        self.trimmed_segments += self._cursors.advance(partition, offset)

    def take_unreadable(self) -> list[UnreadableRange]:
        """Unreadable ranges since the last call, at most 1000."""
        return self._unreadable.take()

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close_segment()
        self._tails.clear()
        self._cursors.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    # Reading

    def _tail(self, partition: str) -> _Tail:
        return self._tails.setdefault(partition, _Tail(partition))

    def _find_partitions(self) -> None:
        self._last_check_s = time.monotonic()
        for name in segments.list_partitions(self._log_dir):
            self._tail(name)

    def _read(self, max_bytes: int) -> list[Entry]:
        if time.monotonic() - self._last_check_s >= _NEW_PARTITIONS_S:
            self._find_partitions()
        tails = list(self._tails.values())
        if not tails:
            return []
        # Start with another partition each time: a busy one must not starve the others.
        self._first_partition = (self._first_partition + 1) % len(tails)
        entries: list[Entry] = []
        remaining_bytes = max_bytes
        for tail in tails[self._first_partition :] + tails[: self._first_partition]:
            got = self._read_partition(tail, remaining_bytes)
            entries += got
            remaining_bytes -= sum(len(entry.payload) for entry in got)
            if remaining_bytes <= 0:
                break
        return entries

    def _read_partition(self, tail: _Tail, max_bytes: int) -> list[Entry]:
        if time.monotonic() < tail.blocked_until_s:
            return []
        while True:
            if tail.segment is None and not self._enter(tail):
                return []
            segment = tail.segment
            assert segment is not None
            if not segment.path.exists():
                tail.close_segment()
                continue
            rows, error = self._rows(tail, max_bytes)
            if rows:
                # If an error followed these rows, the next read returns it first.
                return self._take(tail, rows, segment)
            # Whether there is a newer segment needs a listing of the folder, which costs more than the query. An idle
            # reader lists it at most ten times a second.
            if error is None and time.monotonic() - tail.newest_at_s < _NEW_SEGMENT_S:
                return []
            newer = next(
                (s for s in segments.list_segments(segment.path.parent) if s.first > segment.first), None
            )
            if error is not None:
                if not self._skip_damaged(tail, segment, newer, error):
                    return []
                continue
            if newer is None:
                tail.newest_at_s = time.monotonic()
                return []
            # The segment is complete since the newer one exists, but may not have been when we read it.
            rows, error = self._rows(tail, max_bytes)
            if rows:
                return self._take(tail, rows, segment)
            if error is None:
                tail.close_segment()
                tail.position = max(tail.position, newer.first)

    def _enter(self, tail: _Tail) -> bool:
        """Choose the segment with the position, or the first after it. False: there is none yet."""
        listed = segments.list_segments(self._log_dir / tail.partition)
        if not listed:
            return False
        tail.segment = next((s for s in reversed(listed) if s.first <= tail.position), listed[0])
        tail.position = max(tail.position, tail.segment.first)
        return True

    def _rows(self, tail: _Tail, max_bytes: int) -> tuple[list[segments.Row], sqlite3.DatabaseError | None]:
        assert tail.segment is not None
        try:
            if tail.connection is None:
                listed = segments.list_segments(tail.segment.path.parent)
                complete = any(one.first > tail.segment.first for one in listed)
                tail.connection = segments.open_segment(tail.segment.path, complete=complete)
            return segments.read_rows(tail.connection, tail.position, max_bytes)
        except FileNotFoundError:
            return [], None
        except sqlite3.DatabaseError as error:
            return [], error if tail.segment.path.exists() else None

    def _take(self, tail: _Tail, rows: list[segments.Row], segment: segments.Segment) -> list[Entry]:
        sound = [_is_sound(row) for row in rows]
        first = sound.index(True) if True in sound else len(rows)
        cut = sound.index(False, first) if False in sound[first:] else len(rows)
        tail.position = rows[cut][0] if cut < len(rows) else rows[-1][0] + 1
        return self._entries(tail.partition, rows[:cut], segment.path)

    def _entries(self, partition: str, rows: list[segments.Row], path: Path) -> list[Entry]:
        entries = []
        for row in rows:
            offset, payload, _ = row
            if not _is_sound(row):
                log.error("entry %d of %s is damaged (checksum): skipped", offset, path)
                self._unreadable.add(partition, offset, offset + 1, "checksum")
                continue
            entries.append(Entry(partition, offset, payload))
        self.entries += len(entries)
        return entries

    # Damage

    def _skip_damaged(
        self, tail: _Tail, segment: segments.Segment, newer: segments.Segment | None, error: sqlite3.Error
    ) -> bool:
        """Skip a damaged segment. False: its writer still uses it, or the disk fails; retry later."""
        tail.close_segment()
        damage = segments.is_damage(error)
        if damage and self._quarantine(tail.partition, segment, newer, tail.position, error):
            tail.position = newer.first if newer is not None else segment.first + segments.SEGMENT_OFFSETS
            return True
        tail.blocked_until_s = time.monotonic() + _RETRY_S
        if tail.warned_segment != segment.first:
            tail.warned_segment = segment.first
            if damage:
                log.error(
                    "segment %s is damaged (%s): waiting for its writer to start a new one",
                    segment.path,
                    error,
                )
            else:
                log.error("segment %s cannot be read (%s): trying again", segment.path, error)
        return False

    def _quarantine(
        self,
        partition: str,
        segment: segments.Segment,
        newer: segments.Segment | None,
        at: int,
        error: sqlite3.Error,
    ) -> bool:
        if newer is None:
            try:
                lock = segments.lock_file(segment.path.parent / "lock", "its writer runs", wait=False)
            except LogInUse:
                return False
            try:
                quarantined = segments.quarantine(segment)
            finally:
                os.close(lock)
        else:
            quarantined = segments.quarantine(segment)
        end = newer.first if newer is not None else segment.first + segments.SEGMENT_OFFSETS
        self._unreadable.add(partition, at, end, str(error))
        log.error(
            "segment %s is damaged (%s): renamed to %s, entries %d to %d of %s cannot be read",
            segment.path,
            error,
            quarantined.name,
            at,
            end - 1,
            partition,
        )
        return True


def _is_sound(row: segments.Row) -> bool:
    """Whether the checksum of an entry is correct."""
    _, payload, crc = row
    return isinstance(payload, bytes) and zlib.crc32(payload) == crc

"""Read the embedded log from another process while it is written.

Rules
 1. A reader never writes a segment. It may unlink what all readers have released, and set damage aside.
 2. Entries come in order within a partition. An entry whose checksum is wrong is left out and reported, as is a damaged
    segment from where it cannot be read; a poll returns what came before it or what came after it, never both.
 3. The newest segment of a live writer is never set aside: the reader waits until the writer has gone on.
 4. A segment that was dropped at the cap while we read it is left: its streams are told by `Lost` further on.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ingest.record_log.interface import Entry, LogBroken, LogInUse, UnreadableRange
from ingest.record_log.reader_cursors import Cursors
from ingest.record_log.segments import (
    SEGMENT_OFFSETS,
    Row,
    Segment,
    is_damage,
    last_offset,
    list_partitions,
    list_segments,
    lock_file,
    log_identity,
    open_segment,
    quarantine,
    read_rows,
)

log = logging.getLogger(__name__)

_PAUSE_S, _QUIET_PAUSE_S, _QUIET_S = 0.02, 0.05, 1.0
"""Pause between two looks at a log where nothing is new, and between two at one that was quiet for a second. A look costs
some 50 µs a partition."""
_NEW_PARTITIONS_S = 0.25
_NEW_SEGMENT_S = 0.1
_RETRY_S = 1.0
_MAX_DAMAGE = 1000


@dataclass(slots=True)
class _Tail:
    """Where the reader is in one partition."""

    partition: str
    position: int = 0
    segment: Segment | None = None
    connection: sqlite3.Connection | None = None
    blocked_until_s: float = 0.0
    warned_of: int = -1
    newest_at_s: float = 0.0
    """When our segment was last seen, in this poll, to be the newest."""

    def leave(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = self.segment = None
        self.newest_at_s = 0.0


class EmbeddedReader:
    """A `LogReader` under a name of its own. Not thread-safe: one owner, which may be any thread.

    Raises `LogInUse` (an OSError) when another process reads under that name. Without `seek`, a partition is read from
    the oldest entry there is; `released(partition)` is where this reader's last run got to. With `sole` it takes over from
    readers that do not run any more (analytics before Kafka came between, or the other way round) and forgets them.
    """

    def __init__(self, log_dir: Path, name: str, *, sole: bool = False) -> None:
        self._log_dir = log_dir
        self._log_id = log_identity(log_dir)
        self._cursors = Cursors(log_dir, name, sole=sole)
        self._tails: dict[str, _Tail] = {}
        self._last_check_s = self._last_message_s = float("-inf")
        self._turn = 0
        self._damage: list[UnreadableRange] = []
        self._stats = dict.fromkeys(
            ("entries", "bytes", "corrupt_entries", "corrupt_segments", "trimmed_segments"), 0
        )

    @property
    def log_id(self) -> str:
        return self._log_id

    def partitions(self) -> Sequence[str]:
        self._find_partitions()
        return list(self._tails)

    def seek(self, partition: str, offset: int) -> None:
        tail = self._tail(partition)
        tail.leave()
        tail.position, tail.blocked_until_s = max(0, offset), 0.0

    def released(self, partition: str) -> int:
        """Entries before this offset were released, in this run or an earlier one."""
        return self._cursors.get(partition)

    def position(self, partition: str) -> int:
        """The offset from which the next poll reads."""
        return self._tail(partition).position

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
        segments = list_segments(self._log_dir / partition)
        entries: list[Entry] = []
        for segment, newer in zip(segments, [*segments[1:], None], strict=False):
            if segment.first >= end or (newer is not None and newer.first <= start):
                continue
            try:
                with closing(open_segment(segment.path, complete=newer is not None)) as connection:
                    rows, error = read_rows(connection, start, 2**63 - 1, end)
            except FileNotFoundError:
                continue
            except sqlite3.DatabaseError as raised:
                if not segment.path.exists():
                    continue
                rows, error = [], raised
            entries += self._entries(partition, rows, segment.path)
            if error is not None:
                if not is_damage(error):
                    raise LogBroken(f"cannot read {segment.path}: {error}") from error
                at = rows[-1][0] + 1 if rows else max(start, segment.first)
                self._quarantine(partition, segment, newer, at, error)
        return entries

    def end(self, partition: str) -> int:
        for segment in reversed(list_segments(self._log_dir / partition)):
            try:
                with closing(open_segment(segment.path)) as connection:
                    last = last_offset(connection)
            except (FileNotFoundError, sqlite3.Error):
                continue
            if last is not None:
                return last + 1
        return self._tail(partition).position

    def release(self, partition: str, offset: int) -> None:
        self._stats["trimmed_segments"] += self._cursors.advance(partition, offset)

    def take_unreadable(self) -> list[UnreadableRange]:
        """What could not be read since the last call (at most 1000 are remembered)."""
        taken, self._damage = self._damage, []
        return taken

    def stats(self) -> dict[str, int]:
        """Counters since the start."""
        return dict(self._stats)

    def close(self) -> None:
        for tail in self._tails.values():
            tail.leave()
        self._tails.clear()
        self._cursors.close()

    def __enter__(self) -> EmbeddedReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Reading

    def _tail(self, partition: str) -> _Tail:
        return self._tails.setdefault(partition, _Tail(partition))

    def _find_partitions(self) -> None:
        self._last_check_s = time.monotonic()
        for name in list_partitions(self._log_dir):
            self._tail(name)

    def _read(self, max_bytes: int) -> list[Entry]:
        if time.monotonic() - self._last_check_s >= _NEW_PARTITIONS_S:
            self._find_partitions()
        tails = list(self._tails.values())
        if not tails:
            return []
        self._turn = (self._turn + 1) % len(
            tails
        )  # so that a busy partition does not keep the others waiting
        entries: list[Entry] = []
        left = max_bytes
        for tail in tails[self._turn :] + tails[: self._turn]:
            got = self._read_partition(tail, left)
            entries += got
            left -= sum(len(entry.payload) for entry in got)
            if left <= 0:
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
                tail.leave()
                continue
            rows, error = self._rows(tail, max_bytes)
            if rows:
                # An error after these rows comes again, with none before it, on the next read.
                return self._take(tail, rows, segment)
            if error is None and time.monotonic() - tail.newest_at_s < _NEW_SEGMENT_S:
                return []
            newer = next((s for s in list_segments(segment.path.parent) if s.first > segment.first), None)
            if error is not None:
                if not self._pass(tail, segment, newer, error):
                    return []
                continue
            if newer is None:
                tail.newest_at_s = time.monotonic()
                return []
            # It was complete before the newer one was there, but perhaps not yet when we read it.
            rows, error = self._rows(tail, max_bytes)
            if rows:
                return self._take(tail, rows, segment)
            if error is None:
                tail.leave()
                tail.position = max(tail.position, newer.first)

    def _enter(self, tail: _Tail) -> bool:
        """Choose the segment that holds the position, or the first after it; False when there is none yet."""
        segments = list_segments(self._log_dir / tail.partition)
        if not segments:
            return False
        tail.segment = next((s for s in reversed(segments) if s.first <= tail.position), segments[0])
        tail.position = max(tail.position, tail.segment.first)
        return True

    def _rows(self, tail: _Tail, max_bytes: int) -> tuple[list[Row], sqlite3.DatabaseError | None]:
        assert tail.segment is not None
        try:
            if tail.connection is None:
                segments = list_segments(tail.segment.path.parent)
                complete = any(one.first > tail.segment.first for one in segments)
                tail.connection = open_segment(tail.segment.path, complete=complete)
            return read_rows(tail.connection, tail.position, max_bytes)
        except FileNotFoundError:
            return [], None
        except sqlite3.DatabaseError as error:
            return [], error if tail.segment.path.exists() else None

    def _take(self, tail: _Tail, rows: list[Row], segment: Segment) -> list[Entry]:
        sound = [_is_sound(row) for row in rows]
        first = sound.index(True) if True in sound else len(rows)
        cut = sound.index(False, first) if False in sound[first:] else len(rows)
        tail.position = rows[cut][0] if cut < len(rows) else rows[-1][0] + 1
        return self._entries(tail.partition, rows[:cut], segment.path)

    def _entries(self, partition: str, rows: list[Row], path: Path) -> list[Entry]:
        entries = []
        for row in rows:
            offset, payload, _ = row
            if not _is_sound(row):
                self._stats["corrupt_entries"] += 1
                log.error("entry %d of %s is damaged (checksum): left out", offset, path)
                self._report(UnreadableRange(partition, offset, offset + 1, "checksum"))
                continue
            entries.append(Entry(partition, offset, payload))
            self._stats["bytes"] += len(payload)
        self._stats["entries"] += len(entries)
        return entries

    # UnreadableRange

    def _pass(self, tail: _Tail, segment: Segment, newer: Segment | None, error: sqlite3.Error) -> bool:
        """Go past a damaged segment; False when that must wait (its writer still has it, the disk is in trouble)."""
        tail.leave()
        damage = is_damage(error)
        if damage and self._quarantine(tail.partition, segment, newer, tail.position, error):
            tail.position = newer.first if newer is not None else segment.first + SEGMENT_OFFSETS
            return True
        tail.blocked_until_s = time.monotonic() + _RETRY_S
        if tail.warned_of != segment.first:
            tail.warned_of = segment.first
            if damage:
                log.error("segment %s is damaged (%s): waiting for its writer to go on", segment.path, error)
            else:
                log.error("segment %s cannot be read (%s): trying again", segment.path, error)
        return False

    def _quarantine(
        self, partition: str, segment: Segment, newer: Segment | None, at: int, error: sqlite3.Error
    ) -> bool:
        if newer is None:
            try:
                lock = lock_file(segment.path.parent / "lock", "its writer lives", wait=False)
            except LogInUse:
                return False
            try:
                aside = quarantine(segment)
            finally:
                os.close(lock)
        else:
            aside = quarantine(segment)
        end = newer.first if newer is not None else segment.first + SEGMENT_OFFSETS
        self._stats["corrupt_segments"] += 1
        self._report(UnreadableRange(partition, at, end, str(error)))
        log.error(
            "segment %s is damaged (%s): set aside as %s, entries %d to %d of %s cannot be read",
            segment.path,
            error,
            aside.name,
            at,
            end - 1,
            partition,
        )
        return True

    def _report(self, damage: UnreadableRange) -> None:
        if len(self._damage) < _MAX_DAMAGE:
            self._damage.append(damage)


def _is_sound(row: Row) -> bool:
    """Whether an entry is what its writer wrote."""
    _, payload, crc = row
    return isinstance(payload, bytes) and zlib.crc32(payload) == crc

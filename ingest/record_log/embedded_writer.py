"""Append entries to one partition of the embedded log.

Rules
 1. One writer per partition, guarded by a lock that the kernel drops with the process.
 2. An offset that was tried is used up, whether its transaction went through or not.
 3. Segments end by size, by age or by count; the next one begins with the next append, so an idle writer makes none.
 4. The cap is over the whole log. Over it, what every reader has released goes first, then files set aside, then
    the oldest unread segment: those of partitions without a writer before our own. Before a segment goes,
    the ranges of every stream in it are appended to the same partition as `Lost`. A log that holds little but such
    losses refuses.
 5. A segment that nobody has read for `max_age_s` goes the same way (in a partition without a writer, too).
 6. After an error the writer is usable: the next append tries again, in a new segment if this one is in doubt.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType

from ingest.private_files import make_private_folder
from ingest.record_log.interface import LogBroken, LogFull, LogInUse
from ingest.record_log.reader_cursors import highest_cursor, lowest_cursor, trim
from ingest.record_log.segment_ages import SegmentAges
from ingest.record_log.segment_losses import lost_entries, ranges_in
from ingest.record_log.segments import (
    PAGE_BYTES,
    SEGMENT_OFFSETS,
    Segment,
    check_partition,
    create_segment,
    insert_entries,
    is_damage,
    last_offset,
    list_partitions,
    list_quarantined,
    list_segments,
    lock_file,
    log_bytes,
    log_identity,
    open_segment,
    quarantine,
    remove_files,
    remove_partial_files,
    seal,
    sealed_at,
    sync_folder,
)

log = logging.getLogger(__name__)

_SCAN_S = 1.0
"""How old our sum of the log's bytes may be: other workers write too."""

_COUNTED = (
    "entries", "bytes", "segments", "trimmed_segments", "dropped_segments", "dropped_entries", "dropped_records",
    "dropped_bytes", "refused_entries", "failed_entries", "corrupt_segments",
)  # fmt: skip


class EmbeddedWriter:
    """A `LogWriter` for one partition. Not thread-safe: one owner.

    Raises `LogInUse` (an OSError) when another writer has the partition, `LogBroken` when the folder is no log of
    ours, OSError when it cannot be written.
    """

    def __init__(
        self,
        log_dir: Path,
        partition: str,
        *,
        cap_bytes: int,
        max_age_s: float | None = None,
        segment_bytes: int = 16 * 2**20,
        segment_age_s: float = 60.0,
        sync_s: float = 1.0,
        wait: bool = True,
    ) -> None:
        self._log_dir, self._partition = log_dir, check_partition(partition)
        self._folder = log_dir / partition
        self._cap_bytes, self._max_age_s = cap_bytes, max_age_s
        self._ages = SegmentAges()
        # Eighths, so that a drop takes an eighth of the log and not all of it.
        self._segment_bytes = max(1, min(segment_bytes, cap_bytes // 8))
        self._segment_age_s, self._sync_s = segment_age_s, sync_s
        self.log_id = log_identity(log_dir)
        make_private_folder(self._folder)
        sync_folder(log_dir)  # were the folder lost with the power, its offsets would begin again
        self._lock = lock_file(
            self._folder / "lock", f"another process already writes {self._folder}", wait=wait
        )
        self._segment: Segment | None = None
        self._connection: sqlite3.Connection | None = None
        self._wal = -1
        self._next = 0
        self._began_s = self._synced_s = 0.0
        self._written_bytes = 0
        self._scanned_s, self._scanned_bytes, self._since_scan_bytes = float("-inf"), 0, 0
        self._stats = dict.fromkeys(_COUNTED, 0)
        try:
            remove_partial_files(self._folder)
            self._next = self._continue_at()
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def next_offset(self) -> int:
        """The offset that the next entry will have."""
        return self._next

    def append(self, payloads: Sequence[bytes]) -> None:
        """Append entries in order, as one transaction; on return they survive a kill of the process.

        Raises `LogFull` by policy, else OSError (no space, bad disk); none of `payloads` is to be counted on then.
        """
        if not payloads:
            return
        if len(payloads) > SEGMENT_OFFSETS:
            raise ValueError(f"one append takes at most {SEGMENT_OFFSETS} entries")
        size = sum(map(len, payloads))
        try:
            self._make_room(size, len(payloads))
            self._insert(payloads, size)
        except LogFull:
            raise
        except (OSError, sqlite3.Error) as error:
            self._stats["failed_entries"] += len(payloads)
            if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_FULL:
                self._close_segment()  # in doubt; a full disk only rolls the transaction back
            raise _translated(error, self._folder) from error
        self._stats["entries"] += len(payloads)
        self._stats["bytes"] += size

    def stats(self) -> dict[str, int]:
        """Counters since the start, and `log_bytes`: all segments of the log as last summed, plus ours since."""
        return {**self._stats, "log_bytes": self._scanned_bytes + self._since_scan_bytes}

    def close(self) -> None:
        """Seal the segment and let the partition go. Safe to call twice."""
        if self._lock < 0:
            return
        try:
            self._roll()
        finally:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> EmbeddedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Where to go on

    def _continue_at(self) -> int:
        """The first offset that was surely never given."""
        segments, aside = list_segments(self._folder), list_quarantined(self._folder)
        at = highest_cursor(self._log_dir, self._partition)
        at = max([at, *(segment.first + SEGMENT_OFFSETS for segment in aside)])
        if segments:
            newest = segments[-1]
            try:
                with closing(open_segment(newest.path)) as connection:
                    last, sealed = last_offset(connection), sealed_at(connection)
                if sealed is not None and (last is None or last < sealed):
                    return max(at, sealed)
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise _translated(error, self._folder) from error
                self._quarantine(newest, error)
            at = max(at, newest.first + SEGMENT_OFFSETS)
        return at

    # Writing

    def _insert(self, payloads: Sequence[bytes], size: int) -> None:
        connection = self._writable(len(payloads))
        first, self._next = self._next, self._next + len(payloads)
        try:
            insert_entries(connection, first, payloads)
        except sqlite3.DatabaseError as error:
            if not is_damage(error) or self._segment is None:
                raise
            damaged = self._segment
            self._close_segment()
            self._quarantine(damaged, error)
            connection = self._writable(len(payloads))
            first, self._next = self._next, self._next + len(payloads)
            insert_entries(connection, first, payloads)
        self._written_bytes += size
        self._since_scan_bytes += size
        self._sync()

    def _writable(self, count: int) -> sqlite3.Connection:
        segment = self._segment
        if segment is not None and (
            self._written_bytes >= self._segment_bytes
            or time.monotonic() - self._began_s >= self._segment_age_s
            or self._next + count > segment.first + SEGMENT_OFFSETS
            or not segment.path.exists()
        ):
            self._roll()
        if self._connection is None:
            make_private_folder(self._folder)
            self._segment, self._connection = create_segment(self._folder, self._next, self._segment_bytes)
            self._began_s = self._synced_s = time.monotonic()
            self._written_bytes = 0
            self._stats["segments"] += 1
            self._stats["trimmed_segments"] += trim(self._log_dir, self._partition)
        return self._connection

    def _sync(self) -> None:
        """Flush the -wal at the pace of `sync_s`: what is flushed survives the loss of power."""
        now_s = time.monotonic()
        if now_s - self._synced_s < self._sync_s:
            return
        self._synced_s = now_s
        if self._wal < 0 and self._segment is not None:
            # Plain descriptors are safe on the -wal: SQLite's locks are on the -shm.
            self._wal = os.open(f"{self._segment.path}-wal", os.O_RDWR | os.O_CLOEXEC)
        os.fdatasync(self._wal)

    def _roll(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            seal(connection, self._next)
        except sqlite3.Error as error:
            # Unsealed, the segment keeps its whole range of offsets: so must the one after it.
            log.warning("could not seal %s: %s", self._segment.path if self._segment else "a segment", error)
        finally:
            self._close_segment()

    def _close_segment(self) -> None:
        """Close the segment as it is. The next append makes a new one, past this one's whole range."""
        if self._wal >= 0:
            os.close(self._wal)
            self._wal = -1
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = self._segment = None

    def _quarantine(self, segment: Segment, error: BaseException) -> None:
        aside = quarantine(segment)
        self._stats["corrupt_segments"] += 1
        self._next = max(self._next, segment.first + SEGMENT_OFFSETS)
        log.error("segment %s is damaged (%s): set aside as %s", segment.path, error, aside.name)

    # Room

    def _make_room(self, size: int, count: int) -> None:
        now_s = time.monotonic()
        if now_s - self._scanned_s >= _SCAN_S or self._since_scan_bytes >= self._segment_bytes:
            self._scan()
            if self._max_age_s is not None:
                self._drop_aged(self._max_age_s)
        if not self._over_cap(size):
            return
        for partition in list_partitions(self._log_dir):
            self._stats["trimmed_segments"] += trim(self._log_dir, partition)
        self._scan()
        while self._over_cap(size):
            if not self._free_space():
                self._stats["refused_entries"] += count
                raise LogFull(
                    f"the log {self._log_dir} has reached its cap of {self._cap_bytes} bytes: "
                    "start what reads it, or raise the cap"
                )
            self._scan()

    def _over_cap(self, size: int) -> bool:
        return self._scanned_bytes + self._since_scan_bytes + size > self._cap_bytes

    def _scan(self) -> None:
        self._scanned_bytes, self._since_scan_bytes = log_bytes(self._log_dir), 0
        self._scanned_s = time.monotonic()

    def _free_space(self) -> bool:
        """Unlink one thing; False when there is nothing that may go."""
        for partition in list_partitions(self._log_dir):
            for aside in list_quarantined(self._log_dir / partition)[:1]:
                log.warning("removing %s to make room in the log", aside.path)
                remove_files(aside.path)
                return True
        others = (name for name in list_partitions(self._log_dir) if name != self._partition)
        return any(self._drop_in(other, "log_full") for other in others) or self._drop_oldest("log_full")

    def _drop_aged(self, max_age_s: float) -> None:
        complete: list[Path] = []
        for partition in list_partitions(self._log_dir):
            ours = partition == self._partition
            for segment in list_segments(self._log_dir / partition)[:-1]:
                complete.append(segment.path)
                if self._ages.age_s(segment.path) <= max_age_s:
                    break
                self._stats["trimmed_segments"] += trim(self._log_dir, partition)
                if not segment.path.exists():
                    continue
                if not (self._drop_oldest("log_aged") if ours else self._drop_in(partition, "log_aged")):
                    self._ages.renew(segment.path)  # it holds but losses: no need to read it every second
                    break
        self._ages.keep(complete)

    def _drop_in(self, partition: str, cause: str) -> bool:
        """Drop the oldest segment of a partition that nobody writes any more."""
        if len(list_segments(self._log_dir / partition)) < 2:
            return False
        try:
            orphan = EmbeddedWriter(
                self._log_dir,
                partition,
                cap_bytes=self._cap_bytes,
                segment_bytes=self._segment_bytes,
                sync_s=self._sync_s,
                wait=False,
            )
        except LogInUse:
            return False
        with orphan:
            dropped = orphan._drop_oldest(cause)
        for name in ("dropped_segments", "dropped_entries", "dropped_records", "dropped_bytes"):
            self._stats[name] += orphan._stats[name]
        return dropped

    def _drop_oldest(self, cause: str) -> bool:
        """Drop our oldest segment; False when that would tell more than it holds."""
        segments = list_segments(self._folder)
        if len(segments) < 2:
            return False
        oldest = segments[0]
        unread_from = lowest_cursor(self._log_dir, self._partition) or 0
        ranges, counts, error = ranges_in(oldest.path, unread_from)
        if error is not None:
            log.error("segment %s is damaged (%s) and was to be dropped", oldest.path, error)
            self._stats["corrupt_segments"] += 1
        told = lost_entries(ranges, cause, time.time_ns())
        told_bytes = sum(map(len, told))
        if 2 * told_bytes > max(counts.bytes, PAGE_BYTES):
            return False  # it holds little but losses told before: dropping it would only write them again
        if told:
            self._insert(told, told_bytes)
        self._stats["dropped_segments"] += 1
        self._stats["dropped_entries"] += counts.entries
        self._stats["dropped_records"] += counts.records
        self._stats["dropped_bytes"] += counts.bytes
        log.error(
            "the log %s %s: dropped %s with %d unread records of %d streams",
            self._log_dir,
            f"is full ({self._cap_bytes} bytes)" if cause == "log_full" else "has not been read for too long",
            oldest.path,
            counts.records,
            len(ranges),
        )
        remove_files(oldest.path)
        return True


def _translated(error: OSError | sqlite3.Error, folder: Path) -> OSError | LogBroken:
    """What the disk said, as an OSError; anything else as LogBroken with the way out."""
    if isinstance(error, OSError):
        return error
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return OSError(errno.ENOSPC, "no space left for the log", str(folder))
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return OSError(errno.EIO, f"the log cannot be written ({error})", str(folder))
    if code == sqlite3.SQLITE_READONLY:
        return OSError(errno.EROFS, "the log cannot be written: read-only", str(folder))
    return LogBroken(
        f"the log in {folder} cannot be written ({error}): check the disk, or move the folder away"
    )

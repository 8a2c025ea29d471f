"""Append entries to one partition of the embedded log.

Durability
- After `append` returned, entries survive a kill of the process (`kill -9`): the transaction is in the page cache.
- A power cut can lose the entries of the last `sync_s` seconds (1 by default) plus the time to the next append: segments use
  `synchronous=NORMAL`, and the writer flushes the `-wal` at that interval. The entries that survive have no gap, because
  SQLite's checksums end the `-wal` at the first page that did not reach the disk.
- Sealed segments (full, or closed by a clean stop) are flushed.
- An offset is never reused, even if a power cut removed an entry that a reader had seen.

Rules
 1. One writer per partition, guarded by a lock that the kernel releases with the process.
 2. An append uses up its offsets, even if its transaction fails.
 3. A segment ends by size, age or number of entries. The next append creates the next one, so an idle writer creates none.
 4. The cap applies to the whole log. Over it, segments that every reader has released are deleted first, then quarantined
    ones, then the oldest unread segment, in partitions without a writer before our own. Before an unread segment is deleted,
    its ranges are appended to the same partition as `Lost`. A segment that contains mostly `Lost` is kept, and appends fail.
 5. A segment that stays unread for `max_age_s` is deleted the same way, also in a partition without a writer.
 6. After an error the writer is usable. The next append tries again, in a new segment if the current one may be damaged.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path

from streamgauge.ingest.private_files import make_private_folder
from streamgauge.ingest.record_log.interface import LogBroken, LogFull, LogInUse
from streamgauge.ingest.record_log.reader_cursors import highest_cursor, lowest_cursor, trim
from streamgauge.ingest.record_log.segments import (
    PAGE_BYTES,
    SEGMENT_OFFSETS,
    Segment,
    check_partition,
    create_segment,
    folder_bytes,
    insert_entries,
    is_damage,
    last_offset,
    list_partitions,
    list_quarantined,
    list_segments,
    lock_file,
    log_bytes,
    log_identity,
    lost_entries,
    open_segment,
    quarantine,
    ranges_in,
    remove_files,
    remove_partial_files,
    seal,
    sealed_at,
    sync_folder,
)
from streamgauge.ingest.system_files import flush_data

log = logging.getLogger(__name__)

_SCAN_S = 1.0
"""Interval at which the log's size is measured. Other workers write too."""

_COUNTED = (
    "trimmed_segments", "dropped_segments", "dropped_records", "dropped_bytes", "refused_entries", "failed_entries", "corrupt_segments",
)  # fmt: skip


class EmbeddedWriter(AbstractContextManager["EmbeddedWriter"]):
    """A `LogWriter` for one partition. Not thread-safe: one owner.

    Raises `LogInUse` (an OSError) when another process writes the partition, `LogBroken` when the folder is not a log,
    OSError when it cannot be written.
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
        # At most an eighth of the cap, so a dropped segment is at most an eighth of the log.
        self._segment_bytes = max(1, min(segment_bytes, cap_bytes // 8))
        self._segment_age_s, self._sync_s = segment_age_s, sync_s
        self.log_id = log_identity(log_dir)
        make_private_folder(self._folder)
        sync_folder(log_dir)  # if a power cut removed the folder, offsets would be reused
        self._lock = lock_file(
            self._folder / "lock", f"another process already writes {self._folder}", wait=wait
        )
        self._segment: Segment | None = None
        self._connection: sqlite3.Connection | None = None
        self._wal = -1
        self.next_offset = 0
        """The offset that the next entry will have."""
        self._failed_offset = -1
        """Where the last segment that could not be created begins."""
        self._began_s = self._synced_s = 0.0
        self._written_bytes = 0
        self._scanned_s, self._scanned_bytes, self._since_scan_bytes = float("-inf"), 0, 0
        self._stats = dict.fromkeys(_COUNTED, 0)
        try:
            remove_partial_files(self._folder)
            self.next_offset = self._continue_at()
        except BaseException:
            os.close(self._lock)
            raise

    def append(self, payloads: Sequence[bytes]) -> None:
        """See `LogWriter`. Raises `LogFull` at the cap, OSError for a full or failing disk; the entries may be lost then."""
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
            # A new segment costs an fsync and a file. A full disk would get one at every retry, although nothing is
            # wrong with the segment.
            if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_FULL:
                self._close_segment()  # the segment may be damaged; a full disk only rolls back
            raise _translated(error, self._folder) from error
        except BaseException:
            self._close_segment()
            raise

    def stats(self) -> dict[str, int]:
        """Counters since the start, and `log_bytes`: the size of the log at the last scan plus our later appends."""
        return {**self._stats, "log_bytes": self._scanned_bytes + self._since_scan_bytes}

    def close(self) -> None:
        """Seal the segment and release the partition. Safe to call twice."""
        if self._lock < 0:
            return
        try:
            self._roll()
        finally:
            os.close(self._lock)
            self._lock = -1

    def __exit__(self, *error: object) -> None:
        self.close()

    # Start

    def _continue_at(self) -> int:
        """The first offset that was certainly never used."""
        segments, quarantined = list_segments(self._folder), list_quarantined(self._folder)
        at = highest_cursor(self._log_dir, self._partition)
        at = max([at, *(segment.first + SEGMENT_OFFSETS for segment in quarantined)])
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
        # Used up before the transaction: if its outcome is unknown, the offsets may exist, and a reader may have seen
        # them.
        first, self.next_offset = self.next_offset, self.next_offset + len(payloads)
        try:
            insert_entries(connection, first, payloads)
        except sqlite3.DatabaseError as error:
            if not is_damage(error) or self._segment is None:
                raise
            damaged = self._segment
            self._close_segment()
            self._quarantine(damaged, error)
            connection = self._writable(len(payloads))
            first, self.next_offset = self.next_offset, self.next_offset + len(payloads)
            insert_entries(connection, first, payloads)
        self._written_bytes += size
        self._since_scan_bytes += size
        self._sync()

    def _writable(self, count: int) -> sqlite3.Connection:
        segment = self._segment
        if segment is not None and (
            self._written_bytes >= self._segment_bytes
            or time.monotonic() - self._began_s >= self._segment_age_s
            or self.next_offset + count > segment.first + SEGMENT_OFFSETS
            or not segment.path.exists()
        ):
            self._roll()
        if self._connection is None:
            make_private_folder(self._folder)
            try:
                self._segment, self._connection = create_segment(
                    self._folder, self.next_offset, self._segment_bytes,
                    again=self.next_offset == self._failed_offset,
                )  # fmt: skip
                self._began_s = self._synced_s = time.monotonic()
                self._written_bytes = 0
                self._stats["trimmed_segments"] += trim(self._log_dir, self._partition)
            except LogBroken:
                raise
            except BaseException:
                self._failed_offset = self.next_offset
                raise
        return self._connection

    def _sync(self) -> None:
        """Flush the -wal every `sync_s` seconds. Flushed entries survive a power cut."""
        now_s = time.monotonic()
        if now_s - self._synced_s < self._sync_s:
            return
        self._synced_s = now_s
        if self._wal < 0 and self._segment is not None:
            # A plain descriptor is safe here: SQLite locks the -shm, not the -wal.
            self._wal = os.open(f"{self._segment.path}-wal", os.O_RDWR | os.O_CLOEXEC)
        flush_data(self._wal)

    def _roll(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            seal(connection, self.next_offset)
        except sqlite3.Error as error:
            # An unsealed segment keeps its whole range of offsets: the next one starts after it.
            log.warning("cannot seal %s: %s", self._segment.path if self._segment else "a segment", error)
        finally:
            self._close_segment()

    def _close_segment(self) -> None:
        """Close the segment unsealed. The next append creates one after its range of offsets."""
        if self._wal >= 0:
            os.close(self._wal)
            self._wal = -1
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = self._segment = None

    def _quarantine(self, segment: Segment, error: BaseException) -> None:
        quarantined = quarantine(segment)
        self._stats["corrupt_segments"] += 1
        self.next_offset = max(self.next_offset, segment.first + SEGMENT_OFFSETS)
        log.error("segment %s is damaged (%s): renamed to %s", segment.path, error, quarantined.name)

    # Space

    def _make_room(self, size: int, count: int) -> None:
        now_s = time.monotonic()
        # The size is measured, not counted: other workers write too, and readers delete. Between two scans only our own
        # appends are added.
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
                    "start its reader or raise the cap"
                )
            self._scan()

    def _over_cap(self, size: int) -> bool:
        return self._scanned_bytes + self._since_scan_bytes + size > self._cap_bytes

    def _scan(self) -> None:
        self._scanned_bytes, self._since_scan_bytes = log_bytes(self._log_dir), 0
        self._scanned_s = time.monotonic()

    def _free_space(self) -> bool:
        """Delete one segment. False: none may be deleted."""
        for partition in list_partitions(self._log_dir):
            # First what nobody can read any more.
            for segment in list_quarantined(self._log_dir / partition)[:1]:
                log.warning("deleting %s to free space in the log", segment.path)
                remove_files(segment.path)
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
                    self._ages.renew(segment.path)  # it has mostly losses: do not read it again every second
                    break
        self._ages.keep(complete)

    def _drop_in(self, partition: str, cause: str) -> bool:
        """Drop the oldest segment of a partition without a writer. For space, drop more until the partition is smaller."""
        folder = self._log_dir / partition
        complete, before_bytes = list_segments(folder)[:-1], folder_bytes(folder)
        if not complete:
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
        dropped = False
        with orphan:
            for _ in complete:
                dropped = orphan._drop_oldest(cause)
                if cause != "log_full" or not dropped:
                    break
                # The report starts a segment, which can be as large as a small one that was dropped. Without this check,
                # a partition with losses only would be rewritten without end.
                dropped = folder_bytes(folder) < before_bytes
                if dropped:
                    break
        for name in ("dropped_segments", "dropped_records", "dropped_bytes"):
            self._stats[name] += orphan._stats[name]
        return dropped

    def _drop_oldest(self, cause: str) -> bool:
        """Drop our oldest segment. False: its losses would take as much space as the segment."""
        segments = list_segments(self._folder)
        if len(segments) < 2:
            return False
        oldest = segments[0]
        unread_from = lowest_cursor(self._log_dir, self._partition) or 0
        ranges, counts, error = ranges_in(oldest.path, unread_from)
        if error is not None:
            log.error("segment %s, which is about to be dropped, is damaged (%s)", oldest.path, error)
            self._stats["corrupt_segments"] += 1
        losses = lost_entries(ranges, cause, time.time_ns())
        losses_bytes = sum(map(len, losses))
        # Otherwise a log full of losses would be rewritten over and over without ever becoming smaller.
        if 2 * losses_bytes > max(counts.bytes, PAGE_BYTES):
            return False  # it contains mostly losses, which would only be written again
        # Reported before the segment is deleted: after a kill in between, a stream has both its records and the loss,
        # and analytics keeps the records.
        if losses:
            self._insert(losses, losses_bytes)
        self._stats["dropped_segments"] += 1
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
    """Translate disk errors to OSError, all others to LogBroken."""
    if isinstance(error, OSError):
        if error.filename is None:  # of an open file
            error.filename = str(folder)
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


# A segment from an earlier run starts with the age of its file by the wall clock. From then on CLOCK_MONOTONIC is used: a clock step
# would otherwise make every segment old at once, and unread ones would be dropped. A file with a future time counts as new.
class SegmentAges:
    """Ages of the segments that one writer sees."""

    def __init__(self) -> None:
        self._ended_s: dict[Path, float] = {}

    def age_s(self, path: Path) -> float:
        """Seconds since the newest entry of a complete segment; 0 when the segment is deleted."""
        now_s = time.monotonic()
        if path not in self._ended_s:
            try:
                written_s = path.stat().st_mtime
            except FileNotFoundError:
                return 0.0
            self._ended_s[path] = now_s - max(0.0, time.time() - written_s)
        return now_s - self._ended_s[path]

    def renew(self, path: Path) -> None:
        """Treat the segment as new."""
        self._ended_s[path] = time.monotonic()

    def keep(self, paths: Iterable[Path]) -> None:
        """Remove all other segments from the table."""
        self._ended_s = {path: self._ended_s[path] for path in paths if path in self._ended_s}

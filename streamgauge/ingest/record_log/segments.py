"""Segments of the embedded log: SQLite files in WAL mode, each filled by one run of one writer.

Layout
    <log>/id                        UUID of this log: offsets belong to it
    <log>/w<N>/lock                 flock held by the partition's writer
    <log>/w<N>/<offset>.sqlite      segment, named by its first offset (20 digits), with its `-wal` and `-shm`
    <log>/w<N>/<offset>.sqlite.corrupt   quarantined segment, deleted first when space is needed
    <log>/readers/<name>.json       positions of a reader (`streamgauge.ingest.record_log.reader_cursors`)

Rules
 1. A segment is created under another name and renamed. So an empty or incomplete file is damaged.
 2. Only the run that created a segment writes it. A writer that starts creates a new segment. `replace_segment` renames a changed
    copy over it.
 3. A segment owns the offsets [first, first + SEGMENT_OFFSETS). A writer that finds the newest segment unsealed (after a kill
    or a power cut) continues after that range. So an offset that a reader may have seen is never reused.
 4. The main file is deleted before its `-wal`, so it cannot be opened without the content of the `-wal`.
 5. Files have mode 0600 and folders 0700: segments contain prompts.

No process may open a segment's main file except through SQLite: closing a plain descriptor drops the locks that SQLite holds
on the file in the same process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sqlite3
import time
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from streamgauge.ingest.private_files import make_private_folder
from streamgauge.ingest.record_log.interface import LogBroken, LogInUse
from streamgauge.ingest.records import Alive, AnyRecord, Damaged, Frames, Lost, Request, pack, unpack

SEGMENT_OFFSETS = 2**20
"""Offsets that a segment owns. Its size limit is reached first: 16 MiB are this many entries of 16 bytes."""

PAGE_BYTES = 8192
WAL_BYTES = 4 * 2**20
"""SQLite moves a -wal to the main file when it reaches a quarter of the segment's size, or this if that is less."""

_SEGMENT = re.compile(r"(\d{20})\.sqlite")
_QUARANTINED = re.compile(r"(\d{20})\.sqlite\.corrupt")
_PARTITION = re.compile(r"w\d{1,6}")
_LOCK_TRIES, _LOCK_PAUSE_S = 20, 0.05

Row = tuple[int, bytes, int]
"""(offset, payload, CRC-32 of the payload)."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment in its folder."""

    first: int
    path: Path


def log_identity(log_dir: Path) -> str:
    """UUID of the log. The first process creates it."""
    make_private_folder(log_dir)
    path = log_dir / "id"
    try:
        return str(uuid.UUID(path.read_text().strip()))
    except FileNotFoundError:
        pass
    except ValueError:
        raise LogBroken(f"{path} is not a UUID: move the folder {log_dir} away to start a new log") from None
    # Written under another name and linked: a reader never sees an empty file, and of two processes that start at the
    # same time one id wins.
    temporary = log_dir / f".id-{uuid.uuid4()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, f"{uuid.uuid4()}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.link(temporary, path)  # fails when another process was first: its id counts
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    sync_folder(log_dir)
    return log_identity(log_dir)


def check_partition(name: str) -> str:
    """The name. Raises ValueError for an invalid one."""
    if not _PARTITION.fullmatch(name):
        raise ValueError(f"invalid partition {name!r} of the embedded log: use w0, w1 …")
    return name


def list_partitions(log_dir: Path) -> list[str]:
    """Existing partitions, in order of their numbers."""
    try:
        names = [name for name in os.listdir(log_dir) if _PARTITION.fullmatch(name)]
    except FileNotFoundError:
        return []
    return sorted(names, key=lambda name: int(name[1:]))


def list_segments(folder: Path) -> list[Segment]:
    """Segments of a partition, oldest first."""
    return _listed(folder, _SEGMENT)


def list_quarantined(folder: Path) -> list[Segment]:
    """Damaged segments in quarantine, oldest first."""
    return _listed(folder, _QUARANTINED)


def _listed(folder: Path, pattern: re.Pattern[str]) -> list[Segment]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = (pattern.fullmatch(name) for name in names)
    return sorted(
        (Segment(int(match[1]), folder / match[0]) for match in found if match),
        key=lambda segment: segment.first,
    )


def folder_bytes(folder: Path) -> int:
    """Bytes of all segments of a partition, including quarantined ones."""
    total = 0
    try:
        with os.scandir(folder) as files:
            for file in files:
                if not file.name.endswith("-shm"):
                    total += _file_bytes(Path(file.path))
    except FileNotFoundError:
        pass
    return total


def log_bytes(log_dir: Path) -> int:
    """Bytes of all segments of all partitions."""
    return sum(folder_bytes(log_dir / name) for name in list_partitions(log_dir))


def create_segment(
    folder: Path, first: int, target_bytes: int, *, again: bool = False
) -> tuple[Segment, sqlite3.Connection]:
    """Create a segment for about `target_bytes` and open it for writing. Raises OSError or sqlite3.Error.

    `again`: the same call has failed before, and the segment may be there, without entries. A reader may have it open.
    """
    final = folder / f"{first:020d}.sqlite"
    if not final.exists():
        temporary = _temporary(folder, first)
        try:
            with closing(_create_tables(temporary)) as created:
                # `close` ignores errors: the tables would stay in a -wal that the new name does not have.
                created.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            temporary.rename(final)
        except BaseException:
            remove_files(temporary)
            raise
    elif not again:
        raise LogBroken(f"{final} exists already: offsets would be used twice")
    sync_folder(folder)
    connection = _connect(final, "rw")
    # No flush for each transaction: an append would wait for the disk. What a power cut may cost is in
    # `embedded_writer`.
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint={max(8, min(WAL_BYTES, target_bytes // 4) // PAGE_BYTES)}")
    # Half a MiB instead of two: entries are written once and read once, so a cache of pages is never hit.
    connection.execute("PRAGMA cache_size=-512")
    return Segment(first, final), connection


def _temporary(folder: Path, first: int) -> Path:
    return folder / f".new-{first:020d}"


def _create_tables(path: Path) -> sqlite3.Connection:
    """An empty segment."""
    remove_files(path)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    connection = _connect(path, "rw")
    try:
        # Before WAL mode: SQLite fixes the page size with the first page. Larger pages than the default fit entries
        # of tens of KiB into fewer overflow pages.
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(
            "CREATE TABLE entry (offset INTEGER PRIMARY KEY, appended_at INTEGER NOT NULL,"
            " payload BLOB NOT NULL, crc INTEGER NOT NULL)"
        )
        connection.execute("CREATE TABLE sealed (next_offset INTEGER NOT NULL)")
    except BaseException:
        connection.close()
        raise
    return connection


def replace_segment(segment: Segment, payloads: Mapping[int, bytes]) -> None:
    """Replace payloads by offset, atomically. Requires that nobody writes the segment. Raises OSError or LogBroken.

    Other readers keep the file that they have open.
    """
    path, temporary = segment.path, _temporary(segment.path.parent, segment.first)
    written = path.stat()
    try:
        with closing(_connect(path, "rw")) as old, closing(_create_tables(temporary)) as new:
            # A -wal with content would be applied to the file that replaces this one.
            [(is_busy, _, _)] = old.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if is_busy:
                raise LogBroken(f"cannot change {path}: another process reads it. Try again")
            new.execute("BEGIN IMMEDIATE")
            new.executemany(
                "INSERT INTO entry VALUES (?, ?, ?, ?)",
                (
                    (row[0], row[1], found, zlib.crc32(found))
                    if (found := payloads.get(row[0])) is not None
                    else row
                    for row in old.execute(
                        "SELECT offset, appended_at, payload, crc FROM entry ORDER BY offset"
                    )
                ),
            )
            new.executemany("INSERT INTO sealed VALUES (?)", old.execute("SELECT next_offset FROM sealed"))
            new.execute("COMMIT")
            new.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        os.utime(temporary, ns=(written.st_atime_ns, written.st_mtime_ns))  # the age of the segment
        temporary.replace(path)
        sync_folder(path.parent)
    except sqlite3.Error as error:
        raise LogBroken(f"cannot change {path}: {error}") from error
    finally:
        remove_files(temporary)


def insert_entries(connection: sqlite3.Connection, first: int, payloads: Sequence[bytes]) -> None:
    """Append entries with offsets from `first` on, in one transaction."""
    now_ns = time.time_ns()
    # SQLite's own pages have no checksum in the main file. A flipped bit would otherwise be read as a record.
    rows = [
        (offset, now_ns, payload, zlib.crc32(payload)) for offset, payload in enumerate(payloads, start=first)
    ]
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.executemany("INSERT INTO entry VALUES (?, ?, ?, ?)", rows)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def seal(connection: sqlite3.Connection, next_offset: int) -> None:
    """Mark the segment as complete, durably. `next_offset` is where the next segment starts."""
    # A sealed segment is promised to survive a power cut, so this one commit waits for the disk.
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("INSERT INTO sealed VALUES (?)", (next_offset,))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def sealed_at(connection: sqlite3.Connection) -> int | None:
    """The offset after this segment. None: it was never sealed."""
    row = connection.execute("SELECT max(next_offset) FROM sealed").fetchone()
    return None if row[0] is None else int(row[0])


def open_segment(path: Path, *, complete: bool = False) -> sqlite3.Connection:
    """Open a segment for reading. Raises FileNotFoundError when it is deleted, else sqlite3.Error.

    Reading in WAL mode creates a `-shm`, which fails on a full disk. Reading must work there, because it releases segments. So
    a complete segment (a newer one exists) with an empty `-wal` is opened as immutable. Where the `-shm` cannot be created,
    the segment is opened exclusively, with the index of the `-wal` in memory.
    """
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "segment is deleted", str(path))
    if complete and _file_bytes(_with_suffix(path, "-wal")) == 0:
        return _connect(path, "ro&immutable=1")
    connection = _connect(path, "ro")
    try:
        connection.execute("SELECT 1 FROM entry LIMIT 1")
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_CANTOPEN,
        ):
            return connection  # damage is reported when rows are read
        connection.close()
        connection = _connect(path, "rw")
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
    except sqlite3.DatabaseError:
        pass
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    # One owner at a time, but not always the thread that opened it.
    connection = sqlite3.connect(
        f"file:{_quoted(path)}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=5.0,
    )
    connection.execute("PRAGMA cell_size_check=ON")
    return connection


def _quoted(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def read_rows(
    connection: sqlite3.Connection, start: int, max_bytes: int, end: int = 2**63 - 1
) -> tuple[list[Row], sqlite3.DatabaseError | None]:
    """(rows with start ≤ offset < end, error). At least one row if there is one, then up to `max_bytes`.

    An error after the first rows is returned with them.
    """
    rows: list[Row] = []
    size = 0
    cursor = connection.cursor()
    try:
        cursor.execute(
            "SELECT offset, payload, crc FROM entry WHERE offset >= ? AND offset < ? ORDER BY offset",
            (start, end),
        )
        for row in cursor:
            rows.append(row)
            size += len(row[1])
            if size >= max_bytes:
                break
    except sqlite3.DatabaseError as error:
        return rows, error
    finally:
        cursor.close()  # end the read transaction: it keeps the -wal from restarting
    return rows, None


def last_offset(connection: sqlite3.Connection) -> int | None:
    """Offset of the newest entry."""
    row = connection.execute("SELECT max(offset) FROM entry").fetchone()
    return None if row[0] is None else int(row[0])


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is damaged (and the cause is not the disk, a lock or the number of open files).

    SQLITE_ERROR is damage too: our statements are valid, so the table is missing.
    """
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return False
    return code & 0xFF in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_MISMATCH,
    )


def quarantine(segment: Segment) -> Path:
    """Rename a damaged segment, so it is not opened again. The new name still has its first offset."""
    quarantined = segment.path.with_name(segment.path.name + ".corrupt")
    for suffix in ("", "-wal"):
        try:
            _with_suffix(segment.path, suffix).rename(_with_suffix(quarantined, suffix))
        except FileNotFoundError:
            continue
    _with_suffix(segment.path, "-shm").unlink(missing_ok=True)
    return quarantined


def remove_files(path: Path) -> None:
    """Delete a segment, main file first (rule 4). Missing files are ignored."""
    for suffix in ("", "-wal", "-shm"):
        _with_suffix(path, suffix).unlink(missing_ok=True)


def remove_partial_files(folder: Path) -> None:
    """Delete incomplete segments, and the -wal and -shm of deleted segments. Only for the writer, under its lock."""
    for path in folder.iterdir():
        base = path.name.removesuffix("-wal").removesuffix("-shm")
        if path.name.startswith(".new-") or (base != path.name and not (folder / base).exists()):
            path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush the folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_file(path: Path, message: str, *, wait: bool = True) -> int:
    """Take the flock on a file, which is created if needed. Closing the returned descriptor releases it. Raises LogInUse.

    `wait`: retry for a second, because another process holds the lock for a moment while it quarantines a segment.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    for attempt in range(_LOCK_TRIES if wait else 1):
        if attempt:
            time.sleep(_LOCK_PAUSE_S)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor
    os.close(descriptor)
    raise LogInUse(message)


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


_READ_BYTES = 4 * 2**20
_PER_ENTRY = 1000
"""`Lost` records in one entry, about 100 bytes each."""


@dataclass(slots=True)
class LostRange:
    """The records [first, last] of one stream, and the captured body bytes in them."""

    first: int
    last: int
    bytes: int
    closed: bool = False
    """The range includes the stream's last record."""


@dataclass(slots=True)
class Counts:
    """Totals of a segment's content."""

    entries: int = 0
    records: int = 0
    bytes: int = 0


Ranges = Mapping[str, Sequence[LostRange]]


def captured_bytes(record: AnyRecord) -> int:
    """Body bytes that a record carries."""
    match record:
        case Frames(frames=frames):
            return sum(len(data) for _, data in frames)
        case Request(body=body):
            return len(body)
        case Lost(bytes=size):
            return size
        case _:
            return 0


def add_ranges(ranges: dict[str, list[LostRange]], records: Iterable[AnyRecord]) -> int:
    """Add records to the ranges of their streams. Returns how many records belong to streams."""
    count = 0
    for record in records:
        if isinstance(record, (Alive, Damaged)):
            continue
        count += 1
        last = record.last_seq
        stream_ranges = ranges.setdefault(record.stream, [])
        size = captured_bytes(record)
        if stream_ranges and stream_ranges[-1].first <= record.seq <= stream_ranges[-1].last + 1:
            stream_ranges[-1].last = max(stream_ranges[-1].last, last)
            stream_ranges[-1].bytes += size
        else:
            stream_ranges.append(LostRange(record.seq, last, size))
        stream_ranges[-1].closed |= record.ends_stream
    return count


def ranges_in(path: Path, start: int) -> tuple[Ranges, Counts, sqlite3.Error | None]:
    """Ranges of every stream in a segment's readable entries from `start` on."""
    ranges: dict[str, list[LostRange]] = {}
    counts = Counts()
    try:
        with closing(open_segment(path, complete=True)) as connection:
            while True:
                rows, error = read_rows(connection, start, _READ_BYTES)
                for _, payload, _ in rows:
                    records, _ = unpack(payload)
                    counts.entries += 1
                    counts.bytes += len(payload)
                    counts.records += add_ranges(ranges, records)
                if error is not None or not rows:
                    return ranges, counts, error
                start = rows[-1][0] + 1
    except sqlite3.Error as error:
        return ranges, counts, error


def lost_entries(ranges: Ranges, cause: str, at_wall_ns: int) -> list[bytes]:
    """Entries that report the ranges as `Lost`."""
    records: list[AnyRecord] = [
        Lost(stream, lost.first, lost.last, cause, at_wall_ns, lost.bytes, lost.closed)
        for stream, stream_ranges in ranges.items()
        for lost in stream_ranges
    ]
    return [pack(records[at : at + _PER_ENTRY], compress=True) for at in range(0, len(records), _PER_ENTRY)]

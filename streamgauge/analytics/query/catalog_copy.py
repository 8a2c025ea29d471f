"""A private copy of the SQLite catalog, for processes that run untrusted statements.

Readers of a live SQLite catalog take locks in it and need write permission for its `-shm` file. A copy in rollback-journal
mode needs only read permission, and its readers cannot delay the writer. `refresh` creates a new copy when the catalog has
changed and renames it into place. Transactions that have the old file open continue to read it. Internal tables
(`streamgauge_…`) are removed from the copy.

Use this only in a process that does not attach the same catalog through DuckDB. DuckDB has its own SQLite library, and
POSIX drops all locks of a process on a file when either library closes it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

from streamgauge.analytics.query.query_errors import StoreUnavailable, no_tables
from streamgauge.analytics.schema.sql_quoting import identifier
from streamgauge.analytics.storage.location import CATALOG_FILE, TABLES_FOLDER, StoreLocation

INTERNAL_PREFIX = "streamgauge_"
LOCK_WAIT_S = 5.0
MTIME_STEP_NS = 20_000_000
"""The kernel advances file times every 1 to 10 ms."""

_FileState = tuple[int, int, int, int] | None
"""Device, inode, size and time of modification in ns; None without a file or when it is empty."""


class CatalogCopy:
    """One copy in `folder`. Threads may share it."""

    def __init__(self, catalog: Path, folder: Path) -> None:
        """`folder` is used by this copy only."""
        self.path = folder / CATALOG_FILE
        self._catalog = catalog.absolute()
        self._lock = threading.Lock()
        self._state: tuple[_FileState, ...] | None = None

    def refresh(self, wait_s: float = LOCK_WAIT_S) -> None:
        """Update the copy to the newest commit. Waits at most `wait_s` for locks.

        Raises StoreUnavailable, and then the older copy stays.
        """
        deadline_s = time.monotonic() + wait_s
        if not self._lock.acquire(timeout=max(0.0, wait_s)):
            raise self._unavailable("another query is still copying it")
        try:
            state = (_state_of(self._catalog), _state_of(Path(f"{self._catalog}-wal")))
            if state[0] is None:
                raise no_tables(
                    StoreLocation(self._catalog, tables=str(self._catalog.with_name(TABLES_FOLDER)))
                )
            if state == self._state and not _is_recent(state):
                return
            _copy(self._catalog, self.path, deadline_s)
            self._state = state
        except (sqlite3.Error, OSError) as e:
            raise self._unavailable(str(e)) from None
        finally:
            self._lock.release()

    def _unavailable(self, reason: str) -> StoreUnavailable:
        return StoreUnavailable(f"cannot copy the catalog {self._catalog}: {reason}. Try again.")


def _state_of(path: Path) -> _FileState:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if not found.st_size:
        return None  # the first reader creates an empty -wal file
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _is_recent(state: tuple[_FileState, ...]) -> bool:
    """Whether a later commit may leave the same state, because file times advance in steps."""
    newest_ns = max(one[3] for one in state if one is not None)
    return time.time_ns() - newest_ns < MTIME_STEP_NS


def identity_of(catalog: Path) -> tuple[int, int]:
    """Device and inode, which change when the store is deleted and created again. Raises FileNotFoundError."""
    found = catalog.stat()
    return found.st_dev, found.st_ino


def _copy(catalog: Path, path: Path, deadline_s: float) -> None:
    def check(status: int, *_: int) -> None:
        """`backup` itself would repeat without end while the catalog is locked."""
        if status == sqlite3.SQLITE_BUSY and time.monotonic() >= deadline_s:
            raise sqlite3.OperationalError("database is locked")

    wait_s = max(0.0, deadline_s - time.monotonic())
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    # SQLite itself would create it with the umask.
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    uri = f"{catalog.as_uri()}?mode=ro"
    with (
        closing(sqlite3.connect(uri, uri=True, timeout=wait_s)) as live,
        closing(sqlite3.connect(part, isolation_level=None)) as copy,
    ):
        copy.execute("PRAGMA synchronous = OFF")  # a lost copy is created again
        live.backup(copy, progress=check, sleep=0.05)
        # The copy has the WAL mode of the original. Its readers would need write permission for a `-shm` file.
        copy.execute("PRAGMA journal_mode = DELETE")
        # Otherwise the rows of the dropped tables would stay in free pages of a file that untrusted processes read.
        copy.execute("PRAGMA secure_delete = ON")
        names = copy.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, ?) = ?",
            [len(INTERNAL_PREFIX), INTERNAL_PREFIX],
        ).fetchall()
        for (name,) in names:
            copy.execute(f"DROP TABLE {identifier(name)}")
    part.replace(path)

"""A private copy of the SQLite catalog, for processes that run statements of other people.

Readers of a live SQLite catalog take locks in it and need write permission for its `-shm` file. A copy in rollback-journal mode
needs only read permission, and whatever a reader does to it cannot delay the writer. `refresh` makes a new copy when
the catalog has changed (SQLite's `data_version`) and renames it into place: readers that have the old file open keep it
until their transaction ends. Tables named `streamgauge_…` are internal and are removed from the copy.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from analytics.query.errors import StoreUnavailable

FILE = "catalog.sqlite"
INTERNAL_PREFIX = "streamgauge_"
LOCK_WAIT_S = 5.0


class CatalogCopy:
    """One copy in `folder`. Threads may share it."""

    def __init__(self, catalog: Path, folder: Path) -> None:
        """`folder` belongs to this copy alone."""
        self.path = folder / FILE
        self._catalog = catalog
        self._lock = threading.Lock()
        self._live: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._version: int | None = None

    def refresh(self) -> None:
        """Bring the copy up to the newest commit. Raises StoreUnavailable; an older copy then stays in place."""
        with self._lock:
            try:
                self._refresh()
            except FileNotFoundError:
                raise StoreUnavailable(
                    f"the store {self._catalog} has no tables yet. Start analytics: streamgauge up"
                ) from None
            except (sqlite3.Error, OSError) as e:
                raise StoreUnavailable(f"cannot copy the catalog {self._catalog}: {e}") from None

    @property
    def identity(self) -> tuple[int, int] | None:
        """Which catalog file was copied last."""
        return self._identity

    def close(self) -> None:
        """Close the live catalog. The copy stays."""
        with self._lock:
            if self._live is not None:
                self._live.close()
                self._live = None

    def _refresh(self) -> None:
        identity = identity_of(self._catalog)
        if self._live is None or identity != self._identity:
            if self._live is not None:
                self._live.close()
            self._live = sqlite3.connect(
                f"{self._catalog.absolute().as_uri()}?mode=ro",
                uri=True,
                timeout=LOCK_WAIT_S,
                check_same_thread=False,
                isolation_level=None,
            )
            self._identity, self._version = identity, None
        version = int(self._live.execute("PRAGMA data_version").fetchone()[0])
        if version != self._version:
            _copy(self._live, self.path)
            self._version = version


def identity_of(catalog: Path) -> tuple[int, int]:
    """Which file it is: another one after the store was deleted and created again. Raises FileNotFoundError."""
    found = catalog.stat()
    return found.st_dev, found.st_ino


def _copy(live: sqlite3.Connection, path: Path) -> None:
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with closing(sqlite3.connect(part, isolation_level=None)) as copy:
        copy.execute("PRAGMA synchronous = OFF")  # lost copies are made again
        live.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
        copy.execute("PRAGMA secure_delete = ON")
        names = copy.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, ?) = ?",
            [len(INTERNAL_PREFIX), INTERNAL_PREFIX],
        ).fetchall()
        for (name,) in names:
            copy.execute('DROP TABLE "{}"'.format(name.replace('"', '""')))
    part.replace(path)

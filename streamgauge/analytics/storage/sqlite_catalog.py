"""The SQLite file of a catalog: create it, check it, back it up, add its triggers.

Python's `sqlite3` must not open a file that DuckDB's SQLite library has open in the same process: closing it would drop
DuckDB's locks and damage the file. So `create_file` and `is_intact` run before the file is attached, and the other functions
start a process.
"""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

PROCESS_TIMEOUT_S = 60.0
LEAST_BYTES_PER_S = 10 * 2**20
"""A backup may take longer by the time that this speed needs."""
_BACKUP = """
import os, sqlite3, sys
source, fresh, path = sys.argv[1:]
with sqlite3.connect(f"file:{source}?mode=ro", uri=True) as live, sqlite3.connect(fresh) as copy:
    live.backup(copy)
copy.close()
with open(fresh, "rb") as file:
    os.fsync(file.fileno())
os.chmod(fresh, 0o600)
os.replace(fresh, path)
"""
_COMPACT = """
import contextlib, sqlite3, sys
with contextlib.closing(sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)) as connection:
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("VACUUM")
    [(is_busy, *_)] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    sys.exit("another process reads it. Close the dashboard and other readers, and repeat" if is_busy else 0)
"""
_TRIGGERS = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1], timeout=30) as connection:
    for event in ("INSERT", "UPDATE"):
        connection.execute(f'''
            CREATE TRIGGER IF NOT EXISTS streamgauge_unknown_on_{event} AFTER {event} ON ducklake_table_column_stats
            WHEN NEW.min_value IS NOT NULL OR NEW.max_value IS NOT NULL OR NEW.contains_null IS NOT 1 BEGIN
                UPDATE ducklake_table_column_stats SET min_value = NULL, max_value = NULL, contains_null = 1,
                contains_nan = NULL WHERE rowid = NEW.rowid;
            END''')
"""


def create_file(path: Path) -> None:
    """Create an empty catalog in WAL mode unless the file exists. Raises OSError."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    try:
        with contextlib.closing(sqlite3.connect(fresh)) as connection:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.Error as e:
        raise OSError(f"cannot create {path}: {e}") from None
    if mode != "wal":
        raise OSError(
            f"cannot create {path}: its file system does not support SQLite's WAL mode. Choose another folder with --data"
        )
    fresh.chmod(0o600)
    fresh.replace(path)


def is_intact(path: Path) -> bool:
    """Whether a catalog that is not in use is undamaged."""
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        ) as connection:
            return connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]
    except sqlite3.Error:
        return False


def back_up(catalog: Path, path: Path, timeout_s: float | None = None) -> None:
    """Copy a catalog that may be in use, atomically. `timeout_s` None: by its size. Raises OSError."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    timeout_s = timeout_s or PROCESS_TIMEOUT_S + catalog.stat().st_size / LEAST_BYTES_PER_S
    task = f"back up {catalog} to {path}"
    _run_in_process(_BACKUP, str(catalog), str(fresh), str(path), timeout_s=timeout_s, task=task)


def compact(catalog: Path) -> None:
    """Write the catalog and its WAL anew, without the bytes of deleted rows. Raises OSError."""
    timeout_s = PROCESS_TIMEOUT_S + catalog.stat().st_size / LEAST_BYTES_PER_S
    _run_in_process(_COMPACT, str(catalog), timeout_s=timeout_s, task=f"compact {catalog}")


def create_statistics_triggers(catalog: Path) -> None:
    """Keep the statistics of tables' columns unknown (`streamgauge.analytics.storage.ducklake_format`). Raises OSError."""
    _run_in_process(_TRIGGERS, str(catalog), task=f"access {catalog}")


def _run_in_process(script: str, *arguments: str, task: str, timeout_s: float = PROCESS_TIMEOUT_S) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", script, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"cannot {task}: timeout after {timeout_s:.0f} s") from None
    if done.returncode:
        raise OSError(f"cannot {task}: {' '.join(done.stderr.strip().splitlines()[-1:])}")

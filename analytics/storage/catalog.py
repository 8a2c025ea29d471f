"""The catalog database of a DuckLake, a SQLite file or a PostgreSQL database, written to directly.

Both are reached through DuckDB, attached as `catalog` next to the lake. So a process has one SQLite library: a second one
(Python's `sqlite3`) in the same process would void the locks of the first, which damages the file. Python's is only used by
`create_file`, before anything is attached, and in processes of their own.

Contract
1. `transaction()` is one transaction of the database. `query` runs SQL of that database within it, `insert` adds a data frame.
2. Commits are short and follow each other. What deletes or rewrites rows runs alone: `exclusive()`. With SQLite that is a lock
   of this process, since one process owns a data folder. In PostgreSQL it is an advisory lock, which commits take shared; a
   holder that hangs loses it with its session (`idle_in_transaction_session_timeout`). The lock only avoids repeated work:
   conflicts are detected by the catalog's own keys.
3. A SQLite catalog is in WAL mode: readers in other processes never wait for the writer, nor the writer for them.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from analytics.schema.sql_quoting import literal
from analytics.storage.database import cannot_attach, load
from analytics.storage.location import StoreLocation

log = logging.getLogger(__name__)

NAME = "catalog"
"""Under which the catalog database is attached."""
LOCK_WAIT_S = 5.0
"""How long a PostgreSQL commit waits for an exclusive section to end before it goes on without the lock."""
CREATION_WAIT_S = 60.0
LOCK_IDLE_S, ELECTION_IDLE_S = 30, 1800
"""After this long without a statement PostgreSQL ends the session that holds a lock; upkeep may work longer on one task."""
APART_S = 60.0
_LOCK_SPACE = 0x5367_4C6B  # "SgLk": our part of the key space of PostgreSQL's advisory locks
_COMMITS, _UPKEEP, _CREATION = 1, 2, 3
_CONFLICTS = (
    "conflict",
    "unique constraint",
    "duplicate key",
    "could not serialize",
    "deadlock",
    "database is locked",
)
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
_SQLITE_TRIGGERS = """
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
_POSTGRES_TRIGGERS = (
    "CREATE OR REPLACE FUNCTION streamgauge_unknown() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.min_value := NULL; "
    "NEW.max_value := NULL; NEW.contains_null := true; NEW.contains_nan := NULL; RETURN NEW; END $$",
    "CREATE OR REPLACE TRIGGER streamgauge_unknown BEFORE INSERT OR UPDATE ON ducklake_table_column_stats "
    "FOR EACH ROW EXECUTE FUNCTION streamgauge_unknown()",
)


def create_file(path: Path) -> None:
    """Make an empty catalog in WAL mode if there is no file. Raises OSError with one line."""
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
        raise OSError(f"cannot create {path}: its file system does not support SQLite's WAL mode")
    fresh.chmod(0o600)
    fresh.replace(path)


def backup(catalog: Path, path: Path) -> None:
    """Copy a SQLite catalog that may be in use, atomically. Raises OSError."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    _run_apart(_BACKUP, str(catalog), str(fresh), str(path))


def _run_apart(script: str, *arguments: str) -> None:
    """Run Python's sqlite3 in a process of its own. Raises OSError."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, *arguments], capture_output=True, text=True, timeout=APART_S
    )
    if done.returncode:
        raise OSError(f"cannot access {arguments[0]}: {' '.join(done.stderr.strip().splitlines()[-1:])}")


def is_conflict(error: BaseException) -> bool:
    """Whether a transaction failed because another one overtook it: it can be repeated."""
    text = str(error).lower()
    return any(part in text for part in _CONFLICTS)


class Catalog:
    """One thread's access to the catalog; each thread opens its own with `cursor`."""

    _locks: dict[Path, threading.RLock] = {}  # noqa: RUF012  one for each file, for all threads of the process
    _locks_lock = threading.Lock()

    def __init__(self, connection: duckdb.DuckDBPyConnection, location: StoreLocation) -> None:
        """`connection` is one to a database with the lake attached; a cursor of it is used. Raises OSError."""
        self._location = location
        self._parent = connection
        self._connection = connection.cursor()
        self.is_postgres = location.catalog is None
        self._kind = "postgres" if self.is_postgres else "sqlite"
        attached = "SELECT 1 FROM duckdb_databases() WHERE database_name = ?"
        try:
            if not self._connection.execute(attached, [NAME]).fetchall():
                load(self._connection, f"{self._kind}_scanner")
                self._connection.execute(
                    f"ATTACH {literal(str(location.catalog or location.dsn))} AS {NAME} (TYPE {self._kind})"
                )
        except duckdb.Error as e:
            raise cannot_attach(location, e) from None
        if location.catalog is not None:
            with self._locks_lock:
                self._lock = self._locks.setdefault(location.catalog, threading.RLock())

    def hold_open(self) -> None:
        """Keep the SQLite file open until this cursor is closed.

        DuckDB opens it for each transaction. The last connection that closes moves the WAL into the file under an exclusive
        lock; all others, readers too, wait for it in steps of a second. A transaction with a statement that is planned but
        never run keeps the file open, without a lock and without a snapshot.
        """
        if not self.is_postgres:
            self._connection.execute("BEGIN TRANSACTION")
            planned = "SELECT * FROM ducklake_snapshot"
            self._connection.execute(f"EXPLAIN FROM sqlite_query('{NAME}', ?)", [planned]).fetchall()

    def cursor(self) -> Catalog:
        """The same catalog for another thread."""
        return Catalog(self._parent, self._location)

    # -- statements ------------------------------------------------------------------------------------------------------

    def query(self, sql: str) -> list[tuple[str | None, ...]]:
        """Run a SELECT in the catalog's own SQL. Values come as text."""
        return self._connection.execute(
            f"SELECT COLUMNS(*)::VARCHAR FROM {self._kind}_query('{NAME}', ?)", [sql]
        ).fetchall()

    def execute(self, sql: str) -> None:
        """Run a statement in DuckDB's SQL, over `catalog.…`."""
        self._connection.execute(sql)

    def create_index(self, name: str, table: str, columns: str) -> None:
        """A unique index, where several processes write. Not within a transaction."""
        if self.is_postgres:
            self._postgres(f"CREATE UNIQUE INDEX IF NOT EXISTS {name} ON {table} ({columns})")

    def forget_column_statistics(self) -> None:
        """Create the trigger that keeps statistics of tables' columns unknown (`analytics.storage.ducklake_format`)."""
        if self.is_postgres:
            for statement in _POSTGRES_TRIGGERS:
                self._postgres(statement)
        else:
            _run_apart(_SQLITE_TRIGGERS, str(self._location.catalog))

    def change(self, sql: str) -> None:
        """Run an INSERT, UPDATE or DELETE in the catalog's own SQL."""
        if self.is_postgres:
            self._postgres(sql)
        else:  # which runs only what returns rows
            self.query(f"{sql} RETURNING 1")

    def insert(self, table: str, rows: pl.DataFrame) -> None:
        """Append a data frame to a table of ours, through DuckDB; columns are matched by name."""
        self._connection.register("catalog_rows", rows)
        try:
            self._connection.execute(f"INSERT INTO {NAME}.{table} BY NAME FROM catalog_rows")
        finally:
            self._connection.unregister("catalog_rows")

    def values(self, rows: pl.DataFrame, types: Mapping[str, str]) -> str:
        """The rows as VALUES of an INSERT into a table of DuckLake's, whose columns have the DuckLake types `types`.

        SQL text and no data frame, because DuckDB plans an INSERT of 70 columns in 8 ms: for few rows that is most of a commit.
        """
        columns = (self._literals(column, types[column.name]) for column in rows)
        return ", ".join(f"({', '.join(row)})" for row in zip(*columns, strict=True))

    def _literals(self, column: pl.Series, kind: str) -> list[str]:
        """DuckLake keeps instants and lists as text. In PostgreSQL all other text is bytes, in SQLite floats are text."""
        if kind == "timestamptz":
            # Exactly as DuckDB writes them: when DuckLake flushes a table it sorts the deleted rows by this text.
            column = (
                column.dt.strftime("%Y-%m-%d %H:%M:%S%.6f").str.strip_chars_end("0").str.strip_chars_end(".")
                + "+00"
            )
        writers: dict[str, Callable[[Any], str]] = {
            "boolean": self.flag,
            "varchar": self.text,
            "list": lambda value: f"'[{', '.join(map(str, value))}]'",  # of numbers or ids: nothing to quote
            "float32": lambda value: f"'{value}'",
            "float64": lambda value: f"'{value}'",
            "timestamptz": lambda value: f"'{value}'",
            "uuid": lambda value: f"'{value}'",
        }
        written = writers.get(kind, str)
        return ["NULL" if value is None else written(value) for value in column.to_list()]

    def text(self, value: str) -> str:
        """A literal for a VARCHAR column of inlined rows."""
        value = without_nul(value)
        return f"'\\x{value.encode().hex()}'::bytea" if self.is_postgres else literal(value)

    def as_text(self, column: str) -> str:
        """A VARCHAR column of inlined rows, as an expression."""
        return f"convert_from({column}, 'UTF8') AS {column}" if self.is_postgres else column

    def flag(self, value: bool) -> str:
        """A literal for a BOOLEAN column of inlined rows."""
        return str(value).lower() if self.is_postgres else str(int(value))

    # -- transactions and locks --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self, *, alone: bool = False) -> Iterator[None]:
        """BEGIN … COMMIT; ROLLBACK after an exception. Waits for the `exclusive` sections of others; `alone`: inside one."""
        with self._lock if not self.is_postgres else contextlib.nullcontext():
            self._begin(shared=not alone)
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def _begin(self, *, shared: bool) -> None:
        self._connection.execute("BEGIN TRANSACTION")
        if not (self.is_postgres and shared):
            return
        try:
            self._postgres(f"SET LOCAL lock_timeout = {int(LOCK_WAIT_S * 1000)}")
            self._postgres(f"SELECT pg_advisory_xact_lock_shared({_LOCK_SPACE}, {_COMMITS})")
        except duckdb.Error:
            log.warning("the catalog was locked for %g s: committing without the lock", LOCK_WAIT_S)
            self._roll_back()
            self._connection.execute("BEGIN TRANSACTION")

    def _roll_back(self) -> None:
        with contextlib.suppress(duckdb.Error):
            self._connection.execute("ROLLBACK")

    def _postgres(self, sql: str) -> None:
        self._connection.execute(f"CALL postgres_execute('{NAME}', ?)", [sql])

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """While it lasts no commit begins."""
        with self._held(_COMMITS, LOCK_WAIT_S):
            yield

    @contextlib.contextmanager
    def creation(self) -> Iterator[None]:
        """Held while a process creates the store or checks its schema."""
        with self._held(_CREATION, CREATION_WAIT_S):
            yield

    @contextlib.contextmanager
    def maintenance(self) -> Iterator[None]:
        """For DuckLake's merging and flushing: SQLite has one writer; PostgreSQL's conflicts DuckLake resolves itself."""
        with contextlib.nullcontext() if self.is_postgres else self._lock:
            yield

    @contextlib.contextmanager
    def elected(self) -> Iterator[bool]:
        """True for the one process that does the upkeep, as long as the section lasts. Use a cursor of its own."""
        if not self.is_postgres:
            yield True
            return
        self._connection.execute("BEGIN TRANSACTION")
        try:
            self._postgres(f"SET LOCAL idle_in_transaction_session_timeout = {ELECTION_IDLE_S * 1000}")
            yield self.query(f"SELECT pg_try_advisory_xact_lock({_LOCK_SPACE}, {_UPKEEP})") in (
                [("true",)],
                [("t",)],
            )
        finally:
            self._roll_back()

    @contextlib.contextmanager
    def _held(self, key: int, wait_s: float) -> Iterator[None]:
        if not self.is_postgres:
            with self._lock:
                yield
            return
        holder = Catalog(self._parent, self._location)
        run = holder._connection.execute
        run("BEGIN TRANSACTION")
        try:
            try:
                holder._postgres(f"SET LOCAL idle_in_transaction_session_timeout = {LOCK_IDLE_S * 1000}")
                holder._postgres(f"SET LOCAL lock_timeout = {int(wait_s * 1000)}")
                holder._postgres(f"SELECT pg_advisory_xact_lock({_LOCK_SPACE}, {key})")
            except duckdb.Error as e:
                log.warning("the catalog was locked for %g s: going on without the lock (%s)", wait_s, e)
            yield
        finally:
            holder._roll_back()
            holder.close()

    def close(self) -> None:
        """Close the cursor."""
        self._connection.close()


def without_nul(text: str) -> str:
    """Text that both catalogs can hold: SQLite's ends at a NUL, and PostgreSQL's cannot have one."""
    return text.replace("\x00", "\ufffd")


def integers(row: tuple[Any, ...]) -> tuple[int, ...]:
    """A row of `Catalog.query` whose values are integers."""
    return tuple(int(value) for value in row)

"""The catalog database of the DuckLake, a SQLite file or a PostgreSQL database, written directly.

DuckDB attaches it as `catalog` next to the lake. So the process has a single SQLite library (see `sqlite_catalog`).

Contract
1. `transaction()` is one transaction of the database. `query` runs its SQL, `insert` adds a data frame.
2. Commits are short and sequential. Operations that delete or rewrite rows exclude commits: `exclusive()`. With SQLite this
   is a lock of the process, because one process owns a data folder. With PostgreSQL it is an advisory lock, which commits
   hold in shared mode. A holder that hangs loses it with its session (`idle_in_transaction_session_timeout`). The lock only
   avoids repeated work: the catalog's own keys detect conflicts.
3. A SQLite catalog is in WAL mode, so readers in other processes and the writer do not wait for each other.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import duckdb
import polars as pl

from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.storage.database import cannot_attach, load
from streamgauge.analytics.storage.location import StoreLocation
from streamgauge.analytics.storage.sqlite_catalog import create_statistics_triggers

log = logging.getLogger(__name__)

NAME = "catalog"
"""Name of the attached catalog database."""
LOCK_WAIT_S = 5.0
"""A PostgreSQL commit that waited this long for an exclusive section continues without the lock."""
CREATION_WAIT_S = 30.0
"""Below the default of `--hung-after`: `up` observes no progress while a part waits for PostgreSQL."""
LOCK_IDLE_S, ELECTION_IDLE_S = 30, 1800
"""PostgreSQL ends the session of a lock holder after this time without a statement. One upkeep task or an upgrade may take long."""
_LOCK_SPACE = 0x5367_4C6B  # "SgLk": our part of the key space of PostgreSQL's advisory locks
_COMMITS, _UPKEEP, _CREATION, _HOPS, _IMPORT, _ALERTS = 1, 2, 3, 4, 5, 6
Task = Literal["upkeep", "hops", "import", "alerts"]
_TASKS: dict[Task, int] = {"upkeep": _UPKEEP, "hops": _HOPS, "import": _IMPORT, "alerts": _ALERTS}
_CONFLICT = re.compile(
    r"(TransactionContext Error: Failed to commit: )?"
    r'(Failed to execute query "(BEGIN TRANSACTION[\w ]*;\n)?": )?'
    r"(ERROR:  (could not serialize access|deadlock detected|duplicate key value)"
    r"|UNIQUE constraint failed|database is locked)"
)
"""The beginning of an error without its statement, whose values come from users. DuckDB reports no SQLSTATE."""
_LAKE_CONFLICT = re.compile(
    r"TransactionContext Error: Failed to commit: Failed to commit DuckLake transaction\.\s+"
    r"(Exceeded the maximum retry count|Transaction conflict)"
)
_POSTGRES_TRIGGERS = (
    "CREATE OR REPLACE FUNCTION streamgauge_unknown() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.min_value := NULL; "
    "NEW.max_value := NULL; NEW.contains_null := true; NEW.contains_nan := NULL; RETURN NEW; END $$",
    "CREATE OR REPLACE TRIGGER streamgauge_unknown BEFORE INSERT OR UPDATE ON ducklake_table_column_stats "
    "FOR EACH ROW EXECUTE FUNCTION streamgauge_unknown()",
)

_POSTGRES_TABLES = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema() "
    "AND (table_name LIKE 'ducklake%' OR table_name LIKE 'streamgauge%')"
)
# A column's statistics have values of deleted rows. A change of its type, also to the same one, drops them.
_DROP_STATISTICS = f"""DO $$ DECLARE one record; BEGIN FOR one IN
SELECT tablename, attname, format_type(atttypid, atttypmod) AS type FROM pg_stats JOIN pg_attribute USING (attname)
WHERE schemaname = current_schema() AND tablename IN ({_POSTGRES_TABLES})
AND attrelid = format('%I.%I', schemaname, tablename)::regclass LOOP
EXECUTE format('ALTER TABLE %I ALTER COLUMN %I TYPE %s', one.tablename, one.attname, one.type);
END LOOP; END $$"""
_COPY_TABLES = f"""DO $$ DECLARE one text; BEGIN FOR one IN {_POSTGRES_TABLES} LOOP
EXECUTE format('CREATE TABLE {{schema}}.%I (LIKE %I INCLUDING ALL)', one, one);
EXECUTE format('INSERT INTO {{schema}}.%I SELECT * FROM %I', one, one);
END LOOP; END $$"""


class Conflict(duckdb.Error):
    """A concurrent transaction came first. This one was rolled back and can be repeated."""


def is_conflict(error: BaseException) -> bool:
    """Whether a transaction, also one of DuckLake itself, failed because of a concurrent one."""
    return isinstance(error, Conflict) or any(one.match(str(error)) for one in (_CONFLICT, _LAKE_CONFLICT))


@contextlib.contextmanager
def _conflicts(statement: str) -> Iterator[None]:
    """Raise Conflict for the conflict of a statement that the catalog's database runs."""
    try:
        yield
    except duckdb.Error as e:
        found = _CONFLICT.match(str(e).replace(statement, ""))
        if found is None:
            raise
        raise Conflict(found[4]) from None


class Catalog:
    """The catalog's connection of one thread. Other threads open their own with `cursor`."""

    _locks: dict[Path, threading.RLock] = {}  # noqa: RUF012 - one per file, shared by all threads of the process
    _locks_lock = threading.Lock()

    def __init__(self, connection: duckdb.DuckDBPyConnection, location: StoreLocation) -> None:
        """Uses a cursor of `connection`. Raises OSError."""
        self._location = location
        self._parent = connection
        self._connection = connection.cursor()
        self.commit_sent = False
        """Set before each COMMIT of `transaction`: whatever follows, it may have been applied. Its user resets it."""
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

        DuckDB opens the file for each transaction. The last connection that closes copies the WAL into the file under an
        exclusive lock, and all others wait in steps of a second. A transaction with a planned statement that never runs
        keeps the file open without a lock or a snapshot.
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
        """Run a SELECT in the catalog's own SQL. Values are text."""
        with _conflicts(sql):
            return self._connection.execute(
                f"SELECT COLUMNS(*)::VARCHAR FROM {self._kind}_query('{NAME}', ?)", [sql]
            ).fetchall()

    def columns(self, table: str) -> list[str]:
        """Names of the columns of a table of the catalog, in order."""
        found = self._connection.execute(
            f"FROM {self._kind}_query('{NAME}', ?)", [f"SELECT * FROM {table} LIMIT 0"]
        )
        return [name for name, *_ in found.description]

    def copy_to_schema(self, schema: str) -> None:
        """Copy all tables of a catalog in PostgreSQL, with their indexes and triggers, to a schema, and replace it."""
        with self.transaction():
            self.drop_schema(schema)
            self._postgres(f"CREATE SCHEMA {schema}")
            self._postgres(_COPY_TABLES.format(schema=schema))
            self._postgres(f"SET LOCAL search_path = {schema}")
            for statement in _POSTGRES_TRIGGERS:
                self._postgres(statement)

    def drop_schema(self, schema: str) -> None:
        """Drop a schema of a catalog in PostgreSQL, if it exists."""
        self._postgres(f"DROP SCHEMA IF EXISTS {schema} CASCADE")

    def execute(self, sql: str) -> None:
        """Run a statement in DuckDB's SQL, with tables `catalog.…`."""
        self._connection.execute(sql)

    def create_index(self, name: str, table: str, columns: str) -> None:
        """Create a unique index in PostgreSQL, where several processes write. Not within a transaction."""
        if self.is_postgres:
            self._postgres(f"CREATE UNIQUE INDEX IF NOT EXISTS {name} ON {table} ({columns})")

    def create_statistics_triggers(self) -> None:
        """Keep the statistics of tables' columns unknown (`streamgauge.analytics.storage.ducklake_format`)."""
        if self._location.catalog is not None:
            create_statistics_triggers(self._location.catalog)
        else:
            for statement in _POSTGRES_TRIGGERS:
                self._postgres(statement)

    def change(self, sql: str) -> None:
        """Run an INSERT, UPDATE or DELETE in the catalog's own SQL."""
        if self.is_postgres:
            self._postgres(sql)
        else:  # sqlite_query only runs statements that return rows
            self.query(f"{sql} RETURNING 1")

    def insert(self, table: str, rows: pl.DataFrame) -> None:
        """Append a data frame to an internal table. Columns are matched by name."""
        self._connection.register("catalog_rows", rows)
        try:
            self._connection.execute(f"INSERT INTO {NAME}.{table} BY NAME FROM catalog_rows")
        finally:
            self._connection.unregister("catalog_rows")

    def rows(self, rows: pl.DataFrame, types: Mapping[str, str]) -> Iterator[str]:
        """Each row as SQL literals for an INSERT into a table of DuckLake. `types`: DuckLake's types by column.

        SQL text instead of a data frame, because DuckDB takes 8 ms to plan an INSERT of 70 columns.
        """
        columns = (self._literals(column, types[column.name]) for column in rows)
        return map(", ".join, zip(*columns, strict=True))

    def _literals(self, column: pl.Series, kind: str) -> list[str]:
        """SQL literals. DuckLake stores instants, lists and maps as text, other text in PostgreSQL as bytes, floats in SQLite as
        text."""
        element = _text_element if column.dtype == pl.List(pl.String) else str
        writers: dict[str, Callable[[Any], str]] = {
            "boolean": self.flag,
            "varchar": self.text,
            "map": lambda value: literal(
                "{" + ", ".join(f"{_text_element(k)}={_text_element(v)}" for k, v in value.items()) + "}"
            ),
            "list": lambda value: literal(f"[{', '.join(map(element, value))}]"),
            "timestamptz": _instant_element,
            **dict.fromkeys(("float32", "float64", "uuid"), "'{}'".format),
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
        """BEGIN … COMMIT, or ROLLBACK on an exception. Waits for `exclusive` sections. `alone`: within one."""
        with self._lock if not self.is_postgres else contextlib.nullcontext():
            self._begin(shared=not alone)
            try:
                yield
                self.commit_sent = True
                with _conflicts("COMMIT"):
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
            log.warning("catalog locked for %g s: committing without the lock", LOCK_WAIT_S)
            self._roll_back()
            self._connection.execute("BEGIN TRANSACTION")

    def _roll_back(self) -> None:
        with contextlib.suppress(duckdb.Error):
            self._connection.execute("ROLLBACK")

    def _postgres(self, sql: str) -> None:
        with _conflicts(sql):
            self._connection.execute(f"CALL postgres_execute('{NAME}', ?)", [sql])

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """Exclude commits."""
        return self._locked(_COMMITS, LOCK_WAIT_S)

    def creation(self) -> contextlib.AbstractContextManager[None]:
        """Exclude other processes that create or upgrade the store. Raises duckdb.Error if one still does."""
        return self._locked(_CREATION, CREATION_WAIT_S, ELECTION_IDLE_S, is_required=True)

    def maintenance(self) -> contextlib.AbstractContextManager[object]:
        """Around DuckLake's own functions. SQLite has one writer; with PostgreSQL DuckLake resolves conflicts itself."""
        return contextlib.nullcontext() if self.is_postgres else self._lock

    @contextlib.contextmanager
    def elected(self, task: Task) -> Iterator[bool]:
        """True in one process at a time, which does the task. Requires a separate cursor."""
        if not self.is_postgres:
            yield True
            return
        self._connection.execute("BEGIN TRANSACTION")
        try:
            self._postgres(f"SET LOCAL idle_in_transaction_session_timeout = {ELECTION_IDLE_S * 1000}")
            yield self.query(f"SELECT pg_try_advisory_xact_lock({_LOCK_SPACE}, {_TASKS[task]})") in (
                [("true",)],
                [("t",)],
            )
        finally:
            self._roll_back()

    @contextlib.contextmanager
    def _locked(
        self, key: int, wait_s: float, idle_s: int = LOCK_IDLE_S, *, is_required: bool = False
    ) -> Iterator[None]:
        if not self.is_postgres:
            with self._lock:
                yield
            return
        holder = Catalog(self._parent, self._location)
        run = holder._connection.execute
        run("BEGIN TRANSACTION")
        try:
            try:
                holder._postgres(f"SET LOCAL idle_in_transaction_session_timeout = {idle_s * 1000}")
                holder._postgres(f"SET LOCAL lock_timeout = {int(wait_s * 1000)}")
                holder._postgres(f"SELECT pg_advisory_xact_lock({_LOCK_SPACE}, {key})")
            except duckdb.Error as e:
                if is_required:
                    raise
                log.warning("catalog locked for %g s: continuing without the lock (%s)", wait_s, e)
            yield
        finally:
            holder._roll_back()
            holder.close()

    def vacuum(self) -> None:
        """Remove the bytes of deleted rows from a catalog in PostgreSQL. Each table is locked for a moment."""
        tables = [*(table for (table,) in self.query(_POSTGRES_TABLES)), "pg_catalog.pg_statistic"]
        for sql in (_DROP_STATISTICS, *(f"VACUUM (FULL) {table}" for table in tables)):
            self._connection.execute(f"CALL postgres_execute('{NAME}', ?, use_transaction => false)", [sql])

    def close(self) -> None:
        """Close the cursor."""
        self._connection.close()


def _text_element(value: str | None) -> str:
    """A text within a list or a map, as DuckDB reads it."""
    if value is None:
        return "NULL"
    return "'" + without_nul(value).replace("\\", "\\\\").replace("'", "\\'") + "'"


def _instant_element(value: dt.datetime) -> str:
    """An instant exactly as DuckDB writes it: a flush sorts deleted rows by this text."""
    text = value.replace(tzinfo=None).isoformat(" ")
    return f"'{text.rstrip('0') if '.' in text else text}+00'"


def without_nul(text: str) -> str:
    """The text with NUL replaced: SQLite ends text at a NUL, and PostgreSQL rejects it."""
    return text.replace("\x00", "\ufffd")


def integers(row: tuple[Any, ...]) -> tuple[int, ...]:
    """A row of `Catalog.query` whose values are integers."""
    return tuple(int(value) for value in row)

"""Run SELECT statements on the store, attached read-only to an in-memory DuckDB of this process.

Each query has its own cursor and sees the newest commits. Names without a schema are looked up in the store, then in the
in-memory database, which has the view `open_streams`. After `lock_down` a statement cannot read files outside the tables
folder or change settings. It can still exhaust memory or crash DuckDB (see `streamgauge.analytics.query.query_pool`).

DuckDB opens SQLite per transaction, so the next query reads a catalog file that was replaced.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from streamgauge.analytics.query import open_streams_view, public_catalog, several_stores
from streamgauge.analytics.query.error_position import in_part, position_of
from streamgauge.analytics.query.errors import (
    READ_ONLY,
    QueryError,
    QueryRejected,
    StoreUnavailable,
    no_tables,
    not_convertible,
    not_one_statement,
    too_much_memory,
    too_slow,
)
from streamgauge.analytics.query.statement_filter import without_explain
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.storage.database import attach, data_path_of, message, new_database
from streamgauge.analytics.storage.location import ALIAS, StoreLocation

if TYPE_CHECKING:
    import polars as pl

SEARCH_PATH = f"SET search_path = '{ALIAS}.main,memory.main'"
INTERRUPT_AGAIN_S = 0.05
"""An interrupt that arrives before the statement runs has no effect, so it is repeated."""
_WRAPPER = "FROM (\n"
_INTERNAL_TABLE = "counter_parts"
_NO_MEMORY = ("bad_alloc", "memory allocation failed", "Memory allocation failure", "failed to allocate")
_UNREADABLE = ("database is locked", "disk I/O error", "database disk image is malformed", "Failed to probe")


class Reader:
    """One read-only database. Threads may share it."""

    def __init__(
        self,
        location: StoreLocation,
        *,
        others: Sequence[StoreLocation] = (),
        memory_limit_bytes: int | None = None,
        catalog: Path | None = None,
        spill_folder: Path | None = None,
        exact_types: bool = False,
        lock_down: bool,
    ) -> None:
        """`others`: further stores, queried together with the first (`several_stores`). `catalog`: a copy of the SQLite
        catalog to read. `spill_folder`: for sorts and joins larger than memory.

        `exact_types`: Arrow answers keep DuckDB's types; they are not for polars. Raises StoreUnavailable.
        """
        self._location = location
        self._memory_limit_bytes = memory_limit_bytes
        catalog = catalog or location.catalog
        for store, file in ((location, catalog), *((other, other.catalog) for other in others)):
            if file is not None and not file.is_file():
                raise no_tables(store)
        self._search_path = several_stores.SEARCH_PATH if others else SEARCH_PATH
        self._connection = new_database(memory_limit_bytes)
        try:
            self._connection.execute(f"SET arrow_lossless_conversion = {exact_types}")
            self._open(catalog, others, spill_folder, lock_down)
        except (OSError, duckdb.Error) as e:
            self._connection.close()
            raise StoreUnavailable(message(e, location)) from None
        except QueryError:
            self._connection.close()
            raise

    def _open(
        self,
        catalog: Path | None,
        others: Sequence[StoreLocation],
        spill_folder: Path | None,
        lock_down: bool,
    ) -> None:
        connection = self._connection
        connection.execute(f"SET temp_directory = {literal(str(spill_folder or ''))}")
        uri = f"ducklake:sqlite:{catalog}" if catalog else None
        attach(connection, self._location, read_only=True, uri=uri)
        found = connection.execute(
            "SELECT 1 FROM duckdb_tables() WHERE database_name = ? AND schema_name = 'main' AND table_name = 'streams'",
            [ALIAS],
        ).fetchall()
        if not found:
            raise no_tables(self._location)
        self.data_path = data_path_of(connection)
        """The tables folder, with a slash at the end."""
        self._data_paths = [self.data_path]
        open_streams_view.define(connection)
        if others:
            self._data_paths += several_stores.combine(connection, others)
        connection.execute(self._search_path)
        if lock_down:
            self.lock_down()

    def lock_down(self) -> None:
        """Hide internal names. Forbid files outside the tables folder, extensions and settings. Cannot be undone."""
        connection = self._connection
        public_catalog.define(connection)
        connection.execute("SET enable_external_file_cache = false")
        connection.execute("SET python_enable_replacements = false")
        connection.execute(f"SET allowed_directories = [{literal(self.data_path)}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The database's first connection, on which a server registers functions.

        Its cursors have no search path. They do not look names up in the store, which takes milliseconds.
        """
        return self._connection

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A further connection to the database, with the search path set."""
        cursor = self._connection.cursor()
        cursor.execute(self._search_path)
        return cursor

    def query(self, sql: str, max_rows: int, timeout_s: float) -> pl.DataFrame:
        """The rows of one SELECT. Raises QueryRejected (also for more than `max_rows` rows), QueryTimeout, StoreUnavailable."""
        from streamgauge.analytics.query.to_polars import (
            to_polars,  # loads polars, which a child process does not need
        )

        return to_polars(self.arrow(sql, max_rows, timeout_s))

    def arrow(self, sql: str, max_rows: int, timeout_s: float, *, truncate: bool = False) -> pa.Table:
        """As `query`, as an Arrow table with DuckDB's own types.

        `truncate`: of an answer with more than `max_rows` rows, the first `max_rows` + 1.
        """
        try:
            with closing(self.cursor()) as cursor, interrupted_after(cursor, timeout_s):
                open_streams_view.prepare(cursor, sql, self._data_paths)
                result = cursor.execute(limited(cursor, sql, max_rows)).to_arrow_table()
        except duckdb.Error as e:
            raise self.translated(e, timeout_s, sql) from None
        except MemoryError:
            raise too_much_memory(self._memory_limit_bytes) from None
        except pa.ArrowException as e:
            raise not_convertible(e) from None
        if without_explain(sql) != sql:  # the plan of a view names the tables below it
            place = result.schema.get_field_index("explain_value")
            shown = "(internal)".ljust(len(_INTERNAL_TABLE))  # of the same width, because a plan is a drawing
            plan = pc.replace_substring(result.column(place), _INTERNAL_TABLE, shown)
            result = result.set_column(place, "explain_value", plan)
        if result.num_rows > max_rows and not truncate:
            raise too_many_rows(max_rows)
        return result

    def translated(self, error: duckdb.Error, timeout_s: float, sql: str = "") -> QueryError:
        """The QueryError for an error of DuckDB. `sql`: the statement that `limited` wrapped."""
        if isinstance(error, duckdb.InterruptException):
            return too_slow(timeout_s)
        text = message(error, self._location)
        if isinstance(error, duckdb.OutOfMemoryException) or any(part in text for part in _NO_MEMORY):
            return too_much_memory(self._memory_limit_bytes)
        if "Unsupported Arrow type" in text:
            return not_convertible(error)
        if isinstance(error, duckdb.IOException) or any(reason in text for reason in _UNREADABLE):
            return StoreUnavailable(f"cannot read the store {self._location.label}: {text}")
        return QueryRejected(text, position=_position(str(error), sql))

    def close(self) -> None:
        """Close the database. Running queries end with an error."""
        self._connection.close()


def too_many_rows(max_rows: int) -> QueryRejected:
    """The error for an answer of more than `max_rows` rows."""
    return QueryRejected(
        f"cannot return the answer: it has more than {max_rows} rows. Aggregate, add a LIMIT or raise the row limit."
    )


def limited(cursor: duckdb.DuckDBPyConnection, sql: str, max_rows: int) -> str:
    """The statement as a subquery with at most one row more than allowed, an EXPLAIN as it is.

    Raises QueryRejected unless it is one SELECT, or the EXPLAIN of one.
    """
    selected = without_explain(sql)
    statements = cursor.extract_statements(selected)
    if len(statements) != 1:
        raise not_one_statement(len(statements))
    if statements[0].type != duckdb.StatementType.SELECT:
        raise QueryRejected(READ_ONLY)
    wrapped = f"{_WRAPPER}{_inner(statements[0].query)}\n) LIMIT {max_rows + 1}"
    if (count := len(cursor.extract_statements(wrapped))) != 1:
        raise not_one_statement(count)
    return wrapped if selected == sql else sql


def _inner(sql: str) -> str:
    return sql.strip().rstrip(";")


def _position(error: str, sql: str) -> int | None:
    """The position in the statement of an error about the wrapped statement."""
    inner = _inner(sql)
    return in_part(position_of(error, _WRAPPER + inner), sql, inner, start=len(_WRAPPER))


@contextmanager
def interrupted_after(cursor: duckdb.DuckDBPyConnection, timeout_s: float) -> Iterator[None]:
    """Interrupt the cursor's statement after the time limit."""
    done = threading.Event()

    def watch() -> None:
        wait_s = max(timeout_s, 0.0)
        while not done.wait(wait_s):
            cursor.interrupt()
            wait_s = INTERRUPT_AGAIN_S

    watcher = threading.Thread(target=watch, name="query-deadline", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()

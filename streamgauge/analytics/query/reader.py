"""Run SELECT statements on the store, attached read-only to an in-memory DuckDB of this process.

Each query sees the newest commits. Names without a schema are looked up in the store, then in the
in-memory database `memory`, which has what the store does not:

- The view `open_streams`.
- With several stores, unions of their tables, and the views over them. The first store is attached as `lake`, the others as
  `lake_2`, `lake_3`, …, in their order.
- After `lock_down`, macros of the names of DuckDB's functions that list tables, columns and so on. DuckDB's own also list internal
  databases, temporary views with paths of files, and system views. `SHOW TABLES` and the views of `information_schema` use these
  names, so they show the same. The statement filter rejects `system.main.duckdb_tables()`.

After `lock_down` a statement cannot read files outside the tables folder or change settings. It can still exhaust memory or crash
DuckDB (see `streamgauge.analytics.query.query_pool`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from streamgauge.analytics.query import open_streams_view, query_errors
from streamgauge.analytics.query.open_streams_view import OpenStreamsView
from streamgauge.analytics.query.statement_filter import position_of_byte, without_explain
from streamgauge.analytics.schema.ddl import statements
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.schema.tables import COUNTER_PARTS, HISTOGRAM_MINUTES, TABLES, Rows
from streamgauge.analytics.storage.database import attach, check_version, data_path_of, message, new_database
from streamgauge.analytics.storage.location import ALIAS, StoreLocation

if TYPE_CHECKING:
    import polars as pl

OF_STORE = f"database_name = '{ALIAS}' AND schema_name = 'main'"
VISIBLE = {
    "duckdb_schemas": OF_STORE,
    "duckdb_tables": OF_STORE,
    "duckdb_views": f"{OF_STORE} OR database_name = 'memory' AND view_name = '{open_streams_view.NAME}'",
    "duckdb_columns": f"{OF_STORE} OR database_name = 'memory' AND table_name = '{open_streams_view.NAME}'",
    "duckdb_constraints": OF_STORE,
    "duckdb_indexes": OF_STORE,
    "duckdb_functions": "internal",
}
"""Functions that list the catalog, and what readers see of it after `lock_down`."""
INTERRUPT_AGAIN_S = 0.05
"""An interrupt that arrives before the statement runs has no effect, so it is repeated."""
_WRAPPER = "FROM (\n"
_BATCH_ROWS = 20_480
"""Rows for which DuckDB reserves memory in each column of a result. Its default, a million, takes 8 MB a column: the two hundred
columns of a diagnosis would exceed the address space of a query process."""
_INTERNAL_TABLE = COUNTER_PARTS.name.partition(".")[2]
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
        lock_down: bool = False,
    ) -> None:
        """`others`: further stores, queried together with the first. `catalog`: a copy of the SQLite catalog to read.
        `spill_folder`: for sorts and joins larger than memory.

        `exact_types`: `arrow` keeps DuckDB's own types, and `query` cannot be used. Raises StoreUnavailable.
        """
        self._location = location
        self._memory_limit_bytes = memory_limit_bytes
        catalog = catalog or location.catalog
        for store, file in ((location, catalog), *((other, other.catalog) for other in others)):
            if file is not None and not file.is_file():  # ATTACH would create it
                raise query_errors.no_tables(store)
        self._is_closed = False
        self._idle: dict[bool, list[tuple[duckdb.DuckDBPyConnection, OpenStreamsView]]] = {
            False: [],
            True: [],
        }
        """Cursors that wait for a statement: as many as have run at once. A new one takes milliseconds. Those for statements that
        mention the view of open streams have a temporary one, which other statements would list."""
        # The tables of `lake` would hide the unions of the same names.
        self._search_path = f"SET search_path = '{'' if others else f'{ALIAS}.main,'}memory.main'"
        self.connection = connection = new_database(memory_limit_bytes)
        """The database's first connection, on which a server registers functions.

        Its cursors have no search path. They do not look names up in the store, which takes milliseconds.
        """
        try:
            connection.execute(f"SET arrow_lossless_conversion = {exact_types}")
            # Without a folder, DuckDB would spill into the current one.
            connection.execute(f"SET temp_directory = {literal(str(spill_folder or ''))}")
            uri = f"ducklake:sqlite:{catalog}" if catalog else None
            attach(connection, location, read_only=True, uri=uri)
            found = connection.execute(
                f"SELECT 1 FROM duckdb_tables() WHERE {OF_STORE} AND table_name = 'streams'"
            ).fetchall()
            if not found:  # analytics creates the catalog before its tables
                raise query_errors.no_tables(location)
            self._is_current = check_version(connection, location)
            self.data_path = data_path_of(connection)
            """The tables folder, with a slash at the end."""
            self._data_paths = [self.data_path]
            open_streams_view.define(connection)
            if others:
                self._combine(others)
            connection.execute(self._search_path)
            if lock_down:
                self.lock_down()
        except (OSError, duckdb.Error, query_errors.QueryError) as e:
            connection.close()
            is_known = isinstance(e, query_errors.QueryError)
            raise e if is_known else query_errors.StoreUnavailable(message(e, location)) from None

    def _combine(self, others: Sequence[StoreLocation]) -> None:
        """Attach the other stores and create the unions and views. Raises OSError and duckdb.Error."""
        connection = self.connection
        aliases = [ALIAS, *(f"{ALIAS}_{number}" for number in range(2, len(others) + 2))]
        for location, alias in zip(others, aliases[1:], strict=True):
            attach(connection, location, read_only=True, alias=alias)
            check_version(connection, location, alias)
            self._data_paths.append(data_path_of(connection, alias))
        connection.execute(f"USE memory; CREATE SCHEMA IF NOT EXISTS internal; {self._search_path}")
        for table in TABLES:
            # The histograms of one minute in two stores must be merged, as those of minutes that are not settled.
            columns = "* REPLACE (false AS settled)" if table is HISTOGRAM_MINUTES else "*"
            # Stores with the same settings have the same rows in the tables of the settings, which count once.
            all_rows = "" if table.rows is Rows.REPLACED else "ALL "
            # By name, because stores that were created by different versions have their columns in another order.
            union = f" UNION {all_rows}BY NAME ".join(
                f"SELECT {columns} FROM {alias}.{table.qualified_name}" for alias in aliases
            )
            connection.execute(f"CREATE VIEW memory.{table.qualified_name} AS {union}")
        connection.execute(statements()[1])

    def lock_down(self) -> None:
        """Hide internal names. Forbid files outside the tables folder, extensions and settings. Cannot be undone."""
        connection = self.connection
        for name, visible in VISIBLE.items():
            # Definitions of some views name tables of the schema `internal`.
            without_sql = "* REPLACE (if(contains(sql, 'internal.'), NULL, sql) AS sql)"
            shown = without_sql if name == "duckdb_views" else "*"
            connection.execute(
                f"CREATE OR REPLACE MACRO memory.main.{name}() AS TABLE SELECT {shown} FROM system.main.{name}() WHERE {visible}"
            )
        connection.execute("SET enable_external_file_cache = false")  # counts towards the memory limit
        # Otherwise a name that is no table is looked up among the variables of this program's functions.
        connection.execute("SET python_enable_replacements = false")
        connection.execute(f"SET allowed_directories = [{literal(self.data_path)}]")
        # Both are last: after them no folder can be added, and no setting can be changed.
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A further connection to the database, with the search path set."""
        # DuckDB opens SQLite per transaction, so each cursor reads the newest commit, also of a catalog file that was replaced.
        cursor = self.connection.cursor()
        cursor.execute(self._search_path)
        return cursor

    def cursor_with_view(self) -> tuple[duckdb.DuckDBPyConnection, OpenStreamsView]:
        """A cursor, and its view of the open streams. Call `prepare` of the view before each statement."""
        cursor = self.cursor()
        return cursor, OpenStreamsView(cursor, self._data_paths)

    @contextmanager
    def _used_cursor(self, sql: str) -> Iterator[tuple[duckdb.DuckDBPyConnection, OpenStreamsView]]:
        """A cursor without a running statement, and its view. After an error it is closed."""
        idle = self._idle[open_streams_view.is_mentioned(sql)]
        try:
            cursor, open_streams = idle.pop()
        except IndexError:
            cursor, open_streams = self.cursor_with_view()
        try:
            yield cursor, open_streams
        except BaseException:
            cursor.close()
            raise
        open_streams.release()
        idle.append((cursor, open_streams))
        if self._is_closed:
            self._close_idle()

    def query(self, sql: str, max_rows: int, timeout_s: float) -> pl.DataFrame:
        """The rows of one SELECT. Raises QueryRejected (also for more than `max_rows` rows), QueryTimeout, StoreUnavailable."""
        from streamgauge.analytics.query.answers import to_polars

        return to_polars(self.arrow(sql, max_rows, timeout_s))

    def arrow(self, sql: str, max_rows: int, timeout_s: float, *, truncate: bool = False) -> pa.Table:
        """As `query`, as an Arrow table.

        `truncate`: of an answer with more than `max_rows` rows, the first `max_rows` + 1.
        """
        try:
            with self._used_cursor(sql) as (cursor, open_streams), interrupted_after(cursor, timeout_s):
                open_streams.prepare(sql)
                result = cursor.execute(limited(cursor, sql, max_rows)).to_arrow_table(batch_size=_BATCH_ROWS)
        except duckdb.Error as e:
            raise self.translated(e, timeout_s, sql) from None
        except MemoryError:
            raise query_errors.too_much_memory(self._memory_limit_bytes) from None
        except pa.ArrowException as e:
            raise query_errors.not_convertible(e) from None
        if without_explain(sql) != sql:  # the plan of a view names the tables below it
            place = result.schema.get_field_index("explain_value")
            shown = "(internal)".ljust(
                len(_INTERNAL_TABLE)
            )  # of the same width, so that the boxes of the plan stay aligned
            plan = pc.replace_substring(result.column(place), _INTERNAL_TABLE, shown)
            result = result.set_column(place, "explain_value", plan)
        if result.num_rows > max_rows and not truncate:
            raise too_many_rows(max_rows)
        return result

    def translated(self, error: duckdb.Error, timeout_s: float, sql: str = "") -> query_errors.QueryError:
        """The QueryError for an error of DuckDB. `sql`: the statement that `limited` wrapped."""
        if isinstance(error, duckdb.InterruptException):
            return query_errors.too_slow(timeout_s)
        plain, position = _decoded(error)
        text = message(plain, self._location)
        if isinstance(error, duckdb.OutOfMemoryException) or any(part in text for part in _NO_MEMORY):
            return query_errors.too_much_memory(self._memory_limit_bytes)
        if "Unsupported Arrow type" in text:
            return query_errors.not_convertible(plain)
        if isinstance(error, duckdb.IOException) or any(reason in text for reason in _UNREADABLE):
            return query_errors.StoreUnavailable(f"cannot read the store {self._location.label}: {text}")
        if not isinstance(error, duckdb.ParserException):
            position = _position(position, sql)
        if not self._is_current and isinstance(error, (duckdb.BinderException, duckdb.CatalogException)):
            text += f". {query_errors.OTHER_VIEWS}"
        # The parser counts characters, of the statement before it is wrapped. All others count bytes, of the wrapped one.
        return query_errors.QueryRejected(text, position=position)

    def close(self) -> None:
        """Close the database. Running queries end with an error."""
        self._is_closed = True
        self._close_idle()
        self.connection.close()

    def _close_idle(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop()[0].close()


def too_many_rows(max_rows: int) -> query_errors.QueryRejected:
    """The error for an answer of more than `max_rows` rows."""
    return query_errors.QueryRejected(
        f"cannot return the answer: it has more than {max_rows} rows. Aggregate, add a LIMIT or raise the row limit."
    )


def limited(cursor: duckdb.DuckDBPyConnection, sql: str, max_rows: int) -> str:
    """The statement as a subquery with at most one row more than allowed, an EXPLAIN as it is.

    Raises QueryRejected unless it is one SELECT, or the EXPLAIN of one.
    """
    selected = without_explain(sql)
    statements = cursor.extract_statements(selected)
    if len(statements) != 1:
        raise query_errors.not_one_statement(len(statements))
    if statements[0].type != duckdb.StatementType.SELECT:
        raise query_errors.QueryRejected(query_errors.READ_ONLY)
    # A subquery leaves the statement's own ORDER BY and LIMIT as they are. The line breaks end its `--` comments.
    wrapped = f"{_WRAPPER}{_inner(statements[0].query)}\n) LIMIT {max_rows + 1}"
    # Parsed again, because this is the text that runs.
    if (count := len(cursor.extract_statements(wrapped))) != 1:
        raise query_errors.not_one_statement(count)
    return wrapped if selected == sql else sql


def _inner(sql: str) -> str:
    return sql.strip().rstrip(";")


def _decoded(error: duckdb.Error) -> tuple[Exception, int | None]:
    """The error as text, and the position in its JSON (`errors_as_json`, which not all databases set)."""
    kind, _, rest = str(error).partition(": ")
    try:
        found = json.loads(rest)
        position = found.get("position")
        return Exception(f"{kind}: {found['exception_message']}"), None if position is None else int(position)
    except (ValueError, TypeError, KeyError, AttributeError):
        return error, None


def _position(byte: int | None, sql: str) -> int | None:
    """The position in `sql` of a byte of the statement that `limited` makes of it. None if it is outside of `sql`."""
    if without_explain(sql) != sql:  # `limited` leaves it as it is
        return position_of_byte(sql, byte)
    inner = _inner(sql)
    position = position_of_byte(_WRAPPER + inner, byte)
    if position is None or position < len(_WRAPPER):
        return None
    return sql.find(inner) + position - len(_WRAPPER)


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

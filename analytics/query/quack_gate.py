"""The gate in front of Quack: Quack calls it before it runs a client's statement, and runs the statement that it returns.

Without the gate a Quack client could run anything without limits. The gate applies the statement filter, runs the statement
with a row limit and a deadline into a table of the in-memory database `answers`, and returns `FROM answers.main.…`. A plain
scan of one table, as from a client's ATTACH, is returned unchanged: it streams and holds no memory.

The gate calls `report` with `{"start": N, "timeout_s": T}` before and `{"end": N}` after each query. The supervisor
refreshes the copy of the catalog and calls `refreshed(N)`. It kills the process if `end` does not follow in time.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import duckdb

from analytics.query import open_streams_view
from analytics.query.errors import QueryError, QueryTimeout
from analytics.query.limits import Limits
from analytics.query.query_slots import QuerySlots
from analytics.query.reader import Reader, interrupted_after, limited, too_many_rows
from analytics.query.statement_filter import StatementFilter
from analytics.schema.sql_quoting import literal
from analytics.storage.database import first_row, one_line
from analytics.storage.location import ALIAS

ANSWER_KEPT_S = 10.0
"""Age at which the table of an answer is dropped. Its client's transaction begins within milliseconds."""
REFRESH_WAIT_S = 2.0
"""A query that waited this long runs on the older copy of the catalog."""

_DIRECTIVE = re.compile(r"\s*/\*streamgauge max_rows=(\d{1,9}) timeout_s=(\d{1,6}(?:\.\d{1,6})?)\*/")
_SCHEMATA = re.compile(r"\s*SELECT catalog_name, schema_name\s+FROM information_schema\.schemata\b")
_CATALOG = re.compile(r"\s*SELECT schema_name, sql, 'table'\s+FROM duckdb_tables\(\)\s+UNION ALL\b")
"""The first statements of a client's ATTACH. The answer is the public schema only."""
_SCHEMATA_ANSWER = f"SELECT '{ALIAS}' AS catalog_name, 'main' AS schema_name"
_CATALOG_ANSWER = (
    f"SELECT schema_name, sql, 'table' FROM duckdb_tables() WHERE database_name = '{ALIAS}' AND schema_name = 'main' "
    "UNION ALL SELECT schema_name, view_name, 'view' FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal "
    f"AND (database_name = '{ALIAS}' OR view_name = '{open_streams_view.NAME}')"
)


def directive(max_rows: int, timeout_s: float) -> str:
    """A comment in front of a statement that asks for smaller limits."""
    return f"/*streamgauge max_rows={max_rows} timeout_s={timeout_s:.3f}*/"


class Gate:
    """Quack's authorization function. Called by its threads."""

    def __init__(self, reader: Reader, limits: Limits, report: Callable[[dict[str, Any]], None]) -> None:
        """Attaches the database `answers`."""
        self._reader = reader
        self._limits = limits
        self._report = report
        reader.connection.execute("ATTACH ':memory:' AS answers")
        self._filter = StatementFilter(reader.cursor())
        self._slots = QuerySlots(limits)
        self._lock = threading.Lock()
        self._query_count = 0
        self._refreshes: dict[int, threading.Event] = {}
        self._answers: deque[tuple[float, str]] = deque()

    def __call__(self, session: str | None, sql: str | None) -> str:
        """The statement that Quack runs. On any failure it is one that raises an error, never the client's statement."""
        try:
            return self._answer(sql or "")
        except QueryError as e:
            return _error(f"{_PREFIXES.get(type(e), 'refused')}: {e}")
        except BaseException as e:
            return _error(f"refused: query failed: {one_line(e)}")

    def refreshed(self, number: int) -> None:
        """Called when the copy of the catalog has every commit from before the start of this query."""
        with self._lock:
            event = self._refreshes.get(number)
        if event is not None:
            event.set()

    def _answer(self, sql: str) -> str:
        if _SCHEMATA.match(sql):
            return _SCHEMATA_ANSWER
        max_rows, timeout_s = self._limits.max_rows, self._limits.timeout_s
        if requested := _DIRECTIVE.match(sql):
            max_rows, timeout_s = min(max_rows, int(requested[1])), min(timeout_s, float(requested[2]))
            sql = sql[requested.end() :]
        started_s = time.monotonic()
        event = threading.Event()
        with self._lock:
            self._query_count += 1
            number = self._query_count
            self._refreshes[number] = event
        self._report({"start": number, "timeout_s": timeout_s})
        try:
            event.wait(REFRESH_WAIT_S)
            if _CATALOG.match(sql):
                return _CATALOG_ANSWER
            tree = self._filter.check(sql)
            if requested is None and (scan := self._plain_scan(tree)) is not None:
                return scan
            with self._slots.slot(timeout_s):
                return self._run(f"a{number}", sql, max_rows, timeout_s, started_s)
        finally:
            with self._lock:
                del self._refreshes[number]
            self._report({"end": number})

    def _run(self, name: str, sql: str, max_rows: int, timeout_s: float, started_s: float) -> str:
        self._drop_old()
        remaining_s = timeout_s - (time.monotonic() - started_s)
        try:
            with contextlib.closing(self._reader.cursor()) as cursor, interrupted_after(cursor, remaining_s):
                open_streams_view.prepare(cursor, sql, self._reader.data_path)
                query = limited(cursor, sql, max_rows)
                row = first_row(cursor.execute(f"CREATE TABLE answers.main.{name} AS {query}"))
        except duckdb.Error as e:
            raise self._reader.translated(e, timeout_s) from None
        with self._lock:
            self._answers.append((time.monotonic(), name))
        if row is not None and row[0] > max_rows:
            raise too_many_rows(max_rows)
        return f"FROM answers.main.{name}"

    def _drop_old(self) -> None:
        names = []
        with self._lock:
            while self._answers and time.monotonic() - self._answers[0][0] >= ANSWER_KEPT_S:
                names.append(self._answers.popleft()[1])
        if names:
            with contextlib.closing(self._reader.cursor()) as cursor, contextlib.suppress(duckdb.Error):
                for name in names:
                    cursor.execute(f"DROP TABLE IF EXISTS answers.main.{name}")

    def _plain_scan(self, tree: dict[str, Any]) -> str | None:
        """The statement with its table's full name, if it only reads columns of one stored table."""
        node = tree["statements"][0]["node"]
        source = node.get("from_table") or {}
        plain = (
            node.get("type") == "SELECT_NODE"
            and source.get("type") == "BASE_TABLE"
            and source.get("schema_name") in ("", "main")
            and not source.get("sample")
            and not node.get("modifiers")
            and not node["cte_map"]["map"]
            and not any(node.get(part) for part in _CLAUSES)
            and node.get("aggregate_handling") == "STANDARD_HANDLING"
            and all(_is_column_or_constant(item) for item in node["select_list"])
        )
        with contextlib.closing(self._reader.cursor()) as cursor:
            stored = plain and first_row(
                cursor.execute(
                    "SELECT 1 FROM duckdb_tables() WHERE database_name = ? AND schema_name = 'main' AND lower(table_name) = ?",
                    [ALIAS, str(source["table_name"]).lower()],
                )
            )
            if not stored:
                return None
            source["catalog_name"], source["schema_name"] = ALIAS, "main"
            row = first_row(cursor.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(tree)]))
        return str(row[0]) if row else None


_CLAUSES = ("where_clause", "group_expressions", "group_sets", "having", "sample", "qualify")
_PREFIXES: dict[type[QueryError], str] = {QueryTimeout: "too slow"}


def _is_column_or_constant(item: dict[str, Any]) -> bool:
    if item.get("class") == "CAST":
        return (item.get("child") or {}).get("class") == "CONSTANT"
    if item.get("class") == "STAR":
        return not item.get("columns") and not item.get("replace_list")
    return item.get("class") in ("COLUMN_REF", "POSITIONAL_REFERENCE", "CONSTANT")


def _error(message: str) -> str:
    return f"SELECT error({literal(message)})"

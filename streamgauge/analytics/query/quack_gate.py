"""The gate in front of Quack: Quack calls it before it runs a client's statement, and runs the statement that it returns.

Without the gate a Quack client could run anything without limits. The gate sends the statement to the supervisor, which runs
it in the query pool. The gate writes the answer into a table of the in-memory database `answers` and returns `FROM
answers.main.…`. For a plain scan (`plain_scan`) it only waits until the copy of the catalog is fresh: the scan streams from
the table and holds no memory. So Quack runs no text of a client.

Protocol: the gate calls `ask` with `{"ask": N, "sql", "max_rows", "timeout_s"}`; `sql` None asks for a fresh catalog. The
reply `{"answer": N}` with Arrow IPC bytes, or `{"answer": N, "error", "message"}`, arrives in `answered`.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from streamgauge.analytics.query.answers import decode
from streamgauge.analytics.query.child_process import Limits
from streamgauge.analytics.query.query_errors import (
    QueryError,
    QueryRejected,
    QueryTimeout,
    of_kind,
    too_slow,
)
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.query.statement_filter import check_length
from streamgauge.analytics.schema.sql_quoting import identifier, literal
from streamgauge.analytics.storage.database import one_line
from streamgauge.analytics.storage.location import ALIAS

KEPT_S = 10
"""Age at which the table of an answer is dropped. Its client's transaction begins within milliseconds, and keeps the rows."""
KEPT_ANSWERS = 4
"""All kept answers have at most this many times `Limits.max_answer_bytes`. Beyond it the oldest is dropped first."""
LATE_S = 30.0
"""An answer that is this much past the time limit no longer comes: the pool stops queries, and starts of children, earlier."""

_DIRECTIVE = re.compile(r"\s*/\*streamgauge max_rows=(\d{1,9}) timeout_s=(\d{1,6}(?:\.\d{1,6})?)\*/")

_NAME = r'(?:"(?:[^"]|"")+"|[A-Za-z_]\w*)'
_ITEM = rf"(?:{_NAME}|#\d{{1,4}})"
_SCAN = re.compile(
    rf"\s*(?:SELECT\s+(?P<items>\*|NULL::BOOLEAN|{_ITEM}(?:\s*,\s*{_ITEM})*)\s+)?"
    rf"FROM\s+(?:(?:{ALIAS}\s*\.\s*)?main\s*\.\s*)?(?P<table>{_NAME})\s*;?\s*",
    re.IGNORECASE,
)
_SCANNED = re.compile(_ITEM)
_NO_COLUMNS = "NULL::BOOLEAN"
"""What a client reads to count rows."""


def directive(max_rows: int, timeout_s: float) -> str:
    """A comment in front of a statement that asks for smaller limits."""
    return f"/*streamgauge max_rows={max_rows} timeout_s={timeout_s:.3f}*/"


@dataclass(frozen=True, slots=True)
class _Kept:
    at_s: float
    name: str
    size_bytes: int


class Gate:
    """Quack's authorization function. Called by its threads."""

    def __init__(self, reader: Reader, limits: Limits, ask: Callable[[dict[str, Any]], None]) -> None:
        """Attaches the database `answers`."""
        self._reader = reader
        self._limits = limits
        self._ask = ask
        reader.connection.execute("ATTACH ':memory:' AS answers")
        self._kept_bytes = KEPT_ANSWERS * limits.max_answer_bytes
        self._lock = threading.Lock()
        self._count = 0
        self._asked: dict[int, Future[tuple[dict[str, Any], bytes]]] = {}
        self._kept: deque[_Kept] = deque()

    def __call__(self, session: str | None, sql: str | None) -> str:
        """The statement that Quack runs. On any failure it is one that raises an error, never the client's statement."""
        try:
            return self._statement(sql or "")
        except QueryError as e:
            # Quack passes on only a text. `sql_connection` finds the kind of the error by its first words.
            return _error(f"{'too slow' if isinstance(e, QueryTimeout) else 'refused'}: {e}")
        except BaseException as e:  # whatever fails here, the client's statement must not run
            return _error(f"refused: query failed: {one_line(e)}")

    def check_database(self) -> None:
        """End the process if an internal error of DuckDB has made the database unusable. The supervisor starts another."""
        try:
            with self._reader.connection.cursor() as cursor:
                cursor.execute("SELECT 1")
        except duckdb.FatalException as e:
            print(f"DuckDB failed: {one_line(e)}", file=sys.stderr, flush=True)
            os._exit(1)
        except duckdb.Error:
            pass  # for example no memory at the moment

    def answered(self, header: dict[str, Any], body: bytes) -> None:
        """Called with each reply of the supervisor."""
        with self._lock:
            asked = self._asked.get(header["answer"])
        if asked is not None:
            asked.set_result((header, body))

    def _statement(self, sql: str) -> str:
        check_length(sql)
        max_rows, timeout_s = self._limits.max_rows, self._limits.timeout_s
        requested = _DIRECTIVE.match(sql)
        if requested:
            max_rows, timeout_s = min(max_rows, int(requested[1])), min(timeout_s, float(requested[2]))
            sql = sql[requested.end() :]
        elif (scan := plain_scan(sql, self._columns_of)) is not None:
            return scan
        number, body = self._answer_of(sql, max_rows, timeout_s)
        return self._keep(f"a{number}", decode(body, untrusted=True))

    def _answer_of(self, sql: str | None, max_rows: int, timeout_s: float) -> tuple[int, bytes]:
        asked: Future[tuple[dict[str, Any], bytes]] = Future()
        with self._lock:
            self._count += 1
            number = self._count
            self._asked[number] = asked
        try:
            self._ask({"ask": number, "sql": sql, "max_rows": max_rows, "timeout_s": timeout_s})
            header, body = asked.result(timeout_s + LATE_S)
        except TimeoutError:
            raise too_slow(timeout_s) from None
        finally:
            with self._lock:
                del self._asked[number]
        if "error" in header:
            raise of_kind(header["error"], header.get("message"))
        return number, body

    def _keep(self, name: str, table: pa.Table) -> str:
        """Write the answer into a table. Returns the statement that reads it."""
        # Old answers are dropped here, not by a timer: between two answers they take no more memory.
        self._drop(table.nbytes)
        # A table needs different names. Those of the client's columns may be equal; its SELECT can show them again.
        names = [f"c{place}" for place in range(table.num_columns)]
        columns = zip(names, table.column_names, strict=True)
        selected = ", ".join(f"{name} AS {identifier(shown)}" for name, shown in columns)
        with self._reader.connection.cursor() as cursor:
            cursor.register("answer", table.rename_columns(names))
            try:
                cursor.execute(f"CREATE TABLE answers.main.{name} AS SELECT {selected} FROM temp.main.answer")
            except duckdb.OutOfMemoryException:
                raise QueryRejected(
                    "busy: the answers of other readers fill the server's memory. Try again in a few seconds."
                ) from None
        with self._lock:
            self._kept.append(_Kept(time.monotonic(), name, table.nbytes))
        return f"FROM answers.main.{name}"

    def _drop(self, more_bytes: int) -> None:
        """Drop old answers, and make room for another."""
        dropped: list[str] = []
        now_s = time.monotonic()
        with self._lock:
            kept_bytes = more_bytes + sum(kept.size_bytes for kept in self._kept)
            while self._kept and (now_s - self._kept[0].at_s >= KEPT_S or kept_bytes > self._kept_bytes):
                kept_bytes -= self._kept[0].size_bytes
                dropped.append(self._kept.popleft().name)
        if dropped:
            with self._reader.connection.cursor() as cursor, contextlib.suppress(duckdb.Error):
                for name in dropped:
                    cursor.execute(f"DROP TABLE IF EXISTS answers.main.{name}")

    def _columns_of(self, table: str) -> list[str] | None:
        """Columns of a stored table, after all commits so far."""
        self._answer_of(None, self._limits.max_rows, self._limits.timeout_s)
        with self._reader.connection.cursor() as cursor:
            rows = cursor.execute(
                "SELECT c.column_name FROM duckdb_tables() t JOIN duckdb_columns() c USING (database_name, schema_name, table_name) "
                "WHERE t.database_name = ? AND t.schema_name = 'main' AND lower(t.table_name) = ? ORDER BY c.column_index",
                [ALIAS, table],
            ).fetchall()
        return [name for (name,) in rows] or None


def _error(message: str) -> str:
    return f"SELECT error({literal(message)})"


def plain_scan(sql: str, columns_of: Callable[[str], Sequence[str] | None]) -> str | None:
    """The scan of one stored table, which an ATTACH client sends for each table it reads. None for any other statement.

    The scan is composed here, from names that the store has. `columns_of` gives the columns of a table (lower-case name) in order,
    None if it is not a stored table.
    """
    found = _SCAN.fullmatch(sql)
    if found is None:
        return None
    table = _unquoted(found["table"])
    columns = columns_of(table)
    if columns is None:
        return None
    items: str | None = found["items"]
    if items in (None, "*"):
        selected = "*"
    elif items.upper() == _NO_COLUMNS:
        selected = _NO_COLUMNS
    else:
        names = [_column(item, columns) for item in _SCANNED.findall(items)]
        if len(set(names)) < len(names) or None in names:  # repeated columns could make rows of any width
            return None
        selected = ", ".join(identifier(name) for name in names if name)
    return f"SELECT {selected} FROM {ALIAS}.main.{identifier(table)}"


def _column(item: str, columns: Sequence[str]) -> str | None:
    if item.startswith("#"):
        place = int(item[1:])
        return columns[place - 1] if 0 < place <= len(columns) else None
    name = _unquoted(item)
    return next((column for column in columns if column.lower() == name), None)


def _unquoted(name: str) -> str:
    """In lower case, because names are compared without case."""
    return (name[1:-1].replace('""', '"') if name.startswith('"') else name).lower()

"""The statement filter: an untrusted statement must be one SELECT that only reads the public tables.

The filter checks the tree of DuckDB's own parser (`json_serialize_sql`), never the text. The process it runs in also has
limited rights and resources (`streamgauge.analytics.query.sandbox`), and DuckDB can read no other files. So the filter does not
estimate the cost of a statement, and a statement that crashes the parser ends only its own process.

1. One statement, a SELECT (WITH, FROM-first, VALUES, DESCRIBE, SUMMARIZE, SHOW TABLES count as SELECT) or the EXPLAIN of one.
   EXPLAIN ANALYZE is not allowed: it lists paths of files.
2. A table is a table or view of the store's schema `main`, `open_streams`, a WITH query, or in `information_schema`.
3. Functions are those that DuckDB itself defines, except those that have effects, read the environment or settings, or run
   SQL in strings. Table functions are listed one by one. Functions of extensions are never allowed. Those that list tables
   are macros that `Reader.lock_down` defines, so their names have no schema.
"""

from __future__ import annotations

import difflib
import json
import re
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import duckdb

from streamgauge.analytics.query.open_streams_view import NAME as OPEN_STREAMS
from streamgauge.analytics.query.query_errors import READ_ONLY, QueryRejected, not_one_statement
from streamgauge.analytics.storage.database import new_database, one_line
from streamgauge.analytics.storage.location import ALIAS

MAX_SQL_BYTES = 64 * 1024
MAX_NESTING = 200
"""Levels of brackets. Statements written by people stay below 20; the parser recurses a few times for each."""

MAX_NAME_CHARS = 64
"""Characters of a name that are compared to find the nearest."""

TABLE_FUNCTIONS = frozenset(
    {
        "range", "generate_series", "unnest", "repeat_row", "json_each", "json_tree", "pg_timezone_names",
        "duckdb_tables", "duckdb_views", "duckdb_columns", "duckdb_schemas", "duckdb_types", "duckdb_functions",
        "duckdb_constraints", "duckdb_indexes", "duckdb_keywords", "pragma_version", "pragma_table_info",
    }
)  # fmt: skip
DENIED_FUNCTIONS = frozenset(
    {
        # effects
        "nextval", "currval", "setseed", "write_log", "sleep_ms", "pg_sleep",
        # environment, settings and sessions
        "current_setting", "getvariable", "getenv", "stats", "current_connection_id", "current_query_id",
        "current_transaction_id", "txid_current", "which_secret", "parse_duckdb_log_message", "current_query",
        # SQL in strings, plans, raw states of aggregates
        "json_serialize_plan", "json_serialize_sql", "json_deserialize_sql", "json_execute_serialized_sql",
        "query", "query_table", "combine", "finalize", "create_sort_key",
        # files
        "glob", "read_text", "read_blob",
    }
)  # fmt: skip
WINDOW_FUNCTIONS = frozenset(
    {
        "row_number", "rank", "dense_rank", "rank_dense", "percent_rank", "cume_dist", "ntile", "lag", "lead",
        "first_value", "last_value", "nth_value", "first", "last", "fill",
    }
)  # fmt: skip
SYNTAX = frozenset({"unnest", "grouping", "grouping_id", "coalesce", "if", "ifnull", "->", "lambda"})
"""Names that the parser reports as function calls although DuckDB lists no such functions."""
OTHER_PREFIXES = ("__internal", "quack_", "has_", "ducklake_", "sqlite_", "postgres_", "read_", "parquet_")
SCHEMAS = frozenset({"", "main", "information_schema"})
HIDDEN_COLUMNS = frozenset({"filename"})
"""DuckLake adds this column to each table: the path of the row's file."""
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_EXPLAIN = re.compile(r"[ \t\r\n]*EXPLAIN\b(?![ \t\r\n]+ANALY[SZ]E\b)", re.IGNORECASE | re.ASCII)
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


class StatementFilter:
    """Checks statements against one database. Threads may share it."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, *, catalog: str = ALIAS) -> None:
        """`connection` is used by the filter only, to parse and to list tables. `catalog`: the store's name."""
        self._connection = connection
        self._catalog = catalog
        self._lock = threading.Lock()
        self.functions = allowed_functions()
        self._read_names()

    def check(self, sql: str) -> dict[str, Any]:
        """The statement's tree from `json_serialize_sql`. Raises QueryRejected."""
        check_length(sql)
        # Before the parser, which recurses for each level and would overflow the stack.
        if nesting(sql) > MAX_NESTING:
            raise _too_deep()
        sql = without_explain(sql)
        with self._lock:
            tree = self._parse(sql)
            node = tree["statements"][0]["node"]
            ctes = {name.lower() for name in _cte_names(node)}
            for name in ctes:
                if not _IDENTIFIER.fullmatch(name) or self._is_hidden(name):
                    raise QueryRejected(
                        f"cannot run the statement: a WITH query cannot be named {name!r}. Rename it."
                    )
            # Every object, not only those of known places: a new version of DuckDB may nest them elsewhere.
            for item in _objects(node):
                try:
                    self._check(item, ctes)
                except QueryRejected as error:
                    error.position = position_of_byte(sql, item.get("query_location"))
                    raise
        return tree

    def _parse(self, sql: str) -> dict[str, Any]:
        try:
            row = self._connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()[0]
            tree: dict[str, Any] = json.loads(row[0])
        except duckdb.Error as e:
            raise QueryRejected(one_line(e)) from None
        except RecursionError:  # about 1000 levels
            raise _too_deep() from None
        if tree.get("error_type") == "not implemented":
            raise QueryRejected(READ_ONLY)
        if tree.get("error"):
            raise QueryRejected(
                " ".join(str(tree.get("error_message", "not SQL")).splitlines()[:1]),
                position=int(tree["position"]) if str(tree.get("position", "")).isdecimal() else None,
            )
        if len(tree["statements"]) != 1:
            raise not_one_statement(len(tree["statements"]))
        return tree

    def _check(self, item: dict[str, Any], ctes: set[str]) -> None:
        kind = item.get("type")
        if kind == "BASE_TABLE":
            self._check_table(item, ctes)
        elif kind == "TABLE_FUNCTION":
            self._check_table_function(item["function"])
        elif kind == "SHOW_REF":
            name = str(item.get("table_name", "")).lower().strip('"')
            if item.get("query") is None and name not in ("", "tables", "__show_tables_expanded"):
                raise QueryRejected(
                    f"cannot run the statement: SHOW {name} is not allowed here. Use SHOW TABLES or DESCRIBE."
                )
        elif "function_name" in item and item.get("class") != "TABLE_FUNCTION":
            name = str(item["function_name"]).lower()  # its schema is often a column: outcome.upper()
            if name not in self.functions:
                raise QueryRejected(
                    f"cannot run the statement: the function {name!r} does not exist or is not allowed here. "
                    f"{_did_you_mean(name, self.functions) or 'Use another function.'}"
                )

        for part in ("column_names", "using_columns", "groups"):
            _check_columns(item.get(part))

    def _check_table_function(self, call: dict[str, Any]) -> None:
        name = str(call.get("function_name", "")).lower()
        if name not in TABLE_FUNCTIONS or call.get("schema") or call.get("catalog"):
            raise QueryRejected(
                f"cannot run the statement: the table function {name!r} is not allowed here. SHOW TABLES lists the tables."
            )
        if name == "pragma_table_info":
            self._check_table({"table_name": _only_text(call)}, set())
        call["class"] = "TABLE_FUNCTION"  # checked; not a scalar function of the same name

    def _check_table(self, item: dict[str, Any], ctes: set[str]) -> None:
        catalog, schema, name = (
            str(item.get(part, "")).lower() for part in ("catalog_name", "schema_name", "table_name")
        )
        if catalog in ("", self._catalog) and schema in SCHEMAS:
            if schema == "information_schema" or (not schema and name in ctes):
                return
            if self._is_public(name):
                return
        full = ".".join(part for part in (catalog, schema, name) if part)
        raise QueryRejected(
            f"cannot run the statement: there is no public table {full!r}. "
            f"{_did_you_mean(name, self._public) or 'SHOW TABLES lists the tables.'}"
        )

    def _is_public(self, name: str) -> bool:
        if name not in self._public:
            self._read_names()  # analytics may have added a table
        return name in self._public

    def _is_hidden(self, name: str) -> bool:
        """Whether the name is a hidden table. A WITH query of that name would hide a read of the table in another scope."""
        return name in self._known and not self._is_public(name)

    def _read_names(self) -> None:
        rows = self._connection.execute(
            "SELECT database_name, schema_name, table_name, internal FROM system.main.duckdb_tables() "
            "UNION ALL SELECT database_name, schema_name, view_name, internal FROM system.main.duckdb_views()"
        ).fetchall()
        self._public = {
            name.lower() for catalog, schema, name, _ in rows if (catalog, schema) == (self._catalog, "main")
        } | {OPEN_STREAMS}
        self._known = {name.lower() for _, _, name, _ in rows}


def allowed_functions() -> frozenset[str]:
    """Scalar functions, aggregates, macros and window functions that statements may call.

    They come from a database without extensions.
    """
    # The store's database has extensions, whose functions read files, catalogs and other servers.
    connection = new_database()
    try:
        rows = connection.execute(
            "SELECT DISTINCT lower(function_name) FROM duckdb_functions() "
            "WHERE function_type IN ('scalar', 'aggregate', 'macro') AND internal"
        ).fetchall()
    finally:
        connection.close()
    builtin = {name for (name,) in rows if not name.startswith(OTHER_PREFIXES)}
    return frozenset(builtin - DENIED_FUNCTIONS | SYNTAX | WINDOW_FUNCTIONS)


def without_explain(sql: str) -> str:
    """The statement of an EXPLAIN, at the same position of the text. Other statements as they are."""
    found = _EXPLAIN.match(sql)
    return sql if found is None else re.sub(r"\S", " ", found[0]) + sql[found.end() :]


def position_of_byte(statement: str, offset: object) -> int | None:
    """The position of a byte offset that DuckDB reports. Unknown offsets are negative or 2**64 - 1."""
    encoded = statement.encode(errors="replace")
    if not isinstance(offset, int) or not 0 <= offset <= len(encoded):
        return None
    return len(encoded[:offset].decode(errors="ignore"))


def check_length(sql: str) -> None:
    """Raises QueryRejected for a statement that is too long."""
    if len(sql.encode(errors="replace")) > MAX_SQL_BYTES:
        raise QueryRejected(
            f"cannot run the statement: it is longer than {MAX_SQL_BYTES // 1024} KiB. Shorten it."
        )


def nesting(sql: str) -> int:
    """The deepest level of brackets in the text. Brackets in strings count too."""
    # To leave out strings and comments, this would have to be a second parser of hostile text.
    level = deepest = 0
    for character in sql:
        if character in _OPENING:
            level += 1
            deepest = max(deepest, level)
        elif character in _CLOSING:
            level -= 1
    return deepest


def _did_you_mean(name: str, offered: Iterable[str]) -> str:
    """A question with the nearest name, empty if none is near."""
    # Only from `offered`, the public names: a suggestion must not show that an internal table exists.
    near = difflib.get_close_matches(name[:MAX_NAME_CHARS], sorted(offered), n=1, cutoff=0.7)
    return f"Did you mean {near[0]!r}?" if near else ""


def _check_columns(names: Any) -> None:
    # As a selected column it would show paths. DuckDB resolves these lists by name, so no column reference is in the tree.
    if isinstance(names, list) and any(str(name).lower() in HIDDEN_COLUMNS for name in names):
        raise QueryRejected(
            "cannot run the statement: the column 'filename' is internal. Use another column or alias."
        )


def _only_text(call: dict[str, Any]) -> str:
    """The function's only argument if it is a text constant, else an empty text."""
    children = call.get("children") or []
    value = children[0].get("value") if len(children) == 1 else None
    return str(value.get("value", "")) if isinstance(value, dict) else ""


def _too_deep() -> QueryRejected:
    return QueryRejected(
        f"cannot run the statement: it is nested too deeply; the limit is {MAX_NESTING} levels of brackets. "
        "Split it into WITH queries."
    )


def _objects(node: Any) -> Iterator[dict[str, Any]]:
    """Every object of the tree, parents first."""
    # Not recursive: a tree that the parser accepts may be deeper than Python's stack.
    stack = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _cte_names(node: Any) -> Iterator[str]:
    for item in _objects(node):
        names = item.get("cte_map")
        if isinstance(names, dict):
            for entry in names.get("map", ()):
                yield str(entry["key"])
        if item.get("type") == "RECURSIVE_CTE_NODE" and item.get("cte_name"):
            yield str(item["cte_name"])

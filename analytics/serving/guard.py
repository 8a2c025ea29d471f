"""Which SQL is admitted: one statement that only reads the public tables.

Rules, all of them on the parsed tree (DuckDB's own parser, `json_serialize_sql`), never on the text:
1. One statement, and it is a SELECT (WITH, FROM-first, VALUES, DESCRIBE, SUMMARIZE, SHOW, UNPIVOT are SELECTs to the parser).
2. A table is a public table or view of the schema `main`, a CTE of the query, or of `information_schema`.
   So neither files (`FROM 'x.csv'`) nor internal tables nor other databases.
3. A function is on a list. For table functions the list is written out here; for scalar functions and aggregates
   it is what DuckDB itself defines, without those that have effects, read the environment or settings, or sleep.
   A CTE bears no name that stands for something else where the CTE is not in scope: an internal view, a file.
4. What it becomes when its names are put in is bounded: planning cannot be interrupted (`analytics.serving.plan_size`).
5. A function whose result is as long as an argument says takes only a small constant there, and all such constants of a
   statement multiplied are bounded too: strings and lists live outside the memory limit, and while one function makes
   them no limit of time ends it. So a lambda uses only what it is given, and nothing whose work is the square of its text.

The other half of the lock is DuckDB's: no external access, configuration locked (`analytics.serving.serve`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb

from analytics.serving.plan_size import too_large
from analytics.storage.packed import STORED_AS

MAX_SQL_CHARS = 256 * 1024
MAX_GENERATED = 100_000
"""Largest constant that `repeat`, `lpad`, `range` as a value … take."""
MAX_GROWTH = 10_000_000
"""What the sizes of a statement may amount to when multiplied: those constants, replacements, long literals; what is
only compared with something grows nothing."""
MAX_PATTERN_CHARS = 1_000
"""Of LIKE."""
_LONG_LITERAL_CHARS = 256

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
        # the server's own state, settings and sessions
        "current_setting", "getvariable", "getenv", "stats", "current_connection_id", "current_query_id",
        "current_transaction_id", "txid_current", "which_secret", "parse_duckdb_log_message",
        # SQL inside strings, plans, raw aggregate states
        "json_serialize_plan", "json_serialize_sql", "json_deserialize_sql", "json_execute_serialized_sql",
        "query", "query_table", "combine", "finalize", "create_sort_key",
        # one call takes hours or all memory, and cannot be interrupted
        "list_reduce", "array_reduce", "reduce", "reservoir_quantile", "bitstring_agg",
        "levenshtein", "editdist3", "damerau_levenshtein", "jaro_similarity", "jaro_winkler_similarity", "glob",
    }
)  # fmt: skip

WINDOW_FUNCTIONS = frozenset(
    {
        "row_number", "rank", "dense_rank", "rank_dense", "percent_rank", "cume_dist", "ntile", "lag", "lead",
        "first_value", "last_value", "nth_value", "first", "last", "fill",
    }
)  # fmt: skip

GENERATORS = frozenset(
    {"repeat", "lpad", "rpad", "range", "generate_series", "array_resize", "list_resize", "bar", "bitstring"}
)

REPLACERS = frozenset({"replace", "regexp_replace"})
FORMATTERS = frozenset({"format", "printf"})
MATCHERS = {
    **dict.fromkeys(("~~", "!~~", "~~*", "!~~*"), "%"),
    **dict.fromkeys(("like_escape", "not_like_escape", "ilike_escape", "not_ilike_escape"), "%"),
    "~~~": "*",
}
"""LIKE and its kin, with their wildcard: they try every way, which is the power of its number."""
_WIDTH = re.compile(r"\d{4,}|\*|:\{")
_IDENTIFIER = re.compile(r"[^\W\d]\w*")

PUBLIC_SCHEMAS = frozenset({"", "main", "information_schema"})


class NotAdmitted(Exception):
    """The statement is not admitted, or is no SQL; one line says why."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A statement that may run. `plain_scan`: it reads columns of one table and nothing else, so it may stream."""

    sql: str
    plain_scan: bool


class Guard:
    """Admits statements against one database. Not thread-safe: one owner, or one per thread."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, *, catalog: str) -> None:
        """`connection` is used for parsing and to list functions and tables; `catalog` is the database's name."""
        self._connection = connection
        self._catalog = catalog
        rows = connection.execute(
            "SELECT DISTINCT lower(function_name) FROM duckdb_functions() "
            "WHERE function_type IN ('scalar', 'aggregate', 'macro') AND internal"
        ).fetchall()
        own = {"unnest", "grouping", "grouping_id", "coalesce", "if", "ifnull", "->", "lambda"}
        self.functions = frozenset(
            {name for (name,) in rows if not name.startswith(("__internal", "quack_", "has_"))}
            - DENIED_FUNCTIONS
            | own
            | WINDOW_FUNCTIONS
        )
        """The scalar functions, aggregates and window functions that are admitted."""
        self._tables = self._names("duckdb_tables()", "table_name")
        self._views = self._names("duckdb_views()", "view_name")
        everything = connection.execute(
            "SELECT table_name FROM duckdb_tables() UNION SELECT view_name FROM duckdb_views()"
        ).fetchall()
        self._hidden = frozenset(name.lower() for (name,) in everything) - self._tables - self._views

    def _names(self, source: str, column: str) -> frozenset[str]:
        return frozenset(
            name.lower()
            for (name,) in self._connection.execute(
                f"SELECT {column} FROM {source} WHERE database_name = ? AND schema_name = 'main' AND NOT internal",
                [self._catalog],
            ).fetchall()
        )

    def admit(self, sql: str) -> Admitted:
        """The statement, checked. Raises NotAdmitted."""
        if len(sql) > MAX_SQL_CHARS:
            raise NotAdmitted(f"the statement is longer than {MAX_SQL_CHARS} characters")
        tree = self._parse(sql)
        statements = tree["statements"]
        if len(statements) != 1:
            raise NotAdmitted(
                "exactly one SELECT statement is admitted" if statements else "there is no statement"
            )
        node = statements[0]["node"]
        ctes = {key.lower() for key in _cte_names(node)}
        for name in ctes:
            if name in self._hidden or not _IDENTIFIER.fullmatch(name):
                raise NotAdmitted(f"a WITH query may not be called {name!r}")
        reason = _too_large(node)
        if reason is not None:
            raise NotAdmitted(reason)
        growth = 1
        compared: set[int] = set()
        for item in _dicts(node):
            self._check(item, ctes)
            compared.update(map(id, _compared(item)))
            growth *= _growth_of(item) if id(item) not in compared else 1
            if growth > MAX_GROWTH:
                raise NotAdmitted("the statement could make values that are too long")
        return Admitted(sql, self._is_plain_scan(node))

    def _parse(self, sql: str) -> dict[str, Any]:
        try:
            row = self._connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchone()
        except duckdb.Error as e:
            raise NotAdmitted(one_line(e)) from None
        if row is None:
            raise NotAdmitted("there is no statement")
        try:
            tree: dict[str, Any] = json.loads(row[0])
        except RecursionError:
            raise NotAdmitted("the statement is nested too deeply") from None
        if tree.get("error"):
            if tree.get("error_type") == "not implemented":
                raise NotAdmitted("only SELECT is admitted: this door is read-only")
            raise NotAdmitted(f"{tree.get('error_message', 'not SQL')}".splitlines()[0])
        return tree

    def _check(self, item: dict[str, Any], ctes: set[str]) -> None:
        kind = item.get("type")
        if kind == "BASE_TABLE":
            self._check_table(item, ctes)
        elif kind == "TABLE_FUNCTION":
            name = str(item["function"].get("function_name", "")).lower()
            if name not in TABLE_FUNCTIONS:
                raise NotAdmitted(f"the table function {name!r} is not admitted")
            item["function"]["class"] = "TABLE_FUNCTION"  # checked: not to be read as a scalar call again
        elif kind == "SHOW_REF":
            self._check_show(item)
        elif kind == "LAMBDA":
            _check_lambda(item)
        elif "function_name" in item and item.get("class") != "TABLE_FUNCTION":
            self._check_function(item)

    def _check_table(self, item: dict[str, Any], ctes: set[str]) -> None:
        catalog = str(item.get("catalog_name", "")).lower()
        schema = str(item.get("schema_name", "")).lower()
        name = str(item.get("table_name", "")).lower()
        if catalog in ("", self._catalog.lower()) and schema in PUBLIC_SCHEMAS:
            if schema == "information_schema" or name in self._tables or name in self._views:
                return
            if not schema and name in ctes:
                return
        full = ".".join(part for part in (catalog, schema, name) if part)
        raise NotAdmitted(f"there is no public table {full!r}; SHOW TABLES lists them")

    def _check_show(self, item: dict[str, Any]) -> None:
        name = str(item.get("table_name", "")).lower().strip('"')
        if item.get("query") is None and name not in ("", "tables", "__show_tables_expanded"):
            raise NotAdmitted(f"SHOW {name} is not admitted")

    def _check_function(self, item: dict[str, Any]) -> None:
        name = str(item["function_name"]).lower()
        if name not in self.functions:  # a "schema" is often a column: outcome.upper()
            raise NotAdmitted(f"the function {name!r} is not admitted")
        if name in GENERATORS:
            for argument in item.get("children", ())[0 if "range" in name or "series" in name else 1 :]:
                if not _is_small(argument):
                    raise NotAdmitted(f"{name} takes only constants up to {MAX_GENERATED} here")

        if name in REPLACERS and not isinstance(_constant(_argument(item, 2)), str):
            raise NotAdmitted(f"{name} takes only a constant as its replacement")
        if name in MATCHERS and not _is_linear(name, _constant(_argument(item, 1))):
            raise NotAdmitted(
                "LIKE takes only a constant with one wildcard before its last; use regexp_matches"
            )
        if name in FORMATTERS:
            form = _constant(_argument(item, 0))
            if not isinstance(form, str) or _WIDTH.search(form):
                raise NotAdmitted(f"{name} takes only a constant form, without wide fields")

    def _is_plain_scan(self, node: dict[str, Any]) -> bool:
        source = node.get("from_table") or {}
        return (
            node.get("type") == "SELECT_NODE"
            and source.get("type") == "BASE_TABLE"
            and str(source.get("table_name", "")).lower() in self._tables | STORED_AS.keys()
            and not source.get("sample")
            and not node.get("modifiers")
            and not node["cte_map"]["map"]
            and not any(
                node.get(k) for k in ("where_clause", "group_expressions", "group_sets", "having", "sample")
            )
            and not node.get("qualify")
            and node.get("aggregate_handling") == "STANDARD_HANDLING"
            and all(_is_column_or_constant(e) for e in node["select_list"])
        )


def _check_lambda(item: dict[str, Any]) -> None:
    """What it uses, but is not given, it would copy for each element, in one call that nothing ends.

    JSON's arrow is a lambda to the parser as well; what stands right of it is a constant.
    """
    given = {str(one["column_names"]) for one in _dicts(item.get("lhs")) if one.get("class") == "COLUMN_REF"}
    stack = [item.get("expr")]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if node.get("class") == "COLUMN_REF" and str(node["column_names"][:1]) not in given:
                raise NotAdmitted("a lambda may use only its own parameters here")
            if node.get("class") != "LAMBDA":  # one within is looked at by itself
                stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)


def _too_large(node: Any) -> str | None:
    try:
        return too_large(node)
    except RecursionError:
        return "the statement is nested too deeply"


def one_line(error: BaseException) -> str:
    """What DuckDB says, in one line, without its echo of the statement."""
    return " ".join(str(error).split("\nLINE ")[0].split())


def _is_column_or_constant(item: dict[str, Any]) -> bool:
    if item.get("class") == "CAST":
        return (item.get("child") or {}).get("class") == "CONSTANT"
    if item.get("class") == "STAR":
        return not item.get("columns") and not item.get("replace_list")
    return item.get("class") in ("COLUMN_REF", "POSITIONAL_REFERENCE", "CONSTANT")


def _is_small(argument: dict[str, Any]) -> bool:
    """A constant that makes no long value; columns and expressions could be anything."""
    while argument.get("class") == "CAST" or argument.get("function_name") == "-":
        children = argument.get("children")
        argument = children[0] if children else argument.get("child", {})
    if argument.get("class") != "CONSTANT":
        return False
    value = argument.get("value", {}).get("value")
    if isinstance(value, str):  # a filling, or a number in quotes
        return len(value) == 1 or not any(character.isdigit() for character in value)
    return not isinstance(value, int | float) or abs(value) <= MAX_GENERATED


def _is_linear(matcher: str, pattern: Any) -> bool:
    """Whether DuckDB needs no time beyond the text's length for it; LIKE without `_` it searches piece by piece."""
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN_CHARS:
        return False
    if matcher in ("~~", "!~~") and "_" not in pattern:
        return True
    wildcard = MATCHERS[matcher]
    return pattern.rstrip(wildcard).count(wildcard) <= 1


def _argument(item: dict[str, Any], place: int) -> dict[str, Any]:
    children = item.get("children") or []
    return children[place] if place < len(children) else {}


def _constant(argument: dict[str, Any]) -> Any:
    """The value of a constant, None for anything else."""
    while argument.get("class") == "CAST":
        argument = argument.get("child") or {}
    return (argument.get("value") or {}).get("value") if argument.get("class") == "CONSTANT" else None


def _growth_of(item: dict[str, Any]) -> int:
    """By how much this node may make longer what is put into it."""
    if item.get("class") == "CONSTANT":
        value = _constant(item)
        return len(value) if isinstance(value, str) and len(value) > _LONG_LITERAL_CHARS else 1
    if "function_name" not in item or item.get("class") == "TABLE_FUNCTION":
        return 1
    name = str(item["function_name"]).lower()
    if name in REPLACERS:
        return max(1, len(str(_constant(_argument(item, 2)))))
    if name in GENERATORS:
        sizes = [_constant(one) for one in item.get("children") or ()]
        return int(
            max(
                [1.0, *(abs(n) for n in sizes if isinstance(n, int | float) and abs(n) > _LONG_LITERAL_CHARS)]
            )
        )
    return 1


def _compared(item: dict[str, Any]) -> list[Any]:
    """The constants beside =, <, IN and their like, whose result is a truth value however long they are."""
    if item.get("class") == "COMPARISON":
        operands = [item.get("left"), item.get("right")]
    elif item.get("type") in ("COMPARE_IN", "COMPARE_NOT_IN"):
        operands = item.get("children") or []
    else:
        return []
    return [one for one in operands if isinstance(one, dict) and one.get("class") == "CONSTANT"]


def _dicts(node: Any) -> Iterator[dict[str, Any]]:
    """Every object of the tree, parents first; iterative, so depth is no danger."""
    stack = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _cte_names(node: Any) -> Iterator[str]:
    for item in _dicts(node):
        names = item.get("cte_map")
        if isinstance(names, dict):
            for entry in names.get("map", ()):
                yield str(entry["key"])
        if item.get("type") == "RECURSIVE_CTE_NODE" and item.get("cte_name"):
            yield str(item["cte_name"])

"""How large a parsed SELECT becomes when its names are put in: nothing can interrupt DuckDB while it plans. Pure.

A name that stands for an expression is replaced by it where it is used (`SELECT 1 AS a, a+a AS b, b+b AS c` doubles with
each), and so is a WITH query; and orders of many joins are tried out. So all three are counted on the tree, before.
"""

from __future__ import annotations

from typing import Any

MAX_TERMS = 20_000
"""Expressions, names put in."""
MAX_TABLES = 64
"""Tables, WITH queries put in."""


def too_large(node: Any) -> str | None:
    """Why a statement is too large to be planned; None when it is not."""
    if _tables(node, {}) > MAX_TABLES:
        return f"the statement reads more than {MAX_TABLES} tables, its WITH queries put in"
    stack = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if item.get("type") == "SELECT_NODE" and _terms(item.get("select_list") or []) > MAX_TERMS:
                return f"the columns of a SELECT have more than {MAX_TERMS} terms, their names put in"
            stack += item.values()
        elif isinstance(item, list):
            stack += item
    return None


def _terms(columns: list[dict[str, Any]]) -> int:
    """Expressions of a select list, in which a column may use the names of those before it."""
    sizes: dict[str, int] = {}
    total = 0
    for column in columns:
        size = 0
        stack: list[Any] = [column]
        while stack:
            item = stack.pop()
            if isinstance(item, dict):
                size += "class" in item
                if item.get("class") == "COLUMN_REF":
                    size += sizes.get(str((item.get("column_names") or [""])[-1]).lower(), 0)
                stack += item.values()
            elif isinstance(item, list):
                stack += item
        alias = str(column.get("alias") or "").lower()
        if alias:
            sizes[alias] = min(size, 2 * MAX_TERMS)
        total += size
    return total


def _tables(node: Any, known: dict[str, int]) -> int:
    """Tables of a query; `known`: those of the WITH queries in scope."""
    if isinstance(node, list):
        return sum(_tables(item, known) for item in node)
    if not isinstance(node, dict):
        return 0
    scope = known
    total = 0
    for entry in (node.get("cte_map") or {}).get("map") or ():
        scope = scope if scope is not known else dict(known)
        scope[str(entry["key"]).lower()] = min(_tables(entry["value"], scope), 2 * MAX_TABLES)
    kind = node.get("type")
    if kind == "BASE_TABLE":
        total += scope.get(str(node.get("table_name")).lower(), 1) or 1
    elif kind == "TABLE_FUNCTION":
        total += 1
    return total + sum(_tables(value, scope) for key, value in node.items() if key != "cte_map")

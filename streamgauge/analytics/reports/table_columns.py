"""SQL for the names in statements: tables, columns with types and comments, functions."""

from __future__ import annotations

from typing import Any

import polars as pl

from streamgauge.analytics.reports import Query
from streamgauge.analytics.reports.columns import table as table_of
from streamgauge.analytics.reports.columns import text


def columns(query: Query) -> pl.DataFrame:
    """`table_name, column_name, data_type, comment` of all columns."""
    return query("""
        SELECT table_name, column_name, data_type, comment FROM duckdb_columns()
        WHERE schema_name = 'main' AND NOT internal
            AND (database_name = current_database() OR (database_name, table_name) = ('memory', 'open_streams'))
        ORDER BY table_name, column_index LIMIT 2000""")


def tables(query: Query) -> list[dict[str, Any]]:
    """`name, kind, comment, columns` of the public tables and views. A column is (name, type, comment)."""
    found = query("""
        SELECT table_name AS name, 'table' AS kind, comment FROM duckdb_tables()
        WHERE schema_name = 'main' AND NOT internal AND database_name = current_database()
        UNION ALL
        SELECT view_name, 'view', comment FROM duckdb_views()
        WHERE schema_name = 'main' AND NOT internal
            AND (database_name = current_database() OR (database_name, view_name) = ('memory', 'open_streams'))
        ORDER BY name LIMIT 500""")
    of_table: dict[str, list[tuple[str, str, str]]] = {}
    for table, column, kind, comment in columns(query).iter_rows():
        of_table.setdefault(table, []).append((column, kind, comment or ""))
    return [
        row | {"comment": row["comment"] or "", "columns": of_table.get(row["name"], [])}
        for row in found.to_dicts()
    ]


def functions(query: Query) -> list[tuple[str, str]]:
    """(name, parameters) of the functions that DuckDB defines."""
    found = query("""
        SELECT lower(function_name) AS name, any_value(array_to_string(parameters, ', ')) AS parameters
        FROM duckdb_functions()
        WHERE function_type IN ('scalar', 'aggregate', 'macro') AND internal AND regexp_full_match(function_name, '[a-z]\\w*')
        GROUP BY ALL ORDER BY ALL LIMIT 2000""")
    return [(name, parameters or "") for name, parameters in found.iter_rows()]


OF_ROW = table_of(
    "Columns of {table}",
    text("column", "Column", mono=True, min_characters=24),
    text("value", "Value", mono=True, min_characters=30),
    text("comment", "Comment", min_characters=40),
)


def comments(query: Query, table: str) -> dict[str, str]:
    """Column → comment of one table, without columns that have no comment."""
    return {
        column: comment
        for name, column, _, comment in columns(query).iter_rows()
        if name == table and comment
    }

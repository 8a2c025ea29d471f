"""SQL for the columns of the public tables: types and comments."""

from __future__ import annotations

import polars as pl

from analytics.schema.sql_quoting import literal
from dashboard.queries import Query


def columns(query: Query) -> pl.DataFrame:
    """`table_name, column_name, data_type, comment` of all columns."""
    return query("""
        SELECT table_name, column_name, data_type, comment FROM duckdb_columns()
        WHERE schema_name = 'main' AND NOT internal
            AND (database_name = current_database() OR table_name = 'open_streams')
        ORDER BY table_name, column_index LIMIT 2000""")


def comments(query: Query, table: str) -> dict[str, str]:
    """Column → comment of one table, without columns that have no comment."""
    frame = query(f"""
        SELECT column_name, comment FROM duckdb_columns()
        WHERE schema_name = 'main' AND table_name = {literal(table)} AND comment IS NOT NULL LIMIT 500""")
    return dict(frame.select("column_name", "comment").iter_rows())

"""SQL of the tables themselves: columns, types and what each means."""

from __future__ import annotations

import polars as pl

from analytics.schema.sql_quoting import literal
from dashboard.queries import Ask


def columns(ask: Ask) -> pl.DataFrame:
    """Columns `table_name, column_name, data_type, comment` of the public tables and views."""
    return ask("""
        SELECT table_name, column_name, data_type, comment FROM duckdb_columns()
        WHERE schema_name = 'main' AND NOT internal
            AND (database_name = current_database() OR table_name = 'open_streams')
        ORDER BY table_name, column_index LIMIT 2000""")


def meanings(ask: Ask, table: str) -> dict[str, str]:
    """Column → comment of one table; columns without a comment are left out."""
    frame = ask(f"""
        SELECT column_name, comment FROM duckdb_columns()
        WHERE schema_name = 'main' AND table_name = {literal(table)} AND comment IS NOT NULL LIMIT 500""")
    return dict(frame.select("column_name", "comment").iter_rows())

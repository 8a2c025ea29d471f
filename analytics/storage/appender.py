"""Write polars data frames with DuckDB's COPY.

Registering a frame costs more than reading a small one. So each table is registered once, as an object with a replaceable frame
that DuckDB reads through the Arrow PyCapsule interface.
"""

from __future__ import annotations

from typing import Any

import duckdb
import polars as pl


class _Source:
    """A registered table with replaceable rows."""

    def __init__(self, like: pl.DataFrame) -> None:
        self._empty = like.clear()
        self.schema = like.schema
        self.rows = self._empty

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self.rows.__arrow_c_stream__(requested_schema)

    def clear(self) -> None:
        """Drop the rows."""
        self.rows = self._empty


class Appender:
    """Copies frames over one connection. Used by its thread only."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._sources: dict[str, _Source] = {}

    def copy(self, name: str, rows: pl.DataFrame, select: str, to: str) -> list[Any]:
        """`COPY (select) TO to`. `{rows}` in `select` is the frame. Raises duckdb.Error."""
        table = "rows_" + name.replace(".", "_")
        source = self._sources.get(name)
        if source is None or source.schema != rows.schema:
            source = self._sources[name] = _Source(rows)
            self._connection.register(table, source)
        source.rows = rows
        try:
            return self._connection.execute(f"COPY ({select.format(rows=table)}) TO {to}").fetchall()
        finally:
            source.clear()

"""Data frames as tables of a DuckDB connection, registered once for each name.

Registering a frame costs more than reading a small one. So what is registered is an object that hands over whichever frame it
holds at the moment (the Arrow PyCapsule interface).
"""

from __future__ import annotations

from typing import Any

import duckdb
import polars as pl


class _Source:
    """What DuckDB reads as a table."""

    def __init__(self, like: pl.DataFrame) -> None:
        self._empty = like.clear()
        self.schema = like.schema
        self.rows = self._empty

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self.rows.__arrow_c_stream__(requested_schema)

    def clear(self) -> None:
        """Hold no rows."""
        self.rows = self._empty


class Appender:
    """Belongs to the connection's owner thread."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._sources: dict[str, _Source] = {}

    def copy(self, name: str, rows: pl.DataFrame, select: str, to: str) -> list[Any]:
        """`COPY (select) TO to`, where `{rows}` in `select` stands for the frame. Raises what DuckDB raises."""
        word = "rows_" + name.replace(".", "_")
        source = self._sources.get(name)
        if source is None or source.schema != rows.schema:
            source = self._sources[name] = _Source(rows)
            self._connection.register(word, source)
        source.rows = rows
        try:
            return self._connection.execute(f"COPY ({select.format(rows=word)}) TO {to}").fetchall()
        finally:
            source.clear()

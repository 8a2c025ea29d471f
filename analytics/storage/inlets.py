"""How data frames get into the tables of one connection: a prepared INSERT for each table, fed by a stream of Arrow.

To register a frame, and to parse, bind and plan its INSERT, took DuckDB longer than to take in what is committed every 0.15 s.
So what is registered, once a table, is an inlet: an object that passes on whatever frame it holds at the moment.

A prepared INSERT trusts that the columns are the same each time; a frame of other columns gets it made anew.
"""

from __future__ import annotations

import contextlib
from typing import Any

import duckdb
import polars as pl


class _Inlet:
    """What DuckDB reads as a table (the Arrow PyCapsule interface): the frame of the append that runs."""

    def __init__(self, like: pl.DataFrame) -> None:
        self._nothing = like.clear()
        self.schema = like.schema
        self.rows = self._nothing

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self.rows.__arrow_c_stream__(requested_schema)

    def drop(self) -> None:
        """Hold on to no rows."""
        self.rows = self._nothing


class Inlets:
    """Belongs to the connection's owner thread, as the connection does."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._open: dict[str, _Inlet] = {}

    def append(self, table: str, rows: pl.DataFrame) -> None:
        """Insert these rows; columns are matched by name. Raises what DuckDB raises."""
        inlet = self._open.get(table)
        if inlet is None or inlet.schema != rows.schema:
            inlet = self._made(table, rows)
        inlet.rows = rows
        try:
            self._connection.execute(f"EXECUTE insert_{_word(table)}")
        finally:
            inlet.drop()

    def forget(self) -> None:
        """After a ROLLBACK: it has taken back the inlets that were made within the transaction."""
        for table in self._open:
            with contextlib.suppress(duckdb.Error):
                self._connection.execute(f"DEALLOCATE insert_{_word(table)}")
        self._open.clear()

    def _made(self, table: str, rows: pl.DataFrame) -> _Inlet:
        self._open.pop(table, None)
        inlet, word = _Inlet(rows), _word(table)
        self._connection.register(f"inlet_{word}", inlet)
        self._connection.execute(f"PREPARE insert_{word} AS INSERT INTO {table} BY NAME FROM inlet_{word}")
        self._open[table] = inlet
        return inlet


def _word(table: str) -> str:
    return table.replace(".", "_")

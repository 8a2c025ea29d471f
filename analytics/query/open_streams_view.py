"""The view `open_streams`: streams in flight, read from small Parquet files.

Each analytics process replaces its own file TABLES/open_streams/NAME.live atomically. The view reads all of them. Without any
file it is an empty table with the same columns. `read_parquet` rejects a pattern without matches, so the view is
defined anew, with the names of the files, on the cursor of each query that mentions it.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

from analytics.schema.columns import sql_columns
from analytics.schema.sql_quoting import literal

NAME = "open_streams"
PATTERN = "open_streams/*.live"
"""Relative to the tables folder."""

COLUMNS = sql_columns(NAME)
_EMPTY = "SELECT {} WHERE false".format(
    ", ".join(f"NULL::{kind} AS {name}" for name, kind in COLUMNS.items())
)
_ROWS = "SELECT {} FROM read_parquet({{}}, union_by_name = true)".format(
    ", ".join(f"{name}::{kind} AS {name}" for name, kind in COLUMNS.items())
)


def define(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the view for all connections of this database, empty, so that lists of tables show it."""
    connection.execute(f"CREATE OR REPLACE VIEW memory.main.{NAME} AS {_EMPTY}")


def prepare(cursor: duckdb.DuckDBPyConnection, sql: str, data_path: str) -> None:
    """Define the view on this cursor if the statement mentions it. A temporary view hides the one of `define`.

    `data_path` ends with a slash. Raises duckdb.Error.
    """
    if NAME not in sql.lower():
        return
    if "://" in data_path:
        found = cursor.execute(f"SELECT file FROM glob({literal(data_path + PATTERN)})").fetchall()
        files = [str(file) for (file,) in found]
    else:
        files = sorted(map(str, Path(data_path).glob(PATTERN)))
    if files:
        names = ", ".join(map(literal, files))
        cursor.execute(f"CREATE OR REPLACE TEMP VIEW {NAME} AS {_ROWS.format(f'[{names}]')}")

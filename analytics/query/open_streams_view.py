"""The view `open_streams`: streams in flight, read from small Parquet files.

Each analytics process replaces its own file TABLES/open_streams/NAME.live atomically, and the view reads all of them.
`read_parquet` rejects a pattern without matches, so each query that mentions the view creates it with the names of the
present files. Without files the view is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """Create an empty view, which lists of tables show, for all connections of this database."""
    connection.execute(f"CREATE OR REPLACE VIEW memory.main.{NAME} AS {_EMPTY}")


def prepare(cursor: duckdb.DuckDBPyConnection, sql: str, data_paths: Sequence[str]) -> None:
    """Create a temporary view on this cursor if the statement mentions it. It takes precedence over the empty one.

    `data_paths` end with a slash. Raises duckdb.Error.
    """
    if NAME not in sql.lower():
        return
    files: list[str] = []
    for data_path in data_paths:
        if "://" in data_path:
            found = cursor.execute(f"SELECT file FROM glob({literal(data_path + PATTERN)})").fetchall()
            files += [str(file) for (file,) in found]
        else:
            files += sorted(map(str, Path(data_path).glob(PATTERN)))
    if files:
        names = ", ".join(map(literal, files))
        cursor.execute(f"CREATE OR REPLACE TEMP VIEW {NAME} AS {_ROWS.format(f'[{names}]')}")

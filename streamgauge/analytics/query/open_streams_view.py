"""The view `open_streams`: streams in flight, read from small Parquet files.

Each analytics process replaces its own file TABLES/open_streams/NAME.live atomically, several times per second. Each query that
mentions the view reads all files once, before it runs. `read_parquet` would open a file again for each scan, and fail on one
that was replaced since it read the schema. It reads only files of object stores, which are replaced every few seconds.
Without files the view is empty.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from streamgauge.analytics.schema.ddl import comments
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.schema.tables import OPEN_STREAMS, OPEN_STREAMS_SQL
from streamgauge.analytics.storage.database import RegisteredRows

NAME = OPEN_STREAMS.name
PATTERN = "open_streams/*.live"
"""Relative to the tables folder."""

COLUMNS = OPEN_STREAMS.types
_COMMENTS = (
    comments(OPEN_STREAMS_SQL)
    .replace(f"TABLE {NAME}", f"VIEW memory.main.{NAME}")
    .replace(f"COLUMN {NAME}", f"COLUMN memory.main.{NAME}")
)
_EMPTY = "SELECT {} WHERE false".format(
    ", ".join(f"NULL::{kind} AS {name}" for name, kind in COLUMNS.items())
)
_ROWS = "SELECT {} FROM {{}}".format(", ".join(f"{name}::{kind} AS {name}" for name, kind in COLUMNS.items()))


def define(connection: duckdb.DuckDBPyConnection) -> None:
    """Create an empty view, which lists of tables show, for all connections of this database."""
    connection.execute(f"CREATE OR REPLACE VIEW memory.main.{NAME} AS {_EMPTY}")
    connection.execute(_COMMENTS)


def is_mentioned(sql: str) -> bool:
    """Whether the statement may read the view. If it has the name only in a string, the files are read needlessly."""
    return NAME in sql.lower()


class OpenStreamsView:
    """The view of one cursor. It takes precedence over the empty one."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, data_paths: Sequence[str]) -> None:
        """`data_paths` end with a slash."""
        self._cursor, self._data_paths = cursor, data_paths
        self._rows: RegisteredRows | None = None
        """Those of the local files."""
        self._select = _EMPTY

    def prepare(self, sql: str) -> None:
        """Read the files if the statement mentions the view. Raises duckdb.Error."""
        if not is_mentioned(sql):
            return
        local: list[Path] = []
        remote: list[str] = []
        for data_path in self._data_paths:
            if "://" in data_path:
                pattern = literal(data_path + PATTERN)
                remote += [str(file) for (file,) in self._cursor.execute(f"FROM glob({pattern})").fetchall()]
            else:
                local += sorted(Path(data_path).glob(PATTERN))
        rows = []
        if remote:
            names = ", ".join(map(literal, remote))
            rows.append(_ROWS.format(f"read_parquet([{names}], union_by_name = true)"))
        if files := list(filter(None, map(_content, local))):
            table = _table(files)
            if self._rows is None or self._rows.rows.schema != table.schema:
                self._rows = RegisteredRows(table)
                self._cursor.register("open_streams_rows", self._rows)
            self._rows.rows = table
        else:
            self.release()
        if self._rows is not None:
            rows.append(_ROWS.format("open_streams_rows"))
        if (select := " UNION ALL ".join(rows) or _EMPTY) != self._select:
            self._cursor.execute(f"CREATE OR REPLACE TEMP VIEW {NAME} AS {select}")
            self._select = select

    def release(self) -> None:
        """Free the rows of the files after a statement."""
        if self._rows is not None:
            self._rows.rows = self._rows.rows.schema.empty_table()


def _content(file: Path) -> bytes | None:
    """The bytes of a file, None if it was removed."""
    with contextlib.suppress(FileNotFoundError):
        return file.read_bytes()
    return None


def _table(files: Sequence[bytes]) -> pa.Table:
    """The rows of Parquet files. Raises duckdb.IOException."""
    import pyarrow.parquet  # 10 MB that most queries do not need

    try:
        tables = [pyarrow.parquet.read_table(pa.BufferReader(file), use_threads=False) for file in files]
        # Analytics processes of different versions may write into one store.
        found = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowException, OSError) as e:
        raise duckdb.IOException(f"a file of streams in flight is damaged: {e}") from None
    for name in COLUMNS.keys() - set(found.column_names):  # written by an earlier version
        found = found.append_column(name, pa.nulls(found.num_rows))
    return found

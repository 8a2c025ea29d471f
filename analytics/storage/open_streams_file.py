"""The file of streams in flight: written by analytics, read by every reader as `open_streams`.

Streams in flight change with every event, so they are no rows of the store. Each analytics process keeps one small Parquet
file, `<tables>/open_streams/<name>.live`, and replaces it as a whole: a reader never sees half of it. The file of a process
that was killed stays until that process starts again; `updated_at` shows its age.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import duckdb
import polars as pl

from analytics.schema.sql_quoting import literal
from analytics.schema.tables import OPEN_STREAMS

FOLDER = "open_streams"
ENDING = ".live"
"""Not `.parquet`: DuckLake deletes files of that name that no snapshot knows."""
REMOTE_EVERY_S = 5.0
"""Writes to an object store cost money."""


class OpenStreamsFile:
    """One process's file. One owner thread."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, data_path: str, name: str) -> None:
        """`data_path` is the folder of the tables, with a slash at the end; `name` is unique among its writers."""
        self._connection = connection
        self._remote = "://" in data_path
        self._path = f"{data_path}{FOLDER}/{name}{ENDING}"
        self._written_s = float("-inf")

    def write(self, rows: pl.DataFrame) -> None:
        """Replace what readers see. Raises OSError or duckdb.Error."""
        if self._remote:
            if rows.height and time.monotonic() - self._written_s < REMOTE_EVERY_S:
                return
            self._connection.register("open_streams_rows", rows)
            self._connection.execute(f"COPY open_streams_rows TO {literal(self._path)} (FORMAT parquet)")
            self._connection.unregister("open_streams_rows")
        else:
            path = Path(self._path)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh = path.with_suffix(".new")
            rows.write_parquet(fresh, compression="lz4", statistics=False)
            fresh.replace(path)
        self._written_s = time.monotonic()

    def close(self) -> None:
        """Nothing is in flight for readers of a stopped process."""
        with contextlib.suppress(OSError, duckdb.Error):
            if self._written_s > float("-inf"):
                self._written_s = float("-inf")
                self.write(pl.DataFrame(schema=OPEN_STREAMS))

"""The file of open streams: written by analytics, read as the view `open_streams`.

Open streams change with every event, so they are not rows of the store. Each analytics process atomically replaces a small
Parquet file, `<tables>/open_streams/<name>.live`. The file of a killed process stays until that process starts again;
`updated_at` shows its age.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import duckdb
import polars as pl

from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.schema.tables import OPEN_STREAMS

FOLDER = "open_streams"
ENDING = ".live"
"""Not `.parquet`, because DuckLake deletes such files without a snapshot."""
REMOTE_EVERY_S = 5.0
"""Object stores charge for each write."""


class OpenStreamsFile:
    """The file of one process. Used by one thread."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, data_path: str, name: str) -> None:
        """`data_path`: folder of the tables, with a slash at the end. `name`: unique in the store."""
        self._connection = connection
        self._remote = "://" in data_path
        self._path = f"{data_path}{FOLDER}/{name}{ENDING}"
        self._written_s = float("-inf")

    def write(self, rows: pl.DataFrame) -> None:
        """Replace the file. Raises OSError or duckdb.Error."""
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
        """Write an empty file if this process has written one."""
        with contextlib.suppress(OSError, duckdb.Error):
            if self._written_s > float("-inf"):
                self._written_s = float("-inf")
                self.write(frame_of_rows(OPEN_STREAMS, []))

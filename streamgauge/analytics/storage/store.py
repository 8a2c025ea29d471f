"""The store as one analytics process writes it: rows, log positions and counters in one transaction.

A commit writes tables of more than `INLINED_ROWS` rows as Parquet files, which are in no snapshot yet, and then runs one
transaction of the catalog (`commit`). If it fails before COMMIT is sent, the files are removed. After that it may have been
applied, although its answer is lost: the files stay, and the next owner of the partitions reads from their positions whether it
was. Upkeep deletes files that no snapshot names.

Tables whose names begin with `streamgauge_` are internal to the catalog and not part of the DuckLake.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import duckdb
import polars as pl

from streamgauge.analytics.assembly.partition import LogPosition
from streamgauge.analytics.measures.minute_rows import rollups
from streamgauge.analytics.measures.prompt_comparison import Served
from streamgauge.analytics.reports.stored_prompts import prompts
from streamgauge.analytics.schema.outcomes import IS_ANSWERED
from streamgauge.analytics.schema.stall_limit import StallLimit
from streamgauge.analytics.storage import database, ducklake_format
from streamgauge.analytics.storage.catalog import NAME, Catalog, Conflict
from streamgauge.analytics.storage.commit import Commit, StoreFailed, run_transaction
from streamgauge.analytics.storage.create_schema import prepare
from streamgauge.analytics.storage.location import ALIAS, StoreLocation, lost_catalog
from streamgauge.analytics.storage.open_streams_file import OpenStreamsFile
from streamgauge.analytics.storage.partition_positions import PartitionPositions, Versions
from streamgauge.analytics.storage.sqlite_catalog import create_file

log = logging.getLogger(__name__)

Result = TypeVar("Result")

INLINED_ROWS = 250
"""A commit stores up to this many rows of a table in the catalog, which is less work than a Parquet file. Upkeep moves them to
files (`streamgauge.analytics.storage.upkeep`)."""
MAX_ATTEMPTS = 40
FIRST_PAUSE_S, MAX_PAUSE_S = 0.02, 1.0
"""Pauses between attempts of a transaction that conflicts with another. They double, and add up to about 30 s."""
SESSION_DAYS, MAX_RESPONSES = 1, 10_000
"""Age and number of the responses whose sessions continue after a restart (`streamgauge.analytics.measures.sessions`)."""
MAX_PROMPTS = 2_000
"""Prompts that are kept after a restart (`streamgauge.analytics.measures.session_prompts`)."""
_RECENT_PROMPTS = f"""
SELECT streams.* REPLACE (streams.stream_id::VARCHAR AS stream_id), epoch_ns(started_at) AS started_ns,
    prompt.* EXCLUDE (segments, stream_id, base_stream_id, session_id, started_at)
FROM (
    SELECT * FROM prompt_segments WHERE started_at > now() - INTERVAL {SESSION_DAYS} DAY
    ORDER BY started_at DESC LIMIT {MAX_PROMPTS}) AS prompt
JOIN (SELECT stream_id, started_at, session_id, client_id, client_app, response_id, request_model, response_model,
    request_bytes, ttft_ns, text_chars, tool_call_chars, operation,
    {", ".join(Served._fields)} FROM streams) AS streams USING (stream_id, started_at)
WHERE {IS_ANSWERED} ORDER BY started_at"""
MEMORY_BYTES = 2**30
"""Default of DuckDB's memory limit. Commits and upkeep use it; readers' queries run in other processes."""


class Store:
    """The tables, as one analytics process writes them. Only the owner thread calls it; other threads use a `cursor()`."""

    def __init__(
        self,
        location: StoreLocation,
        *,
        memory_limit_bytes: int | None = None,
        stall: StallLimit | None = None,
        instance: str = "analytics",
        rebuilding: bool = False,
        report: Callable[[str], None] = lambda step: None,
    ) -> None:
        """Open the store, or create it.

        `stall`: the stall limit of the roll-ups. `instance`: a name of this process, unique in the store and the same after a
        restart. `rebuilding`: Parquet files may exist without a catalog. `report` is called before each step of an upgrade. Raises
        OSError.
        """
        self.location = location
        self.conflicts = 0
        """Transactions repeated because another process had committed."""
        self.stall = stall or StallLimit()
        with contextlib.ExitStack() as closing:
            self._connection = database.new_database(memory_limit_bytes or MEMORY_BYTES)
            closing.callback(self._connection.close)
            if location.catalog is not None and not location.catalog.exists():
                if not rebuilding and location.is_catalog_lost:
                    raise OSError(". ".join(lost_catalog(location)))
                create_file(location.catalog)
            self.catalog = Catalog(self._connection, location)
            """The catalog's connection of the owner thread."""
            closing.callback(self.catalog.close)
            try:
                with self.catalog.creation():
                    database.attach(self._connection, location, read_only=False)
                    self.store_id, self.fingerprint_key = prepare(
                        self._connection, self.catalog, location, report
                    )
                self.layouts: Mapping[str, ducklake_format.TableLayout] = ducklake_format.read_layouts(
                    self.catalog
                )
                self._schema_version = ducklake_format.SnapshotBuilder(self.catalog).schema_version
                self.data_path = database.data_path_of(self._connection)
                held_open = self.catalog.cursor()
                closing.callback(held_open.close)
                held_open.hold_open()
            except duckdb.Error as e:
                raise OSError(
                    f"cannot prepare the store {location.label}: {database.message(e, location)}. Check that the disk is not full"
                ) from None
            self._positions = PartitionPositions(
                self.catalog, self.layouts["log_positions"], str(uuid.uuid4())
            )
            self._appender = ducklake_format.Appender(self._connection)
            self._open_streams = OpenStreamsFile(self._connection, self.data_path, instance)
            closing.callback(self._open_streams.close)
            self._closing = closing.pop_all()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection to the same tables for another thread."""
        cursor = self._connection.cursor()
        cursor.execute(f"USE {ALIAS}")
        return cursor

    def acquire_partition(self, log_id: str, partition: str) -> LogPosition | None:
        """Own a partition. Returns its position, None if it was never read.

        The next commit of the former owner raises PartitionLost. Raises StoreFailed.
        """
        return self._with_retries(lambda: self._positions.acquire(log_id, partition))

    def release_partition(self, log_id: str, partition: str) -> None:
        """Give up a partition that another consumer reads now."""
        self._positions.versions.pop((log_id, partition), None)

    def other_positions(self, log_id: str) -> list[tuple[str, str]]:
        """(log id, partition) of every position in another log with open streams."""
        return self._connection.execute(
            "SELECT log_id, partition FROM log_positions WHERE log_id <> ? AND len(open_stream_ids) > 0",
            [log_id],
        ).fetchall()

    def kept_records(self, log_id: str, partition: str) -> dict[str, list[bytes]]:
        """The records that commits kept for long-open streams, by stream, in order."""
        kept: dict[str, list[bytes]] = {}
        for stream_id, payload in self._connection.execute(
            f"SELECT stream_id, payload FROM {NAME}.streamgauge_kept_records WHERE log_id = ? AND partition = ? "
            "ORDER BY number",
            [log_id, partition],
        ).fetchall():
            kept.setdefault(stream_id, []).append(payload)
        return kept

    def recent_responses(self) -> list[tuple[str, str, int | None]]:
        """(response id, session id, turn) of the last day, the newest last, to continue sessions after a restart. Raises OSError."""
        try:
            return self._connection.execute(
                "SELECT response_id, session_id, turn FROM (SELECT * FROM streams WHERE session_id IS NOT NULL "
                f"AND response_id IS NOT NULL AND started_at > now() - INTERVAL {SESSION_DAYS} DAY "
                f"ORDER BY started_at DESC LIMIT {MAX_RESPONSES}) ORDER BY started_at"
            ).fetchall()
        except duckdb.Error as e:
            raise OSError(
                f"cannot read the sessions of the last day: {database.message(e, self.location)}"
            ) from None

    def recent_prompts(self) -> list[dict[str, Any]]:
        """The last prompts of the sessions of the last day, the newest last, to continue them after a restart: columns of `streams` and
        `prompt_segments`, `started_ns` and `segments`. Raises OSError."""

        def query(sql: str) -> pl.DataFrame:
            return self._connection.execute(sql).pl()

        try:
            found = query(_RECENT_PROMPTS).to_dicts()
            read = prompts(query, [row["stream_id"] for row in found])
        except duckdb.Error as e:
            raise OSError(
                f"cannot read the prompts of the last day: {database.message(e, self.location)}"
            ) from None
        return [row | {"segments": read[row["stream_id"]]} for row in found if row["stream_id"] in read]

    def totals(self) -> dict[str, int]:
        """The counters of all consumers since the store was created."""
        return dict(self._connection.execute("SELECT name, value FROM counters").fetchall())

    def commit(self, commit: Commit) -> None:
        """Store everything of the commit and the roll-ups of its rows, or nothing. Raises PartitionLost or StoreFailed."""
        tables = {**commit.tables, **rollups(commit.tables, self.stall)}
        files: list[ducklake_format.File] = []
        self.catalog.commit_sent = False

        def transaction() -> Versions:
            return run_transaction(
                self.catalog,
                self.layouts,
                self._positions,
                commit,
                files,
                small,
                schema_version=self._schema_version,
            )

        try:
            for name, rows in tables.items():
                if rows.height > INLINED_ROWS:
                    files.append(
                        ducklake_format.write_file(self._appender, self.data_path, self.layouts[name], rows)
                    )
            small = {name: rows for name, rows in tables.items() if 0 < rows.height <= INLINED_ROWS}
            self._positions.versions |= self._with_retries(transaction)
        except BaseException as e:
            # After COMMIT was sent, a snapshot may name the files, whatever the error. Upkeep deletes those that none names.
            for file in () if self.catalog.commit_sent else files:
                ducklake_format.remove_file(self.data_path, file)
            if isinstance(e, duckdb.Error | OSError):
                raise self._failed(e) from None
            raise

    def write_open_streams(self, rows: pl.DataFrame) -> None:
        """Replace the file of open streams. Raises OSError."""
        try:
            self._open_streams.write(rows)
        except duckdb.Error as e:
            raise OSError(database.message(e, self.location)) from None

    def _with_retries(self, attempt: Callable[[], Result]) -> Result:
        """Repeat a transaction while it conflicts with others. Raises StoreFailed."""
        pause_s = FIRST_PAUSE_S
        for remaining in reversed(range(MAX_ATTEMPTS)):
            try:
                return attempt()
            except Conflict as e:
                if not remaining:
                    raise self._failed(e) from None
                self.conflicts += 1
                log.debug("repeating a transaction: %s", e)
            except duckdb.Error as e:
                raise self._failed(e) from None
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - two processes must not retry at the same time
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
        raise AssertionError

    def _failed(self, error: BaseException) -> StoreFailed:
        why = database.message_without_values(error, self.location)
        return StoreFailed(
            f"cannot write the store {self.location.label}: {why}. Check that the disk is not full. "
            "Nothing was half-written; the next start continues from the last commit"
        )

    def size_bytes(self) -> int:
        """Bytes of the Parquet files in the newest snapshot, and of a SQLite catalog."""
        size = database.integer(
            self._connection.execute(
                f"SELECT coalesce(sum(file_size_bytes), 0)::BIGINT FROM {NAME}.ducklake_data_file WHERE end_snapshot IS NULL"
            )
        )
        return size + self.location.catalog.stat().st_size if self.location.catalog is not None else size

    def close(self) -> None:
        """Close the store and empty the file of open streams."""
        self._closing.close()

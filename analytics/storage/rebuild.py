"""Restore a SQLite catalog that is damaged or missing.

1. From the last backup (`catalog.backup.sqlite`, at most a minute old while analytics runs, and complete after a clean stop).
   Upkeep keeps the Parquet files that it names. Analytics then reads the log again from the backup's positions. Rows committed
   after the backup are lost only if the log no longer has their records.
2. Without a backup whose files all exist, from the Parquet files alone. A row can also be in the file that it was merged into,
   so rows are selected once by their key. Roll-ups are computed again from the stored streams. Rows inlined in the catalog (up
   to 5 minutes), positions and counters are lost. Rows deleted by retention return until it runs again.

The damaged catalog is kept as `catalog.damaged-TIME.sqlite`.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import duckdb

from streamgauge.analytics.measures.minute_rows import rollups
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.schema.tables import HISTOGRAM_MINUTES, TABLES, Rows, Table
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.database import attach, integer, new_database, one_line
from streamgauge.analytics.storage.location import ALIAS, StoreLocation
from streamgauge.analytics.storage.rollup_compaction import ROLLUPS
from streamgauge.analytics.storage.store import Store

SLICE_ROWS = 2_000_000
"""Rows per copy."""
ROLLUP_STREAMS = 20_000
DELETE_FILES = "*-delete.parquet"
COLUMNS = "COLUMNS(name -> NOT starts_with(name, '_ducklake_'))"
"""All columns except those that DuckLake adds to merged files."""
_FILES = f"""
SELECT s.path || t.path || f.path FROM __ducklake_metadata_{ALIAS}.ducklake_data_file AS f
JOIN __ducklake_metadata_{ALIAS}.ducklake_table AS t USING (table_id)
JOIN __ducklake_metadata_{ALIAS}.ducklake_schema AS s USING (schema_id)
WHERE f.end_snapshot IS NULL AND t.end_snapshot IS NULL"""


class Source(Enum):
    """Source of a restored catalog."""

    BACKUP = "the last backup"
    FILES = "the Parquet files"


def rebuild(
    location: StoreLocation,
    *,
    use_backup: bool = True,
    report: Callable[[str, int], None] = lambda table, rows: None,
) -> Source:
    """Restore the catalog. Requires the data folder's lock. Calls `report` with each table and its rows. Raises OSError."""
    catalog = location.catalog
    if catalog is None or location.tables is None:
        raise OSError(
            "cannot rebuild a catalog in PostgreSQL: it has no backup here. Restore it with PostgreSQL's own backups"
        )
    backup = location.backup if use_backup and _is_readable(location) else None
    _set_aside(catalog)
    if backup is not None:
        shutil.copyfile(backup, catalog)
        catalog.chmod(0o600)
        return Source.BACKUP
    try:
        _from_files(location, report)
    except BaseException:
        _remove(catalog)  # an incomplete catalog must not be opened as a store
        raise
    return Source.FILES


def _is_readable(location: StoreLocation) -> bool:
    if not location.backup.exists():
        return False
    connection = new_database()
    try:
        attach(connection, location, read_only=True, uri=f"ducklake:sqlite:{location.backup}")
        connection.execute("SELECT count(*) FROM streams").fetchall()
        named = connection.execute(_FILES).fetchall()
        return all(Path(str(location.tables), path).exists() for (path,) in named)
    except (OSError, duckdb.Error):
        return False
    finally:
        connection.close()


def _set_aside(catalog: Path) -> None:
    damaged = catalog.with_suffix(time.strftime(".damaged-%Y%m%dT%H%M%SZ.sqlite", time.gmtime()))
    for ending in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            catalog.with_name(catalog.name + ending).replace(damaged.with_name(damaged.name + ending))


def _remove(catalog: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        catalog.with_name(catalog.name + ending).unlink(missing_ok=True)


def _from_files(location: StoreLocation, report: Callable[[str, int], None]) -> None:
    sources = {table: source for table in TABLES if (source := _source(location, table))}
    store = Store(location, rebuilding=True)
    try:
        connection = store.cursor()
        for table in TABLES:
            if table.rows is Rows.APPENDED:
                report(table.name, _copy(connection, table, sources[table]) if table in sources else 0)
        report("roll-ups", _compute_rollups(store, connection))
        for table in ROLLUPS:
            if table in sources:
                _copy_older_rollups(connection, table, sources[table])
    except duckdb.Error as e:
        raise OSError(f"cannot rebuild {location.catalog}: {one_line(e)}") from None
    finally:
        store.close()


def _source(location: StoreLocation, table: Table) -> str:
    """SQL that reads the files of a table. Empty if it has none."""
    folder = Path(str(location.tables), *table.qualified_name.split("."))
    # DuckLake's delete files have positions of rows in other files. Which of these files are current is unknown here.
    files = [file for file in folder.glob("*.parquet") if not file.match(DELETE_FILES)]
    listed = ", ".join(literal(str(file)) for file in files)
    return f"read_parquet([{listed}], union_by_name = true)" if files else ""


def _copy(connection: duckdb.DuckDBPyConnection, table: Table, source: str) -> int:
    """Copy each row once, in slices of rows with the same first column of the key."""
    slices = 1
    if table.key:
        slices = -(-integer(connection.execute(f"SELECT count(*) FROM {source}")) // SLICE_ROWS)
    copied = 0
    for number in range(slices):
        is_in_slice = f"WHERE hash({table.key.split(',')[0]}) % {slices} = {number}" if table.key else ""
        distinct = f"DISTINCT {f'ON ({table.key})' if table.key else ''} {COLUMNS}"
        copied += integer(
            connection.execute(
                f"INSERT INTO {table.name} BY NAME SELECT {distinct} FROM {source} {is_in_slice} "
                f"ORDER BY {table.sorted_by or table.key or 'ALL'}"
            )
        )
    return copied


def _compute_rollups(store: Store, connection: duckdb.DuckDBPyConnection) -> int:
    """Compute the roll-ups of all streams, in the order of their ids. Returns the number of streams."""
    done, after = 0, "00000000-0000-0000-0000-000000000000"
    while True:
        streams = connection.execute(
            "SELECT * REPLACE (stream_id::VARCHAR AS stream_id) FROM streams WHERE stream_id > ?::UUID "
            f"ORDER BY streams.stream_id LIMIT {ROLLUP_STREAMS}",
            [after],
        ).pl()
        if streams.is_empty():
            return done
        last = streams["stream_id"][-1]
        tables = {"streams": streams}
        for table, columns in (
            ("events", "seq, choice, at_ns, kind"),
            ("output_waits", "* EXCLUDE stream_id"),
        ):
            tables[table] = connection.execute(
                f"SELECT stream_id::VARCHAR AS stream_id, {columns} FROM {table} "
                "WHERE stream_id > ?::UUID AND stream_id <= ?::UUID ORDER BY ALL",
                [after, last],
            ).pl()
        computed = rollups(tables, store.stall)
        store.commit(Commit("", tables={t.name: computed[t.name] for t in ROLLUPS if t.name in computed}))
        done, after = done + streams.height, last


def _copy_older_rollups(connection: duckdb.DuckDBPyConnection, table: Table, source: str) -> None:
    """Copy the compacted roll-ups from before the oldest stream.

    Rows that a later compaction replaced may still be in the files. The row of the last one has the most streams.
    """
    count = "n" if table is HISTOGRAM_MINUTES else "streams"
    connection.execute(
        f"INSERT INTO {table.name} BY NAME SELECT DISTINCT ON ({table.key}) {COLUMNS} FROM {source} WHERE settled AND "
        "minute < (SELECT coalesce(date_trunc('minute', min(started_at)), 'infinity'::TIMESTAMPTZ) FROM streams) "
        f"ORDER BY {table.key}, {count} DESC"
    )

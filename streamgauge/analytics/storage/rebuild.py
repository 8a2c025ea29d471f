"""Restore a SQLite catalog that is damaged or missing.

1. From the last backup (`catalog.backup.sqlite`, at most a minute old while analytics runs, and complete after a clean stop).
   Upkeep keeps the Parquet files that it names. Analytics then reads the log again from the backup's positions. Rows committed
   after the backup are lost only if the log no longer has their records.
2. Without a backup whose files all exist, from the Parquet files. A row can also be in the file that it was merged into, so rows
   are selected once by their key. Files of former versions may lack columns, which are NULL then. Roll-ups are computed again from
   the stored streams. Rows that are in no file (up to 5 minutes) are read from the former catalog, else from the backup. Only a
   readable former catalog also restores positions and counters. Rows deleted by retention return until it runs again.

The former catalog is kept as `catalog.damaged-TIME.sqlite`. After an error it is put back.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import duckdb

from streamgauge.analytics.measures.minute_rows import rollups
from streamgauge.analytics.schema.sql_quoting import identifier, literal
from streamgauge.analytics.schema.tables import HISTOGRAM_MINUTES, TABLES, Rows, Table, ddl_columns
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.database import attach, integer, new_database, one_line
from streamgauge.analytics.storage.ducklake_format import SnapshotBuilder
from streamgauge.analytics.storage.location import ALIAS, StoreLocation
from streamgauge.analytics.storage.rollup_compaction import ROLLUPS
from streamgauge.analytics.storage.sqlite_catalog import is_intact
from streamgauge.analytics.storage.store import Store

SLICE_ROWS = 2_000_000
"""Rows per copy."""
ROLLUP_STREAMS = 20_000
DELETE_FILES = "*-delete.parquet"
COLUMNS = "COLUMNS(name -> NOT starts_with(name, '_ducklake_'))"
"""All columns except those that DuckLake adds to merged files."""
FORMER = "former"
"""Name of the attached former catalog."""
_FILES = """
SELECT s.path || t.path || f.path, f.record_count FROM {0}.ducklake_data_file AS f
JOIN {0}.ducklake_table AS t USING (table_id) JOIN {0}.ducklake_schema AS s USING (schema_id)
WHERE f.end_snapshot IS NULL AND t.end_snapshot IS NULL"""
_INLINED = f"""
SELECT if(s.schema_name = 'main', '', s.schema_name || '.') || t.table_name, i.table_name
FROM {FORMER}.ducklake_inlined_data_tables AS i JOIN {FORMER}.ducklake_table AS t USING (table_id)
JOIN {FORMER}.ducklake_schema AS s USING (schema_id) WHERE t.end_snapshot IS NULL ORDER BY i.schema_version"""


class Source(Enum):
    """Source of a restored catalog."""

    BACKUP = "the last backup"
    FILES = "the Parquet files"


class Rebuilt(NamedTuple):
    """What `rebuild` did."""

    source: Source
    missing_rows: int | None = 0
    """Rows that could not be restored: those of missing files. None: unknown, because the former catalog cannot be read."""
    damaged: Path | None = None
    """The former catalog, if there was one."""


def rebuild(
    location: StoreLocation,
    *,
    use_backup: bool = True,
    report: Callable[[str, int], None] = lambda table, rows: None,
) -> Rebuilt:
    """Restore the catalog. Requires the data folder's lock. Calls `report` with each table and its rows. Raises OSError."""
    catalog = location.catalog
    if catalog is None or location.tables is None:
        raise OSError(
            "cannot rebuild a catalog in PostgreSQL: it has no backup here. Restore it with PostgreSQL's own backups"
        )
    backup = location.backup if use_backup and _is_readable(location) else None
    damaged = catalog.with_suffix(time.strftime(".damaged-%Y%m%dT%H%M%SZ.sqlite", time.gmtime()))
    _move(catalog, damaged)
    kept = damaged if damaged.exists() else None
    try:
        if backup is not None:
            shutil.copyfile(backup, catalog)
            catalog.chmod(0o600)
            return Rebuilt(Source.BACKUP, damaged=kept)
        return Rebuilt(Source.FILES, _from_files(location, kept, report), kept)
    except BaseException:
        _remove(catalog)  # an incomplete catalog must not be opened as a store
        _move(damaged, catalog)
        raise


def _is_readable(location: StoreLocation) -> bool:
    if not location.backup.exists():
        return False
    connection = new_database()
    try:
        attach(connection, location, read_only=True, uri=f"ducklake:sqlite:{location.backup}")
        connection.execute("SELECT count(*) FROM streams").fetchall()
        return not _rows_of_missing_files(connection, f"__ducklake_metadata_{ALIAS}", location)
    except (OSError, duckdb.Error):
        return False
    finally:
        connection.close()


def _rows_of_missing_files(
    connection: duckdb.DuckDBPyConnection, catalog: str, location: StoreLocation
) -> int:
    files = connection.execute(_FILES.format(catalog)).fetchall()
    return sum(rows for path, rows in files if not Path(str(location.tables), path).exists())


def _move(catalog: Path, to: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            catalog.with_name(catalog.name + ending).replace(to.with_name(to.name + ending))


def _remove(catalog: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        catalog.with_name(catalog.name + ending).unlink(missing_ok=True)


def _from_files(
    location: StoreLocation, damaged: Path | None, report: Callable[[str, int], None]
) -> int | None:
    """Returns `Rebuilt.missing_rows`."""
    former = next((path for path in (damaged, location.backup) if path is not None and is_intact(path)), None)
    try:
        with closing(Store(location, rebuilding=True)) as store, closing(store.cursor()) as connection:
            inlined: Mapping[str, Sequence[str]] = {}
            if former is not None:
                connection.execute(f"ATTACH {literal(str(former))} AS {FORMER} (TYPE sqlite, READ_ONLY)")
                inlined = _inlined_rows(connection)
            sources = {table: _source(location, table, inlined.get(table.name, ())) for table in TABLES}
            for table, source in sources.items():
                if table.rows is Rows.APPENDED:
                    report(table.name, _copy(connection, table, source))
            report("roll-ups", _compute_rollups(store, connection))
            for table in ROLLUPS:
                _copy_older_rollups(connection, table, sources[table])
            if former is None:
                return None
            _copy_state(store, connection, sources if former == damaged else {})
            return _rows_of_missing_files(connection, FORMER, location)
    except duckdb.Error as e:
        raise OSError(f"cannot rebuild {location.catalog}: {one_line(e)}") from None


def _inlined_rows(connection: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    """SELECTs of the rows inlined in the former catalog, by table."""
    found: dict[str, list[str]] = {}
    for name, rows in connection.execute(_INLINED).fetchall():
        types = ddl_columns().get(name, {})
        stored = connection.execute(f"SELECT * FROM {FORMER}.{rows} LIMIT 0").description
        casts = (
            f"{identifier(one)}::{types[one]} AS {identifier(one)}" for one, *_ in stored if one in types
        )
        found.setdefault(name, []).append(
            f"SELECT {', '.join(casts)} FROM {FORMER}.{rows} WHERE end_snapshot IS NULL"
        )
    return found


def _source(location: StoreLocation, table: Table, inlined: Sequence[str]) -> str:
    """SQL of the rows of a table in its files and in SELECTs, with all declared columns."""
    folder = Path(str(location.tables), *table.qualified_name.split("."))
    # DuckLake's delete files have positions of rows in other files. Which of these files are current is unknown here.
    files = [file for file in folder.glob("*.parquet") if not file.match(DELETE_FILES)]
    listed = ", ".join(literal(str(file)) for file in files)
    of_files = [f"SELECT {COLUMNS} FROM read_parquet([{listed}], union_by_name = true)"] if files else []
    nulls = ", ".join(f"NULL::{kind} AS {identifier(column)}" for column, kind in table.types.items())
    return f"({' UNION ALL BY NAME '.join([f'(SELECT {nulls} LIMIT 0)', *of_files, *inlined])})"


def _copy(connection: duckdb.DuckDBPyConnection, table: Table, source: str) -> int:
    """Copy each row once, in slices of rows with the same first column of the key."""
    slices = 1
    if table.key:
        slices = max(1, -(-integer(connection.execute(f"SELECT count(*) FROM {source}")) // SLICE_ROWS))
    copied = 0
    for number in range(slices):
        is_in_slice = f"WHERE hash({table.key.split(',')[0]}) % {slices} = {number}" if table.key else ""
        distinct = f"DISTINCT {f'ON ({table.key})' if table.key else ''} *"
        copied += integer(
            connection.execute(
                f"INSERT INTO {table.name} BY NAME SELECT {distinct} FROM {source} {is_in_slice} "
                f"ORDER BY {table.sorted_by or table.key or 'ALL'}"
            )
        )
    return copied


def _copy_state(store: Store, connection: duckdb.DuckDBPyConnection, sources: Mapping[Table, str]) -> None:
    """Copy the keys of the former store and, if there are `sources`, what goes with exactly its rows: positions, counters, taps and the
    records of open streams."""
    catalog = store.catalog
    keys = connection.execute(
        f"SELECT key, value FROM {FORMER}.streamgauge_meta WHERE key IN ('store_id', 'fingerprint_key')"
    ).fetchall()
    kept = connection.execute(f"SELECT * FROM {FORMER}.streamgauge_kept_records").pl()
    with catalog.transaction():
        for key, value in keys:
            catalog.change(f"UPDATE streamgauge_meta SET value = {literal(value)} WHERE key = {literal(key)}")
        if sources:
            catalog.insert("streamgauge_kept_records", kept)
            snapshot = SnapshotBuilder(catalog)
            for table in TABLES:
                if table.rows is Rows.UPDATED:
                    snapshot.add_rows(
                        store.layouts[table.name], connection.execute(f"FROM {sources[table]}").pl()
                    )
            snapshot.finish()


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
        f"INSERT INTO {table.name} BY NAME SELECT DISTINCT ON ({table.key}) * FROM {source} WHERE settled AND "
        "minute < (SELECT coalesce(date_trunc('minute', min(started_at)), 'infinity'::TIMESTAMPTZ) FROM streams) "
        f"ORDER BY {table.key}, {count} DESC"
    )

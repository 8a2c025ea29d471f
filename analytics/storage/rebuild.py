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
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.database import attach, first_row, new_database, one_line
from streamgauge.analytics.storage.location import ALIAS, StoreLocation
from streamgauge.analytics.storage.rollup_compaction import ROLLUPS
from streamgauge.analytics.storage.store import Store

SLICE_ROWS = 2_000_000
"""Rows per copy."""
ROLLUP_STREAMS = 20_000
KEYS = {
    "streams": "stream_id", "events": "stream_id, seq", "usage_reports": "stream_id, seq, at_ns",
    "server_stats": "stream_id, seq, source, name", "output_stalls": "stream_id, seq", "spans": "trace_id, span_id",
    "output_waits": "stream_id, from_ns",
    "gateway_stalls": "stream_id, seq", "hops": "outer_stream_id, inner_stream_id",
    "hop_changes": None, "alert_events": "alert_id, state, changed_at", "losses": None, "dead_letters": None, "markers": None,
}  # fmt: skip
"""By table: the key by which duplicate rows are dropped. None: all columns."""
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
    tables = Path(str(location.tables))
    found = {name: [*(tables / "main" / name).glob("*.parquet")] for name in (*KEYS, *ROLLUPS)}
    store = Store(location, rebuilding=True)
    try:
        connection = store.cursor()
        for name, key in KEYS.items():
            report(name, _copy(connection, name, key, found[name]) if found[name] else 0)
        report("roll-ups", _compute_rollups(store, connection))
        _copy_older_rollups(connection, found)
    except duckdb.Error as e:
        raise OSError(f"cannot rebuild {location.catalog}: {one_line(e)}") from None
    finally:
        store.close()


def _copy(connection: duckdb.DuckDBPyConnection, name: str, key: str | None, files: list[Path]) -> int:
    source = f"read_parquet([{', '.join(literal(str(file)) for file in files)}], union_by_name = true)"
    distinct = f"SELECT DISTINCT {f'ON ({key})' if key else ''} {COLUMNS}"
    if key is None or not key.startswith("stream_id"):
        row = first_row(connection.execute(f"INSERT INTO {name} BY NAME {distinct} FROM {source}"))
        return int(row[0]) if row else 0
    copied = 0
    row = first_row(connection.execute(f"SELECT count(*) FROM {source}"))
    slices = -(-int(row[0]) // SLICE_ROWS) if row else 0
    for number in range(slices):
        row = first_row(
            connection.execute(
                f"INSERT INTO {name} BY NAME {distinct} FROM {source} WHERE hash(stream_id) % {slices} = {number} "
                f"ORDER BY {key}"
            )
        )
        copied += int(row[0]) if row else 0
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
        events = connection.execute(
            "SELECT stream_id::VARCHAR AS stream_id, seq, choice, at_ns, kind FROM events "
            "WHERE stream_id > ?::UUID AND stream_id <= ?::UUID ORDER BY events.stream_id, seq",
            [after, last],
        ).pl()
        waits = connection.execute(
            "SELECT * REPLACE (stream_id::VARCHAR AS stream_id) FROM output_waits "
            "WHERE stream_id > ?::UUID AND stream_id <= ?::UUID",
            [after, last],
        ).pl()
        computed = rollups({"streams": streams, "events": events, "output_waits": waits}, store.stall)
        store.commit(Commit("", tables={name: computed[name] for name in ROLLUPS if name in computed}))
        done, after = done + streams.height, last


def _copy_older_rollups(connection: duckdb.DuckDBPyConnection, found: dict[str, list[Path]]) -> None:
    """Copy the compacted roll-ups from before the oldest stream. Duplicates are equal rows."""
    for name in ROLLUPS:
        if found[name]:
            source = f"read_parquet([{', '.join(literal(str(file)) for file in found[name])}], union_by_name = true)"
            connection.execute(
                f"INSERT INTO {name} BY NAME SELECT DISTINCT {COLUMNS} FROM {source} WHERE settled AND "
                "minute < (SELECT coalesce(date_trunc('minute', min(started_at)), 'infinity'::TIMESTAMPTZ) FROM streams)"
            )

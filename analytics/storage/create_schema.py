"""Create the tables, views and comments of a store, or check that they are those of this version.

A store has the schema of the version that created it: nothing has been released, so there are no migrations. Views and comments
are replaced when they differ.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Iterator

import duckdb
import polars as pl

from analytics.schema.ddl import statements
from analytics.schema.sql_quoting import literal
from analytics.storage.catalog import NAME, Catalog
from analytics.storage.ducklake_format import FORMAT_VERSION, add_statistics, read_layouts
from analytics.storage.location import ALIAS, StoreLocation

OPTIONS = {
    "parquet_compression": "zstd",
    "parquet_version": "2",
    "target_file_size": "64MB",
}
"""Of the store. Small files: a stream's rows are then found by the statistics of files, and merging needs little memory."""
SORTED_BY = {
    "streams": "stream_id", "events": "stream_id, seq", "usage_reports": "stream_id", "server_stats": "stream_id",
    "spans": "started_at", "stalls": "stream_id", "stream_minutes": "minute", "histogram_minutes": "minute, metric",
}  # fmt: skip
"""How DuckLake sorts the rows of merged files. Ids are UUIDv7: their order is that of time."""

KEYS = {"log_positions": "log_id, partition", "taps": "tap, tap_worker, incarnation"}
"""Of tables whose rows are updated in place: two processes must not insert one row twice."""
_INTERNAL = (
    "streamgauge_meta (key VARCHAR NOT NULL, value VARCHAR NOT NULL)",
    "streamgauge_kept_records (log_id VARCHAR NOT NULL, partition VARCHAR NOT NULL, stream_id VARCHAR NOT NULL, "
    "number BIGINT NOT NULL, payload BLOB NOT NULL)",
    "streamgauge_upkeep (task VARCHAR NOT NULL, done_at_s DOUBLE NOT NULL)",
)


def prepare(connection: duckdb.DuckDBPyConnection, catalog: Catalog, location: StoreLocation) -> str:
    """Create what the store lacks; its id. Steps that can be repeated; one process at a time.

    Raises OSError with one line for a store of another version, duckdb.Error when it cannot be written.
    """
    for table in _INTERNAL:
        catalog.execute(f"CREATE TABLE IF NOT EXISTS {NAME}.{table}")
    meta = {str(key): str(value) for key, value in catalog.query("SELECT key, value FROM streamgauge_meta")}
    tables, views, comments = statements()
    schema, shown = _digest(tables), _digest(views + comments)
    if meta.get("schema", schema) != schema:
        raise OSError(
            f"the store {location.label} was created by another version of Streamgauge. Use that version, or move the store "
            "away to start with empty tables"
        )
    check_format(catalog, location)
    if location.catalog is not None:
        _note_data_path(catalog, f"{location.tables}/")
    if "schema" not in meta:
        _create(connection, catalog, tables)
    if meta.get("views") != shown:
        with _transaction(connection):
            connection.execute(views)
        # In a transaction of its own: comments on tables that the same transaction created crash DuckLake 1.0.
        with _transaction(connection):
            connection.execute(comments)
    store_id = meta.get("store_id") or str(uuid.uuid4())
    wanted = {"schema": schema, "views": shown, "store_id": store_id}
    if meta != wanted:
        with catalog.transaction():
            catalog.change("DELETE FROM streamgauge_meta")
            catalog.insert(
                "streamgauge_meta", pl.DataFrame({"key": [*wanted.keys()], "value": [*wanted.values()]})
            )
    return store_id


def _note_data_path(catalog: Catalog, path: str) -> None:
    """Other clients find the files by the path in the catalog, and a data folder may be moved."""
    [(noted,)] = catalog.query(
        "SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL"
    )
    if noted != path:
        with catalog.transaction():
            catalog.change(
                f"UPDATE ducklake_metadata SET value = {literal(path)} WHERE key = 'data_path' AND scope IS NULL"
            )


def check_format(catalog: Catalog, location: StoreLocation) -> None:
    """Raise OSError unless the catalog has the format that `analytics.storage.ducklake_format` writes."""
    found = catalog.query("SELECT value FROM ducklake_metadata WHERE key = 'version'")
    if found != [(FORMAT_VERSION,)]:
        raise OSError(
            f"the catalog {location.label} has DuckLake format {found[0][0] if found else 'unknown'}; this version writes "
            f"{FORMAT_VERSION}. Use the duckdb version of the lock"
        )


def _create(connection: duckdb.DuckDBPyConnection, catalog: Catalog, tables: str) -> None:
    with _transaction(connection):
        connection.execute(tables)
    # Not in that transaction: options and sort orders of tables that it created crash DuckLake 1.0.
    for option, value in OPTIONS.items():
        connection.execute(f"CALL ducklake_set_option('{ALIAS}', '{option}', '{value}')")
    for table, columns in SORTED_BY.items():
        connection.execute(f"ALTER TABLE {table} SET SORTED BY ({columns})")
    layouts = read_layouts(catalog)
    catalog.forget_column_statistics()
    with catalog.transaction():
        add_statistics(catalog, layouts)
    for name, key in KEYS.items():
        catalog.create_index(f"{layouts[name].inlined}_key", layouts[name].inlined, key)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def _transaction(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    connection.execute("BEGIN TRANSACTION")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(duckdb.Error):
            connection.execute("ROLLBACK")
        raise

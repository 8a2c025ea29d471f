"""Create the tables, views and comments of a store, or check that they are those of this version.

Nothing has been released, so there are no migrations: a store requires the version that created it. Views and comments are
replaced when they differ.
"""

from __future__ import annotations

import hashlib
import secrets
import uuid
from typing import NamedTuple

import duckdb
import polars as pl

from streamgauge.analytics.schema.ddl import statements
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.schema.tables import TABLES, Rows
from streamgauge.analytics.storage.catalog import NAME, Catalog
from streamgauge.analytics.storage.database import transaction
from streamgauge.analytics.storage.ducklake_format import FORMAT_VERSION, add_statistics, read_layouts
from streamgauge.analytics.storage.location import ALIAS, StoreLocation

OPTIONS = {"parquet_compression": "zstd", "parquet_version": "2", "target_file_size": "64MB"}
"""DuckLake options of the store. Small files can be skipped by their statistics, and merging them needs little memory."""
_INTERNAL = (
    "streamgauge_meta (key VARCHAR NOT NULL, value VARCHAR NOT NULL)",
    "streamgauge_kept_records (log_id VARCHAR NOT NULL, partition VARCHAR NOT NULL, stream_id VARCHAR NOT NULL, "
    "number BIGINT NOT NULL, payload BLOB NOT NULL)",
    "streamgauge_upkeep (task VARCHAR NOT NULL, done_at_s DOUBLE NOT NULL)",
)


class StoreKeys(NamedTuple):
    """Random values of a store, created with it."""

    store_id: str
    fingerprint_key: bytes
    """Key of the fingerprints in `streams`. Readers of the tables cannot read it."""


def prepare(connection: duckdb.DuckDBPyConnection, catalog: Catalog, location: StoreLocation) -> StoreKeys:
    """Create missing tables, views and comments. Requires `Catalog.creation`; can be repeated after
    an interruption.

    Raises OSError for a store of another version, duckdb.Error if the store cannot be written.
    """
    for table in _INTERNAL:
        catalog.execute(f"CREATE TABLE IF NOT EXISTS {NAME}.{table}")
    meta = {str(key): str(value) for key, value in catalog.query("SELECT key, value FROM streamgauge_meta")}
    tables, views, comments = statements()
    schema, views_digest = _digest(tables), _digest(views + comments)
    if meta.get("schema", schema) != schema:
        raise OSError(
            f"cannot open the store {location.label}: it was created by another version of Streamgauge. Use that version, or "
            "move the store away to start with empty tables"
        )
    check_format(catalog, location)
    if location.catalog is not None:
        _update_data_path(catalog, f"{location.tables}/")
    if "schema" not in meta:
        _create(connection, catalog, tables)
    if meta.get("views") != views_digest:
        with transaction(connection):
            connection.execute(views)
        # A separate transaction: comments on tables of the same transaction crash DuckLake 1.0.
        with transaction(connection):
            connection.execute(comments)
    store_id = meta.get("store_id") or str(uuid.uuid4())
    fingerprint_key = meta.get("fingerprint_key") or secrets.token_hex(32)
    current = {
        "schema": schema, "views": views_digest, "store_id": store_id, "fingerprint_key": fingerprint_key,
    }  # fmt: skip
    if meta != current:
        with catalog.transaction():
            catalog.change("DELETE FROM streamgauge_meta")
            catalog.insert(
                "streamgauge_meta", pl.DataFrame({"key": [*current.keys()], "value": [*current.values()]})
            )
    return StoreKeys(store_id, bytes.fromhex(fingerprint_key))


def _update_data_path(catalog: Catalog, path: str) -> None:
    """Store the current path of a moved data folder, by which other clients find the files."""
    [(stored,)] = catalog.query(
        "SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL"
    )
    if stored != path:
        with catalog.transaction():
            catalog.change(
                f"UPDATE ducklake_metadata SET value = {literal(path)} WHERE key = 'data_path' AND scope IS NULL"
            )


def check_format(catalog: Catalog, location: StoreLocation) -> None:
    """Raise OSError unless the catalog has the format that `streamgauge.analytics.storage.ducklake_format` writes."""
    found = catalog.query("SELECT value FROM ducklake_metadata WHERE key = 'version'")
    if found != [(FORMAT_VERSION,)]:
        raise OSError(
            f"cannot open the catalog {location.label}: it has DuckLake format {found[0][0] if found else 'unknown'}, not "
            f"{FORMAT_VERSION}. Install the duckdb version of requirements.lock"
        )


def _create(connection: duckdb.DuckDBPyConnection, catalog: Catalog, tables: str) -> None:
    with transaction(connection):
        connection.execute(tables)
    # Separate statements: options and sort orders of tables of the same transaction crash DuckLake 1.0.
    for option, value in OPTIONS.items():
        connection.execute(f"CALL ducklake_set_option('{ALIAS}', '{option}', '{value}')")
    for table in TABLES:
        if table.sorted_by:
            connection.execute(f"ALTER TABLE {table.name} SET SORTED BY ({table.sorted_by})")
    layouts = read_layouts(catalog)
    catalog.create_statistics_triggers()
    with catalog.transaction():
        add_statistics(catalog, layouts)
    for table in TABLES:
        if table.rows is Rows.UPDATED and table.key:  # two processes cannot insert the same row
            inlined = layouts[table.name].inlined
            catalog.create_index(f"{inlined}_key", inlined, table.key)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

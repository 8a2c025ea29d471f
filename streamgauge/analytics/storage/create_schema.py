"""Create the tables, views and comments of a store, or bring those of a former version up to date.

Creating is the upgrade of a store without tables: missing columns and tables are those that schema.sql declares and the store does
not have. What else changes is in `streamgauge.analytics.storage.upgrade_steps`.

Contract
1. Every row stays. Rows of before have NULL in new columns, also in those of a key.
2. The catalog is copied first: SQLite to `catalog.before-upgrade.sqlite`, PostgreSQL to the schema `BEFORE_UPGRADE`. The copy of the
   upgrade before is replaced.
3. A process that is killed at any time continues at its next start. Each statement can be repeated. Until the end, the catalog has
   `UPGRADING` instead of the digest of its tables, so that former versions refuse it, and the copy is not made again.
4. Readers see the former tables until the views are replaced, in one transaction with the version that they compare.
"""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Callable, Mapping
from typing import NamedTuple

import duckdb
import polars as pl

from streamgauge.analytics.schema.ddl import TABLES_VERSION, statements, view_names
from streamgauge.analytics.schema.sql_quoting import identifier, literal
from streamgauge.analytics.schema.tables import TABLES, Rows, declared_columns
from streamgauge.analytics.storage.catalog import NAME, Catalog
from streamgauge.analytics.storage.database import data_path_of, lake_files, newer, transaction
from streamgauge.analytics.storage.ducklake_format import (
    FORMAT_VERSION,
    TableLayout,
    add_statistics,
    move_inlined_rows,
    read_layouts,
    sync,
)
from streamgauge.analytics.storage.location import ALIAS, StoreLocation
from streamgauge.analytics.storage.sqlite_catalog import back_up
from streamgauge.analytics.storage.upgrade_steps import FORMER, STEPS

OPTIONS = {"parquet_compression": "zstd", "parquet_version": "2", "target_file_size": "64MB"}
"""DuckLake options of the store. Small files can be skipped by their statistics, and merging them needs little memory."""
BEFORE_UPGRADE = "streamgauge_before_upgrade"
UPGRADING = "being upgraded"
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


def prepare(
    connection: duckdb.DuckDBPyConnection,
    catalog: Catalog,
    location: StoreLocation,
    report: Callable[[str], None] = lambda step: None,
) -> StoreKeys:
    """Create or upgrade tables, views and comments. Requires `Catalog.creation`. Calls `report` before each step of an upgrade.

    Raises OSError for a store of a newer or an unknown version, duckdb.Error if the store cannot be written.
    """
    for table in _INTERNAL:
        catalog.execute(f"CREATE TABLE IF NOT EXISTS {NAME}.{table}")
    meta = {str(key): str(value) for key, value in catalog.query("SELECT key, value FROM streamgauge_meta")}
    tables, views, comments = statements()
    schema, views_digest = _digest(tables), _digest(views + comments)
    version = _version(catalog, location, meta, tables)
    check_format(catalog, location)
    if location.catalog is not None:
        _update_data_path(catalog, f"{location.tables}/")
    if (version, meta.get("schema")) != (TABLES_VERSION, schema):
        if version is not None:
            _copy_catalog(catalog, location, meta, version, report)
            _run_steps(connection, catalog, version, report)
            report("tables and columns")
        _add_tables(connection, catalog, tables)
    if meta.get("views") != views_digest or meta.get("schema") != schema:
        if version is not None:
            report("views")
        _replace_views(connection, views)
        # A separate transaction: comments on tables of the same transaction crash DuckLake 1.0.
        with transaction(connection):
            connection.execute(comments)
    store_id = meta.get("store_id") or str(uuid.uuid4())
    fingerprint_key = meta.get("fingerprint_key") or secrets.token_hex(32)
    _save(catalog, meta | {
        "schema": schema, "version": str(TABLES_VERSION), "views": views_digest,
        "store_id": store_id, "fingerprint_key": fingerprint_key,
    })  # fmt: skip
    return StoreKeys(store_id, bytes.fromhex(fingerprint_key))


def _version(catalog: Catalog, location: StoreLocation, meta: Mapping[str, str], tables: str) -> int | None:
    """Version of the stored tables, None before they are complete for the first time. Raises OSError."""
    if "schema" not in meta:
        return None
    if "version" in meta:
        version = int(meta["version"])
        if version > TABLES_VERSION:
            raise OSError(newer(location, version))
        return version
    declared = declared_columns(tables)
    unknown = [
        f"{name}.{column}"
        for name, layout in read_layouts(catalog).items()
        for column in layout.columns
        if column not in declared.get(name, ())
    ]
    if meta["schema"] not in FORMER and unknown:
        raise OSError(
            f"cannot open the store {location.label}: it was created by an unknown version of Streamgauge, with the column "
            f"{unknown[0]}. Use that version, or move the store away to start with empty tables"
        )
    return FORMER.get(meta["schema"], max(FORMER.values()))


def _copy_catalog(
    catalog: Catalog,
    location: StoreLocation,
    meta: dict[str, str],
    version: int,
    report: Callable[[str], None],
) -> None:
    """Copy the catalog, unless an interrupted upgrade has."""
    if meta["schema"] == UPGRADING:
        return
    report("copy of the catalog")
    if location.catalog is not None:
        back_up(location.catalog, location.before_upgrade)
    else:
        catalog.copy_to_schema(BEFORE_UPGRADE)
    meta |= {"schema": UPGRADING, "version": str(version)}
    _save(catalog, meta)


def _run_steps(
    connection: duckdb.DuckDBPyConnection, catalog: Catalog, version: int, report: Callable[[str], None]
) -> None:
    for number in range(version + 1, TABLES_VERSION + 1):
        if number in STEPS:
            report(f"step to version {number}")
            with transaction(connection):
                STEPS[number](connection)


def _save(catalog: Catalog, meta: Mapping[str, str]) -> None:
    rows = pl.DataFrame({"key": [*meta.keys()], "value": [*meta.values()]})
    with catalog.transaction():
        catalog.change("DELETE FROM streamgauge_meta")
        catalog.insert("streamgauge_meta", rows)


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


def _add_tables(connection: duckdb.DuckDBPyConnection, catalog: Catalog, tables: str) -> None:
    """Add what is declared and missing, also after an interruption."""
    layouts = read_layouts(catalog)
    with transaction(connection):
        for name, columns in declared_columns(tables).items():
            for column, kind in columns.items() if name in layouts else ():
                if (
                    column not in layouts[name].columns
                ):  # without NOT NULL, because rows of before have no value
                    connection.execute(f"ALTER TABLE {name} ADD COLUMN {identifier(column)} {kind}")
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
        add_statistics(catalog)
        for table in TABLES:
            if table.rows is Rows.UPDATED:
                move_inlined_rows(catalog, layouts[table.name])
    _flush_former_rows(connection, catalog, layouts)
    for table in TABLES:
        if table.rows is Rows.UPDATED and table.key:  # two processes cannot insert the same row
            inlined = layouts[table.name].inlined
            catalog.create_index(f"{inlined}_key", inlined, table.key)


def _flush_former_rows(
    connection: duckdb.DuckDBPyConnection, catalog: Catalog, layouts: Mapping[str, TableLayout]
) -> None:
    """Move rows that were inlined before columns were added to files. A later flush would drop their table while readers need it."""
    data_path = data_path_of(connection)
    several = "SELECT table_id FROM ducklake_inlined_data_tables GROUP BY table_id HAVING count(*) > 1"
    former = {int(str(table_id)) for (table_id,) in catalog.query(several)}
    for table in TABLES:
        layout, (schema, _, name) = layouts[table.name], table.qualified_name.partition(".")
        if table.rows is not Rows.UPDATED and layout.table_id in former:
            folder = data_path + layout.path
            before = lake_files([folder])
            with transaction(connection, folder):
                connection.execute(
                    f"CALL ducklake_flush_inlined_data('{ALIAS}', schema_name => '{schema}', table_name => '{name}')"
                ).fetchall()
            for file in lake_files([folder]) - before:  # DuckLake does not
                sync(str(file))


def _replace_views(connection: duckdb.DuckDBPyConnection, views: str) -> None:
    """Replace all views, and drop those that are not declared any more."""
    found = connection.execute(
        "SELECT if(schema_name = 'main', '', schema_name || '.') || view_name FROM duckdb_views() "
        f"WHERE database_name = '{ALIAS}' AND NOT internal"
    ).fetchall()
    with transaction(connection):
        for name in {name for (name,) in found} - set(view_names(views)):
            connection.execute(f"DROP VIEW {name}")
        connection.execute(views)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

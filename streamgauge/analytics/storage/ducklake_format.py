"""Append to DuckLake 1.0 tables in its published format.

A table is a set of Parquet files and of rows inlined in the catalog, both valid from a snapshot. `write_file` writes a
Parquet file with field ids and statistics. `SnapshotBuilder` adds files and inlined rows to a new snapshot within a
transaction of the catalog.

DuckLake's INSERT takes 66 to 183 ms of CPU for a commit that takes 28 to 54 ms here (`python -m bench store commit`).
Reading, merging, flushing and expiring are DuckLake's own functions.

Invariants
1. A snapshot's id is its predecessor's plus one. The catalog's primary key rejects the second of two equal ids.
2. The statistics of a table's columns are unknown (NULL), and triggers keep them unknown: commits do not update them, and
   DuckDB would answer `max(x)` from them. The statistics of files are exact.
"""

from __future__ import annotations

import datetime as dt
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from streamgauge.analytics.schema.sql_quoting import identifier, literal
from streamgauge.analytics.storage.catalog import Catalog, integers
from streamgauge.analytics.storage.database import RegisteredRows

FORMAT_VERSION = "1.0"
_SQL_TYPES = {
    "uuid": "UUID", "varchar": "VARCHAR", "boolean": "BOOLEAN", "timestamptz": "TIMESTAMPTZ", "int16": "SMALLINT",
    "int32": "INTEGER", "int64": "BIGINT", "float32": "FLOAT", "float64": "DOUBLE", "list": "VARCHAR[]",
    "map": "MAP(VARCHAR, VARCHAR)",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableLayout:
    """One table in the catalog."""

    table_id: int
    name: str
    """Name, with the schema unless it is `main`."""
    path: str
    """Folder of the files, relative to the data path."""
    columns: Mapping[str, str]
    """DuckLake's types, by column."""
    field_ids: str
    """Value of COPY's option FIELD_IDS. DuckLake finds Parquet columns by id."""
    column_ids: Mapping[str, int]
    """Column ids by the column's path in COPY's statistics."""
    inlined: str
    """Name of the catalog's table with the inlined rows."""


def read_layouts(catalog: Catalog) -> dict[str, TableLayout]:
    """Every table, by name."""
    columns: dict[tuple[str, ...], list[tuple[int, str, str, int | None]]] = {}
    for *table, column_id, column, kind, parent in catalog.query(
        "SELECT CASE s.schema_name WHEN 'main' THEN '' ELSE s.schema_name || '.' END || t.table_name AS name, t.table_id, "
        "s.path || t.path AS path, (SELECT i.table_name FROM ducklake_inlined_data_tables AS i WHERE i.table_id = t.table_id "
        "ORDER BY i.schema_version DESC LIMIT 1) AS inlined, c.column_id, c.column_name, c.column_type, c.parent_column "
        "FROM ducklake_table AS t JOIN ducklake_schema AS s ON s.schema_id = t.schema_id "
        "JOIN ducklake_column AS c ON c.table_id = t.table_id "
        "WHERE t.end_snapshot IS NULL AND c.end_snapshot IS NULL ORDER BY t.table_id, c.column_order"
    ):
        columns.setdefault(tuple(map(str, table)), []).append(
            (int(str(column_id)), str(column), str(kind), int(parent) if parent else None)
        )
    return {
        name: _layout(int(table_id), name, path, inlined, columns[name, table_id, path, inlined])
        for name, table_id, path, inlined in columns
    }


def _layout(
    table_id: int, name: str, path: str, inlined: str, columns: Sequence[tuple[int, str, str, int | None]]
) -> TableLayout:
    elements: dict[int, list[tuple[str, int]]] = {}
    for column_id, column, _, parent in columns:
        if parent is not None:
            elements.setdefault(parent, []).append((column, column_id))
    types, fields, ids = {}, [], {}
    for column_id, column, kind, parent in columns:
        if parent is not None:
            continue
        types[column] = kind
        quoted, inner = identifier(column), elements.get(column_id)
        if inner is None:
            fields.append(f"{quoted}: {column_id}")
            ids[quoted] = column_id
        else:
            listed = ", ".join(f"{name}: {inner_id}" for name, inner_id in inner)
            fields.append(f"{quoted}: {{__duckdb_field_id: {column_id}, {listed}}}")
            ids |= {f'{quoted}."{name}"': inner_id for name, inner_id in inner}
    return TableLayout(table_id, name, path, types, f"{{{', '.join(fields)}}}", ids, inlined)


def add_statistics(catalog: Catalog) -> None:
    """Insert the statistics of new tables and columns. Within a transaction, after the triggers were created."""
    catalog.change(
        "INSERT INTO ducklake_table_stats (table_id, record_count, next_row_id, file_size_bytes) SELECT table_id, 0, 0, 0 "
        "FROM ducklake_table WHERE end_snapshot IS NULL AND table_id NOT IN (SELECT table_id FROM ducklake_table_stats)"
    )
    # Those of lists and maps are of their elements.
    catalog.change(
        "INSERT INTO ducklake_table_column_stats (table_id, column_id, contains_null) "
        f"SELECT table_id, column_id, {catalog.flag(True)} FROM ducklake_column AS c "
        "WHERE end_snapshot IS NULL AND column_type NOT IN ('list', 'map') AND NOT EXISTS (SELECT 1 "
        "FROM ducklake_table_column_stats AS s WHERE s.table_id = c.table_id AND s.column_id = c.column_id)"
    )


def move_inlined_rows(catalog: Catalog, layout: TableLayout) -> None:
    """Move the rows that were inlined before columns were added to the table of new inlined rows. Within a transaction."""
    for (former,) in catalog.query(
        f"SELECT table_name FROM ducklake_inlined_data_tables WHERE table_id = {layout.table_id} "
        f"AND table_name <> '{layout.inlined}' ORDER BY schema_version"
    ):
        # By position: a column may have another name since, and new ones are the last.
        names = ["row_id", "begin_snapshot", "end_snapshot", *map(identifier, layout.columns)]
        listed = ", ".join(names[: len(catalog.columns(str(former)))])
        catalog.change(f"INSERT INTO {layout.inlined} ({listed}) SELECT * FROM {former}")
        catalog.change(f"DELETE FROM {former}")


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file that is not in the catalog yet."""

    layout: TableLayout
    name: str
    rows: int
    size_bytes: int
    footer_bytes: int
    statistics: Mapping[str, Mapping[str, str]]


class Appender:
    """Writes data frames with DuckDB's COPY over one connection. Used by its thread only.

    Registering a frame costs more than reading a small one, so each table is registered once.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._sources: dict[str, RegisteredRows] = {}

    def copy(self, name: str, rows: pl.DataFrame, select: str, to: str) -> list[Any]:
        """`COPY (select) TO to`. `{rows}` in `select` is the frame. Raises duckdb.Error."""
        table = "rows_" + name.replace(".", "_")
        source = self._sources.get(name)
        if source is None or source.rows.schema != rows.schema:
            source = self._sources[name] = RegisteredRows(rows)
            self._connection.register(table, source)
        source.rows = rows
        try:
            return self._connection.execute(f"COPY ({select.format(rows=table)}) TO {to}").fetchall()
        finally:
            source.rows = rows.clear()


def write_file(appender: Appender, data_path: str, layout: TableLayout, rows: pl.DataFrame) -> File:
    """Write the rows as a Parquet file of the table. Columns are matched by name. Raises OSError or duckdb.Error."""
    folder = data_path + layout.path
    if "://" not in folder:
        Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
    name = f"streamgauge-{uuid.uuid4()}.parquet"
    columns = ", ".join(
        f"{identifier(column)}::{_SQL_TYPES[kind]} AS {identifier(column)}"
        if kind == "uuid" and column in rows.columns
        else identifier(column) if column in rows.columns
        else f"NULL::{_SQL_TYPES[kind]} AS {identifier(column)}"
        for column, kind in layout.columns.items()
    )  # fmt: skip
    [(_, count, size, footer, statistics, _)] = appender.copy(
        layout.name,
        rows,
        f"SELECT {columns} FROM {{rows}}",
        f"{literal(folder + name)} (FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2, "
        f"FIELD_IDS {layout.field_ids}, RETURN_STATS)",
    )
    if "://" not in folder:  # before the catalog names the file
        sync(folder + name)
    return File(layout, name, count, size, footer, statistics)


def sync(path: str) -> None:
    """Sync a new local file and its directory entry to the disk."""
    for each in (path, Path(path).parent):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _bound(text: str | None) -> str:
    """A bound as SQL. NULL if unknown or if the catalog cannot hold it."""
    return "NULL" if text is None or "\x00" in text else literal(text)


def remove_file(data_path: str, file: File) -> None:
    """Remove a local file that is in no snapshot. Upkeep removes such files in S3."""
    if "://" not in data_path:
        Path(data_path + file.layout.path + file.name).unlink(missing_ok=True)


class SnapshotBuilder:
    """Collects a new snapshot within `catalog.transaction()`. `finish` writes it."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        [row] = catalog.query(
            "SELECT snapshot_id, schema_version, next_catalog_id, next_file_id FROM ducklake_snapshot "
            "ORDER BY snapshot_id DESC LIMIT 1"
        )
        last_id, self.schema_version, self._next_catalog_id, self._next_file_id = integers(row)
        self.snapshot_id = last_id + 1
        self._next_row_ids: dict[int, int] = {}
        self._files: list[str] = []
        self._statistics: list[str] = []
        """Rows of the catalog's tables, as SQL."""
        self._added: dict[int, tuple[int, int]] = {}
        """(rows, bytes of files) by table id."""
        self._changes: list[str] = []

    def add_file(self, file: File) -> None:
        """Add a Parquet file."""
        table_id, file_id = file.layout.table_id, self._next_file_id
        self._next_file_id += 1
        first = self._take_row_ids(table_id, file.rows, file.size_bytes)
        self._files.append(
            f"({file_id}, {table_id}, {self.snapshot_id}, '{file.name}', {self._catalog.flag(True)}, 'parquet', {file.rows}, "
            f"{file.size_bytes}, {file.footer_bytes}, {first})"
        )
        for column, found in file.statistics.items():
            least, most = (_bound(found.get(name)) for name in ("min", "max"))
            has_nan = self._catalog.flag(found["has_nan"] == "true") if "has_nan" in found else "NULL"
            self._statistics.append(
                f"({file_id}, {table_id}, {file.layout.column_ids[column]}, {found['column_size_bytes']}, "
                f"{found['num_values']}, {found['null_count']}, {least}, {most}, {has_nan})"
            )
        self._changes.append(f"inserted_into_table:{table_id}")

    def add_rows(self, layout: TableLayout, rows: pl.DataFrame) -> None:
        """Add inlined rows. Missing columns are NULL."""
        if rows.is_empty():
            return
        first = self._take_row_ids(layout.table_id, rows.height)
        # DuckLake caches statistics by this id. Without a new one its own INSERTs would reuse row ids.
        self._next_file_id += 1
        written = self._catalog.rows(rows, layout.columns)
        values = ", ".join(
            f"({row_id}, {self.snapshot_id}, {row})" for row_id, row in enumerate(written, first)
        )
        names = ", ".join(map(identifier, rows.columns))
        self._catalog.change(
            f"INSERT INTO {layout.inlined} (row_id, begin_snapshot, {names}) VALUES {values}"
        )
        self._changes.append(f"inlined_insert:{layout.table_id}")

    def _take_row_ids(self, table_id: int, rows: int, size_bytes: int = 0) -> int:
        if not self._next_row_ids:
            self._next_row_ids = {
                int(str(table)): int(str(row_id))
                for table, row_id in self._catalog.query(
                    "SELECT table_id, next_row_id FROM ducklake_table_stats"
                )
            }
        first = self._next_row_ids[table_id]
        self._next_row_ids[table_id] += rows
        added_rows, added_bytes = self._added.get(table_id, (0, 0))
        self._added[table_id] = (added_rows + rows, added_bytes + size_bytes)
        return first

    def finish(self) -> None:
        """Write the snapshot. Raises duckdb.Error if another process has written the same id."""
        if not self._changes:
            return
        catalog, snapshot_id = self._catalog, self.snapshot_id
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f+00")
        catalog.change(
            "INSERT INTO ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id) "
            f"VALUES ({snapshot_id}, '{now}', {self.schema_version}, {self._next_catalog_id}, {self._next_file_id})"
        )
        catalog.change(
            "INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made) "
            f"VALUES ({snapshot_id}, '{','.join(dict.fromkeys(self._changes))}')"
        )
        rows, size = (
            " ".join(f"WHEN {table_id} THEN {added[n]}" for table_id, added in self._added.items())
            for n in (0, 1)
        )
        catalog.change(
            f"UPDATE ducklake_table_stats SET record_count = record_count + CASE table_id {rows} END, "
            f"next_row_id = next_row_id + CASE table_id {rows} END, "
            f"file_size_bytes = file_size_bytes + CASE table_id {size} END "
            f"WHERE table_id IN ({', '.join(map(str, self._added))})"
        )
        if self._files:
            catalog.change(
                "INSERT INTO ducklake_data_file (data_file_id, table_id, begin_snapshot, path, path_is_relative, file_format, "
                f"record_count, file_size_bytes, footer_size, row_id_start) VALUES {', '.join(self._files)}"
            )
            catalog.change(
                "INSERT INTO ducklake_file_column_stats (data_file_id, table_id, column_id, column_size_bytes, value_count, "
                f"null_count, min_value, max_value, contains_nan) VALUES {', '.join(self._statistics)}"
            )

"""Stores for tests. Copying an empty store takes a third of the time of creating one."""

from __future__ import annotations

import functools
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.consumer import Consumer
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.query.answers import to_polars
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.schema.ddl import statements
from streamgauge.analytics.storage.location import StoreLocation, locate
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader


def new_store(data: Path, **options: Any) -> Store:
    """A store with a SQLite catalog, new unless the folder has one. `options` are those of `Store`."""
    location = locate("sqlite", data)
    assert location.catalog is not None
    if not location.catalog.exists():
        data.mkdir(parents=True, exist_ok=True)
        location.catalog.write_bytes(_empty_catalog())
    return Store(location, **options)


def place_empty_catalog(data: Path) -> None:
    """Place an empty store in a data folder, so that `analyze` need not create tables. The store gets its own keys."""
    location = locate("sqlite", data)
    assert location.catalog is not None
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    location.catalog.touch(mode=0o600)
    location.catalog.write_bytes(_empty_catalog())
    with closing(sqlite3.connect(location.catalog)) as catalog, catalog:
        catalog.execute("DELETE FROM streamgauge_meta WHERE key IN ('store_id', 'fingerprint_key')")


@functools.cache
def _empty_catalog() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        location = locate("sqlite", Path(folder))
        assert location.catalog is not None
        Store(location).close()
        return location.catalog.read_bytes()


def ask(store: Store, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Query as the writing process. UUIDs are text."""
    cursor = store.cursor()
    try:
        return to_polars(cursor.execute(sql, values).to_arrow_table()).rows()
    finally:
        cursor.close()


def analysed(data: Path) -> Store:
    """The store, after analytics has read the record log until its end."""
    store = new_store(data)
    with EmbeddedReader(data / "log", "analyze") as reader:
        consumer = Consumer(reader, store, Assembler(), measure)
        consumer.start()
        while consumer.step(0):
            pass
        consumer.finish()
    return store


def ask_as_reader(location: StoreLocation, sql: str) -> list[tuple[Any, ...]]:
    """Query as a read-only process, including streams in flight."""
    reader = Reader(location, lock_down=False)
    try:
        return reader.query(sql, 1_000_000, 60).rows()
    finally:
        reader.close()


def plain_tables() -> duckdb.DuckDBPyConnection:
    """Tables and views in an in-memory DuckDB without a catalog."""
    tables, views, comments = statements()
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for part in (tables, views, comments):
        connection.execute(part)
    return connection

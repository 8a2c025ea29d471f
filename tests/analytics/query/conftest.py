"""A small store that DuckDB alone has created."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import duckdb
import pytest

from streamgauge.analytics.schema.ddl import TABLES_VERSION, schema_digest
from streamgauge.analytics.storage.database import load, new_database
from streamgauge.analytics.storage.location import StoreLocation, locate

ROWS = 5000
RUNAWAY = "SELECT count(*) FROM range(100000000000000) WHERE range % 7 = 9"
"""Takes days and no memory."""


@contextmanager
def writer(location: StoreLocation) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with the store attached for writing."""
    with new_database() as connection:
        load(connection, "ducklake", "sqlite_scanner")
        connection.execute(
            f"ATTACH 'ducklake:sqlite:{location.catalog}' AS lake (DATA_PATH '{location.tables}')"
        )
        connection.execute("USE lake; SET TimeZone = 'UTC'")
        yield connection


def make_store(data: Path, rows: int = ROWS) -> StoreLocation:
    """A store with the tables `streams` and `events`, the view `by_outcome` and an internal table in the catalog."""
    location = locate("sqlite", data)
    assert location.catalog is not None
    with closing(sqlite3.connect(location.catalog)) as catalog:
        catalog.execute("PRAGMA journal_mode = WAL")
        catalog.execute("CREATE TABLE streamgauge_positions (secret TEXT)")
        catalog.execute("INSERT INTO streamgauge_positions VALUES ('planted-secret')")
        catalog.commit()
    with writer(location) as connection:
        connection.execute(
            "CREATE TABLE streams (stream_id UUID, started_at TIMESTAMPTZ, outcome VARCHAR, ttft_ns BIGINT);"
            "CREATE TABLE events (stream_id UUID, seq INTEGER, at_ns BIGINT);"
            "COMMENT ON COLUMN streams.ttft_ns IS 'time to first token';"
            "CREATE VIEW by_outcome AS SELECT outcome, count(*) AS n FROM streams GROUP BY 1;"
            "CREATE SCHEMA internal;"
            f"CREATE VIEW internal.tables_version AS SELECT {TABLES_VERSION} AS number, '{schema_digest()}' AS digest"
        )
        connection.execute(
            "INSERT INTO streams SELECT ('0198b2d0-0000-7000-8000-' || lpad(range::VARCHAR, 12, '0'))::UUID,"
            f" TIMESTAMPTZ '2026-09-21 14:13:20+00', 'ok', range FROM range({rows})"
        )
    return location


ADD_STREAM = """
import sys
from pathlib import Path
from streamgauge.analytics.storage.location import locate
from tests.analytics.query.conftest import writer

with writer(locate("sqlite", Path(sys.argv[1]))) as connection:
    connection.execute("INSERT INTO streams VALUES (uuid(), now(), 'ok', 1)")
"""


def add_stream(location: StoreLocation) -> None:
    """Commit one more row, in a separate process, as analytics does."""
    assert location.catalog is not None
    root = Path(__file__).parents[3]
    subprocess.run(
        [sys.executable, "-c", ADD_STREAM, str(location.catalog.parent)], check=True, cwd=root, timeout=60
    )


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> StoreLocation:
    """A store shared by the tests of a module. Tests only read it."""
    return make_store(tmp_path_factory.mktemp("store"))

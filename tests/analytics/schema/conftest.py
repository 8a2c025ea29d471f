"""The public tables and views in memory, empty at the begin of each test."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from tests.analytics.stores import plain_tables


@pytest.fixture(scope="module")
def tables() -> Iterator[duckdb.DuckDBPyConnection]:
    with plain_tables() as con:
        yield con


@pytest.fixture
def con(tables: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    for table in ("streams", "hops", "prices"):
        tables.execute(f"DELETE FROM {table}")
    return tables

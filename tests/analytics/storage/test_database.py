"""Errors of the store are logged without stored values."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import duckdb
import pytest

from streamgauge.analytics.storage.database import load, message_without_values, new_database

SECRET = "plantedzwiebel prose"


@pytest.mark.parametrize(
    "statement", [f"SELECT CAST('{SECRET}' AS INTEGER)", f"SELECT '{SECRET}' '", f'SELECT "{SECRET}"']
)
def test_errors_about_values_are_named_by_their_class(statement: str) -> None:
    with contextlib.closing(new_database()) as connection, pytest.raises(duckdb.Error) as caught:
        connection.execute(statement)
    assert SECRET in str(caught.value)
    assert message_without_values(caught.value) == type(caught.value).__name__


def test_a_failed_statement_of_the_catalog_is_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "catalog.sqlite"
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE t(x TEXT CHECK (x = 'y'))")
    with contextlib.closing(new_database()) as connection:
        load(connection, "sqlite_scanner")
        connection.execute(f"ATTACH '{file}' AS c (TYPE sqlite)")
        with pytest.raises(duckdb.Error) as caught:
            connection.execute(f"INSERT INTO c.t VALUES ('{SECRET}')")
    assert SECRET not in message_without_values(caught.value)
    quoting = duckdb.IOException(
        f'Failed to execute query "INSERT INTO t VALUES (\'{SECRET}\', "a")": disk I/O error'
    )
    assert message_without_values(quoting) == "Failed to execute query: disk I/O error"

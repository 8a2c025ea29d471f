"""Every column of every public table explains itself."""

from pathlib import Path

import duckdb
import pytest

ANALYTICS = Path(__file__).parents[3] / "analytics"


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    for name in ("schema", "comments", "open_streams"):
        con.execute((ANALYTICS / "schema" / f"{name}.sql").read_text())
    return con


def test_every_column_has_a_comment(con: duckdb.DuckDBPyConnection) -> None:
    bare = con.execute(
        "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal AND comment IS NULL"
    )
    assert bare.fetchall() == []


def test_every_table_has_a_comment(con: duckdb.DuckDBPyConnection) -> None:
    assert con.execute("SELECT table_name FROM duckdb_tables() WHERE comment IS NULL").fetchall() == []


def test_comments_are_short_enough_for_a_tooltip(con: duckdb.DuckDBPyConnection) -> None:
    long = con.execute(
        "SELECT column_name FROM duckdb_columns() WHERE NOT internal AND len(comment) > 160"
    ).fetchall()
    assert long == []

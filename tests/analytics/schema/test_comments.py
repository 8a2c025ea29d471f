"""Every column of every public table explains itself."""

from collections.abc import Iterator

import duckdb
import pytest

from streamgauge.analytics.schema.ddl import comments
from streamgauge.analytics.schema.tables import OPEN_STREAMS_SQL
from tests.analytics.stores import plain_tables

OF_TABLES = "NOT internal AND table_name NOT IN (SELECT view_name FROM duckdb_views())"


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with plain_tables() as con:
        con.execute(OPEN_STREAMS_SQL + comments(OPEN_STREAMS_SQL))
        yield con


def test_every_column_has_a_comment(con: duckdb.DuckDBPyConnection) -> None:
    bare = con.execute(
        f"SELECT table_name, column_name FROM duckdb_columns() WHERE {OF_TABLES} AND comment IS NULL"
    )
    assert bare.fetchall() == []


def test_column_without_a_comment_has_that_of_the_nearest_table_before(
    con: duckdb.DuckDBPyConnection,
) -> None:
    found = dict(
        con.execute(
            "SELECT table_name, comment FROM duckdb_columns() WHERE column_name = 'outer_started_at'"
        ).fetchall()
    )
    assert found == dict.fromkeys(("hops", "hop_changes"), "Start of the outer stream.")


def test_every_table_has_a_comment(con: duckdb.DuckDBPyConnection) -> None:
    assert con.execute("SELECT table_name FROM duckdb_tables() WHERE comment IS NULL").fetchall() == []


def test_comments_are_short_enough_for_a_tooltip(con: duckdb.DuckDBPyConnection) -> None:
    long = con.execute(
        "SELECT column_name FROM duckdb_columns() WHERE NOT internal AND len(comment) > 160"
    ).fetchall()
    assert long == []

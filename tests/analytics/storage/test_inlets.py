"""Frames of all kinds through the same inlet: what is in the table is what was given, each time."""

from __future__ import annotations

import duckdb
import polars as pl
import pytest

from analytics.storage.inlets import Inlets


@pytest.fixture
def connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE marks (id UUID, n BIGINT, word VARCHAR, seen_at TIMESTAMPTZ)")
    return connection


def _marks(*numbers: int) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "id": [f"00000000-0000-0000-0000-{n:012d}" for n in numbers],
            "n": numbers,
            "word": [None if n % 2 else "w" * n for n in numbers],
            "seen_at": pl.Series(numbers, dtype=pl.Int64).cast(pl.Datetime("us", "UTC")),
        },
        schema_overrides={"word": pl.String},
    )


def _stored(connection: duckdb.DuckDBPyConnection) -> list[tuple[object, ...]]:
    return connection.execute(
        "SELECT id::VARCHAR, n, word, epoch_us(seen_at) FROM marks ORDER BY n"
    ).fetchall()


def _expected(*numbers: int) -> list[tuple[object, ...]]:
    return [(f"00000000-0000-0000-0000-{n:012d}", n, None if n % 2 else "w" * n, n) for n in numbers]


def test_each_frame_is_stored_once(connection: duckdb.DuckDBPyConnection) -> None:
    inlets = Inlets(connection)
    inlets.append("marks", _marks(1, 2))
    inlets.append("marks", _marks(3))
    inlets.append("marks", pl.concat([_marks(4), _marks(5, 6)], rechunk=False))
    assert _stored(connection) == _expected(1, 2, 3, 4, 5, 6)


def test_columns_are_matched_by_name(connection: duckdb.DuckDBPyConnection) -> None:
    inlets = Inlets(connection)
    inlets.append("marks", _marks(1).select("seen_at", "word", "id", "n"))
    inlets.append("marks", _marks(2))
    inlets.append("marks", _marks(3).select("n"))
    assert _stored(connection) == [*_expected(1, 2), (None, 3, None, None)]


def test_a_column_of_another_type_is_read_as_what_it_is(connection: duckdb.DuckDBPyConnection) -> None:
    inlets = Inlets(connection)
    inlets.append("marks", _marks(1))
    inlets.append("marks", pl.DataFrame({"n": ["2"], "word": [None]}, schema_overrides={"word": pl.Null}))
    inlets.append("marks", _marks(3))
    assert [n for _, n, *_ in _stored(connection)] == [1, 2, 3]


def test_what_was_rolled_back_is_not_there_and_the_next_is(connection: duckdb.DuckDBPyConnection) -> None:
    inlets = Inlets(connection)
    connection.execute("BEGIN")
    inlets.append("marks", _marks(1))
    connection.execute("ROLLBACK")
    inlets.forget()
    connection.execute("ALTER TABLE marks ADD COLUMN more INTEGER")  # the INSERT is planned anew
    inlets.append("marks", _marks(2))
    connection.execute("BEGIN")
    inlets.append("marks", _marks(3))
    connection.execute("ROLLBACK")
    inlets.forget()
    inlets.append("marks", _marks(4))
    assert _stored(connection) == _expected(2, 4)


def test_a_row_that_does_not_fit_leaves_the_inlet_usable(connection: duckdb.DuckDBPyConnection) -> None:
    inlets = Inlets(connection)
    inlets.append("marks", _marks(1))
    with pytest.raises(duckdb.Error):
        inlets.append("marks", _marks(2).with_columns(id=pl.lit("no uuid")))
    inlets.append("marks", _marks(3))
    assert _stored(connection) == _expected(1, 3)


def test_the_table_may_change_between(connection: duckdb.DuckDBPyConnection) -> None:
    inlets = Inlets(connection)
    inlets.append("marks", _marks(1))
    connection.execute("ALTER TABLE marks ADD COLUMN more INTEGER DEFAULT 7")
    inlets.append("marks", _marks(2))
    assert connection.execute("SELECT n, more FROM marks ORDER BY n").fetchall() == [(1, 7), (2, 7)]
    assert _stored(connection) == _expected(1, 2)


def test_tables_of_a_schema_have_an_inlet_of_their_own(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("CREATE SCHEMA internal; CREATE TABLE internal.marks (n BIGINT)")
    inlets = Inlets(connection)
    inlets.append("marks", _marks(1))
    inlets.append("internal.marks", _marks(2).select("n"))
    inlets.append("marks", _marks(3))
    assert _stored(connection) == _expected(1, 3)
    assert connection.execute("FROM internal.marks").fetchall() == [(2,)]

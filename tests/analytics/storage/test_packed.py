"""What the view `events` of a file gives back is what was packed, whatever it was; and it stays small."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.storage import packed
from analytics.storage.packed import PACKED_EVENTS, Packer
from analytics.storage.schema import prepare
from analytics.storage.tables import EVENTS, frame_of_rows

SCHEMA = Path(packed.__file__).parent / "schema.sql"
TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00\x1f"), max_size=9)
NUMBER = st.integers(0, 2**31 - 1 - 2**30)
ROWS = st.lists(
    st.tuples(
        st.uuids().map(str), NUMBER, NUMBER, st.integers(-(2**63), 2**63 - 1), TEXT,
        st.none() | TEXT.filter(bool), st.none() | st.integers(-(2**15), 2**15 - 1),
        *[st.none() | st.integers(-(2**31), 2**31 - 1)] * 3, st.none() | TEXT.filter(bool),
    ),
    max_size=20,
)  # fmt: skip


@pytest.fixture(scope="module")
def file() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        prepare(connection, None)
        yield connection


def given_back(
    connection: duckdb.DuckDBPyConnection, packer: Packer, *batches: pl.DataFrame
) -> list[tuple[Any, ...]]:
    connection.execute(f"DELETE FROM {PACKED_EVENTS}")
    for batch in batches:
        connection.register("appended", packer.pack(batch))
        connection.execute(f"INSERT INTO {PACKED_EVENTS} BY NAME FROM appended")
        connection.unregister("appended")
    return connection.execute("SELECT * REPLACE (stream_id::VARCHAR AS stream_id) FROM events").fetchall()


@given(st.lists(ROWS, max_size=3))
def test_rows_come_back_as_they_were(
    file: duckdb.DuckDBPyConnection, batches: list[list[tuple[Any, ...]]]
) -> None:
    frames = [frame_of_rows(EVENTS, rows) for rows in batches]
    assert given_back(file, Packer(), *frames) == [row for rows in batches for row in rows]


def event(**of: Any) -> tuple[Any, ...]:
    row = {
        "stream_id": "0198b2d0-0000-7000-8000-000000000000",
        "seq": 0,
        "read_seq": 0,
        "at_ns": 0,
        "kind": "text",
        **of,
    }
    return tuple(row.get(name) for name in EVENTS)


def test_a_name_with_the_separator_cannot_become_another_column(file: duckdb.DuckDBPyConnection) -> None:
    row = event(event_name="a\x1f7\x1fstop", choice=2)
    assert given_back(file, Packer(), frame_of_rows(EVENTS, [row])) == [
        event(event_name="a\ufffd7\ufffdstop", choice=2)
    ]


def test_running_numbers_begin_anew_before_they_are_too_large(
    file: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_HIGHEST", 10)
    rows = [event(seq=n, read_seq=n // 2) for n in range(6)]
    frame = frame_of_rows(EVENTS, rows)
    assert given_back(file, Packer(), *[frame] * 4) == rows * 4
    [highest] = file.execute(f"SELECT max(number) FROM {PACKED_EVENTS}").fetchall()
    assert highest <= (16,)


def test_a_column_that_is_missing_is_unknown(file: duckdb.DuckDBPyConnection) -> None:
    frame = frame_of_rows(EVENTS, [event(choice=1)]).drop("event_name", "tokens", "finish_reason")
    assert given_back(file, Packer(), frame) == [event(choice=1)]


def test_the_view_has_the_columns_of_the_table_that_a_lake_has(file: duckdb.DuckDBPyConnection) -> None:
    described = "SELECT column_name, column_type FROM (DESCRIBE events)"
    with duckdb.connect() as plain:
        plain.execute(SCHEMA.read_text())
        assert file.execute(described).fetchall() == plain.execute(described).fetchall()

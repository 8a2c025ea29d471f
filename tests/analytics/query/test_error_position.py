"""The position of an error is that of the character that the message is about."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streamgauge.analytics.query.query_errors import QueryRejected, of_kind, to_wire
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.query.statement_filter import StatementFilter, position_of_byte
from streamgauge.analytics.storage.location import StoreLocation

LONG = "x" * 150


@pytest.fixture(scope="module")
def reader(location: StoreLocation) -> Iterator[Reader]:
    found = Reader(location)
    found.connection.execute("SET GLOBAL errors_as_json = true")  # as in the child processes
    found.lock_down()
    yield found
    found.close()


@pytest.fixture(scope="module")
def statement_filter(reader: Reader) -> StatementFilter:
    return StatementFilter(reader.cursor())


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT wrong FROM streams",
        "\n\n  SELECT outcome,\n\t'é', wrong\nFROM streams\n;  ",
        "-- a comment\nSELECT 'é漢字🙂e\u0301', wrong FROM streams",
        f"SELECT '{LONG}', wrong, '{LONG}' FROM streams",
        f"SELECT wrong, '{LONG}' FROM streams",
        "SELECT outcome FROM streams WHERE outcome = 1 +\n  wrong",
        "SELECT s.outcome, s.wrong FROM streams s",
        "EXPLAIN SELECT 'é', wrong FROM streams",
    ],
)
def test_error_of_a_column_has_its_position(
    sql: str, reader: Reader, statement_filter: StatementFilter
) -> None:
    statement_filter.check(sql)
    with pytest.raises(QueryRejected) as caught:
        reader.arrow(sql, 10, 10)
    assert caught.value.position in (sql.index("wrong"), sql.index("wrong") - len("s.")), sql
    assert sql[caught.value.position or 0 :].removeprefix("s.").startswith("wrong")
    sent = to_wire(caught.value)
    assert of_kind(sent["error"], sent["message"], sent["position"]).position == caught.value.position


@pytest.mark.parametrize(
    ("sql", "at", "message"),
    [
        ("SELECT 'é🙂', 1 FORM streams", "streams", 'syntax error at or near "streams"'),
        ("SELECT 'é🙂' FROM strems", "strems", "Did you mean 'streams'?"),
        ("SELECT 'é🙂', medain(ttft_ns) FROM streams", "medain", "Did you mean 'median'?"),
        ("SELECT 1 FROM zzzzzz", "zzzzzz", "SHOW TABLES lists the tables."),
        ("FROM read_csv('x')", "read_csv", "SHOW TABLES lists the tables."),
    ],
)
def test_error_of_the_filter_has_its_position_and_the_nearest_name(
    sql: str, at: str, message: str, statement_filter: StatementFilter
) -> None:
    with pytest.raises(QueryRejected) as caught:
        statement_filter.check(sql)
    assert caught.value.position == sql.index(at)
    assert message in str(caught.value)


def test_suggested_tables_are_public(statement_filter: StatementFilter) -> None:
    with pytest.raises(QueryRejected) as caught:
        statement_filter.check("FROM ducklake_snapsho")
    assert "ducklake_snapshot" not in str(caught.value)


def test_positions_outside_of_the_statement_are_none(location: StoreLocation, reader: Reader) -> None:
    assert (position_of_byte("é", 2**64 - 1), position_of_byte("é", 2), position_of_byte("é", None)) == (
        None,
        1,
        None,
    )
    with pytest.raises(QueryRejected) as caught:
        reader.arrow("SELECT (1", 10, 10)
    assert caught.value.position in (None, len("SELECT (1"))
    plain = Reader(location)
    with pytest.raises(QueryRejected, match="wrong") as caught:
        plain.arrow("SELECT wrong FROM streams", 10, 10)
    plain.close()
    assert caught.value.position is None


def test_larger_answers_are_cut_only_on_request(reader: Reader) -> None:
    assert reader.arrow("FROM range(50)", 10, 10, truncate=True).num_rows == 11
    assert reader.arrow("FROM range(10)", 10, 10, truncate=True).num_rows == 10
    with pytest.raises(QueryRejected, match="more than 10 rows"):
        reader.arrow("FROM range(50)", 10, 10)

"""Answers that the gate keeps for Quack. tests/analytics/query/test_serve.py runs a real server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from streamgauge.analytics.query.answers import encode
from streamgauge.analytics.query.child_process import MIB, UNTRUSTED
from streamgauge.analytics.query.quack_gate import KEPT_ANSWERS, Gate
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.storage.location import StoreLocation

ROWS = 10_000
ANSWER = bytes(encode(pa.table({"x": ["x" * 99] * ROWS})))
"""About 1 MiB."""


@pytest.fixture
def reader(location: StoreLocation) -> Iterator[Reader]:
    reader = Reader(location, lock_down=False)
    yield reader
    reader.close()


def gate_of(reader: Reader, reply: dict[str, Any], body: bytes = b"") -> Gate:
    """A gate whose supervisor answers each question at once."""

    def ask(asked: dict[str, Any]) -> None:
        gate.answered({"answer": asked["ask"]} | reply, body)

    gate = Gate(reader, replace(UNTRUSTED, max_answer_bytes=MIB), ask)
    reader.lock_down()
    return gate


def test_oldest_answers_are_dropped_while_their_readers_finish(reader: Reader) -> None:
    gate = gate_of(reader, {}, ANSWER)
    kept = [gate("session", "SELECT 1")]
    slow = reader.connection.cursor().execute(kept[0])
    assert len(slow.fetchmany(1)) == 1
    for _ in range(2 * KEPT_ANSWERS):
        kept.append(gate("session", "SELECT 1"))
        assert len(reader.connection.cursor().execute(kept[-1]).fetchall()) == ROWS
    tables = (
        reader.connection.cursor()
        .execute(
            "SELECT count(*), sum(estimated_size) FROM system.main.duckdb_tables() WHERE database_name = 'answers'"
        )
        .fetchall()[0]
    )
    assert 1 < tables[0] <= KEPT_ANSWERS
    assert len(slow.fetchall()) == ROWS - 1


@pytest.mark.parametrize(
    ("reply", "body", "reason"),
    [
        ({"error": "QueryTimeout", "message": "it's late"}, b"", "too slow: it's late"),
        ({"error": "QueryRejected", "message": "no"}, b"", "refused: no"),
        ({}, b"not an answer", "refused: cannot read the answer"),
        ({}, ANSWER[: len(ANSWER) // 2], "refused: cannot read the answer"),
    ],
)
def test_failures_become_statements_that_raise(
    reader: Reader, reply: dict[str, Any], body: bytes, reason: str
) -> None:
    statement = gate_of(reader, reply, body)("session", "SELECT 1")
    assert statement.startswith("SELECT error('" + reason.replace("'", "''"))


def test_statements_that_are_too_long_are_not_forwarded(reader: Reader) -> None:
    asked: list[dict[str, Any]] = []
    statement = Gate(reader, UNTRUSTED, asked.append)("session", "SELECT '" + "x" * 70_000 + "'")
    assert "longer than 64 KiB" in statement
    assert not asked


def test_a_failed_database_ends_the_process(reader: Reader, capfd: pytest.CaptureFixture[str]) -> None:
    gate = gate_of(reader, {})
    gate.check_database()
    child = os.fork()
    if not child:
        empty = pa.array([[]], pa.list_(pa.dictionary(pa.int8(), pa.string())))
        reader.connection.register("empty", pa.table({"x": empty}))
        with contextlib.suppress(duckdb.InternalException):
            reader.connection.execute("FROM empty").fetchall()
        gate.check_database()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert "DuckDB failed: " in capfd.readouterr().err

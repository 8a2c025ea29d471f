"""The generator is reproducible, the verdicts find what they look for, and failing statements are shortened."""

from __future__ import annotations

import pytest

from tests.hostile_sql import verdict
from tests.hostile_sql.draw import Catalog, catalog
from tests.hostile_sql.generator import MALFORMED_WEIGHT, VALID, statement
from tests.hostile_sql.minimise import minimise

COLUMNS = [("streams", "stream_id", "UUID"), ("streams", "outcome", "VARCHAR"), ("events", "seq", "INTEGER")]


@pytest.fixture(scope="module")
def known() -> Catalog:
    return catalog(COLUMNS)


def test_same_seed_and_number_give_the_same_statement(known: Catalog) -> None:
    again = Catalog.from_json(catalog(COLUMNS).to_json())
    first = [statement(known, "a", number) for number in range(300)]
    assert first == [statement(again, "a", number) for number in range(300)]
    assert first[0] != statement(known, "b", 0)
    assert {one.kind for one in first} == {*VALID, "malformed"}
    assert sum(weight for weight, _ in VALID.values()) > MALFORMED_WEIGHT


def test_statements_stay_bounded_and_differ(known: Catalog) -> None:
    texts = [statement(known, "bounds", number).sql for number in range(500)]
    assert max(map(len, texts)) <= 80_000
    assert len(set(texts)) > 450


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("cannot run the statement: the store is read-only. Write a SELECT.", None),
        ("", "empty error"),
        ("first\nsecond", "error of several lines"),
        ("IO Error: Could not connect to server", "connection lost"),
        ("Catalog Error: __ducklake_metadata_lake", "error shows '__ducklake_metadata_lake'"),
        ("cannot open /tmp/data/catalog.sqlite", "error shows '/tmp/data/catalog.sqlite'"),
        ("File quack_gate.py, line 3", "error shows 'quack_gate'"),
    ],
)
def test_errors_are_judged(message: str, problem: str | None) -> None:
    assert verdict.problem_of_error("SELECT 1", message) == problem


def test_names_from_the_statement_may_be_repeated() -> None:
    assert verdict.problem_of_error("FROM '/tmp/x.csv'", "there is no public table '/tmp/x.csv'") is None


def test_answers_are_judged() -> None:
    assert verdict.problem_of_answer("SELECT 1", "[(1,)]", ["token"]) is None
    assert verdict.problem_of_answer("SELECT 1", "[('token',)]", ["token"]) == "answer shows a secret"
    assert verdict.problem_of_answer("SHOW TABLES", "[('answers',)]", []) == "answer shows 'answers'"


def test_client_text_is_removed() -> None:
    text = "Invalid Input Error: refused: x\n\nLINE 1: FROM quack_query('quack:localhost:1', ?)\n   ^"
    assert verdict.without_client_text(text) == "refused: x"


def test_failing_statement_is_shortened() -> None:
    sql = "SELECT a, b, repeat('x', 3) FROM streams WHERE a > 3 AND b < 4 ORDER BY 1 LIMIT 10"
    assert minimise(sql, lambda text: "repeat" in text and "LIMIT" in text) == "repeatLIMIT"
    calls = []
    assert minimise(sql, lambda text: bool(calls.append(text)), attempts=5) == sql
    assert len(calls) == 5

"""Errors on the SQL page say what failed, why and what to do, and name line and column."""

from __future__ import annotations

import pytest

from streamgauge.dashboard.sql_statements import position_before, problem_of, variables, with_values


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            'Binder Error: Referenced column "outcom" not found in FROM clause! Candidate bindings: "outcome", "a", "b"',
            'the tables of the FROM clause have no column "outcom". Did you mean "outcome" or "a"?',
        ),
        (
            'Binder Error: Table "s" does not have a column named "foo" Candidate bindings: : "outcome"',
            '"s" has no column "foo". Did you mean "outcome"?',
        ),
        (
            'Binder Error: Referenced table "t" not found! Candidate tables: "streams"',
            'the FROM clause has no table "t". Did you mean "streams"?',
        ),
        (
            "Binder Error: No function matches the given name and argument types 'round(VARCHAR)'. You might need to add "
            "explicit type casts. Candidate functions: round(TINYINT) -> TINYINT",
            "no function takes the arguments of round(VARCHAR). Cast them,",
        ),
        (
            "Conversion Error: Could not convert string 'abc' to INT32",
            "a conversion failed, string 'abc' to INT32. Use TRY_CAST",
        ),
        (
            "Out of Range Error: Overflow in multiplication",
            "cannot run the statement: overflow in multiplication",
        ),
        (
            'syntax error at or near "FORM"',
            'cannot parse the statement: syntax error at or near "FORM". Check',
        ),
        ("cannot run the statement: x. Do y.", "cannot run the statement: x. Do y."),
        ("query stopped after 2 s: it reached its time limit.", "query stopped after 2 s"),
    ],
)
def test_message_says_what_to_do(message: str, text: str) -> None:
    found = problem_of(message, "SELECT 1", None)
    assert text in found.text
    assert found.text.startswith(("cannot ", "query "))
    assert (found.line, found.column) == (None, None)


@pytest.mark.parametrize(
    ("sql", "position", "line", "column"),
    [
        ("SELECT x", 7, 1, 8),
        ("SELECT\n  x", 9, 2, 3),
        ("\n\nx", 2, 3, 1),
        ("SELECT (", 8, 1, 9),
        ("x", 0, 1, 1),
    ],
)
def test_position_is_line_and_column(sql: str, position: int, line: int, column: int) -> None:
    found = problem_of("syntax error", sql, position)
    assert (found.line, found.column) == (line, column)


@pytest.mark.parametrize(
    ("unknown", "near"),
    [
        ("model", '"request_model" or "response_model"'),
        ("ttft", '"ttft_ns" or "outcome"'),
        ("latency", '"ttft_ns" or "end_ns"'),
        ("outcom", '"outcome" or "a"'),
    ],
)
def test_unknown_column_suggests_columns_of_the_same_meaning(unknown: str, near: str) -> None:
    message = f'Binder Error: Referenced column "{unknown}" not found in FROM clause! Candidate bindings: "outcome", "a"'
    columns = ["outcome", "request_model", "response_model", "ttft_ns", "end_ns"]
    assert f"Did you mean {near}?" in problem_of(message, "SELECT 1", None, columns).text


VALUES = {
    "from": "TIMESTAMPTZ '2026-01-01'",
    "to": "now()",
    "model": "('a', 'b')",
    "gateway": "('g')",
    "client": "('c')",
}


def test_variables_outside_texts_and_comments_are_replaced() -> None:
    sql = """SELECT '$from', "$to", $$ $to $$, $tag$ $model $tag$ -- $client
        /* $client */ FROM streams WHERE started_at >= $from AND $modelled AND request_model IN $model"""
    assert variables(sql) == {"from", "model"}
    found = with_values(sql, VALUES)
    assert found.replace("TIMESTAMPTZ '2026-01-01'", "$from").replace("('a', 'b')", "$model") == sql
    assert found.endswith(
        "started_at >= TIMESTAMPTZ '2026-01-01' AND $modelled AND request_model IN ('a', 'b')"
    )


def test_position_of_an_error_is_that_in_the_statement_with_variables() -> None:
    sql = "SELECT x WHERE a >= $from AND b < $to AND c"
    replaced = with_values(sql, VALUES)
    for part in ("x", "a", "b", "c"):
        at = replaced.index(f"{part} ") if part != "c" else replaced.rindex("c")
        assert sql[position_before(sql, VALUES, at)] == part
    for variable in ("from", "to"):
        inside = replaced.index(VALUES[variable]) + 3
        assert sql[position_before(sql, VALUES, inside) :].startswith(f"${variable}")

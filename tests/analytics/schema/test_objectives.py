"""The first matching objective, whether a stream meets it, and burn rates from the roll-ups."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgauge.analytics.schema.objectives import COLUMNS, DEFAULT, LEAST_BAD, Objective, Objectives
from tests.analytics.stores import plain_tables

MS = 1_000_000
FAST = Objective("fast", model="gpt-*", gateway="litellm", ttft_ns=800 * MS, itl_ns=50 * MS, goodput=0.9)
PAID = Objective("paid", client="c0ffee*", ttft_ns=100 * MS, error_rate=0.01)


@pytest.mark.parametrize(
    ("model", "gateway", "client", "name"),
    [
        ("gpt-4o", "litellm", None, "fast"),
        ("gpt-4o", "litellm", "c0ffee1", "fast"),
        ("gpt-4o", "vllm", "c0ffee1", "paid"),
        ("GPT-4o", "litellm", "d", "default"),
        (None, "litellm", None, "default"),
        (None, None, None, "default"),
    ],
)
def test_first_matching_objective_applies(
    model: str | None, gateway: str | None, client: str | None, name: str
) -> None:
    found = Objectives([FAST, PAID, DEFAULT]).of(model, gateway, client)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ({"user": "u1", "team": "search"}, "search"),
        ({"team": "search-eu"}, "search"),
        ({"team": "ads"}, "any team"),
        ({"user": "search"}, "default"),
        ({}, "default"),
        (None, "default"),
    ],
)
def test_objective_of_a_label_applies_to_streams_with_it(labels: dict[str, str] | None, name: str) -> None:
    search = Objective("search", label="team=search*", ttft_ns=1)
    found = Objectives([search, Objective("any team", label="team=*", ttft_ns=2), DEFAULT])
    assert [o.name for o in (found.of("m", "g", None, labels), found.of("m", "g", None)) if o] == [
        name,
        "default",
    ]


def test_no_objective_matches() -> None:
    assert Objectives([FAST]).of("gpt-4o", "vllm", None) is None


@pytest.mark.parametrize(
    ("outcome", "ttft_ns", "itl_ns", "meets"),
    [
        ("ok", 800 * MS, 50.0 * MS, True),
        ("ok", 801 * MS, 50.0 * MS, False),
        ("ok", 1, 50.5 * MS, False),
        ("ok", 1, None, None),
        ("ok", None, None, None),
        ("ok", 801 * MS, None, False),
        ("http_error", None, None, False),
        ("client_abort", 1, 1.0, None),
        ("client_abort", 801 * MS, None, False),
        ("tap_lost", None, None, None),
        ("refused", None, None, None),
    ],
)
def test_meets(outcome: str, ttft_ns: int | None, itl_ns: float | None, meets: bool | None) -> None:
    assert FAST.meets(outcome, ttft_ns, itl_ns) is meets


def test_limit_that_is_not_set_is_met_by_an_unknown_metric() -> None:
    assert PAID.meets("ok", 1, None) is True


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with plain_tables() as con:
        for number, objective in enumerate((FAST, PAID, DEFAULT)):
            con.execute(
                f"INSERT INTO objectives (priority, {', '.join(COLUMNS)}) VALUES ({', '.join('?' * (1 + len(COLUMNS)))})",
                [number, *dataclasses.astuple(objective)],
            )
        yield con


@given(st.text("ab-*?", min_size=1, max_size=6), st.text("ab-", max_size=6))
def test_globs_match_as_in_sql(con: duckdb.DuckDBPyConnection, glob: str, text: str) -> None:
    [(expected,)] = con.execute("SELECT ?::VARCHAR GLOB ?::VARCHAR", [text, glob]).fetchall()
    assert Objective("x", model=glob).matches(text, None, None) is expected


def add_minutes(con: duckdb.DuckDBPyConnection, *rows: tuple[str, str, int, int, int, int]) -> None:
    """(objective, model, minutes ago, counted, errors, meeting)."""
    con.execute("DELETE FROM client_minutes")
    for objective, model, ago, counted, errors, meeting in rows:
        con.execute(
            "INSERT INTO client_minutes BY NAME SELECT date_trunc('minute', now()) - to_minutes(?) AS minute, 'gw' AS gateway, "
            "? AS model, ? AS objective, false AS settled, ? AS streams, ? AS counted, ? AS errors, ? AS meeting_objective",
            [ago, model, objective, counted, counted, errors, meeting],
        )


def ask(con: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    return con.execute(sql).pl().to_dicts()


def test_burn_rate_is_the_share_of_bad_streams_over_the_budget(con: duckdb.DuckDBPyConnection) -> None:
    # fast has the budget 0.1 of misses; paid 0.01 and default 0.05 of errors
    add_minutes(
        con,
        ("fast", "gpt-4o", 1, 100, 20, 40),
        ("fast", "gpt-4o", 40, 100, 0, 100),
        ("fast", "gpt-5", 1, 100, 0, 100),
        ("paid", "m", 2, 1000, 10, 0),
        ("former", "m", 1, 10, 10, 0),
    )
    found = {(row["objective"], row["model"]): row for row in ask(con, "FROM burn_rates")}
    assert set(found) == {("fast", "gpt-4o"), ("fast", "gpt-5"), ("paid", "m")}
    burning = found["fast", "gpt-4o"]
    assert burning["indicator"] == "goodput"
    assert burning["burn_5m"] == pytest.approx(6)
    assert burning["burn_30m"] == pytest.approx(6)
    assert burning["burn_1h"] == burning["burn_3d"] == pytest.approx(3)
    assert burning["severity"] == "ticket"
    assert found["fast", "gpt-5"]["burn_3d"] == 0
    assert found["fast", "gpt-5"]["severity"] is None
    assert found["paid", "m"]["indicator"] == "error_rate"
    assert found["paid", "m"]["burn_5m"] == pytest.approx(1)
    assert found["paid", "m"]["severity"] is None
    spent = {row["objective"]: row for row in ask(con, "FROM error_budgets")}
    assert spent["fast"]["bad"] == 60
    assert spent["fast"]["spent"] == pytest.approx(60 / 300 / 0.1)


@pytest.mark.parametrize(
    ("rows", "severity"),
    [
        ([(1, 100, 80)], "page"),  # burn 16 in 5 m and 1 h
        ([(10, 100, 80)], "page"),  # 1 h and 30 m: the slower pair
        ([(45, 100, 80)], "ticket"),  # over: no short window burns
        ([(45, 100, 80), (1, 10_000, 0)], None),
        ([(45, 100, 8)], None),  # burn 1.6, but 8 bad streams instead of 5 may be chance
        ([(45, 10_000, 800)], "ticket"),
        ([(1, LEAST_BAD - 1, LEAST_BAD - 1)], None),
        ([(1, LEAST_BAD, LEAST_BAD)], "page"),
    ],
)
def test_severity_requires_a_short_and_a_long_window(
    con: duckdb.DuckDBPyConnection, rows: list[tuple[int, int, int]], severity: str | None
) -> None:
    add_minutes(con, *[("default", "m", ago, counted, errors, 0) for ago, counted, errors in rows])
    [row] = ask(con, "FROM burn_rates")
    assert row["severity"] == severity

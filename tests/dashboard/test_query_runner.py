"""Questions asked ahead are the page's own: each is asked once, and a failure is told to whoever needs the answer."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import polars as pl
import pytest
import streamlit as st

from analytics.query.errors import QueryError
from dashboard import query_runner

DEADLINE_S = 30.0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Counter[str], threading.Event, threading.Event]]:
    """How often what was asked; set when a question has come; answers come once the second is set."""
    counted: Counter[str] = Counter()
    came, go = threading.Event(), threading.Event()

    def answer(sql: str) -> pl.DataFrame:
        counted[sql] += 1
        came.set()
        assert go.wait(DEADLINE_S)
        if "wrong" in sql:
            raise QueryError("no")
        return pl.DataFrame({"n": [1]})

    monkeypatch.setattr(query_runner, "ask_freshly", answer)
    st.cache_data.clear()
    yield counted, came, go
    go.set()
    st.cache_data.clear()


def test_what_is_on_its_way_is_not_asked_again(
    asked: tuple[Counter[str], threading.Event, threading.Event],
) -> None:
    counted, came, go = asked
    query_runner.ahead(lambda: query_runner.ask("SELECT 1"))
    assert came.wait(DEADLINE_S)
    found: list[int] = []
    page = threading.Thread(target=lambda: found.append(query_runner.ask("SELECT 1")["n"][0]))
    page.start()
    go.set()
    page.join(DEADLINE_S)
    assert found == [1]
    assert counted == {"SELECT 1": 1}


def test_a_failure_is_told_to_who_needs_the_answer(
    asked: tuple[Counter[str], threading.Event, threading.Event],
) -> None:
    _, came, go = asked
    go.set()
    query_runner.ahead(lambda: query_runner.ask("wrong"))
    assert came.wait(DEADLINE_S)
    with pytest.raises(QueryError):
        query_runner.ask("wrong")


def test_only_so_many_are_asked_ahead_at_once(
    asked: tuple[Counter[str], threading.Event, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, came, go = asked
    monkeypatch.setattr(query_runner, "AHEAD", threading.BoundedSemaphore(1))
    query_runner.ahead(lambda: query_runner.ask("SELECT 1"), lambda: query_runner.ask("SELECT 2"))
    assert came.wait(DEADLINE_S)
    go.set()
    assert query_runner.ask("SELECT 2")["n"].to_list() == [1]
    assert counted == {"SELECT 1": 1, "SELECT 2": 1}

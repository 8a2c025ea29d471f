"""Prefetched queries run once, their errors reach the page, and their number is limited."""

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
Queries = tuple[Counter[str], threading.Event, threading.Event]
"""(number of runs per query, event set when a query starts, event that lets queries end)"""


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> Iterator[Queries]:
    counts: Counter[str] = Counter()
    started, finish = threading.Event(), threading.Event()

    def run(sql: str) -> pl.DataFrame:
        counts[sql] += 1
        started.set()
        assert finish.wait(DEADLINE_S)
        if "wrong" in sql:
            raise QueryError("no")
        return pl.DataFrame({"n": [1]})

    monkeypatch.setattr(query_runner, "run", run)
    st.cache_data.clear()
    yield counts, started, finish
    finish.set()
    st.cache_data.clear()


def test_running_query_is_not_repeated(
    queries: Queries,
) -> None:
    counts, started, finish = queries
    result = query_runner.prefetch(lambda: query_runner.query("SELECT 1"))
    assert started.wait(DEADLINE_S)
    found: list[int] = []
    page = threading.Thread(target=lambda: found.append(result()["n"][0]))
    page.start()
    finish.set()
    page.join(DEADLINE_S)
    assert found == [1]
    assert counts == {"SELECT 1": 1}


def test_error_of_a_prefetch_is_raised_by_the_page(
    queries: Queries,
) -> None:
    _, started, finish = queries
    finish.set()
    result = query_runner.prefetch(lambda: query_runner.query("wrong"))
    assert started.wait(DEADLINE_S)
    with pytest.raises(QueryError):
        result()


def test_prefetches_are_limited(queries: Queries, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, started, finish = queries
    monkeypatch.setattr(query_runner, "PREFETCH_SLOTS", threading.BoundedSemaphore(1))
    query_runner.prefetch(lambda: query_runner.query("SELECT 1"))
    second = query_runner.prefetch(lambda: query_runner.query("SELECT 2"))
    assert started.wait(DEADLINE_S)
    finish.set()
    assert second()["n"].to_list() == [1]
    assert counts == {"SELECT 1": 1, "SELECT 2": 1}

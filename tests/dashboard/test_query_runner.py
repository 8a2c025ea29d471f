"""Prefetched queries run once, their errors reach the page, and their number is limited."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path

import polars as pl
import pytest
import streamlit as st

from streamgauge.analytics.query.errors import QueryError
from streamgauge.dashboard import query_runner
from tests.guard_injection import Injection

DEADLINE_S = 30.0
ASKED = ("wrong", *(f"SELECT {n}" for n in range(1, 5)))
Queries = tuple[Counter[str], threading.Event, threading.Event]
"""(number of runs per query, event set when a query starts, event that lets queries end)"""


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> Iterator[Queries]:
    counts: Counter[str] = Counter()
    started, finish = threading.Event(), threading.Event()

    def run(sql: str, data: str) -> pl.DataFrame:
        if sql not in ASKED:  # a prefetch of an earlier test in this process
            raise QueryError("unexpected")
        counts[sql] += 1
        started.set()
        assert finish.wait(DEADLINE_S)
        if "wrong" in sql:
            raise QueryError("no")
        return pl.DataFrame({"n": [1]})

    monkeypatch.setattr(query_runner, "run", run)
    monkeypatch.setattr(query_runner, "_client_names", lambda data: {})
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


def test_answer_is_kept_under_the_folder_that_was_read(
    streams_data: Path, empty_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = chain([streams_data], repeat(empty_data))
    monkeypatch.setattr(query_runner, "data_dir", lambda: next(folders))
    st.cache_data.clear()
    assert query_runner.query("SELECT count(*) AS n FROM streams")["n"][0] > 0


def test_error_of_a_prefetch_is_raised_by_the_page(
    queries: Queries,
) -> None:
    _, started, finish = queries
    finish.set()
    result = query_runner.prefetch(lambda: query_runner.query("wrong"))
    assert started.wait(DEADLINE_S)
    with pytest.raises(QueryError):
        result()


def test_threads_of_prefetches_survive_exceptions(queries: Queries) -> None:
    queries[2].set()

    def end() -> None:
        raise SystemExit

    for number in range(query_runner.LANES):
        with Injection(query_runner.GUARDS.guard(f"prefetch {number}")) as injection:
            while not injection.raised:
                with suppress(SystemExit):
                    query_runner.prefetch(end)()
                time.sleep(0.01)  # the queue must not fill up
        assert "Injected" in query_runner.GUARDS.faults()[f"prefetch {number}"]
    started = threading.Event()
    result = query_runner.prefetch(lambda: started.set() or query_runner.query("SELECT 1"))  # type: ignore[func-returns-value]
    assert started.wait(DEADLINE_S)
    assert result()["n"][0] == 1


def test_page_that_waits_runs_the_next_prefetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_runner, "LANES", 1)
    st.cache_resource.clear()
    busy, free = threading.Event(), threading.Event()

    def slow() -> str:
        busy.set()
        assert free.wait(DEADLINE_S)
        return threading.current_thread().name

    def next_one() -> str:
        free.set()
        return threading.current_thread().name

    first = query_runner.prefetch(slow)
    assert busy.wait(DEADLINE_S)
    second = query_runner.prefetch(next_one)
    here = threading.current_thread().name
    assert first() != here
    assert second() == here
    st.cache_resource.clear()


def test_full_queue_runs_queries_when_they_are_needed(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, started, finish = queries
    monkeypatch.setattr(query_runner, "LANES", 1)
    monkeypatch.setattr(query_runner, "MAX_PREFETCHES", 1)
    st.cache_resource.clear()
    results = []
    for n in range(1, 5):
        results.append(query_runner.prefetch(lambda n=n: query_runner.query(f"SELECT {n}")))
        assert started.wait(DEADLINE_S)
    assert counts == {"SELECT 1": 1}
    finish.set()
    assert [result()["n"][0] for result in results[::-1]] == [1, 1, 1, 1]
    assert counts == {f"SELECT {n}": 1 for n in range(1, 5)}
    st.cache_resource.clear()

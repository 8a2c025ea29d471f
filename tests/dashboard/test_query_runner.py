"""Prefetched queries run once, their errors reach the page, and their number is limited."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import polars as pl
import pytest
import streamlit as st

from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.dashboard import query_runner
from tests.deadline import DEADLINE_S
from tests.guard_injection import Injection

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
        with Injection(
            query_runner.GUARDS.guard(f"prefetch {number}"), query_runner.GUARDS.faults
        ) as injection:
            while not injection.shown:
                with suppress(SystemExit):
                    query_runner.prefetch(end)()
                time.sleep(0.01)  # the queue must not fill up
        assert "Injected" in query_runner.GUARDS.faults()[f"prefetch {number}"]
    started = threading.Event()
    result = query_runner.prefetch(lambda: started.set() or query_runner.query("SELECT 1"))  # type: ignore[func-returns-value]
    assert started.wait(DEADLINE_S)
    assert result()["n"][0] == 1


@pytest.fixture
def one_lane(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(query_runner, "LANES", 1)
    st.cache_resource.clear()
    yield
    st.cache_resource.clear()


class Slow:
    """A prefetch that runs in the lane until `free` is set. Its result is the name of its thread."""

    def __init__(self) -> None:
        self.free = threading.Event()
        busy = threading.Event()

        def run() -> str:
            busy.set()
            assert self.free.wait(DEADLINE_S)
            return threading.current_thread().name

        self.result = query_runner.prefetch(run)
        assert busy.wait(DEADLINE_S)


@pytest.mark.usefixtures("one_lane")
def test_page_that_waits_runs_its_next_prefetch() -> None:
    slow = Slow()

    def next_one() -> str:
        slow.free.set()
        return threading.current_thread().name

    second = query_runner.prefetch(next_one)
    here = threading.current_thread().name
    assert slow.result() != here
    assert second() == here


@pytest.mark.usefixtures("one_lane")
def test_page_that_waits_does_not_run_the_prefetches_of_others() -> None:
    slow = Slow()
    ran: list[str] = []
    other = threading.Thread(
        target=lambda: query_runner.prefetch(lambda: ran.append(threading.current_thread().name))
    )
    other.start()
    other.join(DEADLINE_S)
    page = threading.Timer(0.2, slow.free.set)
    page.start()
    lane = slow.result()
    page.join(DEADLINE_S)
    deadline_s = time.monotonic() + DEADLINE_S
    while not ran and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert ran == [lane]


@pytest.mark.usefixtures("one_lane")
def test_prefetches_of_a_page_that_was_left_run_only_if_they_are_asked_for() -> None:
    slow = Slow()
    ran: list[str] = []
    left, asked = (query_runner.prefetch(partial(ran.append, name)) for name in ("left", "asked"))
    query_runner.leave_page()
    asked()
    last = query_runner.prefetch(partial(ran.append, "last"))
    slow.free.set()
    slow.result()
    last()
    assert ran == ["asked", "last"]
    left()
    assert ran == ["asked", "last", "left"]


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

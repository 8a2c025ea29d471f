"""Run the queries of the pages in child processes (`streamgauge.analytics.query.query_pool`). Analytics does not have to run.

- One child runs the queries of the pages. Another, confined child runs the statements of the SQL page.
- In the columns `name` and `client`, names from the settings replace client ids.
- Results are cached for a few seconds and shared by all readers. The cache is bounded.
- Every failure is a `QueryError` with a one-line message, which `page_frame` shows.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import polars as pl
import streamlit as st

from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.reports.selection import CLIENT_NAMES, with_client_names
from streamgauge.analytics.storage.location import locate
from streamgauge.dashboard.page_settings import GUARDS, data_dir, store
from streamgauge.ingest.guards import Guard, guarded_thread

T = TypeVar("T")
P = ParamSpec("P")

CACHED_S = 2.0
CACHED_CATALOG_S = 30.0
MAX_RESULTS = 128
"""Maximum number of cached results. Nearly all have fewer than 1,000 rows, none more than `MAX_ROWS`."""
MAX_ROWS = 20_000
TIMEOUT_S = 20.0
LANES = max(1, min(4, (os.cpu_count() or 1) - 1))
"""Prefetches that run at the same time in the background, one of them often a diagnosis. Each is on one core."""
MAX_PREFETCHES = 64
"""Maximum number of waiting prefetches of all readers. Further queries run when the page needs them."""

__all__ = [
    "QueryError",
    "answer",
    "client_name",
    "leave_page",
    "prefetch",
    "query",
    "query_catalog",
    "query_month",
    "query_untrusted",
]


@st.cache_resource(max_entries=8, show_spinner=False)
def _process(data: str, untrusted: bool) -> QueryPool:
    return QueryPool(locate(store(), Path(data)), untrusted=untrusted)


def run(sql: str, data: str) -> pl.DataFrame:
    """Run a query of a page. Raises QueryError."""
    return _process(data, False).query(sql, max_rows=MAX_ROWS, timeout_s=TIMEOUT_S)


def query_untrusted(sql: str, *, max_rows: int) -> pl.DataFrame:
    """Filter a reader's statement and run it in the confined process. Raises QueryError.

    If the answer has more than `max_rows` rows, it is the first `max_rows` + 1.
    """
    return _process(str(data_dir()), True).query(sql, max_rows=max_rows, timeout_s=TIMEOUT_S, truncate=True)


@st.cache_data(ttl=CACHED_CATALOG_S, max_entries=8, show_spinner=False)
def _client_names(data: str) -> dict[str, str]:
    """Client id → name."""
    return dict(run(CLIENT_NAMES, data).iter_rows())


def client_name(client_id: str | None) -> str | None:
    """The name of a client, None without one. Raises QueryError."""
    return _client_names(str(data_dir())).get(client_id or "")


def answer(sql: str, data: str) -> pl.DataFrame:
    """The result of a query, not cached. Callers cache what they compute from it. Raises QueryError."""
    return with_client_names(run(sql, data), _client_names(data))


def _cached_query(name: str, kept_s: float, most: int) -> Callable[[str], pl.DataFrame]:
    """A function with its own cache that answers a query. Raises QueryError."""

    # `data` is a part of the key, because tests show several data folders with one process.
    def answered(sql: str, data: str) -> pl.DataFrame:
        return answer(sql, data)

    answered.__qualname__ = name  # Streamlit finds the cache of a function by its name and source
    cached = st.cache_data(ttl=kept_s, max_entries=most, show_spinner=False)(answered)
    return lambda sql: cached(sql, str(data_dir()))


query = _cached_query("query", CACHED_S, MAX_RESULTS)
query_catalog = _cached_query("query_catalog", CACHED_CATALOG_S, 16)
"""For columns and filter options."""
query_month = _cached_query("query_month", 300.0, 16)
"""For queries that read the streams of a month."""


class _Prefetch(Generic[T]):
    """Queries that run once, in the first thread that takes them."""

    def __init__(self, run_queries: Callable[[], T]) -> None:
        self._run_queries = run_queries
        self._taken = threading.Lock()
        self._future: Future[T] = Future()
        self.is_wanted = True
        """False after the reader has left the page."""

    def run(self) -> bool:
        """Run the queries. Returns whether this thread did."""
        if not self._taken.acquire(blocking=False):
            return False
        try:
            self._future.set_result(self._run_queries())
        except BaseException as error:  # the page waits for a result
            self._future.set_exception(error)
        return True

    def is_done(self) -> bool:
        return self._future.done()

    def result(self) -> T:
        """Wait for the result. Raises what the queries raised."""
        return self._future.result()


class _Own(threading.local):
    """The prefetches of the page that this thread draws, until it has tried to run them."""

    def __init__(self) -> None:
        self.waiting: deque[_Prefetch[Any]] = deque(maxlen=MAX_PREFETCHES)


_own = _Own()


def prefetch(ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Callable[[], T]:
    """Queue `ask(…)` to run its queries in the background. The returned function waits for the result, or raises the QueryError.

    Queries start in the order of the calls, so that those of the top of the page are answered first: `LANES` at a time of all
    readers, and one of each page that waits for a result.
    """
    prefetched = _Prefetch(partial(ask, *args, **kwargs))
    # If the queue is full, the page runs the queries when it needs them.
    with contextlib.suppress(queue.Full):
        _queue().put_nowait(prefetched)
        _own.waiting.append(prefetched)

    def result() -> T:
        if not prefetched.run():
            # While a lane runs it, this thread runs what its page needs next.
            while not prefetched.is_done() and _own.waiting:
                _own.waiting.popleft().run()
        return prefetched.result()

    return result


def leave_page() -> None:
    """Do not run what the page that this thread drew before has queued, unless a page asks for it."""
    while _own.waiting:
        _own.waiting.popleft().is_wanted = False


@st.cache_resource(show_spinner=False)
def _queue() -> queue.Queue[_Prefetch[Any]]:
    """The prefetches of all readers, and the threads that run them."""
    waiting: queue.Queue[_Prefetch[Any]] = queue.Queue(MAX_PREFETCHES)
    for number in range(LANES):
        guard = GUARDS.guard(f"prefetch {number}")
        guarded_thread(guard, partial(_run_prefetches, waiting, guard), threading.Event()).start()
    return waiting


def _run_prefetches(waiting: queue.Queue[_Prefetch[Any]], guard: Guard) -> None:
    while True:
        guard.beat()
        if (prefetched := waiting.get()).is_wanted:
            prefetched.run()

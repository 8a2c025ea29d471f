"""Run the queries of the pages in child processes (`analytics.query.query_pool`). Analytics does not have to run.

- One child runs the queries of the pages. Another, confined child runs the statements of the SQL page.
- Results are cached for a few seconds and shared by all readers. The cache is bounded.
- Every failure is a `QueryError` with a one-line message, which `page_frame` shows.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import polars as pl
import streamlit as st

from analytics.query.errors import QueryError
from analytics.query.query_pool import QueryPool
from analytics.storage.location import locate
from dashboard.page_settings import data_dir, store

T = TypeVar("T")

CACHED_S = 2.0
CACHED_CATALOG_S = 30.0
MAX_RESULTS = 128
"""Maximum number of cached results. Nearly all have fewer than 1,000 rows, none more than `MAX_ROWS`."""
MAX_ROWS = 20_000
TIMEOUT_S = 20.0
PREFETCH_SLOTS = threading.BoundedSemaphore(6)
"""Limits the prefetches of all readers. The child process runs four queries at a time."""

__all__ = ["QueryError", "prefetch", "query", "query_catalog", "query_untrusted"]


@st.cache_resource(max_entries=8, show_spinner=False)
def _process(data: str, untrusted: bool) -> QueryPool:
    return QueryPool(locate(store(), Path(data)), untrusted=untrusted)


def run(sql: str) -> pl.DataFrame:
    """Run a query of a page. Raises QueryError."""
    return _process(str(data_dir()), False).query(sql, max_rows=MAX_ROWS, timeout_s=TIMEOUT_S)


def query_untrusted(sql: str, *, max_rows: int, timeout_s: float) -> pl.DataFrame:
    """Filter a reader's statement and run it in the confined process. Raises QueryError."""
    return _process(str(data_dir()), True).query(sql, max_rows=max_rows, timeout_s=timeout_s)


@st.cache_data(ttl=CACHED_S, max_entries=MAX_RESULTS, show_spinner=False)
def _cached(sql: str, data: str) -> pl.DataFrame:
    return run(sql)


@st.cache_data(ttl=CACHED_CATALOG_S, max_entries=16, show_spinner=False)
def _cached_catalog(sql: str, data: str) -> pl.DataFrame:
    return run(sql)


def query(sql: str) -> pl.DataFrame:
    """The result of a query, at most 2 s old. Raises QueryError."""
    return _cached(sql, str(data_dir()))


def query_catalog(sql: str) -> pl.DataFrame:
    """The result of a query for columns or filter options, at most 30 s old. Raises QueryError."""
    return _cached_catalog(sql, str(data_dir()))


def prefetch(run_queries: Callable[[], T]) -> Callable[[], T]:
    """Start a query in the background, and return the same function.

    `run_queries` calls `query`. A later call waits for the running query, gets its result, or raises its QueryError. If all
    slots are in use, the query starts with that call.
    """
    if (slots := PREFETCH_SLOTS).acquire(blocking=False):
        threading.Thread(target=_run_in_slot, args=(run_queries, slots), name="prefetch", daemon=True).start()
    return run_queries


def _run_in_slot(run_queries: Callable[[], object], slots: threading.BoundedSemaphore) -> None:
    # `slots` is a parameter because a reloaded module has another semaphore.
    try:
        with contextlib.suppress(QueryError):
            run_queries()
    finally:
        slots.release()

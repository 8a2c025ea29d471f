"""Where the pages' data comes from: the store, read by child processes (`analytics.query.query_pool`).

- Pages' own queries run in one child, statements of the SQL page each in another, confined one: neither can harm the other,
  the dashboard or analytics. Analytics need not run.
- An answer is shared for a moment by all who look at the same page; how many are kept is bounded. So a page may have its
  questions asked ahead: whoever comes to need an answer that is on its way waits for that one.
- Every failure is a `QueryError` with a message of one line. `frame.py` shows it; nothing else catches it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import streamlit as st

from analytics.query.errors import QueryError
from analytics.query.query_pool import QueryPool
from analytics.storage.location import SQLITE, locate
from dashboard.health import Slos
from dashboard.page_settings import ENV_DATA, ENV_SLO_ERROR_RATE, ENV_SLO_ITL, ENV_SLO_TTFT, ENV_STORE

FRESH_S = 2.0
"""An answer as old as this is given again."""
KEPT_ANSWERS = 128
"""Answers kept in memory at most; each has at most `MOST_ROWS` rows, nearly all have under a thousand."""
MOST_ROWS = 20_000
TIMEOUT_S = 20.0
AHEAD = threading.BoundedSemaphore(6)
"""Questions of all readers that are asked ahead at once; the child runs four at a time. Others are asked when needed."""

__all__ = ["QueryError", "ahead", "ask", "ask_freshly", "ask_seldom", "data_dir", "slos", "tap_address"]


def data_dir() -> Path:
    """The data folder that this dashboard shows."""
    return Path(os.environ.get(ENV_DATA, "streamgauge-data"))


def slos() -> Slos:
    """As configured; the defaults are those of `streamgauge.settings`."""
    usual = Slos()
    return Slos(
        ttft_s=float(os.environ.get(ENV_SLO_TTFT, usual.ttft_s)),
        itl_s=float(os.environ.get(ENV_SLO_ITL, usual.itl_s)),
        error_rate=float(os.environ.get(ENV_SLO_ERROR_RATE, usual.error_rate)),
    )


def tap_address() -> str | None:
    """Where clients should be pointed, when a tap runs on this data folder."""
    try:
        said: Any = json.loads((data_dir() / "run" / "tap.json").read_text())
        listen = said["listen"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return listen if isinstance(listen, str) else None


@st.cache_resource(max_entries=8, show_spinner=False)
def _process(data: str, untrusted: bool) -> QueryPool:
    store = os.environ.get(ENV_STORE, SQLITE)
    return QueryPool(locate(store, Path(data)), untrusted=untrusted)


def ask_freshly(sql: str) -> pl.DataFrame:
    """Query now. Raises QueryError."""
    return _process(str(data_dir()), False).query(sql, max_rows=MOST_ROWS, timeout_s=TIMEOUT_S)


def query_untrusted(sql: str, *, max_rows: int, timeout_s: float) -> pl.DataFrame:
    """Run a reader's statement, filtered and confined. Raises QueryError."""
    return _process(str(data_dir()), True).query(sql, max_rows=max_rows, timeout_s=timeout_s)


@st.cache_data(ttl=FRESH_S, max_entries=KEPT_ANSWERS, show_spinner=False)
def _answer(sql: str, data: str) -> pl.DataFrame:
    return ask_freshly(sql)


@st.cache_data(ttl=30, max_entries=16, show_spinner=False)
def _old_answer(sql: str, data: str) -> pl.DataFrame:
    return ask_freshly(sql)


def ask_seldom(sql: str) -> pl.DataFrame:
    """Ask, or give the answer of up to half a minute ago: for what hardly changes. Raises QueryError."""
    return _old_answer(sql, str(data_dir()))


def ask(sql: str) -> pl.DataFrame:
    """Ask, or give the answer of a moment ago. Raises QueryError."""
    return _answer(sql, str(data_dir()))


def ahead(*questions: Callable[[], object]) -> None:
    """Begin to ask, beside the page that is drawn: each question calls `ask`, which gives the page the same answer later.

    A failure is told to whoever asks for that answer.
    """
    for question in questions:
        if (places := AHEAD).acquire(blocking=False):
            threading.Thread(target=_begun, args=(question, places), name="ask-ahead", daemon=True).start()


def _begun(question: Callable[[], object], places: threading.BoundedSemaphore) -> None:
    # `places` is handed over: a reloaded module has another.
    try:
        with contextlib.suppress(QueryError):
            question()
    finally:
        places.release()

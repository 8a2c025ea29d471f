"""Items received over HTTP that wait for the consumer's next commit. Their sender is answered after it.

Rules
1. A sender gets a success only after the commit, so acknowledged items survive a crash. If a sender stops waiting, its items are
   dropped unless the consumer has already taken them.
2. The queue is bounded. A batch that does not fit is refused, and its sender retries. Nothing is dropped.
3. An endpoint checks the token and the content type of a request in the same way, whatever it receives (`check_headers`).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Generic, TypeVar

import duckdb
import polars as pl

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.commit_hook import CommitHook
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.tables import Table
from streamgauge.analytics.storage.database import message_without_values
from streamgauge.ingest.listening import has_token

log = logging.getLogger(__name__)

STORE_WITHIN_S = 8.0
"""Below the ten seconds after which OTLP exporters give up, so they receive the 503 and its Retry-After."""
RETRY_AFTER_S = 1

NEAR = timedelta(minutes=1)

T = TypeVar("T")


def stored_once(
    table: Table, new_cursor: Callable[[], duckdb.DuckDBPyConnection]
) -> Callable[[list[tuple[Any, ...]]], pl.DataFrame]:
    """`new_rows` for rows of a table with a key: those whose key the store does not have within `NEAR` of them.

    `new_cursor` returns a new connection to the store's tables.
    """
    key, at = table.key.split(", "), str(table.time_column)

    def new_rows(items: list[tuple[Any, ...]]) -> pl.DataFrame:
        received = frame_of_rows(table, items).unique(key, keep="last", maintain_order=True)
        first, last = received[at].min(), received[at].max()
        with new_cursor() as cursor:
            cursor.register("received", received.select(key))
            # Only keys near in time are compared. Without the condition, every commit would read all stored keys.
            stored = cursor.execute(
                f"SELECT {table.key} FROM {table.name} SEMI JOIN received USING ({table.key}) WHERE {at} BETWEEN ? AND ?",
                [first - NEAR, last + NEAR],  # type: ignore[operator]
            ).pl()
        return received.join(stored, on=key, how="anti") if stored.height else received

    return new_rows


class Refused(Exception):
    """An error response."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status

    def headers(self) -> dict[str, str]:
        """The header fields that the status requires."""
        if self.status == 503:
            return {"Retry-After": str(RETRY_AFTER_S)}
        return {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}


def check_token(authorization: str, token: str | None) -> None:
    """Raise Refused unless the request has the token, or none is required."""
    if token is not None and not has_token(authorization.encode(), token):
        raise Refused(401, "a bearer token is required: the one of --otlp-token")


def check_type(content_type: str, *allowed: str) -> str:
    """The media type without parameters. Raises Refused for another than the allowed ones.

    None of those is a type that a form has. So a web page cannot send it without a CORS preflight, which gets no permission.
    """
    found = content_type.partition(";")[0].strip().lower()
    if found not in allowed:
        raise Refused(415, f"the content type must be {' or '.join(allowed)}")
    return found


class CommitQueue(CommitHook, Generic[T]):
    """`offer`, `count` and `health` are thread-safe. The consumer's thread calls the methods of the commit hook."""

    def __init__(
        self,
        table: str,
        new_rows: Callable[[list[T]], pl.DataFrame],
        *,
        name: str,
        counters: Sequence[str],
        max_items: int,
        may_enter: Callable[[], bool] = lambda: True,
        on_stored: Callable[[pl.DataFrame], None] = lambda rows: None,
    ) -> None:
        """`new_rows`: the rows of items that `table` does not have yet; may raise duckdb.Error.

        `name` and `counters`: of the metrics. `may_enter`: a further limit, asked under the lock when there is room for a batch.
        `on_stored` gets the rows after their commit, on the consumer's thread.
        """
        self._table, self._new_rows, self._may_enter = table, new_rows, may_enter
        self._on_stored, self._new = on_stored, pl.DataFrame()
        self.name, self._shown, self._max_items = name, counters, max_items
        self._lock = threading.Lock()
        self._batches: deque[tuple[Sequence[T], Future[bool]]] = deque()
        self._items = 0
        self._taken: list[Future[bool]] = []
        self._outcome: Counter[str] = Counter()
        self._closed = False
        self._counters: Counter[str] = Counter()

    def count(self, **items: int) -> None:
        """Add to the counters: `received`, `refused`, `turned_away`, `stored`, `doubled`."""
        with self._lock:
            self._counters.update(items)

    def health(self) -> dict[str, float]:
        """The counters by metric name without its prefix."""
        with self._lock:
            return {f"{self.name}.{counter}": float(self._counters[counter]) for counter in self._shown}

    # -- senders -------------------------------------------------------------------------------------------------------

    def offer(self, items: Sequence[T]) -> Future[bool] | None:
        """Queue the items of one request. The future says whether they were stored. None if they do not fit."""
        with self._lock:
            # An empty queue takes any batch: one above the limit would otherwise be refused forever.
            fits = not self._items or self._items + len(items) <= self._max_items
            if self._closed or not fits or not self._may_enter():
                self._counters["turned_away"] += len(items)
                return None
            self._counters["received"] += len(items)
            stored: Future[bool] = Future()
            self._batches.append((items, stored))
            self._items += len(items)
        return stored

    # -- commit hook ---------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        return bool(self._batches)

    def rows(
        self, finished: Sequence[FinishedStream], tables: Mapping[str, pl.DataFrame]
    ) -> Mapping[str, pl.DataFrame]:
        """The queued rows that are not stored yet."""
        with self._lock:
            batches, self._batches, self._items = list(self._batches), deque(), 0
        # A future that its sender cancelled stays cancelled. From here on it cannot be: the sender waits for the commit.
        taken = [batch for batch in batches if batch[1].set_running_or_notify_cancel()]
        self._taken = [stored for _, stored in taken]
        items = [item for batch, _ in taken for item in batch]
        if not items:
            return {}
        try:
            new = self._new_rows(items)
        except duckdb.Error as e:
            log.warning("received %s are rejected: %s", self._table, message_without_values(e))
            self._answer(stored=False)
            return {}
        self._outcome.update(stored=new.height, doubled=len(items) - new.height)
        self._new = new
        return {self._table: new}

    def committed(self) -> None:
        """Acknowledge the items of the last `rows` call."""
        new, self._new = self._new, pl.DataFrame()
        self.count(**self._outcome)
        self._answer(stored=True)
        if new.height:
            self._on_stored(new)

    def _answer(self, *, stored: bool) -> None:
        taken, self._taken = self._taken, []
        self._outcome.clear()
        for future in taken:
            future.set_result(stored)

    def close(self) -> None:
        """Reject all queued and further items. Their senders retry."""
        with self._lock:
            self._closed = True
            remaining, self._batches = list(self._batches), deque()
        self._taken += [stored for _, stored in remaining if stored.set_running_or_notify_cancel()]
        self._answer(stored=False)

"""Received spans on their way into the store: a bounded queue between the senders' threads and the one writer.

Rules
1. The rows go into the writer's next transaction (`analytics.consumer`), and a sender is told so only after it: a span whose
   sender got a 200 is in the table, whatever is killed when. A sender that gave up waiting has its rows taken back, if the
   writer does not hold them yet.
2. The queue holds at most `most` rows. What does not fit is turned away, to be sent again; nothing is dropped.
3. A span whose ids are in the table already is not written again: senders try again, and our own spans come back by way of a
   collector. It is looked for among spans that began within a minute of those that came.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta

import duckdb
import polars as pl

from analytics.assembly.stream import FinishedStream
from analytics.otlp_receiver.span_rows import SPAN_ID, TRACE_ID, Row, as_frame
from analytics.owned_partitions import Tables
from analytics.storage.database import one_line

log = logging.getLogger(__name__)

QUEUE_SPANS = 20_000
"""Some seconds of a busy gateway's; at most 2 KiB each as a rule, so 40 MB."""
NEAR = timedelta(minutes=1)


@dataclass(slots=True)
class Batch:
    """The rows of one request."""

    rows: list[Row]
    stored: Future[bool] = field(default_factory=Future)
    """Whether they are in the store. Cancelled: the sender does not wait any more."""


class ReceivedQueue:
    """`offer` and `give_up` are for any thread; the rest, a witness of the consumer's commits, for the writer's alone."""

    def __init__(self, store: Tables, *, most: int = QUEUE_SPANS) -> None:
        self._store, self._most = store, most
        self._lock = threading.Lock()
        self._batches: deque[Batch] = deque()
        self._spans = 0
        self._taken: list[Batch] = []
        self._news: Counter[str] = Counter()
        self._closed = False
        self._counters: Counter[str] = Counter()

    def count(self, **spans: int) -> None:
        """Add to the counters: `received`, `refused`, `turned_away`, `stored`, `doubled`."""
        with self._lock:
            self._counters.update(spans)

    def health(self) -> dict[str, float]:
        """The counters, by metric name without its prefix."""
        with self._lock:
            names = ("received", "stored", "doubled", "refused", "turned_away")
            return {f"otlp.{name}": float(self._counters[name]) for name in names}

    # -- senders -------------------------------------------------------------------------------------------------------

    def offer(self, rows: list[Row]) -> Batch | None:
        """Queue the rows of one request; None when they do not fit now."""
        batch = Batch(rows)
        with self._lock:
            if self._closed or (self._spans and self._spans + len(rows) > self._most):
                self._counters["turned_away"] += len(rows)
                return None
            self._counters["received"] += len(rows)
            self._batches.append(batch)
            self._spans += len(rows)
        return batch

    # -- the writer ----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether there is something to commit."""
        return bool(self._batches)

    def rows(
        self, finished: Sequence[FinishedStream], tables: Mapping[str, pl.DataFrame]
    ) -> Mapping[str, pl.DataFrame]:
        """What came, for this commit."""
        with self._lock:
            batches, self._batches, self._spans = list(self._batches), deque(), 0
        self._taken = [batch for batch in batches if batch.stored.set_running_or_notify_cancel()]
        rows = {(row[TRACE_ID], row[SPAN_ID]): row for batch in self._taken for row in batch.rows}
        if not rows:
            return {}
        came = as_frame(list(rows.values()))
        try:
            new = self._without_those_there(came)
        except duckdb.Error as e:
            log.warning("received spans are turned away: %s", one_line(e))
            self._tell(False)
            return {}
        self._news["stored"] = new.height
        self._news["doubled"] = sum(len(batch.rows) for batch in self._taken) - new.height
        return {"spans": new}

    def _without_those_there(self, came: pl.DataFrame) -> pl.DataFrame:
        first, last = came["started_at"].min(), came["started_at"].max()
        cursor = self._store.cursor()
        try:
            cursor.register("came", came.select("trace_id", "span_id"))
            there = cursor.execute(
                "SELECT trace_id, span_id FROM spans SEMI JOIN came USING (trace_id, span_id) "
                "WHERE started_at BETWEEN ? AND ?",
                [first - NEAR, last + NEAR],  # type: ignore[operator]
            ).pl()
        finally:
            cursor.close()
        return came.join(there, on=["trace_id", "span_id"], how="anti") if there.height else came

    def committed(self) -> None:
        """What `rows` gave is in the store."""
        self.count(**self._news)
        self._tell(True)

    def _tell(self, stored: bool) -> None:
        taken, self._taken = self._taken, []
        self._news.clear()
        for batch in taken:
            batch.stored.set_result(stored)

    def close(self) -> None:
        """Nothing is stored any more: whoever waits is told to come again."""
        with self._lock:
            self._closed = True
            left, self._batches = list(self._batches), deque()
        self._taken += [batch for batch in left if batch.stored.set_running_or_notify_cancel()]
        self._tell(False)

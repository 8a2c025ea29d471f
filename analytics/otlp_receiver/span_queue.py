"""A bounded queue of received spans between the senders' threads and the consumer. It is a commit hook of the consumer.

Rules
1. Rows are stored by the consumer's next transaction. A sender gets 200 only after that commit, so acknowledged spans survive a
   crash. If a sender stops waiting, its rows are dropped unless the consumer has already taken them.
2. The queue holds at most `max_spans` rows. A batch that does not fit is rejected and the sender retries. Nothing is dropped.
3. A span whose ids are already stored is skipped: senders retry, and our own spans can return through a collector. The check
   covers stored spans that started within `NEAR` of the received ones.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta

import duckdb
import polars as pl

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.otlp_receiver.span_rows import SPAN_ID, TRACE_ID, Row
from streamgauge.analytics.schema.tables import SPANS, frame_of_rows
from streamgauge.analytics.storage.database import message_without_values

log = logging.getLogger(__name__)

QUEUE_SPANS = 20_000
"""A few seconds of a busy gateway, usually below 2 KiB each, so 40 MB."""
NEAR = timedelta(minutes=1)


@dataclass(slots=True)
class Batch:
    """The rows of one request."""

    rows: list[Row]
    stored: Future[bool] = field(default_factory=Future)
    """Whether they were stored. Cancelled if the sender stopped waiting."""


class SpanQueue:
    """`offer`, `count` and `health` are thread-safe. The consumer's thread calls the methods of the commit hook."""

    def __init__(
        self, cursor: Callable[[], duckdb.DuckDBPyConnection], *, max_spans: int = QUEUE_SPANS
    ) -> None:
        """`cursor` returns a new connection to the store's tables."""
        self._cursor, self._max_spans = cursor, max_spans
        self._lock = threading.Lock()
        self._batches: deque[Batch] = deque()
        self._spans = 0
        self._taken: list[Batch] = []
        self._outcome: Counter[str] = Counter()
        self._closed = False
        self._counters: Counter[str] = Counter()

    def count(self, **spans: int) -> None:
        """Add to the counters: `received`, `refused`, `turned_away`, `stored`, `doubled`."""
        with self._lock:
            self._counters.update(spans)

    def health(self) -> dict[str, float]:
        """The counters by metric name without its prefix."""
        with self._lock:
            names = ("received", "stored", "doubled", "refused", "turned_away")
            return {f"otlp.{name}": float(self._counters[name]) for name in names}

    # -- senders -------------------------------------------------------------------------------------------------------

    def offer(self, rows: list[Row]) -> Batch | None:
        """Queue the rows of one request. None if they do not fit."""
        batch = Batch(rows)
        with self._lock:
            if self._closed or (self._spans and self._spans + len(rows) > self._max_spans):
                self._counters["turned_away"] += len(rows)
                return None
            self._counters["received"] += len(rows)
            self._batches.append(batch)
            self._spans += len(rows)
        return batch

    # -- commit hook ----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        return bool(self._batches)

    @property
    def increments(self) -> Mapping[str, int]:
        return {}

    def rows(
        self, finished: Sequence[FinishedStream], tables: Mapping[str, pl.DataFrame]
    ) -> Mapping[str, pl.DataFrame]:
        """The queued rows that are not stored yet."""
        with self._lock:
            batches, self._batches, self._spans = list(self._batches), deque(), 0
        self._taken = [batch for batch in batches if batch.stored.set_running_or_notify_cancel()]
        rows = {(row[TRACE_ID], row[SPAN_ID]): row for batch in self._taken for row in batch.rows}
        if not rows:
            return {}
        received = frame_of_rows(SPANS, list(rows.values()))
        try:
            new = self._not_stored(received)
        except duckdb.Error as e:
            log.warning("received spans are rejected: %s", message_without_values(e))
            self._answer(stored=False)
            return {}
        self._outcome["stored"] = new.height
        self._outcome["doubled"] = sum(len(batch.rows) for batch in self._taken) - new.height
        return {"spans": new}

    def _not_stored(self, received: pl.DataFrame) -> pl.DataFrame:
        first, last = received["started_at"].min(), received["started_at"].max()
        with self._cursor() as cursor:
            cursor.register("received", received.select("trace_id", "span_id"))
            stored = cursor.execute(
                "SELECT trace_id, span_id FROM spans SEMI JOIN received USING (trace_id, span_id) "
                "WHERE started_at BETWEEN ? AND ?",
                [first - NEAR, last + NEAR],  # type: ignore[operator]
            ).pl()
        return received.join(stored, on=["trace_id", "span_id"], how="anti") if stored.height else received

    def committed(self) -> None:
        """Acknowledge the rows of the last `rows` call."""
        self.count(**self._outcome)
        self._answer(stored=True)

    def _answer(self, *, stored: bool) -> None:
        taken, self._taken = self._taken, []
        self._outcome.clear()
        for batch in taken:
            batch.stored.set_result(stored)

    def close(self) -> None:
        """Reject all queued and further batches. Their senders retry."""
        with self._lock:
            self._closed = True
            remaining, self._batches = list(self._batches), deque()
        self._taken += [batch for batch in remaining if batch.stored.set_running_or_notify_cancel()]
        self._answer(stored=False)

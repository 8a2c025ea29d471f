"""Let old rows go, in small steps, beside the consumer and never in its way; the roll-ups by the minute stay for longer.

Stream ids are UUIDv7, so a stream's age is in its id: the tables that have no time of their own are cut by it, and
DuckDB skips what is younger by its zone maps. Each step deletes at most one slice of time in a transaction of its own
and adds what went to the ledger's counters. Blocks that become free are used again by later rows, the first in the file
first, and a checkpoint cuts off those at the end of the file: so a steady load has a file of steady size. When less is kept
than before, the file shrinks only as far as nothing that stays (a roll-up, the catalogue) lies at its end.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid

import duckdb

from analytics.serving.guard import one_line
from analytics.storage.packed import STORED_AS
from analytics.storage.rows import first_row
from analytics.storage.settle import settle
from analytics.storage.store import Store, add_totals

log = logging.getLogger(__name__)

EVERY_S = 60.0
SLICE_ROWS = 500_000
PAUSE_S = 0.05
"""Between steps: the consumer's commits come first."""

BY_STREAM_ID = {"events": ("events",), "streams": ("usage_reports", "server_stats", "stalls", "streams")}
BY_TIME = {
    "streams": {"spans": "started_at", "losses": "lost_at", "dead_letters": "set_aside_at"},
    "rollups": {"stream_minutes": "minute", "histogram_minutes": "minute"},
}
"""By what has an age of its own: the tables whose rows go with it, and what tells how old a row is."""


def ages_s(
    events_s: float | None, streams_s: float | None, rollups_s: float | None
) -> dict[str, float | None]:
    """The age in seconds at which rows of each kind go, None = for ever.

    Events never outlive their streams, nor streams the roll-ups of them.
    """
    if streams_s is None:
        rollups_s = None
    else:
        events_s = min(events_s, streams_s) if events_s is not None else streams_s
        rollups_s = max(rollups_s, streams_s) if rollups_s is not None else None
    return {"events": events_s, "streams": streams_s, "rollups": rollups_s}


def first_id_at(wall_s: float) -> str:
    """The smallest UUIDv7 of that millisecond."""
    return str(uuid.UUID(int=(max(int(wall_s * 1000), 0) & (2**48 - 1)) << 80))


class Retention:
    """Deletes rows older than it is told, and settles roll-ups. Owns a thread and a cursor of its own."""

    def __init__(
        self, store: Store, *, events_s: float | None, streams_s: float | None, rollups_s: float | None = None
    ) -> None:
        """As `ages_s` takes them."""
        self._ages_s = ages_s(events_s, streams_s, rollups_s)
        self._cursor = store.cursor()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the step that runs."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._cursor.close()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stop.wait(wait_s):
            wait_s = EVERY_S
            try:
                settle(self._cursor, time.time())
                self.sweep(time.time())
            except duckdb.Error as e:
                log.warning("old rows stay as they are for now: %s", one_line(e))

    def sweep(self, now_s: float) -> int:
        """Delete all that is too old by now, step by step; returns how many rows went."""
        gone = 0
        for kind, age_s in self._ages_s.items():
            if age_s is None:
                continue
            before = first_id_at(now_s - age_s)
            for table in BY_STREAM_ID.get(kind, ()):
                gone += self._sweep_table(table, before)
            for table, column in BY_TIME.get(kind, {}).items():
                gone += self._step(table, f"{column} < make_timestamptz(?)", int((now_s - age_s) * 1e6))
        if gone:
            with contextlib.suppress(
                duckdb.TransactionException
            ):  # a commit beside us: the next checkpoint does it
                self._cursor.execute("CHECKPOINT")
        return gone

    def _sweep_table(self, table: str, before: str) -> int:
        """Delete what is older than the id `before`, in slices of time that hold about `SLICE_ROWS` rows each."""
        row = first_row(
            self._cursor.execute(
                f"SELECT count(*), min(stream_id)::VARCHAR FROM {table} WHERE stream_id < ?::UUID", [before]
            )
        )
        if row is None or not row[0]:
            return 0
        slices = -(-row[0] // SLICE_ROWS)
        first_ms, last_ms = (int(text[:8] + text[9:13], 16) for text in (row[1], before))
        gone = 0
        for number in range(1, slices + 1):
            upto = first_id_at((first_ms + (last_ms - first_ms) * number // slices) / 1000)
            gone += self._step(table, "stream_id < ?::UUID", before if number == slices else upto)
            if self._stop.wait(PAUSE_S):
                break
        return gone

    def _step(self, table: str, where: str, *values: object) -> int:
        run = self._cursor.execute
        run("BEGIN TRANSACTION")
        try:
            row = first_row(run(f"DELETE FROM {STORED_AS.get(table, table)} WHERE {where}", list(values)))
            gone: int = row[0] if row else 0
            add_totals(self._cursor, {f"expired_{table}_rows": gone})
            run("COMMIT")
        except BaseException:
            run("ROLLBACK")
            raise
        return gone

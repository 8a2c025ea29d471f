"""Find hops in the background. A thread looks for the inner streams of stored streams; the consumer's commits write the rows.

Rules
1. Each stream that this process stored is looked up as an outer one, `DELAYS_S` after its commit. Its rows are final once an
   inner stream that answered is found, or after the last attempt.
2. Rows are written once. A batch is computed and committed in an elected section (`Catalog.elected`), after a check for stored rows.
   At its start the process looks up the streams of the last `LOOK_BACK_S` that have no hops: those that a stopped process left.
3. While all streams have the same tap and upstream, there are no hops and nothing is looked up.
4. Errors of the job never stop the consumer: the streams of the batch are counted as skipped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import polars as pl

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.commit_hook import CommitHook
from streamgauge.analytics.hops.candidate import HopCandidate
from streamgauge.analytics.hops.clock_offset import ClockOffsets
from streamgauge.analytics.hops.comparison import HopRows
from streamgauge.analytics.hops.matching import Match, Matches, SideOrder, match
from streamgauge.analytics.hops.stored_streams import StoredStreams
from streamgauge.analytics.schema.frames import with_all_columns
from streamgauge.analytics.schema.tables import STREAMS
from streamgauge.analytics.storage.database import reason
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.guards import Guards, guarded_thread

DELAYS_S = (1.0, 4.0, 15.0, 60.0)
"""Before each attempt. The first one gives other processes time to commit the inner streams. The last one is only for streams whose
client left: the gateway may read on."""
MAX_PENDING = 20_000


class Due(NamedTuple):
    stream: HopCandidate
    attempt: int
    is_last: bool
    """Nothing is attempted after this."""


class Pending:
    """Outer streams whose inner streams are not found yet, and when to look for them.

    One queue for each delay: its streams wait equally long, so the first is always due first.
    """

    def __init__(self, delays_s: Sequence[float] = DELAYS_S) -> None:
        self._delays_s = delays_s
        self._queues: list[deque[tuple[float, HopCandidate]]] = [deque() for _ in delays_s]
        self.dropped = 0
        """Streams that did not fit. The oldest are dropped."""

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    def add(self, streams: Iterable[HopCandidate], now_s: float, attempt: int = 0) -> None:
        self._queues[attempt].extend((now_s + self._delays_s[attempt], stream) for stream in streams)
        for queue in reversed(self._queues):
            while queue and len(self) > MAX_PENDING:
                queue.popleft()
                self.dropped += 1

    def due(self, now_s: float, limit: int) -> list[Due]:
        """Remove and return at most `limit` due streams."""
        found: list[Due] = []
        for attempt, queue in enumerate(self._queues):
            while queue and queue[0][0] <= now_s and len(found) < limit:
                _, stream = queue.popleft()
                last = len(self._delays_s) - (1 if stream.outcome == "client_abort" else 2)
                found.append(Due(stream, attempt, attempt >= last))
        return found

    def retry(self, due: Due, now_s: float) -> None:
        """Wait for the next attempt."""
        self.add((due.stream,), now_s, min(due.attempt + 1, len(self._delays_s) - 1))

    def postpone(self, due: Iterable[Due], now_s: float) -> None:
        """Wait for the same attempt again."""
        for each in due:
            self.add((each.stream,), now_s, each.attempt)


log = logging.getLogger(__name__)

ROUND_S = 1.0
BATCH_STREAMS = 400
MAX_RELATED = 4_000
"""Streams that may share ids with a batch. A batch with more is divided."""
LOOK_BACK_S = 600.0
LOOK_BACK_STREAMS = 10_000
MAX_WAITING = 20_000
"""Stored streams that wait for the thread. More are dropped."""
SILENT_AFTER_S = 300.0
MAX_SIDES = 1_000
SIDES_EVERY_S = 1.0


class HopJob(CommitHook):
    """Commit hook and thread. The consumer's thread calls the methods of the hook."""

    def __init__(
        self,
        store: Store,
        *,
        round_s: float = ROUND_S,
        delays_s: Sequence[float] = DELAYS_S,
        on_stored: Callable[[pl.DataFrame], None] = lambda rows: None,
        guards: Guards | None = None,
    ) -> None:
        """`delays_s` as `DELAYS_S`. `on_stored` receives the committed rows of `hops`, on the consumer's thread."""
        self._on_stored = on_stored
        self._round_s = round_s
        self._stored = StoredStreams(store.cursor())
        self._election = store.catalog.cursor()
        self._several_writers = store.catalog.is_postgres
        self._pending = Pending(delays_s)
        self._offsets, self._order = ClockOffsets(), SideOrder()
        self._sides: set[tuple[str | None, str | None]] = set()
        self._sides_read_s = float("-inf")
        self._lock = threading.Lock()
        self._measured: pl.DataFrame | None = None
        """Streams of the commit in progress."""
        self._waiting_streams: deque[pl.DataFrame] = deque()
        self._ready: Mapping[str, pl.DataFrame] = {}
        """Rows for the next commit."""
        self._taken = False
        self._stored_event = threading.Event()
        self._counted: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()
        self._increments: Mapping[str, int] = {}
        self._stop = threading.Event()
        guards = guards or Guards(describe=partial(reason, store.location))
        self._guard = guards.guard("hop matching", silent_after_s=SILENT_AFTER_S)
        self._thread = guarded_thread(self._guard, self._repeat, self._stop)
        self._has_looked_back = False

    # -- commit hook ---------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        return bool(self._ready)

    @property
    def increments(self) -> Mapping[str, int]:
        return self._increments

    def rows(
        self, finished: Sequence[FinishedStream], tables: Mapping[str, pl.DataFrame]
    ) -> Mapping[str, pl.DataFrame]:
        """The rows found since the last commit."""
        self._measured = tables.get("streams")
        with self._lock:
            self._increments, self._counted = dict(self._counted), Counter()
            self._taken = bool(self._ready)
            return self._ready

    def committed(self) -> None:
        """Look up the streams of the commit."""
        measured, self._measured = self._measured, None
        stored = self._ready.get("hops") if self._taken else None
        if stored is not None:
            self._on_stored(stored)
        dropped = 0
        with self._lock:
            self._increments = {}
            if measured is not None and measured.height:
                self._waiting_streams.append(measured)
            while sum(frame.height for frame in self._waiting_streams) > MAX_WAITING:
                dropped += self._waiting_streams.popleft().height
            if self._taken:
                self._ready, self._taken = {}, False
                self._stored_event.set()
        self._count(hops_skipped=dropped)

    # -- thread --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread. Streams that are not looked up yet are left to the next start."""
        self._stop.set()
        self._stored_event.set()
        if self._thread.is_alive():
            self._thread.join()
        self._stored.close()
        self._election.close()

    def health(self) -> dict[str, float]:
        """Gauges and totals by metric name without its prefix."""
        with self._lock:
            totals = {
                f"hops.{name}": float(self._totals[f"hops_{name}"]) for name in ("ambiguous", "skipped")
            }
        return {"hops.pending": float(len(self._pending)), **totals}

    def _repeat(self) -> None:
        if not self._has_looked_back:
            self._has_looked_back = True
            self._guard.attempt(self._look_back)
        while not self._stop.wait(self._round_s):
            self._guard.beat()
            self._take_streams()
            while not self._stop.is_set() and (due := self._pending.due(time.monotonic(), BATCH_STREAMS)):
                if not self._guard.attempt(self._look_up, due):
                    self._count(hops_skipped=len(due))

    def _count(self, **increments: int) -> None:
        with self._lock:
            self._counted.update(increments)
            self._totals.update(increments)

    def _look_back(self) -> None:
        left = self._stored.unmatched(time.time() - LOOK_BACK_S, LOOK_BACK_STREAMS)
        self._sides.update({stream.side for stream in left})
        self._add(left)

    def _take_streams(self) -> None:
        with self._lock:
            frames, self._waiting_streams = self._waiting_streams, deque()
        for frame in frames:
            if not self._guard.attempt(self._take, frame):
                self._count(hops_skipped=frame.height)

    def _take(self, frame: pl.DataFrame) -> None:
        streams = _usable(frame)
        self._sides.update(streams.select("tap", "gateway").unique().rows()[: MAX_SIDES - len(self._sides)])
        # An inner stream ends before its outer one, so its side is known by then.
        if len(self._sides) > 1 or self._several_writers:
            self._add([HopCandidate(*row) for row in streams.select(HopCandidate._fields).iter_rows()])

    def _add(self, streams: Sequence[HopCandidate]) -> None:
        before = self._pending.dropped
        self._pending.add(streams, time.monotonic())
        self._count(hops_skipped=self._pending.dropped - before)

    def _may_have_hops(self) -> bool:
        if (
            len(self._sides) < 2
            and self._several_writers
            and time.monotonic() > self._sides_read_s + SIDES_EVERY_S
        ):
            self._sides_read_s = time.monotonic()
            self._sides |= self._stored.sides(time.time() - LOOK_BACK_S)
        return len(self._sides) > 1

    def _look_up(self, due: Sequence[Due]) -> None:
        if not self._may_have_hops():
            # Another process may not have committed the inner streams yet.
            for each in due:
                if not each.is_last:
                    self._pending.retry(each, time.monotonic())
            return
        # Consumers of a shared store must not write one hop twice.
        with self._election.elected("hops") as elected:
            if not elected:
                self._pending.postpone(due, time.monotonic())
                return
            tables = self._rows_of(due)
            if any(rows.height for rows in tables.values()):
                self._hand_over(tables)

    def _hand_over(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Wait until the consumer has committed the rows."""
        self._stored_event.clear()
        with self._lock:
            self._ready = {name: rows for name, rows in tables.items() if rows.height}
        while not self._stop.is_set() and not self._stored_event.wait(1.0):
            self._guard.beat()

    def _rows_of(self, due: Sequence[Due]) -> Mapping[str, pl.DataFrame]:
        related = self._stored.related([d.stream for d in due], MAX_RELATED)
        if related is None:
            if len(due) == 1:
                self._count(hops_ambiguous=1)
                return {}
            middle = len(due) // 2
            # Halves, until the streams that share ids fit. A single stream with more is ambiguous.
            self._pending.postpone(due[middle:], time.monotonic())
            return self._rows_of(due[:middle])
        known = self._known({stream.stream_id: stream for stream in related})
        found = match(related, self._offsets, self._order, self._stored.output_times, known)
        attempts = self._final_attempts(due, found, {pair.outer.stream_id for pair in known})
        ids = {s.stream_id for matches in attempts for m in matches for s in (m.outer, m.inner)}
        whole = self._stored.streams(list(ids))
        made = HopRows(self._offsets)
        for matches in attempts:
            try:
                made.add(matches, whole)
            except Exception as e:
                self._guard.failed(e)
                self._count(hops_skipped=1)
        return made.tables()

    def _known(self, streams: Mapping[str, HopCandidate]) -> list[Match]:
        if not streams:
            return []
        return [
            Match(streams[outer], streams[inner], matched_by)
            for outer, inner, matched_by in self._stored.matched(list(streams.values()))
            if outer in streams and inner in streams
        ]

    def _final_attempts(self, due: Sequence[Due], found: Matches, written: set[str]) -> list[list[Match]]:
        """The pairs of each outer stream that is final. The other streams wait for their next attempt."""
        by_outer: defaultdict[str, list[Match]] = defaultdict(list)
        for pair in found.found:
            by_outer[pair.outer.stream_id].append(pair)
        final = []
        ambiguous = 0
        now_s = time.monotonic()
        for each in due:
            stream_id = each.stream.stream_id
            matches = by_outer[stream_id]
            if stream_id in written:
                continue
            if not each.is_last and not _is_answered(each, matches):
                self._pending.retry(each, now_s)
            elif matches:
                final.append(matches)
            else:
                ambiguous += stream_id in found.ambiguous
        self._count(hops_ambiguous=ambiguous)
        return final


def _is_answered(due: Due, matches: Sequence[Match]) -> bool:
    """Whether no further inner stream is expected. A match by fingerprint waits for streams with the same output."""
    return any(
        pair.inner.outcome == due.stream.outcome and (due.attempt > 0 or pair.matched_by != "fingerprint")
        for pair in matches
    )


def _usable(streams: pl.DataFrame) -> pl.DataFrame:
    """The measured rows that can be matched, with the fields of `HopCandidate`."""
    usable = with_all_columns(streams, STREAMS).filter(
        pl.col("clock_ns").is_not_null(), pl.col("gateway").is_not_null()
    )
    return usable.with_columns(wall_ns=pl.col("started_at").dt.epoch("us") * 1000)

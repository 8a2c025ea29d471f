"""What model servers report in their spans, as rows of `server_stats`: then it is in the view `server_timing`.

Rules
1. A span of a server has latencies (`SERVER_LATENCIES`: vLLM, SGLang), or it is a request of the Claude API (`CLAUDE_SCOPE`), whose
   duration is that of the server.
2. It belongs to the stream whose span is the nearest above it: its parent, or an ancestor among the received spans. Without one, to the
   stream with the request id that the Claude API reports.
3. A span can come before its stream is stored. It is looked up after each of `DELAYS_S`, then it is counted as unmatched. At most
   `MAX_PENDING` wait; of more, the oldest are unmatched. After a restart, those of the last `LOOK_BACK_S` are looked up again.
4. Of several spans of one stream, the first counts.
5. Tokens in spans are not added to those of streams.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.commit_hook import CommitHook
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.tables import SERVER_STATS
from streamgauge.analytics.storage.store import Store
from streamgauge.analytics.telemetry.semconv import PROFILES, SERVER_LATENCIES
from streamgauge.ingest.generated_ids import smallest_uuid7
from streamgauge.ingest.guards import Guards, guarded_thread

SOURCE = "span"
"""`server_stats.source`."""
CLAUDE_SCOPE = "com.anthropic.claude-platform"
DELAYS_S = (0.5, 5.0, 60.0, 600.0)
"""From one attempt to the next. Exporters send batches, and a stream is stored when it has ended."""
MAX_PENDING = 20_000
MAX_STEPS = 32
"""Spans from one of a server up to that of the stream."""
BATCH = 2_000
ROUND_S = 1.0
LOOK_BACK_S = 600.0
SILENT_AFTER_S = 300.0
_IS_OF_SERVER = (
    pl.col("attributes").str.contains(SERVER_LATENCIES[0].rpartition(".")[0] + ".", literal=True)
    | pl.col("attributes").str.contains(f'"{CLAUDE_SCOPE}"', literal=True) & (pl.col("kind") == "server")
) & pl.col("stream_id").is_null()


class ServerSpan(NamedTuple):
    trace_id: str
    parent_id: str | None
    started_s: float
    request_id: str | None
    stats: tuple[tuple[str, float], ...]
    """Name and value in ns."""


def server_spans(rows: pl.DataFrame) -> list[ServerSpan]:
    """The spans of servers in rows of `spans` that may be some (`_IS_OF_SERVER`)."""
    found = []
    for row in rows.iter_rows(named=True):
        attributes = json.loads(row["attributes"])
        stats = [
            (name.rpartition(".")[2], 1e9 * value)
            for name in SERVER_LATENCIES
            if _is_time(value := attributes.get(name))
        ]
        if attributes.get("otel.scope.name") == CLAUDE_SCOPE:
            stats.append(("duration", row["duration_ns"]))
            if _is_time(first_s := attributes.get(PROFILES["1.41"].time_to_first_chunk)):
                stats.append(("time_to_first_chunk", 1e9 * first_s))
        started_s, request_id = row["started_at"].timestamp(), attributes.get("anthropic.request.id")
        if stats:
            found.append(
                ServerSpan(row["trace_id"], row["parent_span_id"], started_s, request_id, tuple(stats))
            )
    return found


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1e9


class ServerSpanJob(CommitHook):
    """Commit hook and thread. The consumer's thread calls `add` and the methods of the hook."""

    def __init__(self, store: Store, guards: Guards, *, delays_s: Sequence[float] = DELAYS_S) -> None:
        self._cursor, self._delays_s = store.cursor(), delays_s
        self._lock = threading.Lock()
        self._pending: list[deque[tuple[float, ServerSpan]]] = [deque() for _ in delays_s]
        """One queue for each delay, so that the first is due first."""
        self._received: deque[pl.DataFrame] = deque()
        """Rows that the thread has not read: the consumer's thread has no time for their JSON."""
        self._ready: list[tuple[Any, ...]] = []
        self._taken = 0
        self._looked_up = 0
        """Spans that the thread is looking up."""
        self._totals: Counter[str] = Counter()
        self._stop = threading.Event()
        self._guard = guards.guard("server spans", silent_after_s=SILENT_AFTER_S)
        self._thread = guarded_thread(self._guard, self._repeat, self._stop)
        self._has_looked_back = False

    # -- commit hook -------------------------------------------------------------------------------------------------

    def add(self, rows: pl.DataFrame) -> None:
        """Look for the streams of these rows of `spans`, which are stored."""
        found = rows.filter(_IS_OF_SERVER)
        if not found.height:
            return
        with self._lock:
            self._received.append(found)
            while len(self._received) > 1 and sum(frame.height for frame in self._received) > MAX_PENDING:
                self._totals["unmatched"] += self._received.popleft().height

    @property
    def waiting(self) -> bool:
        return bool(self._ready)

    def rows(
        self, finished: Sequence[FinishedStream], tables: Mapping[str, pl.DataFrame]
    ) -> Mapping[str, pl.DataFrame]:
        with self._lock:
            self._taken = len(self._ready)
            return {SERVER_STATS.name: frame_of_rows(SERVER_STATS, self._ready)} if self._ready else {}

    def committed(self) -> None:
        with self._lock:
            del self._ready[: self._taken]
            self._taken = 0

    def health(self) -> dict[str, float]:
        """The counters by metric name without its prefix."""
        with self._lock:
            totals = {f"server_spans.{name}": float(self._totals[name]) for name in ("matched", "unmatched")}
            pending = sum(map(len, self._pending)) + sum(frame.height for frame in self._received)
            return {"server_spans.pending": float(pending + self._looked_up), **totals}

    # -- thread ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop. Spans that wait are looked up after the next start."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._cursor.close()

    def _repeat(self) -> None:
        if not self._has_looked_back:
            self._has_looked_back = True
            self._guard.attempt(self._look_back)
        while not self._stop.wait(ROUND_S):
            self._guard.beat()
            self._take_received()
            while not self._stop.is_set() and (due := self._due()):
                if not self._guard.attempt(self._look_up, due):
                    self._count(unmatched=len(due))

    def _look_back(self) -> None:
        since = "make_timestamptz(?)"
        rows = self._cursor.execute(
            f"SELECT * FROM spans WHERE stream_id IS NULL AND started_at > {since} ORDER BY started_at DESC LIMIT {MAX_PENDING}",
            [int((time.time() - LOOK_BACK_S) * 1e6)],
        ).pl()
        self.add(rows)

    def _take_received(self) -> None:
        while self._received:
            with self._lock:
                frame = self._received.popleft()
            self._wait(server_spans(frame), 0)

    def _wait(self, spans: Sequence[ServerSpan], attempt: int) -> None:
        with self._lock:
            if attempt == len(self._delays_s):
                self._totals["unmatched"] += len(spans)
                return
            due_s = time.monotonic() + self._delays_s[attempt]
            self._pending[attempt].extend((due_s, span) for span in spans)
            for queue in reversed(self._pending):
                while queue and sum(map(len, self._pending)) > MAX_PENDING:
                    queue.popleft()
                    self._totals["unmatched"] += 1

    def _due(self) -> list[tuple[int, ServerSpan]]:
        now_s = time.monotonic()
        found: list[tuple[int, ServerSpan]] = []
        with self._lock:
            for attempt, queue in enumerate(self._pending):
                while queue and queue[0][0] <= now_s and len(found) < BATCH:
                    found.append((attempt, queue.popleft()[1]))
            self._looked_up = len(found)
        return found

    def _count(self, **numbers: int) -> None:
        with self._lock:
            self._totals.update(numbers)

    def _look_up(self, due: Sequence[tuple[int, ServerSpan]]) -> None:
        found, known = self._streams([span for _, span in due])
        with self._lock:
            known |= {row[0] for row in self._ready}
        rows: list[tuple[Any, ...]] = []
        for attempt, span in due:
            if (stream_id := found.get(span)) is None:
                self._wait([span], attempt + 1)
                continue
            self._count(matched=1)
            if stream_id not in known:
                known.add(stream_id)
                rows += [
                    (stream_id, None, SOURCE, name, value, "ns", f"{value / 1e9:g}")
                    for name, value in span.stats
                ]
        with self._lock:
            self._ready += rows

    def _streams(self, spans: Sequence[ServerSpan]) -> tuple[dict[ServerSpan, str], set[str]]:
        """The streams of spans, and those of them that have rows already."""
        since_s = min(span.started_s for span in spans) - 3600
        traces = {"traces": list({span.trace_id for span in spans})}
        values = traces | {
            "since": smallest_uuid7(since_s), "requests": [span.request_id for span in spans if span.request_id],
        }  # fmt: skip
        found = self._cursor.execute(
            "SELECT stream_id::VARCHAR, trace_id, span_id, request_id FROM streams WHERE stream_id >= $since::UUID "
            "AND (trace_id IN (SELECT unnest($traces::VARCHAR[])) OR request_id IN (SELECT unnest($requests::VARCHAR[])))",
            values,
        ).fetchall()
        by_span = {(trace, span): stream for stream, trace, span, _ in found}
        by_request = {request: stream for stream, _, _, request in found if request is not None}
        parents = self._parents(traces["traces"], since_s) if by_span else {}
        matched = {}
        for span in spans:
            above, steps = span.parent_id, 0
            while (span.trace_id, above) not in by_span and above is not None and steps < MAX_STEPS:
                above, steps = parents.get((span.trace_id, above)), steps + 1
            stream = by_span.get((span.trace_id, above)) or by_request.get(span.request_id)
            if stream is not None:
                matched[span] = stream
        if not matched:
            return {}, set()
        known = self._cursor.execute(
            "SELECT DISTINCT stream_id::VARCHAR FROM server_stats WHERE source = $source AND stream_id IN (SELECT unnest($ids::UUID[]))",
            {"source": SOURCE, "ids": list({*matched.values()})},
        ).fetchall()
        return matched, {stream for (stream,) in known}

    def _parents(self, traces: Sequence[str], since_s: float) -> dict[tuple[str, str], str | None]:
        rows = self._cursor.execute(
            "SELECT trace_id, span_id, parent_span_id FROM spans WHERE stream_id IS NULL "
            "AND started_at >= make_timestamptz($since_us) AND trace_id IN (SELECT unnest($traces::VARCHAR[]))",
            {"traces": traces, "since_us": int(since_s * 1e6)},
        ).fetchall()
        return {(trace, span): parent for trace, span, parent in rows}

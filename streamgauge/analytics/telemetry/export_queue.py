"""Bounded queues to receivers that may be slow: OTLP endpoints, the webhook of alerts, and functions of plugins.

Rules
- `offer` never blocks. If the queue is full, the oldest items are dropped and counted. The SDK's batch processor does not count
  drops and never exports unsampled spans, so it is not used.
- A `send` that fails is counted. It repeats an item itself, if that is useful, before it returns.
- A crash after a commit loses what waits here: the store has it, the receiver does not.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import polars as pl

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.commit_hook import CommitHook
from streamgauge.ingest.guards import Guards, guarded_thread
from streamgauge.ingest.plugins import EXPORTERS, function, load_plugins

log = logging.getLogger(__name__)

SILENT_AFTER_S = 300.0
"""One batch may be repeated for minutes: see the pauses of a webhook."""
CLOSE_S = 5.0
"""Time to send the rest when the process stops."""
QUEUE_COMMITS = 64
"""Commits that wait for the exporter of a plugin."""

T = TypeVar("T")


class ExportQueue(Generic[T]):
    """A bounded queue in front of a blocking `send`, which returns whether it succeeded."""

    def __init__(
        self,
        send: Callable[[Sequence[T]], bool],
        shutdown: Callable[[], object],
        *,
        name: str,
        queue_size: int,
        batch_size: int = 1,
        delay_s: float = 60.0,
        guards: Guards | None = None,
    ) -> None:
        """`delay_s`: longest wait for a batch to fill up. With the default, every item is sent at once."""
        self._send, self._shutdown = send, shutdown
        self._size, self._batch, self._delay_s = queue_size, min(batch_size, queue_size), delay_s
        self._queue: deque[T] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._ended = threading.Event()
        self.exported = self.dropped = self.failed = 0
        self._guard = (guards or Guards()).guard(name, silent_after_s=self._delay_s + SILENT_AFTER_S)
        self._thread = guarded_thread(self._guard, self._run, self._ended)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def offer(self, items: Sequence[T]) -> None:
        """Queue items and drop the oldest ones beyond the limit."""
        with self._lock:
            self._queue.extend(items)
            over = len(self._queue) - self._size
            for _ in range(over):
                self._queue.popleft()
            self.dropped += max(0, over)
            # Woken only for a full batch. A wake for each item would send batches of one, each with the cost of a
            # request.
            full = len(self._queue) >= self._batch
        if full:
            self._wake.set()

    def _take(self) -> list[T]:
        with self._lock:
            return [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]

    def _run(self) -> None:
        while True:
            closing = self._closing  # read before the queue, so everything offered before `close` is sent
            while batch := self._take():
                try:
                    good = self._send(batch)
                except Exception as e:
                    self._guard.failed(e)
                    good = False
                if good:
                    self.exported += len(batch)
                else:
                    self.failed += len(batch)
                self._guard.beat()
            if closing:
                self._ended.set()
                return
            self._guard.beat()
            self._wake.wait(self._delay_s)
            self._wake.clear()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Send the queued items for at most `timeout_s`. The rest is counted as dropped."""
        self._closing = True
        self._wake.set()
        # The thread may hang in `send` for minutes. It is a daemon: the process ends without it, and what it held is
        # counted.
        self._thread.join(timeout_s)
        self._ended.set()
        with self._lock:
            self.dropped += len(self._queue)
            self._queue.clear()
        self._shutdown()


def plugin_queues(
    group: str, action: str, *, name: str, queue_size: int, guards: Guards | None = None
) -> list[ExportQueue[Any]]:
    """One queue for each function that plugins have in the group. `action`: what it does, for the log. `name`: of its thread."""

    def call(plugin: str, receive: Callable[..., object], batch: Sequence[Any]) -> bool:
        try:
            receive(batch[0])
        except Exception as e:  # any code of any package; its message may quote a row
            log.warning("cannot %s by the plugin %s: %s. Check the plugin", action, plugin, type(e).__name__)
            return False
        return True

    return [
        ExportQueue(
            partial(call, plugin, receive),
            lambda: None,
            name=f"{name}-{plugin}",
            queue_size=queue_size,
            guards=guards,
        )
        for plugin, receive in load_plugins(group, function).items()
    ]


def totals(queues: Iterable[ExportQueue[Any]]) -> Counter[str]:
    """What became of the items of all queues: `exported`, `failed`, `dropped`."""
    found = Counter(exported=0, failed=0, dropped=0)
    for queue in queues:
        found.update(exported=queue.exported, failed=queue.failed, dropped=queue.dropped)
    return found


Tables = Mapping[str, pl.DataFrame]


class PluginExporters(CommitHook):
    """Commit hook that passes committed rows to the exporters of installed plugins. Not thread-safe."""

    def __init__(self, guards: Guards | None = None) -> None:
        self._tables: Tables = {}
        self._queues = plugin_queues(
            EXPORTERS, "export rows", name="exporter", queue_size=QUEUE_COMMITS, guards=guards
        )

    def rows(self, finished: Sequence[FinishedStream], tables: Tables) -> Tables:
        self._tables = dict(tables) if self._queues else {}
        return {}

    def committed(self) -> None:
        """Export the rows of the last `rows` call."""
        tables, self._tables = self._tables, {}
        if any(rows.height for rows in tables.values()):
            for queue in self._queues:
                queue.offer([tables])

    def health(self) -> dict[str, float]:
        """Commits by what became of them, by metric name without its prefix."""
        return {f"plugin_exports.{what}": float(count) for what, count in totals(self._queues).items()}

    def close(self) -> None:
        """Export what is queued, within the queue's time limit."""
        for queue in self._queues:
            queue.close()

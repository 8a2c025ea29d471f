"""Tasks that one process at a time repeats, in a thread of each analytics process.

Contract
1. In each round the elected process (`Catalog.elected`) runs the due tasks. An interval counts from the start of a run, and the pause
   after its end is at least half of it.
2. The catalog stores the time of each task's last run, so its interval does not depend on which process runs it, or on restarts. A
   SQLite catalog has one process, so frequent tasks are not written to it: they would wait for commits and maintenance.
3. A task that fails, whatever it raises, is repeated in the next round, and the others run. Each has a guard of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from streamgauge.analytics.storage.catalog import Task, is_conflict
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.guards import Guards, guarded_thread

log = logging.getLogger(__name__)

ROUND_S = 2.0
SILENT_AFTER_S = 900.0
"""A task may rewrite all files of a large store."""
SLOW_S = 2.0
"""Longer tasks are logged."""
FREQUENT_S = 60.0
"""Intervals up to this one need not survive a restart."""


class ElectedTasks:
    """The tasks of one thread, with its own connections to the catalog."""

    def __init__(
        self,
        store: Store,
        name: Task,
        tasks: Mapping[str, tuple[float, Callable[[], object]]],
        guards: Guards,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`name`: of the election. `tasks`: (interval in seconds, function) by task. `clock`: Unix time in seconds."""
        self.tasks = tasks
        self._name, self._guards, self._clock = name, guards, clock
        self._guard = guards.guard(name, silent_after_s=SILENT_AFTER_S)
        self._catalog, self._election = store.catalog.cursor(), store.catalog.cursor()
        self._done_at_s: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = guarded_thread(self._guard, self._repeat, self._stop)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """Let the thread end after the running task, without waiting for it."""
        self._stop.set()

    def stop(self) -> None:
        """Stop after the running task."""
        self.end()
        if self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        """As `stop`, and close the connections."""
        self.stop()
        for connection in (self._election, self._catalog):
            connection.close()

    def _repeat(self) -> None:
        while not self._stop.wait(self._pause_s()):
            self._guard.beat()
            self._guard.attempt(self.round)

    def _pause_s(self) -> float:
        """Until the next task is due, at most `ROUND_S`. A task that is due already has failed, or another process is elected."""
        now_s = self._clock()
        left_s = (
            self._done_at_s.get(task, 0.0) + every_s - now_s for task, (every_s, _) in self.tasks.items()
        )
        return min([ROUND_S, *(left for left in left_s if left > 0)])

    def round(self) -> list[str]:
        """Run the due tasks if this process is elected. Returns their names."""
        done: list[str] = []
        with self._election.elected(self._name) as elected:
            for task in self._due() if elected else ():
                if self._stop.is_set():
                    break
                self._guard.beat()
                self._guards.guard(f"{self._name}: {task}").attempt(self._run, task, done)
        return done

    def _run(self, task: str, done: list[str]) -> None:
        every_s, run = self.tasks[task]
        began_s = time.monotonic()
        try:
            run()
            took_s = time.monotonic() - began_s
            self._set_done(task, self._clock() - min(took_s, every_s / 2))
        except Exception as e:
            if not is_conflict(e):
                raise
            log.debug("%s: %s conflicts with a commit, next attempt in the next round", self._name, task)
            return
        if took_s > SLOW_S:
            log.info("%s: %s took %.1f s", self._name, task, took_s)
        done.append(task)

    def _due(self) -> list[str]:
        """The due tasks. A task without a last run starts its first interval now."""
        if self._catalog.is_postgres or not self._done_at_s:
            stored = self._catalog.query("SELECT task, done_at_s FROM streamgauge_upkeep")
            self._done_at_s |= {str(task): float(str(at)) for task, at in stored}
        new = self.tasks.keys() - self._done_at_s.keys()
        for task in new:
            self._set_done(task, self._clock())
        now_s = self._clock()
        return [
            task
            for task, (every_s, _) in self.tasks.items()
            if task not in new and not 0 <= now_s - self._done_at_s[task] < every_s
        ]

    def _set_done(self, task: str, at_s: float) -> None:
        self._done_at_s[task] = at_s
        if not self._catalog.is_postgres and self.tasks[task][0] <= FREQUENT_S:
            return
        with self._catalog.transaction():
            self._catalog.change(f"DELETE FROM streamgauge_upkeep WHERE task = '{task}'")
            self._catalog.change(
                f"INSERT INTO streamgauge_upkeep (task, done_at_s) VALUES ('{task}', {at_s:.3f})"
            )

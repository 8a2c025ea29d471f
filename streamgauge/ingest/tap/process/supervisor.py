"""Supervise the worker processes of a tap with several workers: start, restart, counters, stop.

A worker that dies is restarted under the same number, with exponential backoff. A worker that does not answer for a minute is
killed first. Its last received totals stay in the sums, so totals never decrease.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import pickle
import signal
import socket
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeVar

from streamgauge.ingest.guards import Guard, Guards, guarded_task
from streamgauge.ingest.listening import REPLACED
from streamgauge.ingest.metrics import Report, add_up
from streamgauge.ingest.processes import signal_at_end_of_parent
from streamgauge.ingest.tap.options import TapOptions

logger = logging.getLogger("streamgauge.tap")

_ANSWER_TIMEOUT_S = 2.0
_HUNG_AFTER_ANSWERS = 30
"""A worker that owes this many answers in a row is killed. Waiting for them takes at least a minute."""
_START_TIMEOUT_S = 30.0
_POLL_INTERVAL_S = 1.0
_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.2, 5.0
_SILENT_AFTER_ANSWERS = 3
"""A worker that owes this many answers is reported."""
_POLL_SILENT_S = 10.0
_T = TypeVar("_T")


def _prepare_child() -> None:
    """Let Ctrl-C reach only the parent, and kill the worker when the parent is killed, so its address becomes free."""
    os.setpgid(0, 0)
    signal_at_end_of_parent(signal.SIGKILL)


class _WorkerProcess:
    """One worker process and its control socket."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer
        self._lock = asyncio.Lock()
        self.last = Report({}, {}, {})
        self.missing_answers = 0

    async def report(self) -> Report:
        """Current report of the worker, or the last received one if it does not answer."""
        async with self._lock:
            self.missing_answers += 1
            with contextlib.suppress(OSError, TimeoutError, ValueError):
                self._writer.write(b"stats\n")
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    line = await self._reader.readline()
                if line:
                    self._take(line)
                    self.missing_answers = 0
        return self.last

    def _take(self, line: bytes) -> None:
        """Keep a report. The worker sends null if it cannot make one."""
        received = json.loads(line)
        if received is not None:
            self.last = Report(*received)

    async def read_final_report(self) -> None:
        """Read the report that the worker sent before it ended."""
        async with self._lock:
            with contextlib.suppress(OSError, TimeoutError, ValueError):
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    while line := await self._reader.readline():
                        self._take(line)
        self._writer.close()


class Supervisor:
    """The worker processes of one tap."""

    def __init__(self, options: TapOptions, client_key: bytes, sockets: Sequence[socket.socket]) -> None:
        """`sockets`: a bound one per worker. They stay open, so that connections to a worker that died wait for the next one."""
        self._options = options
        self._client_key = client_key
        self._sockets = sockets
        self._workers: dict[int, _WorkerProcess] = {}
        self.guards = Guards()
        self._ended_stats: dict[str, int] = {}
        self._ended_failures: Counter[str] = Counter()
        self._restarts = 0
        self._stop = asyncio.Event()
        self._watches: list[asyncio.Task[None]] = []

    @property
    def ready(self) -> bool:
        """At least one worker can forward. `faults` has the others."""
        return bool(self._workers) and not self._stop.is_set()

    def stop(self) -> None:
        """Stop all workers. After a second call they do not wait for open streams."""
        self._end(signal.SIGTERM)

    def hand_over(self) -> None:
        """Stop all workers, because another tap has the listening sockets."""
        self._end(REPLACED)

    def _end(self, number: signal.Signals) -> None:
        self._stop.set()
        for listening in self._sockets:
            listening.close()
        for worker in self._workers.values():
            with contextlib.suppress(ProcessLookupError):
                worker.process.send_signal(number)

    async def start(self) -> None:
        """Start all workers and wait until they serve. Raises OSError if one cannot start."""
        for number in range(self._options.workers):
            worker = await self._start(number)
            if worker is None:
                self.stop()
                await asyncio.gather(*(w.process.wait() for w in self._workers.values()))
                raise OSError(f"worker {number} could not start: see its log line above")
            self._workers[number] = worker
        self._watches = [
            asyncio.create_task(
                guarded_task(self.guards.guard(f"start of worker {number}"), partial(self._watch, number))
            )
            for number in range(self._options.workers)
        ]

    async def serve(self) -> None:
        guard = self.guards.guard("polling of workers", silent_after_s=_POLL_SILENT_S)
        polling = asyncio.create_task(guarded_task(guard, partial(self._poll, guard)))
        await asyncio.gather(*self._watches)
        polling.cancel()

    async def report(self) -> Report:
        """The state of all workers, with the totals of those that have ended."""
        running = await asyncio.gather(*(worker.report() for worker in list(self._workers.values())))
        faults = self.faults()
        now = {
            "workers_now": len(self._workers),
            "worker_restarts": self._restarts,
            "faults_now": len(faults),
        }
        stats = add_up([*(found.stats for found in running), self._ended_stats]) | now
        failures = Counter(self._ended_failures)
        for number, worker in self._workers.items():
            failures.update(_of_worker(number, worker.last.failures))
        return Report(stats, faults, {**failures, **self.guards.failures()})

    def faults(self) -> dict[str, str]:
        """The faults of the supervisor and, at most a second old, of all workers."""
        found = self.guards.faults()
        for number in range(self._options.workers):
            worker = self._workers.get(number)
            if worker is None:
                found[f"worker {number}"] = "is not running"
            elif worker.missing_answers >= _SILENT_AFTER_ANSWERS:
                found[f"worker {number}"] = f"does not respond (pid {worker.process.pid})"
            else:
                found.update(_of_worker(number, worker.last.faults))
        return found

    async def _start(self, number: int) -> _WorkerProcess | None:
        """Start a worker and wait until it serves. None: it cannot start, which was logged."""
        guard = self.guards.guard(f"start of worker {number}")
        parent_end, child_end = socket.socketpair()
        with contextlib.ExitStack() as undo:
            undo.callback(parent_end.close)
            try:
                with child_end:
                    process = await self._spawn(number, child_end.fileno(), self._sockets[number].fileno())
                undo.callback(_kill, process)
                reader, writer = await asyncio.open_connection(sock=parent_end, limit=1 << 20)
                undo.callback(writer.close)
                async with asyncio.timeout(_START_TIMEOUT_S):
                    if await reader.readline() == b"ready\n":
                        undo.pop_all()
                        guard.worked()
                        return _WorkerProcess(process, reader, writer)
                await process.wait()
            except Exception as e:  # for example EAGAIN: no process is free
                guard.failed(e)
        return None

    async def _spawn(self, number: int, control: int, listening: int) -> asyncio.subprocess.Process:
        options = dataclasses.replace(self._options, worker=number)
        process = await asyncio.create_subprocess_exec(
            # -P: a folder named `ingest` in the current folder must not be run.
            sys.executable, "-P", "-m", "streamgauge.ingest.tap.process.worker_process",
            f"tap-worker-{number}", str(control), str(listening),
            stdin=asyncio.subprocess.PIPE, pass_fds=(control, listening), preexec_fn=_prepare_child,
        )  # fmt: skip
        assert process.stdin is not None
        root = logging.getLogger()
        formatter = root.handlers[0].formatter if root.handlers else None
        process.stdin.write(pickle.dumps((options, self._client_key, root.level, formatter)))
        process.stdin.close()
        return process

    async def _watch(self, number: int) -> None:
        """Restart the worker of this number whenever it dies, until the tap stops."""
        backoff_s = _MIN_BACKOFF_S
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        code: int | None = None
        while True:
            worker = self._workers.get(number)
            if worker is not None:
                code = await worker.process.wait()
                del self._workers[number]
                await worker.read_final_report()
                totals = {k: v for k, v in worker.last.stats.items() if not k.endswith("_now")}
                self._ended_stats = add_up([self._ended_stats, totals])
                self._ended_failures.update(_of_worker(number, worker.last.failures))
                if loop.time() - started_s > _MAX_BACKOFF_S * 2:
                    backoff_s = _MIN_BACKOFF_S
            if self._stop.is_set():
                return
            logger.warning("worker %d died (exit code %s): restart in %.1f s", number, code, backoff_s)
            self._restarts += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff_s):
                    await self._stop.wait()
            backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)
            if self._stop.is_set():
                return
            started_s = loop.time()
            replacement = await self._start(number)
            if replacement is not None:
                self._workers[number] = replacement
                if self._stop.is_set():
                    replacement.process.send_signal(signal.SIGTERM)

    async def _poll(self, guard: Guard) -> None:
        """Request each worker's report every second, so that few counts are lost when a worker dies. Kill a hung worker."""
        while True:
            await asyncio.sleep(_POLL_INTERVAL_S)
            await asyncio.gather(*(worker.report() for worker in list(self._workers.values())))
            guard.beat()
            for number, worker in self._workers.items():
                if worker.missing_answers >= _HUNG_AFTER_ANSWERS:
                    worker.missing_answers = 0
                    logger.error(
                        "killing worker %d (pid %d): it does not respond", number, worker.process.pid
                    )
                    _kill(worker.process)


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


def _of_worker(number: int, values: Mapping[str, _T]) -> dict[str, _T]:
    return {f"worker {number}: {name}": value for name, value in values.items()}

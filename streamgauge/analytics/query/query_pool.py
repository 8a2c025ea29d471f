"""Run queries in child processes, within limits that no statement can exceed.

A child that exceeds its deadline by `GRACE_S` is killed, and so is one that uses too much memory or CPU time. A crash of
DuckDB ends only the child. The caller gets an error, and the next query gets another child.

- Untrusted: each child runs one statement at a time, confined and filtered. A spare child hides the start-up time.
- Trusted: one child runs `Limits.concurrent` queries at once. If one of them ends the child, each of the others is repeated
  once in a child of its own, within its deadline.

A query waits at most `timeout_s` for a slot and its answer, plus `GRACE_S`, plus the start of a child if none is ready (0.5
s on an idle machine). The start may take `START_S` if the caller is trusted or the pool has just been created, else
`START_GRACE_S`. A child that takes longer runs a later query.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl

from streamgauge.analytics.query import query_errors
from streamgauge.analytics.query.answers import decode, to_polars
from streamgauge.analytics.query.catalog_copy import LOCK_WAIT_S, CatalogCopy, identity_of
from streamgauge.analytics.query.child_process import (
    START_S,
    TRUSTED,
    UNTRUSTED,
    ChildOptions,
    ChildProcess,
    Died,
    Limits,
    slow_start,
)
from streamgauge.analytics.query.sandbox import UNTRUSTED_NICENESS
from streamgauge.analytics.storage.location import StoreLocation

GRACE_S = 0.5
"""Time in which a child can interrupt the query itself before it is killed."""
START_GRACE_S = 1.0
"""Time to start a child, in a running untrusted pool, that does not count towards a query's deadline."""
MODULE = "streamgauge.analytics.query.query_process"


class QueryPool:
    """Queries on one store. Threads may share it."""

    def __init__(
        self,
        location: StoreLocation,
        *,
        untrusted: bool,
        limits: Limits | None = None,
        exact_types: bool = False,
        others: Sequence[StoreLocation] = (),
        niceness: int = 0,
    ) -> None:
        """The first child starts in the background. `exact_types`: for `answer`; `query` requires False.

        `others`: further stores, queried together with the first if trusted.
        """
        self.limits = limits or (UNTRUSTED if untrusted else TRUSTED)
        self._location, self._others = location, others
        # Hostile statements must not slow the tap and analytics down.
        self._untrusted, self._niceness = untrusted, UNTRUSTED_NICENESS if untrusted else niceness
        self._exact_types = exact_types
        self._folder = Path(tempfile.mkdtemp(prefix="streamgauge-query-"))
        # For a pool that nobody closes.
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._copy = CatalogCopy(location.catalog, self._folder) if untrusted and location.catalog else None
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(self.limits.concurrent)
        self._waiting = 0
        self._children: list[ChildProcess] = []
        self.identity: tuple[int, int] | None = None
        """Changes when the store is replaced (`identity_of`)."""
        self._has_started = False
        self._closed = False
        # One thread starts all children, because the kernel ends a child together with the thread that started it.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="query-starter")
        self._starter.submit(self._warm_up)

    def query(
        self, sql: str, *, max_rows: int = 100_000, timeout_s: float = 20.0, truncate: bool = False
    ) -> pl.DataFrame:
        """The rows of one SELECT. UUIDs are text, instants are in UTC, intervals are durations.

        Raises QueryRejected (also for more than `max_rows` rows), QueryTimeout and StoreUnavailable. `truncate`: of an
        answer with more rows, the first `max_rows` + 1.
        """
        body = self.answer(sql, max_rows=max_rows, timeout_s=timeout_s, truncate=truncate)
        return to_polars(decode(body, untrusted=self._untrusted))

    def answer(
        self, sql: str, *, max_rows: int, timeout_s: float, truncate: bool = False, form: str | None = None
    ) -> bytes:
        """As `query`, as Arrow IPC bytes (`answers.encode`). They are not validated.

        `form`: the rows as `render.render` writes them instead, for a trusted pool. Raises AnswerTooLarge above
        `query_socket.MAX_RENDERED_BYTES`.
        """
        max_rows = min(max_rows, self.limits.max_rows)
        request = {"sql": sql, "max_rows": max_rows, "truncate": truncate, "form": form}
        timeout_s = min(timeout_s, self.limits.timeout_s)
        deadline_s = time.monotonic() + timeout_s
        if self._closed:
            raise _closed()
        with self._slot(timeout_s):
            # Only the first query of an untrusted pool may wait long for a child: later a spare one is ready, and hostile statements
            # that end their children must not make others wait.
            is_starting = not (self._untrusted and self._has_started)
            grace_s = START_S if is_starting else START_GRACE_S
            failed: _Repeat | None = None
            while True:
                asked_s = time.monotonic()
                child = self._ready_child(
                    min(START_S, max(0.0, deadline_s - asked_s) + grace_s),
                    alone=failed is not None and failed.alone,
                    is_starting=is_starting,
                )
                try:
                    # A start does not count towards the deadline, which is for the statement. All starts share one grace.
                    waited_s = min(time.monotonic() - asked_s, grace_s)
                    grace_s, deadline_s = grace_s - waited_s, deadline_s + waited_s
                    return self._run(child, request, timeout_s, deadline_s)
                except _Repeat as e:
                    if failed is not None:
                        raise e.error from None
                    failed = e
                finally:
                    self._release(child)

    def close(self) -> None:
        """End all children. Running queries fail."""
        with self._lock:
            self._closed = True
            children, self._children = self._children, []
        for child in children:
            child.kill()
        # A child that the starter has just started is killed by `_start`, because the pool is closed.
        self._starter.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            children += self._children
        for child in children:
            child.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> QueryPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _slot(self, timeout_s: float) -> Iterator[None]:
        """One of `Limits.concurrent` slots. Raises QueryRejected if too many queries wait, QueryTimeout without a slot in time."""
        with self._lock:
            is_free = self._slots.acquire(blocking=False)
            if not is_free and self._waiting >= self.limits.waiting:
                raise query_errors.QueryRejected(
                    f"busy: {self._waiting} queries are already waiting. Try again in a few seconds."
                )
            self._waiting += not is_free
        try:
            if not is_free:
                is_free = self._slots.acquire(timeout=max(timeout_s, 0.0))
                with self._lock:
                    self._waiting -= 1
            if not is_free:
                raise query_errors.QueryTimeout(
                    f"busy: the query waited {timeout_s:g} s for {self.limits.concurrent} others to finish. Try again later."
                )
            yield
        finally:
            if is_free:
                self._slots.release()

    def _ready_child(self, wait_s: float, *, alone: bool, is_starting: bool) -> ChildProcess:
        """A child that can answer, assigned to the query."""
        latest_s = time.monotonic() + wait_s
        late = slow_start(wait_s) if is_starting else _busy(wait_s)
        self.refresh(min(LOCK_WAIT_S, wait_s))
        child = self._assign(alone, latest_s, late)
        try:
            if not child.ready.wait(max(0.0, latest_s - time.monotonic())):
                if child.age_s >= START_S:
                    child.kill()
                raise late
            child.wait_ready()
        except query_errors.QueryError:
            self._release(child)
            raise
        self._has_started = True
        return child

    def _run(
        self, child: ChildProcess, request: dict[str, Any], timeout_s: float, deadline_s: float
    ) -> bytes:
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise query_errors.too_slow(timeout_s)
        call = child.call(request | {"timeout_s": remaining_s}, deadline_s + GRACE_S)
        if not call.done.wait(max(0.0, deadline_s + GRACE_S - time.monotonic())):
            child.kill()
            raise query_errors.too_slow(timeout_s)
        answer = call.answer
        if isinstance(answer, Died):
            if call.shared:  # another query may be the cause, so only one that fails alone is at fault
                raise _Repeat(self._ended(answer), alone=True)
            raise self._ended(answer)
        assert answer is not None
        header, body = answer
        # Little address space remains when DuckDB's half of it is full, and half of the rest is used.
        has_grown = int(header.get("grown_bytes", 0)) > self.limits.memory_bytes * 3 // 4
        child.retired |= has_grown or bool(header.get("broken"))
        if "error" in header:
            error = query_errors.of_kind(header["error"], header.get("message"), header.get("position"))
            # Compaction may have removed a file of the snapshot.
            if isinstance(error, query_errors.StoreUnavailable):
                raise _Repeat(error, alone=False)
            raise query_errors.too_slow(timeout_s) if isinstance(error, query_errors.QueryTimeout) else error
        return body

    @property
    def child_options(self) -> ChildOptions:
        """Options of the children. An untrusted child reads the copy of the catalog that `refresh` updates."""
        hidden = filter(None, (self._folder, self._location.tables, self._location.catalog))
        return ChildOptions(
            location=self._location,
            others=self._others,
            limits=self.limits,
            untrusted=self._untrusted,
            niceness=self._niceness,
            folder=self._folder,
            catalog_copy=self._copy.path if self._copy else None,
            exact_types=self._exact_types,
            hidden=tuple(map(str, hidden)) if self._untrusted else (),
            parent=os.getpid(),
        )

    def refresh(self, wait_s: float = LOCK_WAIT_S) -> None:
        """Refresh the copy of the catalog. If the store was replaced, retire the children that read the old one.

        Waits at most `wait_s` for locks. Raises StoreUnavailable.
        """
        catalog = self._location.catalog
        if catalog is None:
            return
        try:
            identity = identity_of(catalog)
        except FileNotFoundError:
            raise query_errors.no_tables(self._location) from None
        except OSError as e:
            raise query_errors.StoreUnavailable(
                f"cannot read the store {self._location.label}: {e.strerror}."
            ) from None
        if self._copy is not None:
            self._copy.refresh(wait_s)
        with self._lock:
            if identity != self.identity:
                for child in self._children if self.identity is not None else ():
                    child.retired = True
                self.identity = identity

    def _assign(self, alone: bool, latest_s: float, late: query_errors.QueryError) -> ChildProcess:
        """A child that can take another query, or a new one. Raises `late` if the starter needs longer than `latest_s`."""
        if not alone and (child := self._free()) is not None:
            return child
        try:
            started = self._starter.submit(self._free_or_new, alone)
        except RuntimeError:
            raise _closed() from None
        try:
            return started.result(max(0.0, latest_s - time.monotonic()))
        except CancelledError:
            raise _closed() from None
        except TimeoutError:
            if not started.cancel():
                started.add_done_callback(self._release_started)
            raise late from None
        except (OSError, RuntimeError) as e:
            raise query_errors.StoreUnavailable(f"cannot start a query process: {e}. Try again.") from None

    def _release_started(self, started: Future[ChildProcess]) -> None:
        """Release a child that the starter assigned after its query had given up."""
        if not started.cancelled() and started.exception() is None:
            self._release(started.result())

    def _free(self) -> ChildProcess | None:
        capacity = 1 if self._untrusted else self.limits.concurrent
        with self._lock:
            self._sweep()
            # A trusted child runs several queries at once. An untrusted one runs one, so that its end has one cause.
            free = [c for c in self._children if c.alive and not c.alone and c.running < capacity]
            if not free:
                return None
            child = next((c for c in free if c.ready.is_set()), free[0])  # prefer one that is ready
            child.running += 1
            if not self._has_spare():
                self._start_later()
            return child

    def _free_or_new(self, alone: bool) -> ChildProcess:
        """On the starter thread: waiting queries share the child that the first of them started."""
        return (None if alone else self._free()) or self._start(alone, 1)

    def _start(self, alone: bool, running: int) -> ChildProcess:
        child = ChildProcess(MODULE, self.child_options, alone=alone)
        child.running = running
        with self._lock:
            self._children.append(child)
            if self._closed:
                child.kill()
            elif self._untrusted and running and not self._has_spare():
                self._start_later()
        return child

    def _start_later(self) -> None:
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._starter.submit(self._start_spare)

    def _start_spare(self) -> None:
        with self._lock:
            if self._closed or self._has_spare():
                return
        with contextlib.suppress(OSError):
            self._start(alone=False, running=0)

    def _warm_up(self) -> None:
        with contextlib.suppress(query_errors.QueryError, OSError):
            self.refresh()
            self._start_spare()

    def _has_spare(self) -> bool:
        """Whether a child can take the next query at once. Requires the lock."""
        shared = [c for c in self._children if c.alive and not c.alone]
        return any(not c.running for c in shared) if self._untrusted else bool(shared)

    def _release(self, child: ChildProcess) -> None:
        with self._lock:
            child.running -= 1
            if child.alone:
                child.retired = True
            self._sweep()
            if not self._has_spare() and not self._closed:
                self._start_later()

    def _sweep(self) -> None:
        """Kill idle retired children and drop those that ended. Requires the lock."""
        for child in self._children:
            if not child.alive and not child.running:
                child.kill()
        self._children = [c for c in self._children if c.alive or c.running]

    def _ended(self, died: Died) -> query_errors.QueryError:
        if self._closed:
            return _closed()
        name = died.signal_name
        if name == "SIGXCPU":
            return query_errors.QueryTimeout(
                f"query stopped: it used more than {self.limits.cpu_s} s of CPU time. "
                "Narrow the time range or aggregate first."
            )
        if name in ("SIGKILL", "SIGABRT") or "bad_alloc" in died.reason or "MemoryError" in died.reason:
            return query_errors.too_much_memory(self.limits.memory_bytes)
        if name is not None:
            return query_errors.QueryRejected(
                f"query failed: DuckDB crashed with signal {name}. Values or expressions nested deeper than the stack are the "
                "usual cause: nest them less."
            )
        return query_errors.QueryRejected(
            f"query failed: it ended its process: {died.reason}. Simplify the statement."
        )


def _busy(waited_s: float) -> query_errors.QueryTimeout:
    return query_errors.QueryTimeout(
        f"busy: no query process was ready within {waited_s:.3g} s. Try again in a few seconds."
    )


def _closed() -> query_errors.StoreUnavailable:
    return query_errors.StoreUnavailable("cannot run the query: the query pool is closed.")


class _Repeat(Exception):
    """Another query or a compaction may have caused the failure. `error` is raised if the query fails again."""

    def __init__(self, error: query_errors.QueryError, *, alone: bool) -> None:
        self.error = error
        self.alone = alone

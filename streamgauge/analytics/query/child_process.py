"""Child processes for queries: their limits, their options, and the parent's side of one.

The parent starts a child, sends it requests, receives answers and kills it. A thread per child reads its answers. When the
child ends, every open call completes with `Died`. `query_process` and `quack_process` are the children.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamgauge.analytics.query import pipe_messages
from streamgauge.analytics.query.query_errors import QueryError, StoreUnavailable, of_kind
from streamgauge.analytics.storage.location import StoreLocation

log = logging.getLogger(__name__)

MIB = 2**20
START_S = 60.0
"""Longest start. It takes 0.5 s on an idle machine."""
MESSAGE_OVERHEAD_BYTES = 2**20
"""Arrow's schema and padding."""
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "TMPDIR")
"""Environment of an untrusted child, which gets no credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one query. A caller can lower the limits of time and rows, but not raise them."""

    memory_bytes: int = 1024 * MIB
    """Address space that a child may add to its size after the start (1.5 GiB, most of it only reserved). DuckDB's own limit is
    half: tables, sorts and caches. The other half is for memory that DuckDB does not count: strings, lists, states of
    aggregates such as `quantile_cont`."""
    cpu_s: int = 60
    """CPU time of one query: the longest default timeout, 30 s, on two cores."""
    timeout_s: float = 300.0
    """Longest timeout that a caller may ask for."""
    max_rows: int = 1_000_000
    max_answer_bytes: int = 128 * MIB
    """Arrow bytes of one answer. The child briefly holds them twice, a quarter of `memory_bytes`."""
    concurrent: int = 2
    """Queries that run at once. Each untrusted query has a child of its own, and one more is a spare: three children of about
    150 MiB resident when idle, and 3 GiB + idle memory in the worst case."""
    waiting: int = 32
    """Queries that wait for a slot. Further ones are rejected at once."""

    @property
    def database_bytes(self) -> int:
        """DuckDB's memory limit."""
        return self.memory_bytes // 2


UNTRUSTED = Limits()
"""For untrusted statements: the SQL page and `streamgauge serve`."""
TRUSTED = Limits(memory_bytes=2048 * MIB, cpu_s=600, concurrent=4)
"""For the product's own queries and the `sql` command: one child runs four at once. `cpu_s` covers 300 s on two cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOptions:
    """Settings of one child."""

    location: StoreLocation
    others: Sequence[StoreLocation] = ()
    """Further stores, queried together with the first."""
    limits: Limits
    untrusted: bool
    niceness: int
    folder: Path
    """Private folder of the parent: spill files and the copy of the catalog."""
    catalog_copy: Path | None = None
    exact_types: bool = False
    """Arrow answers keep DuckDB's types. Otherwise UUIDs become text, and HUGEINT becomes DECIMAL."""
    hidden: Sequence[str] = ()
    """Paths that errors do not show to readers."""
    parent: int
    """Process id of the parent. The child ends if it has another one."""


@dataclass(frozen=True, slots=True)
class Died:
    """The child ended before it answered. `reason` is one line."""

    returncode: int
    reason: str

    @property
    def signal_name(self) -> str | None:
        """Signal that ended it, for example `SIGSEGV`. None if it exited."""
        return signal.Signals(-self.returncode).name if self.returncode < 0 else None


@dataclass(slots=True)
class Call:
    """One request. `answer` is set when `done` is."""

    id: int
    done: threading.Event = field(default_factory=threading.Event)
    shared: bool = False
    """Another call ran in the child at the same time."""
    answer: tuple[dict[str, Any], bytes] | Died | None = None


class ChildProcess:
    """One child process. Threads may share it."""

    def __init__(
        self,
        module: str,
        options: ChildOptions,
        *,
        alone: bool = False,
        more: dict[str, Any] | None = None,
        on_event: Callable[[dict[str, Any]], None] = lambda message: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the process. Raises OSError.

        The calling thread must live as long as the child: the kernel ends a child with the thread that started it.
        `alone`: for a single query. `more`: further options in the first message. `on_event` receives messages that answer no
        call. The reading thread calls it and `on_end`, which must not block.
        """
        self.alone = alone
        self._on_event = on_event
        self._on_end = on_end
        self.running = 0
        """Assigned queries. Guarded by the pool's lock."""
        self.retired = False
        """No further query may be assigned."""
        self.ready = threading.Event()
        """Set when the child can answer, and when it has ended."""
        self._start_error: QueryError | None = None
        self._started_s = time.monotonic()
        self._calls: dict[int, Call] = {}
        self._call_count = 0
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self.died: Died | None = None
        """How the child ended, None while it runs."""
        self._max_body_bytes = options.limits.max_answer_bytes + MESSAGE_OVERHEAD_BYTES
        # A file, not a pipe: nobody reads it while the child runs, and a full pipe would stop the child.
        self._diagnostics = tempfile.TemporaryFile()  # noqa: SIM115 - the reading thread closes it
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._diagnostics,
            cwd="/",  # a child must not keep a file system busy that the user wants to unmount
            env=_environment(options),
        )
        self.pid = self._process.pid
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        # A stopped child reads nothing. With a blocking pipe it would stop its caller as well.
        os.set_blocking(self._stdin, False)
        # Pickle only goes this way. What a child sends may come from hostile SQL, so it is JSON and Arrow.
        self.send(more or {}, START_S, pickle.dumps(options))
        threading.Thread(target=self._read, name=f"query-child-{self.pid}", daemon=True).start()

    @property
    def age_s(self) -> float:
        """Time since the start."""
        return time.monotonic() - self._started_s

    @property
    def alive(self) -> bool:
        """Whether it can take another query."""
        return self.died is None and not self.retired

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Wait until the child can answer. Raises StoreUnavailable."""
        if not self.ready.wait(timeout_s):
            self.kill()
            raise slow_start(timeout_s)
        if self._start_error is not None:
            raise self._start_error

    def call(self, request: dict[str, Any], deadline_s: float) -> Call:
        """Send a request. The returned call completes when the answer arrives or the child ends."""
        with self._lock:
            self._call_count += 1
            call = Call(self._call_count)
            if self.died is not None:
                call.answer = self.died
                call.done.set()
                return call
            for other in self._calls.values():
                other.shared = call.shared = True
            self._calls[call.id] = call
        self.send({"id": call.id, **request}, deadline_s - time.monotonic())
        return call

    def send(self, header: dict[str, Any], silence_s: float, body: bytes = b"") -> None:
        """Write one message, after those of other threads. Kills a child that reads nothing for `silence_s`."""
        try:
            with self._sending:
                if not pipe_messages.send_while_read(self._stdin, header, silence_s, body):
                    self.kill()
        except Exception:
            self.kill()  # the reading thread reports the end

    def kill(self) -> None:
        """End the process. Every open call completes."""
        self.retired = True
        self._process.kill()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the process and wait for its end."""
        self.kill()
        self.ready.wait(timeout_s)
        self._process.wait(timeout_s)

    def _read(self) -> None:
        try:
            while (message := pipe_messages.receive(self._stdout, self._max_body_bytes)) is not None:
                self._receive(*message)
        except (pipe_messages.BrokenMessage, OSError):
            pass  # it ended, or sent a malformed message
        except Exception:  # a bug; its calls must not wait for ever
            log.exception("reading from a query process failed: it is ended")
        # A child that has closed its end of the pipe, or sent nonsense, may still run. `wait` would then never return.
        self._process.kill()
        died = Died(self._process.wait(), self._last_stderr_line())
        with self._lock:
            self.died = died
            calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.answer = died
            call.done.set()
        if not self.ready.is_set():
            self._start_error = self._start_error or StoreUnavailable(
                f"cannot start a query process: {died.reason}. Try again."
            )
            self.ready.set()
        with self._sending:  # a closed descriptor's number may belong to another file at once
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
        self._diagnostics.close()
        self._on_end()

    def _receive(self, header: dict[str, Any], body: bytes) -> None:
        if "id" not in header:
            if "error" in header:
                self._start_error = of_kind(header["error"], header.get("message"))
            elif "ready" not in header:
                self._on_event(header)
                return
            self.ready.set()
            return
        with self._lock:
            call = self._calls.pop(header["id"], None)
        if call is not None:
            call.answer = header, body
            call.done.set()

    def _last_stderr_line(self) -> str:
        """The last line on stderr, else the exit code."""
        self._diagnostics.seek(0, os.SEEK_END)
        self._diagnostics.seek(max(0, self._diagnostics.tell() - 2000))
        lines = self._diagnostics.read().decode(errors="replace").split("\n")
        written = [line.strip() for line in lines if line.strip()]
        return written[-1] if written else f"exit code {self._process.returncode}"


def slow_start(waited_s: float) -> StoreUnavailable:
    """The error of a query whose child did not start in time."""
    return StoreUnavailable(
        f"cannot start a query process: it was not ready after {waited_s:.3g} s. Try again when the machine is less busy."
    )


def _environment(options: ChildOptions) -> dict[str, str]:
    """Environment of a child. An untrusted one gets credentials (S3, PostgreSQL) only if the store needs them."""
    location = options.location
    if location.dsn is not None or str(location.tables).startswith("s3://") or not options.untrusted:
        given = dict(os.environ)
    else:
        given = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    # The child's folder is /, and a checkout is not installed.
    given["PYTHONPATH"] = str(Path(__file__).parents[3])
    given["OPENBLAS_NUM_THREADS"] = "1"  # numpy's library reserves memory for each thread
    given["MALLOC_ARENA_MAX"] = "2"  # each arena reserves 64 MiB of the limited address space
    given["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # returns memory to the system at once
    return given

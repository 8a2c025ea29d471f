"""`streamgauge serve`: answer read-only SQL over DuckDB's Quack protocol until SIGTERM or SIGINT.

A supervisor runs a confined child (`serve_child`), which reads a private copy of the SQLite catalog. If the child ends, the
supervisor restarts it at once with the same port and token, and clients must attach again.

- Freshness: the child reports each query, and the supervisor refreshes the copy of the catalog before the query runs.
- Deadlines: the child interrupts a query at its deadline. `OVERDUE_S` later the supervisor kills the child.
- Memory: all queries share `Limits.memory_bytes`.
- CPU time: the deadline is the only limit, because the child runs many queries.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from analytics.query.catalog_copy import CatalogCopy
from analytics.query.child_options import ChildOptions
from analytics.query.child_process import ChildProcess
from analytics.query.errors import QueryError, StoreUnavailable
from analytics.query.limits import MIB, Limits
from analytics.storage.location import StoreLocation
from ingest.ready_file import remove_ready_file, write_ready_file

log = logging.getLogger(__name__)

MODULE = "analytics.query.serve_child"
MIN_TOKEN_CHARS = 16
OVERDUE_S = 2.0
"""A child whose query is this much past its deadline is killed."""
RESTART_PAUSE_S = 1.0
"""Pause between attempts to start a child. The first attempt has none."""
SERVE_LIMITS = Limits(memory_bytes=2048 * MIB, timeout_s=25.0, concurrent=4)
"""25 s is below the 30 s timeout of a stock DuckDB client."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a running server, in `run/serve.json`."""

    quack: str
    """For example `quack:localhost:9494`."""
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of `run`."""

    location: StoreLocation
    data: Path
    """The folder of `run/serve.json`."""
    host: str = "localhost"
    port: int = 9494
    """0: a free port."""
    token: str | None = field(default=None, repr=False)
    """None: a random one. Clients read it from `run/serve.json`."""
    limits: Limits = SERVE_LIMITS
    ready: Callable[[Endpoint], None] | None = None
    """Called when the server is ready."""
    stop: threading.Event | None = None
    """Stops the server when set; signals do so as well."""


def run(options: ServeOptions) -> int:
    """Serve until stopped. Returns 0.

    Raises ValueError for a token that is too short, OSError for a port in use, StoreUnavailable without a store.
    A later failure of the store is logged and retried.
    """
    if options.token is not None and len(options.token) < MIN_TOKEN_CHARS:
        raise ValueError(
            f"cannot use the token: it must have at least {MIN_TOKEN_CHARS} characters. Pass a longer one or none."
        )
    if options.port and is_listening(options.host, options.port):
        raise OSError(
            f"cannot listen on {options.host}:{options.port}: address already in use. "
            "Pass --sql-port or stop the other process."
        )
    folder = Path(tempfile.mkdtemp(prefix="streamgauge-serve-"))
    supervisor = _Supervisor(options, folder)
    try:
        with _signals(supervisor.stop):
            supervisor.run()
    finally:
        supervisor.close()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


class _Supervisor:
    def __init__(self, options: ServeOptions, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._ready_file = options.data / "run" / "serve.json"
        self._port = options.port or _free_port()
        self._token = options.token or secrets.token_urlsafe(32)
        catalog = options.location.catalog
        self._copy = CatalogCopy(catalog, folder) if catalog else None
        self._identity: tuple[int, int] | None = None
        self._refresher = ThreadPoolExecutor(1, thread_name_prefix="catalog-copy")
        self._wake = threading.Event()
        self._stopped = False
        self._lock = threading.Lock()
        self._deadlines: dict[int, float] = {}
        self._child: ChildProcess | None = None

    def stop(self) -> None:
        """End `run`. Safe in a signal handler."""
        self._stopped = True
        self._wake.set()

    def run(self) -> None:
        options = self._options
        self._start()
        endpoint = Endpoint(f"quack:{options.host}:{self._port}", self._token)
        write_ready_file(self._ready_file, asdict(endpoint))
        log.info("SQL server is ready: %s", endpoint.quack)
        if options.ready is not None:
            options.ready(endpoint)
        while not self._is_stopped():
            if self._child is None or self._child.died is not None:
                self._restart()
            self._wake.wait(self._kill_overdue())
            self._wake.clear()

    def close(self) -> None:
        remove_ready_file(self._ready_file)
        self._stopped = True
        if self._child is not None:
            self._child.close()
        self._refresher.shutdown(wait=True, cancel_futures=True)

    def _is_stopped(self) -> bool:
        return self._stopped or (self._options.stop is not None and self._options.stop.is_set())

    def _start(self) -> None:
        """Start a child and wait until it listens. Raises StoreUnavailable, OSError."""
        if self._copy is not None:
            self._copy.refresh()
            self._identity = self._copy.identity
        with self._lock:
            self._deadlines.clear()
        options = self._options
        self._child = ChildProcess(
            MODULE,
            ChildOptions(
                location=options.location,
                limits=options.limits,
                untrusted=True,
                folder=self._folder,
                catalog_copy=self._copy.path if self._copy else None,
                parent=os.getpid(),
            ),
            more={"host": options.host, "port": self._port, "token": self._token},
            on_event=self._on_event,
            on_end=self._wake.set,
        )
        self._child.wait_ready()

    def _restart(self) -> None:
        if self._child is not None and self._child.died is not None:
            log.warning("SQL server process ended (%s); starting another", self._child.died.reason)
        try:
            self._start()
        except (QueryError, OSError) as e:
            log.error("SQL server cannot start, next attempt in %g s: %s", RESTART_PAUSE_S, e)
            self._child = None
            self._wake.clear()
            self._wake.wait(RESTART_PAUSE_S)
            self._wake.set()

    def _kill_overdue(self) -> float | None:
        """Kill the child if a query is overdue. Returns the seconds until the next deadline, None without one."""
        now_s = time.monotonic()
        with self._lock:
            next_s = min(self._deadlines.values(), default=None)
            if next_s is not None and next_s <= now_s and self._child is not None:
                log.warning("SQL server process killed: a query did not end at its deadline")
                self._deadlines.clear()
                self._child.kill()
                return None
        remaining_s = None if next_s is None else next_s - now_s
        return remaining_s if self._options.stop is None else min(remaining_s or 0.2, 0.2)

    def _on_event(self, event: dict[str, Any]) -> None:
        if "start" in event:
            with self._lock:
                self._deadlines[event["start"]] = time.monotonic() + float(event["timeout_s"]) + OVERDUE_S
            self._wake.set()
            with contextlib.suppress(RuntimeError):  # stopping
                self._refresher.submit(self._refresh, self._child, event["start"])
        elif "end" in event:
            with self._lock:
                self._deadlines.pop(event["end"], None)

    def _refresh(self, child: ChildProcess | None, number: int) -> None:
        try:
            if self._copy is not None:
                self._copy.refresh()
                if self._copy.identity != self._identity and child is not None:
                    child.kill()  # the store was replaced
        except StoreUnavailable as e:
            log.warning("SQL server reads an older state: %s", e)
        if child is not None:
            child.send({"refreshed": number}, time.monotonic() + OVERDUE_S)


def is_listening(host: str, port: int) -> bool:
    """Whether a process accepts connections. Binding is no test, because Quack sets SO_REUSEPORT."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def _free_port() -> int:
    """A free port of the loopback interface. Another process may take it before the child listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Stop at SIGTERM and SIGINT. Does nothing outside the main thread, which alone may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {kind: signal.signal(kind, lambda *_: stop()) for kind in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)

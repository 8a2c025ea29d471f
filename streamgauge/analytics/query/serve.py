"""`streamgauge serve`: answer read-only SQL over DuckDB's Quack protocol until SIGTERM or SIGINT.

The supervisor runs two kinds of confined processes:

- One Quack process (`quack_process`) listens. It sends each statement to the supervisor and returns the answer to the client.
  It parses no reader's text, and itself runs only scans of one table.
- The query pool runs the statements, each in a process of its own for the time of the query. So a statement cannot affect
  another reader, and no reader sees the answer of another.

If the Quack process ends, the supervisor restarts it at once with the same port and token, and clients must attach again.
If it does not answer the supervisor for `CHILD_SILENT_S`, the supervisor kills it.
Each statement first refreshes the copy of the SQLite catalog that both kinds read.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from streamgauge.analytics.query.child_process import MIB, UNTRUSTED, Call, ChildProcess, Limits
from streamgauge.analytics.query.query_errors import QueryError, to_wire
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.storage.location import StoreLocation
from streamgauge.ingest.listening import check_token, split_address
from streamgauge.ingest.private_files import prepare_data_folder
from streamgauge.ingest.ready_file import HEARTBEAT_S, Heartbeat, remove_ready_file, write_ready_file

log = logging.getLogger(__name__)

MODULE = "streamgauge.analytics.query.quack_process"
SEND_S = 10.0
"""A Quack process that reads nothing of an answer for this long is killed."""
CHILD_SILENT_S = 30.0
RESTART_PAUSE_S = 1.0
"""Pause between attempts to start a child. The first attempt has none."""
SERVE_LIMITS = replace(UNTRUSTED, timeout_s=25.0, concurrent=4)
"""Limits of each query. 25 s is below the 30 s timeout of a stock DuckDB client."""
QUACK_MEMORY_BYTES = 2048 * MIB
"""Memory of the Quack process. It holds answers (`quack_gate.KEPT_ANSWERS`) until their clients have read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of `run`."""

    location: StoreLocation
    data: Path
    """The folder of `run/serve.json`."""
    listen: str
    """HOST:PORT. Port 0: a free port."""
    token: str | None = field(repr=False)
    """None: a random one. Clients read it from `run/serve.json`."""
    limits: Limits = SERVE_LIMITS


def run(options: ServeOptions) -> int:
    """Serve until SIGTERM or SIGINT. Returns 0. Raises as `SqlServer`."""
    with contextlib.closing(SqlServer(options)) as server:
        for kind in (signal.SIGTERM, signal.SIGINT):
            signal.signal(kind, lambda *_: server.stop())
        server.run()
    return 0


class SqlServer:
    """Supervises the Quack process. A failure of the store after the start is logged and retried."""

    def __init__(self, options: ServeOptions) -> None:
        """Raises ValueError for a token that is too short, OSError for a port in use."""
        check_token("--sql-token", options.token)
        self._host, port = split_address(options.listen)
        if port and _is_listening(self._host, port):
            raise OSError(
                f"cannot listen on {options.listen}: address already in use. Pass --sql-listen or stop the other process."
            )
        self._options = options
        self._ready_file = options.data / "run" / "serve.json"
        self._port = port or _free_port()
        self._token = options.token or secrets.token_urlsafe(32)
        limits = options.limits
        self._pool = QueryPool(options.location, untrusted=True, limits=limits, exact_types=True)
        # One thread more than the pool admits rejects all further queries at once. Each of Quack's threads asks one query.
        self._threads = ThreadPoolExecutor(limits.concurrent + limits.waiting + 1, thread_name_prefix="serve")
        self._identity: tuple[int, int] | None = None
        self._wake = threading.Event()
        self._stopped = False
        self._child: ChildProcess | None = None
        self._check: Call | None = None
        self._checked_s = 0.0

    def stop(self) -> None:
        """End `run`. Safe in a signal handler, and in other threads."""
        self._stopped = True
        self._wake.set()

    def run(self) -> None:
        """Serve until `stop`. Raises StoreUnavailable without a store, OSError for an address that cannot be used."""
        options = self._options
        self._start()
        address = f"quack:{self._host}:{self._port}"
        prepare_data_folder(options.data)  # a failed start creates nothing
        write_ready_file(self._ready_file, {"quack": address, "token": self._token})
        log.info("SQL server is ready: %s", address)
        heartbeat = Heartbeat(self._ready_file)
        while not self._stopped:
            heartbeat.beat()
            if self._child is None or self._child.died is not None:
                self._restart()
            else:
                self._check_child(self._child)
            self._wake.wait(HEARTBEAT_S)
            self._wake.clear()

    def close(self) -> None:
        """End all processes."""
        remove_ready_file(self._ready_file)  # first, so that no client finds a server that ends
        self._stopped = True
        # The Quack process before the pool: then no further statements come.
        if self._child is not None:
            self._child.close()
        self._pool.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _start(self) -> None:
        """Start a Quack process and wait until it listens. Raises StoreUnavailable, OSError."""
        self._pool.refresh()  # the Quack process reads the same copy of the catalog, and needs one
        self._identity = self._pool.identity
        options = self._options
        limits = replace(options.limits, memory_bytes=QUACK_MEMORY_BYTES)
        self._child = ChildProcess(
            MODULE,
            # It serves all readers, so it keeps its priority, and its errors are for the operator, so they keep their paths.
            replace(self._pool.child_options, limits=limits, niceness=0, hidden=()),
            more={"host": self._host, "port": self._port, "token": self._token},
            on_event=self._on_event,
            on_end=self._wake.set,
        )
        self._child.wait_ready()

    def _check_child(self, child: ChildProcess) -> None:
        """Kill a child that does not answer, for example a stopped one. The next `_restart` starts another."""
        now_s = time.monotonic()
        if self._check is None or self._check.done.is_set():
            if now_s - self._checked_s >= HEARTBEAT_S:
                self._checked_s = now_s
                self._check = child.call({}, now_s + SEND_S)
        elif child.alive and now_s - self._checked_s > CHILD_SILENT_S:
            log.warning("SQL server process (pid %d) does not respond for %g s", child.pid, CHILD_SILENT_S)
            child.kill()

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
            self._wake.set()  # `run` must not wait for another heartbeat

    def _on_event(self, asked: dict[str, Any]) -> None:
        with contextlib.suppress(RuntimeError):  # stopping
            self._threads.submit(self._answer, self._child, asked)

    def _answer(self, child: ChildProcess | None, asked: dict[str, Any]) -> None:
        """Answer one message of the gate. `sql` None: only refresh the copy of the catalog."""
        header: dict[str, Any] = {"answer": asked["ask"]}
        body = b""
        try:
            if asked["sql"] is None:
                self._pool.refresh()
            else:
                body = self._pool.answer(
                    str(asked["sql"]), max_rows=int(asked["max_rows"]), timeout_s=float(asked["timeout_s"])
                )
        except QueryError as e:
            header |= to_wire(e, self._options.location.label)
        except Exception as e:  # the gate waits for an answer
            log.exception("SQL server: a query failed")
            header |= {"error": "QueryRejected", "message": f"query failed: {type(e).__name__}. Try again."}
        if child is None:
            return
        if self._pool.identity != self._identity:
            child.kill()  # the store was replaced, and this process streams scans of the old one
        child.send(header, SEND_S, body)


def _is_listening(host: str, port: int) -> bool:
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

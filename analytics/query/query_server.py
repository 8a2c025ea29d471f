"""The server of `query_socket`: `streamgauge sql` and `status` ask the running analytics.

A statement runs, and its rows are rendered, in the trusted process of a query pool, at a low priority. This process only passes bytes on.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from pathlib import Path
from typing import Any

from streamgauge.analytics.query import pipe_messages
from streamgauge.analytics.query.errors import (
    QueryError,
    QueryRejected,
    QueryTimeout,
    StoreUnavailable,
    to_wire,
)
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.query.query_socket import GREETING_S, SOCKET, address, limit_waits
from streamgauge.analytics.storage.location import StoreLocation
from streamgauge.ingest.guards import Guards, guarded_thread

MAX_CONNECTIONS = 8
"""Callers at once. Further ones are refused."""
REQUEST_S = 5.0
"""Longest wait for a request, and for a caller that reads nothing."""
ACCEPT_AGAIN_S = 0.5
BEAT_S, SILENT_AFTER_S = 2.0, 15.0
WARM_UP_AFTER_S = 10.0
"""Delay of the start of the query process, unless a query comes first: the start of analytics has the CPUs to itself."""
WARM_UP_S = 60.0

log = logging.getLogger(__name__)


class QueryServer:
    """Listens until `close`."""

    def __init__(self, data: Path, location: StoreLocation, guards: Guards | None = None) -> None:
        """Start listening. Without a socket, as on a file system that has none, callers query the store themselves."""
        self._path = data / SOCKET
        self._location = location
        guards = guards or Guards()
        self._guard, self._queries = guards.guard("query server"), guards.guard("queries")
        self._lock = threading.Lock()
        self._pool: QueryPool | None = None
        self._closed = threading.Event()
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._refused = 0
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._path.unlink(missing_ok=True)  # a killed process leaves it behind
            with address(self._path) as path:
                self._listener.bind(path)
            self._path.chmod(0o600)
            self._listener.listen(MAX_CONNECTIONS)
        except OSError as e:
            self._listener.close()
            log.warning(
                "streamgauge sql starts a process of its own: cannot listen at %s: %s", self._path, e.strerror
            )
            return
        threading.Thread(target=self._warm_up, name="query-warm-up", daemon=True).start()
        self._listener.settimeout(BEAT_S)
        self._guard.silent_after_s = SILENT_AFTER_S
        guarded_thread(self._guard, self._accept, self._closed).start()

    def health(self) -> dict[str, float]:
        """The counters by metric name without its prefix."""
        return {"queries.refused": float(self._refused)}

    def close(self) -> None:
        """Stop listening and end the query process. Running queries fail."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self._path.unlink(missing_ok=True)
        with self._lock:
            if self._pool is not None:
                self._pool.close()

    def _warm_up(self) -> None:
        """Start the query process and load the libraries that render."""
        if not self._closed.wait(WARM_UP_AFTER_S):
            with contextlib.suppress(QueryError):
                self._rendered({"sql": "SELECT 1", "form": "table", "max_rows": 1, "timeout_s": WARM_UP_S})

    def _rendered(self, request: dict[str, Any]) -> bytes:
        with self._lock:
            if self._closed.is_set():
                raise StoreUnavailable("cannot run the query: analytics stops.")
            if self._pool is None:
                self._pool = QueryPool(self._location, untrusted=False, low_priority=True)
            pool = self._pool
        return pool.rendered(
            str(request["sql"]),
            str(request["form"]),
            max_rows=int(request["max_rows"]),
            timeout_s=float(request["timeout_s"]),
        )

    def _accept(self) -> None:
        while not self._closed.is_set():
            self._guard.beat()
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                if self._closed.wait(ACCEPT_AGAIN_S):
                    return
                continue  # no descriptor is free
            if not self._free.acquire(blocking=False):
                self._guard.attempt(self._refuse, connection)
            elif not self._guard.attempt(self._serve_in_thread, connection):  # for example, no thread is free
                self._free.release()
                connection.close()

    def _serve_in_thread(self, connection: socket.socket) -> None:
        args = (self._serve, connection)
        threading.Thread(target=self._queries.attempt, args=args, name="query", daemon=True).start()

    def _refuse(self, connection: socket.socket) -> None:
        self._refused += 1
        busy = QueryTimeout(
            f"busy: {MAX_CONNECTIONS} queries are already running. Try again in a few seconds."
        )
        with connection, contextlib.suppress(OSError):
            limit_waits(connection, GREETING_S)
            pipe_messages.send(connection.fileno(), to_wire(busy))

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                limit_waits(connection, REQUEST_S)
                pipe_messages.send(connection.fileno(), {"ready": True})
                request = pipe_messages.receive(connection.fileno())
                if request is not None:
                    pipe_messages.send(connection.fileno(), *self._answer(request[0]))
            except (OSError, pipe_messages.BrokenMessage):
                pass
            finally:
                self._free.release()  # before the caller sees the end, after which it may call again

    def _answer(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        try:
            return {}, self._rendered(request)
        except QueryError as e:
            return to_wire(e), b""
        except (KeyError, TypeError, ValueError) as e:
            return to_wire(QueryRejected(f"cannot read the request: {e!r}.")), b""

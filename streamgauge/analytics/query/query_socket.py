"""Queries to a running analytics over the Unix socket `DATA/run/query.sock`: the server, and its client `ask`.

`streamgauge sql` and `status` are the callers. The client needs only the standard library. A statement runs, and its rows are
rendered, in the trusted process of a query pool, at a low priority. Analytics itself only passes bytes on.

Protocol (`pipe_messages`)
1. The server accepts and sends `{"ready": true}`. A caller that does not receive it at once treats analytics as not running.
2. The caller sends one request `{"sql", "form", "max_rows", "timeout_s"}`. The answer is `{}` with the rendered rows as the body, or
   the error (`errors.to_wire`). Then the server closes the connection.

Only the user of analytics and root can connect, because the socket has mode 0600.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamgauge.analytics.query import pipe_messages, query_errors
from streamgauge.analytics.storage.location import StoreLocation

if TYPE_CHECKING:  # the client starts without them
    import polars as pl

    from streamgauge.analytics.query.query_pool import QueryPool
    from streamgauge.ingest.guards import Guards

SOCKET = "run/query.sock"
"""Path in the data folder."""
MAX_RENDERED_BYTES = 32 * 2**20
"""Longest answer over the socket, because analytics holds it in memory."""
GREETING_S = 1.0
GRACE_S = 2.0
"""Time beyond that of the query until the caller gives up: for a waiting slot and the answer's way."""
_MAX_PATH_BYTES = 100
"""Kernels limit the address of a Unix socket to 104 to 108 bytes."""
MAX_CONNECTIONS = 8
"""Callers at once. Further ones are refused."""
REQUEST_S = 5.0
"""Longest wait for a request, and for a caller that reads nothing."""
ACCEPT_AGAIN_S = 0.5
BEAT_S, SILENT_AFTER_S = 2.0, 15.0
OWN_QUERY_S = 60.0
"""Time limit of a query of analytics itself: beside 20 busy processes, a diagnosis for the alerts takes longer than the 20 s of readers."""
WARM_UP_AFTER_S = 10.0
"""Delay of the start of the query process, unless a query comes first: the start of analytics has the CPUs to itself."""
WARM_UP_S = 60.0

log = logging.getLogger(__name__)


class NotListening(Exception):
    """No analytics answers on the socket."""


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """The path, or a shorter one to the same file. Raises OSError."""
    # `chdir` into the folder would change the folder of all threads.
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _limit_waits(connection: socket.socket, seconds: float) -> None:
    """Let reads and writes fail with BlockingIOError when nothing moves for this long."""
    # Not `settimeout`, which makes the descriptor non-blocking: `pipe_messages` reads and writes it with `os.read` and `os.write`.
    whole, part = divmod(max(seconds, 0.001), 1)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(whole), int(part * 1e6)))


def ask(data: Path, sql: str, form: str, *, max_rows: int, timeout_s: float) -> bytes:
    """The rows of one SELECT, as `render.render` writes them. Raises NotListening and QueryError."""
    with socket.socket(socket.AF_UNIX) as connection:
        _limit_waits(connection, GREETING_S)
        try:
            with _address(data / SOCKET) as path:
                connection.connect(path)
            # The kernel accepts connections for a stopped process as well. Only the greeting shows that analytics runs.
            greeting = pipe_messages.receive(connection.fileno())
        except (OSError, pipe_messages.BrokenMessage) as e:
            raise NotListening(str(e)) from None
        if greeting is None:
            raise NotListening("the connection was closed")
        if "error" in greeting[0]:
            raise query_errors.of_kind(greeting[0]["error"], greeting[0].get("message"))
        _limit_waits(connection, timeout_s + GRACE_S)
        request = {"sql": sql, "form": form, "max_rows": max_rows, "timeout_s": timeout_s}
        try:
            pipe_messages.send(connection.fileno(), request)
            answer = pipe_messages.receive(connection.fileno(), MAX_RENDERED_BYTES)
        except BlockingIOError:
            raise query_errors.too_slow(timeout_s) from None
        except (OSError, pipe_messages.BrokenMessage) as e:
            raise NotListening(str(e)) from None
    if answer is None:
        raise NotListening("the connection was closed")
    header, body = answer
    if "error" in header:
        raise query_errors.of_kind(header["error"], header.get("message"), header.get("position"))
    return body


class QueryServer:
    """Listens until `close`."""

    def __init__(self, data: Path, location: StoreLocation, guards: Guards | None = None) -> None:
        """Start listening. Without a socket, as on a file system that has none, callers query the store themselves."""
        from streamgauge.ingest.guards import Guards, guarded_thread

        self._path = data / SOCKET
        self._location = location
        guards = guards or Guards()
        self._guard, self._queries = guards.guard("query server"), guards.guard("queries")
        self._lock = threading.Lock()
        self._pool: QueryPool | None = None
        self._closed = threading.Event()
        # Not a queue: a caller that waits could as well run a process of its own.
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._refused = 0
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._path.unlink(missing_ok=True)  # a killed process leaves it behind
            with _address(self._path) as path:
                self._listener.bind(path)
            self._path.chmod(0o600)  # before `listen`: until then nobody can connect
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
        """Start the query process and load the libraries that render, which would delay the first query by half a second."""
        if not self._closed.wait(WARM_UP_AFTER_S):
            with contextlib.suppress(query_errors.QueryError):
                self._rendered({"sql": "SELECT 1", "form": "table", "max_rows": 1, "timeout_s": WARM_UP_S})

    def query(self, sql: str) -> pl.DataFrame:
        """The rows of a query of analytics itself. Raises QueryError."""
        return self._opened_pool().query(sql, timeout_s=OWN_QUERY_S)

    def _opened_pool(self) -> QueryPool:
        from streamgauge.analytics.query.query_pool import QueryPool
        from streamgauge.analytics.query.sandbox import OWN_NICENESS

        with self._lock:
            if self._closed.is_set():
                raise query_errors.StoreUnavailable("cannot run the query: analytics stops.")
            if self._pool is None:
                self._pool = QueryPool(self._location, untrusted=False, niceness=OWN_NICENESS)
            return self._pool

    def _rendered(self, request: dict[str, Any]) -> bytes:
        return self._opened_pool().answer(
            str(request["sql"]),
            form=str(request["form"]),
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
        busy = query_errors.QueryTimeout(
            f"busy: {MAX_CONNECTIONS} queries are already running. Try again in a few seconds."
        )
        with connection, contextlib.suppress(OSError):
            _limit_waits(connection, GREETING_S)
            pipe_messages.send(connection.fileno(), query_errors.to_wire(busy))

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                _limit_waits(connection, REQUEST_S)
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
        except query_errors.QueryError as e:
            return query_errors.to_wire(e), b""
        except (KeyError, TypeError, ValueError) as e:
            return query_errors.to_wire(query_errors.QueryRejected(f"cannot read the request: {e!r}.")), b""

"""Serve the tables to other processes over Quack, read-only, bounded, with a token.

DuckDB lets one process write a file and nobody else open it, so the writer itself must answer. Left alone, a Quack
client may do anything and a query may run for ever; what stands in the way:
1. Quack asks an *authorization function* for the statement to run instead of the client's; ours is Python (`_Door`).
2. It admits what `analytics.serving.guard` admits, and nothing else.
3. It runs the query itself, on a cursor of its own that a watch interrupts, into a table of the attached in-memory
   database `answers`, row limit included, and hands back `FROM answers.…`: so time, rows, memory and concurrency are bounded,
   and the writer can end every query when it needs the memory (`interrupt`).
   A plain scan of one table (that is how ATTACH reads) is passed on: it streams, as fast as its client takes it.
4. External access is off and the configuration locked before the first client is let in. `httpfs` is loaded before
   that: with external access off Quack's server cannot load it any more, and every request would fail.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import secrets
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass

import duckdb
from duckdb.func import FunctionNullHandling

from analytics.serving.guard import Guard, NotAdmitted, one_line
from analytics.serving.watch import Ended, Watch, growth_bytes
from analytics.storage.extensions import load

log = logging.getLogger(__name__)

MIN_TOKEN_CHARS = 16
ANSWER_KEPT_S = 10.0
"""An answer's table is dropped this long after it was made: its reader's transaction began within milliseconds."""

_DIRECTIVE = re.compile(r"\s*/\*streamgauge max_rows=(\d{1,9}) timeout_s=(\d{1,6}(?:\.\d{1,6})?)\*/")
_SCHEMATA = re.compile(r"\s*SELECT catalog_name, schema_name\s+FROM information_schema\.schemata\b")
_CATALOG = re.compile(r"\s*SELECT schema_name, sql, 'table'\s+FROM duckdb_tables\(\)\s+UNION ALL\b")
"""What Quack's ATTACH asks first: answered with the public schema alone."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one remote query may take. Clients may ask for less, never for more."""

    timeout_s: float = 25.0
    """Below the 30 s after which a stock DuckDB client gives up waiting."""
    max_rows: int = 1_000_000
    concurrent: int = 4
    waiting: int = 32
    """Queries that wait for their turn; further ones are refused at once."""


def directive(max_rows: int, timeout_s: float) -> str:
    """The comment by which a client asks for smaller bounds, to stand before its statement."""
    return f"/*streamgauge max_rows={max_rows} timeout_s={timeout_s:.3f}*/"


def lock_down(connection: duckdb.DuckDBPyConnection) -> None:
    """No files, no extensions, no settings from here on, for every connection of this database."""
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


class _Door:
    """The authorization function: takes a client's statement, answers with the one to run. Called by Quack's threads."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, *, catalog: str, bounds: Bounds) -> None:
        self._connection = connection
        self._catalog = catalog
        self._bounds = bounds
        self._guard = Guard(connection.cursor(), catalog=catalog)
        self._guard_lock = threading.Lock()
        self._turns = threading.BoundedSemaphore(bounds.concurrent)
        self._lock = threading.Lock()
        self._running: dict[int, duckdb.DuckDBPyConnection] = {}
        self._waiting = 0
        self._made = 0
        self._growth_bytes = growth_bytes(connection)
        self._answers: deque[tuple[float, str]] = deque()
        self.counters = {
            "queries": 0,
            "refused": 0,
            "failed": 0,
            "too_slow": 0,
            "too_large": 0,
            "too_many_rows": 0,
            "busy": 0,
        }

    def __call__(self, session: str | None, sql: str | None) -> str:
        try:
            return self._answer(sql or "")
        except NotAdmitted as e:
            self._count("refused")
            return _error(f"refused: {e}")
        except Exception as e:  # whatever it is, the client gets an error and never its own statement
            self._count("failed")
            return _error(f"failed: {one_line(e)}")

    def _answer(self, sql: str) -> str:
        max_rows, timeout_s = self._bounds.max_rows, self._bounds.timeout_s
        if found := _DIRECTIVE.match(sql):
            max_rows, timeout_s = min(max_rows, int(found[1])), min(timeout_s, float(found[2]))
            sql = sql[found.end() :]
        catalog = self._catalog.replace("'", "''")
        if _SCHEMATA.match(sql):
            return f"SELECT '{catalog}' AS catalog_name, 'main' AS schema_name"
        if _CATALOG.match(sql):
            where = f"WHERE database_name = '{catalog}' AND schema_name = 'main' AND NOT internal"
            return (
                f"SELECT schema_name, sql, 'table' FROM duckdb_tables() {where} "
                f"UNION ALL SELECT schema_name, view_name, 'view' FROM duckdb_views() {where}"
            )
        with self._guard_lock:
            admitted = self._guard.admit(sql)
        self._count("queries")
        if admitted.plain_scan and found is None:
            return sql
        return self._run(sql, max_rows, timeout_s)

    def _run(self, sql: str, max_rows: int, timeout_s: float) -> str:
        started = time.monotonic()
        with self._lock:
            if self._waiting >= self._bounds.waiting:
                self.counters["busy"] += 1
                return _error("busy: too many queries wait already")
            self._waiting += 1
        try:
            got_turn = self._turns.acquire(timeout=timeout_s)
        finally:
            with self._lock:
                self._waiting -= 1
        if not got_turn:
            self._count("busy")
            return _error("busy: no turn within the time limit")
        try:
            return self._materialise(sql, max_rows, timeout_s, started + timeout_s)
        finally:
            self._turns.release()

    def _materialise(self, sql: str, max_rows: int, timeout_s: float, deadline: float) -> str:
        self._drop_old()
        cursor = self._connection.cursor()
        with self._lock:
            self._made += 1
            number = self._made
            self._running[number] = cursor
        name = f"answers.main.a{number}"
        watch = Watch(cursor, deadline_s=deadline, growth_bytes=self._growth_bytes)
        try:
            row = cursor.execute(f"CREATE TABLE {name} AS FROM (\n{sql}\n) LIMIT {max_rows + 1}").fetchone()
        except duckdb.InterruptException:
            if watch.ended is Ended.MEMORY:
                self._count("too_large")
                return _error("too much memory: interrupted; aggregate fewer rows or groups")
            self._count("too_slow")
            if time.monotonic() < deadline:
                return _error("too slow: interrupted, because the store needed the memory")
            return _error(f"too slow: interrupted after {timeout_s:g} s")
        except duckdb.Error as e:
            self._count("failed")
            return _error(one_line(e))
        finally:
            watch.done()
            with self._lock:
                del self._running[number]
            cursor.close()
        with self._lock:
            self._answers.append((time.monotonic(), name))
        if row is not None and row[0] > max_rows:
            self._count("too_many_rows")
            return _error(f"too many rows: more than {max_rows}; aggregate, or add a LIMIT")
        return f"FROM {name}"

    def _drop_old(self, older_than_s: float = ANSWER_KEPT_S) -> None:
        names = []
        with self._lock:
            while self._answers and time.monotonic() - self._answers[0][0] >= older_than_s:
                names.append(self._answers.popleft()[1])
        if names:
            with contextlib.closing(self._connection.cursor()) as cursor:
                for name in names:
                    try:
                        cursor.execute(f"DROP TABLE IF EXISTS {name}")
                    except duckdb.Error as e:
                        log.warning("an answer stays in memory: %s", one_line(e))

    def sweep(self) -> None:
        """Drop answers that have been read. To be called now and then; cheap when there is nothing to do."""
        if self._answers:
            self._drop_old()

    def interrupt(self) -> int:
        """End every running query; returns how many there were."""
        with self._lock:
            for cursor in self._running.values():
                cursor.interrupt()
            return len(self._running)

    def _count(self, name: str) -> None:
        with self._lock:
            self.counters[name] += 1


class Server:
    """The Quack server of one database. `close` ends it and every query that runs."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        *,
        host: str = "localhost",
        port: int = 9494,
        token: str | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        """Serve, and lock the database's configuration for good.

        Raises OSError when the port is taken or an extension is missing, ValueError for a token that is too short.
        """
        if token is not None and len(token) < MIN_TOKEN_CHARS:
            raise ValueError(f"the SQL port's token needs at least {MIN_TOKEN_CHARS} characters")
        self.token = token if token is not None else secrets.token_urlsafe(32)
        self._connection = connection.cursor()
        load(self._connection, "httpfs", "quack")
        self._connection.execute("ATTACH ':memory:' AS answers")
        row = self._connection.execute("SELECT current_database()").fetchone()
        self._door = _Door(self._connection, catalog=row[0] if row else "", bounds=bounds or Bounds())
        self._connection.create_function(
            "streamgauge_door",
            self._door.__call__,
            ["VARCHAR", "VARCHAR"],
            "VARCHAR",
            null_handling=FunctionNullHandling.SPECIAL,
            side_effects=True,
        )
        self._connection.execute("SET GLOBAL quack_authorization_function = 'streamgauge_door'")
        lock_down(self._connection)
        self.quack = self._listen(host, port)

    def _listen(self, host: str, port: int) -> str:
        chosen = port or _free_port()
        uri = f"quack:{host}:{chosen}"
        # Quack's listener shares its port with whoever asks (SO_REUSEPORT): a second server would take half the queries.
        taken = _in_use(host, chosen)
        try:
            if not taken:
                self._connection.execute(
                    f"CALL quack_serve('{uri}', token = ?, allow_other_hostname = {host != 'localhost'})",
                    [self.token],
                )
                return uri
        except duckdb.Error as e:
            if "Failed to bind" not in str(e):
                raise OSError(f"SQL port {host}:{chosen}: {one_line(e)}") from None
        raise OSError(
            f"SQL port {host}:{chosen} cannot be opened (in use?): choose another with --quack-port"
        )

    @property
    def counters(self) -> dict[str, int]:
        """Queries answered, refused, failed, too slow, with too much memory, with too many rows, turned away."""
        return dict(self._door.counters)

    def sweep(self) -> None:
        """Housekeeping: call it every few seconds."""
        self._door.sweep()

    def interrupt_queries(self) -> int:
        """End every running query: the writer needs the memory. Returns how many there were."""
        return self._door.interrupt()

    def close(self) -> None:
        """Stop listening; running queries end with an error."""
        self._door.interrupt()
        with contextlib.suppress(duckdb.Error):
            self._connection.execute("CALL quack_stop(?)", [self.quack])
        self._connection.close()


def _error(message: str) -> str:
    return f"SELECT error('{message.replace(chr(39), chr(39) * 2)}')"


def _in_use(host: str, port: int) -> bool:
    """Whether somebody listens on that address already, sharing or not."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return False  # the listener will say what is wrong with the name
    for family, kind, protocol, _, address in addresses:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as e:
                if e.errno == errno.EADDRINUSE:
                    return True
    return False


def _free_port() -> int:
    """A port that is free right now on the loopback; somebody else may take it before we do."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

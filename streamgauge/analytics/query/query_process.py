"""The child process that runs queries, started by `streamgauge.analytics.query.query_pool` with `python -m`.

Protocol of every child (`run_child`)
1. The body of the first message on stdin holds the pickled `ChildOptions`. The child replies `{"ready": true}`, or an error and
   ends.
2. It receives messages on stdin, and sends its own on stdout.
3. It ends with stdin.

A message to this child is a request `{"id", "sql", "max_rows", "timeout_s", "truncate", "form"}`. The answer is `{"id",
"grown_bytes"}` with the body, or `{"id", "error", "message", "position", "broken"}`. The body is Arrow IPC bytes, or the rows
rendered as `form`. `broken`: the database may be unusable.

An untrusted child reads a copy of the catalog, checks each statement (`StatementFilter`) and is confined (`sandbox`).
A trusted child reads the live catalog and may spill to its private folder. Resource limits apply to both.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from streamgauge.analytics.query import pipe_messages, query_errors, sandbox
from streamgauge.analytics.query.child_process import MESSAGE_OVERHEAD_BYTES, MIB, ChildOptions
from streamgauge.analytics.query.query_socket import MAX_RENDERED_BYTES
from streamgauge.ingest.processes import address_space_bytes, lower_priority

if TYPE_CHECKING:  # these load libraries that start threads: only after `_confine`
    import pyarrow as pa

    from streamgauge.analytics.query.reader import Reader

SPILL_BYTES = 4 * 2**30
"""Largest file that a trusted query writes for a sort or join that exceeds its memory."""
DIAGNOSTICS_BYTES = 2**20
"""Largest stderr of an untrusted child, the only file that it writes."""


class Send(Protocol):
    """Send one message to the parent. Threads may share it."""

    def __call__(self, header: dict[str, Any], body: bytes | memoryview = b"") -> None: ...


Receive = Callable[[dict[str, Any], bytes], None]
"""Called with each message of the parent."""


def run_child(start: Callable[[ChildOptions, dict[str, Any], Send], Receive]) -> int:
    """Run a child until its stdin ends. `start` gets the options and the first header. Raises what no parent can handle."""
    # Messages have a descriptor of their own: a library that prints must not corrupt one.
    answers = os.dup(1)
    os.dup2(2, 1)
    lock = threading.Lock()

    def send(header: dict[str, Any], body: bytes | memoryview = b"") -> None:
        with lock:
            pipe_messages.send(answers, header, body)

    first = pipe_messages.receive(0, MESSAGE_OVERHEAD_BYTES)
    if first is None:
        return 0
    options: ChildOptions = pickle.loads(first[1])  # noqa: S301 - from the process that started this one
    _confine(options, first[0].get("port"))
    if options.niceness:
        lower_priority(
            options.niceness
        )  # before the start, or hostile statements that end their children keep the CPUs busy
    try:
        receive = start(options, first[0], send)
    except (query_errors.QueryError, OSError) as e:
        error = e if isinstance(e, query_errors.QueryError) else query_errors.StoreUnavailable(str(e))
        send(query_errors.to_wire(error, *options.hidden))
        return 1
    send({"ready": True})
    while (
        message := pipe_messages.receive(0, options.limits.max_answer_bytes + MESSAGE_OVERHEAD_BYTES)
    ) is not None:
        receive(*message)
    # Not `sys.exit`, which waits for the threads of running queries. Nothing reads their answers.
    os._exit(0)


def _confine(options: ChildOptions, bind_port: int | None) -> None:
    """Give up rights that the child does not need. Only an untrusted child loses access to files."""
    location = options.location
    if options.untrusted:
        # PostgreSQL and S3 need the network, and the folder of the tables is unknown when only the catalog names it.
        local = location.catalog is not None and not str(location.tables).startswith("s3://")
        readable = None if location.tables is None else [str(options.folder), location.tables]
        sandbox.confine(readable=readable, writable=(), network=not local, bind_port=bind_port)
    else:
        sandbox.confine(readable=None, writable=("/",), network=True)
    if os.getppid() != options.parent:
        os._exit(0)  # the parent ended before the death signal was set


def open_reader(options: ChildOptions) -> Reader:
    """The database, not yet locked down. Raises StoreUnavailable."""
    from streamgauge.analytics.query.reader import Reader

    return Reader(
        options.location,
        others=options.others,
        memory_limit_bytes=options.limits.database_bytes,
        catalog=options.catalog_copy,
        # A statement that spills could fill the disk of the store, so an untrusted one fails at its memory limit instead.
        spill_folder=None if options.untrusted else options.folder,
        exact_types=options.exact_types,
    )


def limit(options: ChildOptions, *, reserved_bytes: int = 0) -> None:
    """Apply the resource limits. `reserved_bytes`: address space for threads that start later."""
    sandbox.limit(
        memory_bytes=options.limits.memory_bytes + reserved_bytes,
        file_bytes=DIAGNOSTICS_BYTES if options.untrusted else SPILL_BYTES,
    )


class _Worker:
    def __init__(self, options: ChildOptions, send: Send) -> None:
        from streamgauge.analytics.query.statement_filter import StatementFilter

        self._options, self._send = options, send
        self._limits = options.limits
        self._reader = open_reader(options)
        # Only JSON has the position. It is set before `lock_down`, which forbids settings, and for cursors made after it.
        self._reader.connection.execute("SET GLOBAL errors_as_json = true")
        self._filter = None
        if options.untrusted:
            self._reader.lock_down()
            self._filter = StatementFilter(self._reader.connection.cursor())
        self._threads = ThreadPoolExecutor(1 if options.untrusted else self._limits.concurrent)
        self._base_bytes = address_space_bytes()
        limit(options)  # counts from the size now, with all libraries loaded

    def receive(self, request: dict[str, Any], _: bytes) -> None:
        """Run the request on a thread. The parent sends at most `Limits.concurrent` at once."""
        sandbox.allow_cpu(self._limits.cpu_s)
        self._threads.submit(self._run, request)

    def _run(self, request: dict[str, Any]) -> None:
        header: dict[str, Any] = {"id": request["id"]}
        body: bytes | memoryview = b""
        error: query_errors.QueryError | None = None
        try:
            body = self._answer(request)
        except (query_errors.QueryOutOfMemory, MemoryError):
            error = query_errors.too_much_memory(self._limits.memory_bytes)
        except query_errors.QueryError as e:
            error = e
        except BaseException as e:  # the parent waits for an answer
            error = query_errors.QueryRejected(f"query failed: {type(e).__name__}: {e}")
        if error is not None:
            header |= query_errors.to_wire(error, *self._options.hidden) | {"broken": _is_broken(error)}
        header["grown_bytes"] = address_space_bytes() - self._base_bytes
        self._send(header, body)

    def _answer(self, request: dict[str, Any]) -> bytes | memoryview:
        from streamgauge.analytics.query.answers import encode

        sql = str(request["sql"])
        if self._filter is not None:
            self._filter.check(sql)
        table = self._reader.arrow(
            sql, int(request["max_rows"]), float(request["timeout_s"]), truncate=bool(request.get("truncate"))
        )
        max_bytes = self._limits.max_answer_bytes
        if table.nbytes > max_bytes:
            raise _too_large(query_errors.QueryRejected, max_bytes)
        return encode(table) if request.get("form") is None else _rendered(table, request["form"])


def _rendered(table: pa.Table, form: str) -> bytes:
    from streamgauge.analytics.query.answers import decode, encode, to_polars
    from streamgauge.analytics.query.render import render  # loads polars, which other children do not need

    if table.nbytes <= MAX_RENDERED_BYTES:
        # Encoded and decoded once, so that the rows have the types of an answer that another process renders.
        rendered = render(to_polars(decode(encode(table), untrusted=False)), form)
        if len(rendered) <= MAX_RENDERED_BYTES:
            return rendered
    raise _too_large(query_errors.AnswerTooLarge, MAX_RENDERED_BYTES)


def _too_large(kind: type[query_errors.QueryRejected], max_bytes: int) -> query_errors.QueryRejected:
    """The error of an answer that is too large."""
    return kind(
        f"the answer is larger than {max_bytes // MIB} MiB. Select fewer columns, aggregate or add a LIMIT."
    )


def _is_broken(error: query_errors.QueryError) -> bool:
    """After an internal error DuckDB accepts no further statement."""
    return isinstance(error, query_errors.QueryOutOfMemory) or any(
        f"{kind} Error" in str(error) for kind in ("INTERNAL", "FATAL")
    )


if __name__ == "__main__":
    sys.exit(run_child(lambda options, _, send: _Worker(options, send).receive))

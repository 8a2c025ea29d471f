"""The child process that runs queries, started by `streamgauge.analytics.query.query_pool` with `python -m`.

Protocol
1. The first message on stdin holds `ChildOptions`. The child replies `{"ready": true}`, or an error and ends.
2. Each further message is a request `{"id", "sql", "max_rows", "timeout_s", "truncate", "form"}`. The answer is `{"id",
   "grown_bytes"}` with the body, or `{"id", "error", "message", "position", "broken"}`. The body is Arrow IPC bytes, or the rows
   rendered as `form`. `broken`: the database may be unusable.
3. The process ends with stdin.

An untrusted child reads a copy of the catalog, checks each statement (`StatementFilter`) and is confined (`sandbox`).
A trusted child reads the live catalog and may spill to its private folder. Resource limits apply to both.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from streamgauge.analytics.query import pipe_messages, sandbox
from streamgauge.analytics.query.child_options import ChildOptions
from streamgauge.analytics.query.errors import (
    AnswerTooLarge,
    QueryError,
    QueryOutOfMemory,
    QueryRejected,
    of_kind,
    to_wire,
    too_much_memory,
)
from streamgauge.analytics.query.query_socket import MAX_RENDERED_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

    from streamgauge.analytics.query.reader import Reader

SPILL_BYTES = 4 * 2**30
"""Largest file that a trusted query writes for a sort or join that exceeds its memory."""
DIAGNOSTICS_BYTES = 2**20
"""Largest stderr of an untrusted child, the only file that it writes."""


def confine(options: ChildOptions, *, bind_port: int | None = None) -> None:
    """Give up rights that the child does not need. Only an untrusted child loses access to files."""
    location = options.location
    local = location.catalog is not None and not str(location.tables).startswith("s3://")
    if options.untrusted:
        readable = None if location.tables is None else [str(options.folder), location.tables]
        sandbox.confine(readable=readable, writable=(), network=not local, bind_port=bind_port)
    else:
        sandbox.confine(readable=None, writable=("/",), network=True)
    if options.parent and os.getppid() != options.parent:
        os._exit(0)  # the parent ended before the death signal was set


def open_reader(options: ChildOptions) -> Reader:
    """The database, not yet locked down. Raises StoreUnavailable."""
    from streamgauge.analytics.query.reader import (
        Reader,  # loads libraries that start threads: only after `confine`
    )

    return Reader(
        options.location,
        others=options.others,
        memory_limit_bytes=options.limits.database_bytes,
        catalog=options.catalog_copy,
        spill_folder=None if options.untrusted else options.folder,
        exact_types=options.exact_types,
        lock_down=False,
    )


def hidden_paths(options: ChildOptions) -> tuple[str, ...]:
    """Paths that errors of an untrusted child do not show to readers."""
    if not options.untrusted:
        return ()
    location = options.location
    return str(options.folder), location.tables or "", str(location.catalog or "")


def limit(options: ChildOptions, *, reserved_bytes: int = 0) -> None:
    """Apply the resource limits. `reserved_bytes`: address space for threads that start later."""
    sandbox.limit(
        memory_bytes=options.limits.memory_bytes + reserved_bytes,
        file_bytes=DIAGNOSTICS_BYTES if options.untrusted else SPILL_BYTES,
    )


def main() -> int:
    """Answer requests until stdin ends."""
    answers = os.dup(1)
    os.dup2(2, 1)  # a library that prints must not corrupt a message
    first = pipe_messages.receive(0)
    if first is None:
        return 0
    options = ChildOptions.from_json(first[0])
    confine(options)
    if options.untrusted or options.low_priority:
        sandbox.lower_priority()  # before the start, or hostile statements that end their children keep the CPUs busy
    try:
        worker = _Worker(options, answers)
    except QueryError as e:
        pipe_messages.send(answers, to_wire(e, *hidden_paths(options)))
        return 1
    pipe_messages.send(answers, {"ready": True})
    while (request := pipe_messages.receive(0)) is not None:
        worker.start(request[0])
    os._exit(0)  # nothing reads the answers of running queries


class _Worker:
    def __init__(self, options: ChildOptions, answers: int) -> None:
        self._limits = options.limits
        self._reader = open_reader(options)
        self._filter = None
        if options.untrusted:
            self._reader.lock_down()
            from streamgauge.analytics.query.statement_filter import StatementFilter

            self._filter = StatementFilter(self._reader.connection.cursor())
        self._hidden = hidden_paths(options)
        self._answers = answers
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(1 if options.untrusted else self._limits.concurrent)
        self._base_bytes = sandbox.address_space_bytes()
        limit(options)

    def start(self, request: dict[str, Any]) -> None:
        """Run the request on a thread. The parent sends at most `Limits.concurrent` at once."""
        sandbox.allow_cpu(self._limits.cpu_s)
        self._threads.submit(self._run, request)

    def _run(self, request: dict[str, Any]) -> None:
        header: dict[str, Any] = {"id": request["id"]}
        body: bytes | memoryview = b""
        try:
            body = self._answer(request)
        except (QueryOutOfMemory, MemoryError):
            error: QueryError | None = too_much_memory(self._limits.memory_bytes)
        except QueryError as e:
            error = e
        except BaseException as e:  # the parent waits for an answer
            error = of_kind("QueryRejected", f"query failed: {type(e).__name__}: {e}")
        else:
            error = None
        if error is not None:
            header |= to_wire(error, *self._hidden) | {"broken": _is_broken(error)}
        header["grown_bytes"] = sandbox.address_space_bytes() - self._base_bytes
        with self._lock:
            pipe_messages.send(self._answers, header, body)

    def _answer(self, request: dict[str, Any]) -> bytes | memoryview:
        from streamgauge.analytics.query.arrow_answer import encode  # loads libraries that start threads

        sql = str(request["sql"])
        if self._filter is not None:
            self._filter.check(sql)
        table = self._reader.arrow(
            sql,
            int(request["max_rows"]),
            float(request["timeout_s"]),
            truncate=bool(request.get("truncate")),
        )
        max_bytes = self._limits.max_answer_bytes
        if table.nbytes > max_bytes:
            raise QueryRejected(
                f"the answer is larger than {max_bytes // 2**20} MiB. Select fewer columns, aggregate or add a LIMIT."
            )
        return encode(table) if request.get("form") is None else _rendered(table, request["form"])


def _rendered(table: pa.Table, form: str) -> bytes:
    from streamgauge.analytics.query.arrow_answer import decode, encode
    from streamgauge.analytics.query.render import render  # loads polars
    from streamgauge.analytics.query.to_polars import to_polars

    if table.nbytes <= MAX_RENDERED_BYTES:
        same = decode(encode(table), untrusted=False)  # the types of an answer that another process renders
        rendered = render(to_polars(same), form)
        if len(rendered) <= MAX_RENDERED_BYTES:
            return rendered
    raise AnswerTooLarge(
        f"the answer is larger than {MAX_RENDERED_BYTES // 2**20} MiB. Select fewer columns, aggregate or add a LIMIT."
    )


def _is_broken(error: QueryError) -> bool:
    """After an internal error DuckDB accepts no further statement."""
    return isinstance(error, QueryOutOfMemory) or any(
        f"{kind} Error" in str(error) for kind in ("INTERNAL", "FATAL")
    )


if __name__ == "__main__":
    sys.exit(main())

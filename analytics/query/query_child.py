"""The child process that runs queries: `python -m analytics.query.query_child`, started by `analytics.query.query_pool`.

The first frame on stdin holds the options (`Options`). The child replies with `{"ready": true}` or an error and ends. Then
each frame is a request `{"id", "sql", "max_rows", "timeout_s"}`, and the answer is `{"id", "grown_bytes"}` with Arrow
IPC bytes as the body, or `{"id", "error", "message", "broken"}`; `broken`: the database may be unusable, so the parent
starts another child. At the end of stdin the process ends. Times are in seconds.

An untrusted child reads a copy of the catalog, checks each statement (`StatementFilter`) and is confined (`sandbox`).
A trusted child reads the live catalog and may spill to its private folder. Resource limits hold for both.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analytics.query import pipe_messages, sandbox
from analytics.query.errors import QueryError, QueryOutOfMemory, QueryRejected, of_kind, too_much_memory
from analytics.query.limits import Limits
from analytics.storage.location import StoreLocation

if TYPE_CHECKING:
    from analytics.query.reader import Reader

SPILL_BYTES = 4 * 2**30
"""Largest file that a trusted query writes for a sort or join that exceeds its memory."""
DIAGNOSTICS_BYTES = 2**20
"""Largest stderr of an untrusted child, the only file that it writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a child needs to start."""

    location: StoreLocation
    limits: Limits
    untrusted: bool
    folder: Path
    """Private folder of the parent: spill files, and the copy of the catalog."""
    catalog_copy: Path | None = None
    parent: int = 0
    """Process id; the child ends if the parent is already gone."""

    def to_json(self) -> dict[str, Any]:
        """For the first frame."""
        place = self.location
        return {
            "catalog": str(place.catalog) if place.catalog else None,
            "dsn": place.dsn,
            "tables": place.tables,
            "limits": asdict(self.limits),
            "untrusted": self.untrusted,
            "folder": str(self.folder),
            "catalog_copy": str(self.catalog_copy) if self.catalog_copy else None,
            "parent": self.parent,
        }

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Options:
        """The inverse of `to_json`."""
        catalog, copy = given["catalog"], given["catalog_copy"]
        return cls(
            location=StoreLocation(
                catalog=Path(catalog) if catalog else None, dsn=given["dsn"], tables=given["tables"]
            ),
            limits=Limits(**given["limits"]),
            untrusted=given["untrusted"],
            folder=Path(given["folder"]),
            catalog_copy=Path(copy) if copy else None,
            parent=given["parent"],
        )


def confine(options: Options, *, bind_port: int | None = None) -> None:
    """Take away what the child does not need. Only an untrusted child loses access to files."""
    place = options.location
    local = place.catalog is not None and not str(place.tables).startswith("s3://")
    if options.untrusted:
        readable = None if place.tables is None else [str(options.folder), place.tables]
        sandbox.confine(readable=readable, writable=(), network=not local, bind_port=bind_port)
    else:
        sandbox.confine(readable=None, writable=("/",), network=True)
    if options.parent and os.getppid() != options.parent:
        os._exit(0)  # it ended before the death signal was set


def open_reader(options: Options) -> Reader:
    """The database, not yet locked down. Raises StoreUnavailable."""
    from analytics.query.reader import Reader  # loads libraries that start threads: only after `confine`

    return Reader(
        options.location,
        memory_limit_bytes=options.limits.database_bytes,
        catalog=options.catalog_copy,
        spill_folder=None if options.untrusted else options.folder,
        lock_down=False,
    )


def limit(options: Options, *, reserved_bytes: int = 0) -> None:
    """Put the resource limits in force. `reserved_bytes`: address space for threads that start later."""
    sandbox.limit(
        memory_bytes=options.limits.memory_bytes + reserved_bytes,
        file_bytes=DIAGNOSTICS_BYTES if options.untrusted else SPILL_BYTES,
    )


def main() -> int:
    """Answer requests until stdin ends."""
    answers = os.dup(1)
    os.dup2(2, 1)  # a library that prints must not break a frame
    first = pipe_messages.receive(0)
    if first is None:
        return 0
    options = Options.from_json(first[0])
    confine(options)
    try:
        worker = _Worker(options, answers)
    except QueryError as e:
        pipe_messages.send(answers, {"error": type(e).__name__, "message": str(e)})
        return 1
    pipe_messages.send(answers, {"ready": True})
    while (request := pipe_messages.receive(0)) is not None:
        worker.start(request[0])
    os._exit(0)  # queries that still run have no reader


class _Worker:
    def __init__(self, options: Options, answers: int) -> None:
        self._limits = options.limits
        self._reader = open_reader(options)
        self._filter = None
        if options.untrusted:
            self._reader.lock_down()
            from analytics.query.statement_filter import StatementFilter

            self._filter = StatementFilter(self._reader.cursor())
        self._answers = answers
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(1 if options.untrusted else self._limits.concurrent)
        self._base_bytes = sandbox.address_space_bytes()
        limit(options)

    def start(self, request: dict[str, Any]) -> None:
        """Run the request on a thread. The parent sends no more than run at once."""
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
        except BaseException as e:  # whatever it is, the parent waits for an answer
            error = of_kind("QueryRejected", f"query failed: {type(e).__name__}: {e}")
        else:
            error = None
        if error is not None:
            header |= {"error": type(error).__name__, "message": str(error), "broken": _is_broken(error)}
        header["grown_bytes"] = sandbox.address_space_bytes() - self._base_bytes
        with self._lock:
            pipe_messages.send(self._answers, header, body)

    def _answer(self, request: dict[str, Any]) -> memoryview:
        import pyarrow as pa

        sql = str(request["sql"])
        if self._filter is not None:
            self._filter.check(sql)
        table = self._reader.arrow(sql, int(request["max_rows"]), float(request["timeout_s"]))
        most = self._limits.max_answer_bytes
        if table.nbytes > most:
            raise QueryRejected(
                f"the answer is larger than {most // 2**20} MiB. Select fewer columns, aggregate or add a LIMIT."
            )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return memoryview(sink.getvalue())


def _is_broken(error: QueryError) -> bool:
    """After an internal error DuckDB accepts no further statement."""
    return isinstance(error, QueryOutOfMemory) or any(
        f"{kind} Error" in str(error) for kind in ("INTERNAL", "FATAL")
    )


if __name__ == "__main__":
    sys.exit(main())

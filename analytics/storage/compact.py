"""Write the DuckDB file anew without its free blocks, when most of it is free.

DuckDB uses free blocks again but cuts them off only at the end of the file, where some small thing that stays may lie for ever.
So what is kept is copied into a file beside it, which then takes its name.

Rules
1. Whoever calls owns the folder (`analytics.storage.folder`), and nobody has the file open: it is done between two runs of the
store.
2. kill -9 or loss of power at any instant leaves one whole file under the name: the old one until the copy is complete,
   checked, on the disk and without a `.wal`, then the new one. A copy that was not finished is removed by the next start.
3. It is an improvement and never a condition: without the disk for it, the time or the word to go on, the file stays as it is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb

from analytics.serving.guard import one_line
from analytics.storage.rows import first_row
from analytics.storage.schema import open_file
from analytics.storage.store import add_totals

log = logging.getLogger(__name__)

LEAST_FREE = 0.5
"""Share of a file's blocks that are free before it is worth the copy."""
LEAST_BYTES = 64 * 2**20
"""Smaller files are left alone."""
LIMIT_S = 40.0
"""For one copy when analytics starts: `up` waits a minute for it to be ready."""
WHILE_RUNNING_BYTES = 256 * 2**20
"""Up to so much is copied in mid-run too: SQL is away for it, some seconds; the log waits."""
SPARE_BYTES = 64 * 2**20
"""Free disk that must be left beside the copy."""
TELL_EVERY_S = 5.0

_COPY = "compacted"
"""Name under which the copy is attached."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """How much of a file is in use."""

    total: int
    used: int
    block_bytes: int

    @property
    def used_bytes(self) -> int:
        return self.used * self.block_bytes

    def worth_it(self) -> bool:
        """Whether a copy would be much smaller."""
        return (
            self.total * self.block_bytes >= LEAST_BYTES and self.total - self.used >= LEAST_FREE * self.total
        )


def blocks_of(connection: duckdb.DuckDBPyConnection, name: str) -> Blocks:
    """Of the attached file `name`, as of its last checkpoint."""
    row = first_row(
        connection.execute(
            "SELECT total_blocks, used_blocks, block_size FROM pragma_database_size() WHERE database_name = ?",
            [name],
        )
    )
    return Blocks(*row) if row else Blocks(0, 0, 0)


def has_room(path: Path, blocks: Blocks) -> bool:
    """Whether the disk has room for the copy beside the file."""
    return shutil.disk_usage(path.parent).free >= blocks.used_bytes * 5 // 4 + SPARE_BYTES


def compact(
    path: Path,
    *,
    stop: threading.Event,
    limit_s: float | None = LIMIT_S,
    memory_limit_bytes: int | None = None,
    always: bool = False,
) -> bool:
    """Remove what a killed run left; if much of the file is free (or `always`), write it anew. Whether it was.

    Ends early when `stop` is set or the time is over. Raises OSError as `analytics.storage.schema.open_file` does.
    """
    copy = path.with_name(path.name + ".compacting")
    _remove(copy)
    if not path.exists() or (not always and path.stat().st_size < LEAST_BYTES):
        return False
    connection = open_file(path, memory_limit_bytes)
    try:
        connection.execute("CHECKPOINT")
        blocks = blocks_of(connection, path.stem)
        if not (always or blocks.worth_it()):
            return False
        if not has_room(path, blocks):
            log.warning("%s stays as large as it is: no room on the disk for a smaller copy", path)
            return False
        before, began_s = path.stat().st_size, time.monotonic()
        log.info("compacting %s: %d of %d blocks are free", path, blocks.total - blocks.used, blocks.total)
        with _ended_by(connection, stop, limit_s, copy):
            _copy(connection, path.stem, copy)
        connection.close()
        if not _replace(path, copy):
            return False
        log.info(
            "compacted %s from %.1f to %.1f MiB in %.1f s",
            path, before / 2**20, path.stat().st_size / 2**20, time.monotonic() - began_s,
        )  # fmt: skip
        return True
    except (duckdb.Error, OSError) as e:
        log.warning("%s stays as large as it is: %s", path, one_line(e))
        return False
    finally:
        connection.close()
        _remove(copy)


def _copy(connection: duckdb.DuckDBPyConnection, name: str, copy: Path) -> None:
    """All of it into a new file, with a note of it in the ledger. Raises duckdb.Error, also when the copy has not every row."""
    run = connection.execute
    quoted = str(copy).replace("'", "''")
    run(f"ATTACH '{quoted}' AS {_COPY}")
    run(f'COPY FROM DATABASE "{name}" TO {_COPY}')
    tables = run(
        "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = ? ORDER BY ALL", [name]
    ).fetchall()
    for schema, table in tables:
        there, copied = (
            first_row(run(f'SELECT count(*) FROM "{one}"."{schema}"."{table}"')) for one in (name, _COPY)
        )
        if there != copied:
            raise duckdb.DataError(f"the copy of {schema}.{table} has {copied} rows, not {there}")
    run(f"USE {_COPY}")
    add_totals(connection, {"compactions": 1})
    run(f'USE "{name}"')
    run(f"CHECKPOINT {_COPY}")
    run(f"DETACH {_COPY}")


def _replace(path: Path, copy: Path) -> bool:
    """Let the copy take the file's name, on the disk."""
    for one in (*_logs(path), *_logs(copy)):
        if one.exists():  # belongs to that file alone: the other must not meet it
            log.warning("%s stays as large as it is: %s is still needed", path, one.name)
            return False
    copy.chmod(path.stat().st_mode & 0o777)
    _to_disk(copy)
    copy.replace(path)
    _to_disk(path.parent)
    return True


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _logs(path: Path) -> list[Path]:
    """What DuckDB keeps beside a file until it has gone into it."""
    return [path.with_name(path.name + end) for end in (".wal", ".wal.checkpoint", ".wal.recovery")]


def _remove(copy: Path) -> None:
    for one in (*_logs(copy), copy):
        one.unlink(missing_ok=True)


@contextlib.contextmanager
def _ended_by(
    connection: duckdb.DuckDBPyConnection, stop: threading.Event, limit_s: float | None, copy: Path
) -> Iterator[None]:
    """While it lasts, `stop` or the time interrupts the connection; and how far the copy is is told now and then."""
    done = threading.Event()
    began_s = time.monotonic()

    def watch() -> None:
        told_s = began_s
        while not done.wait(0.1):
            now_s = time.monotonic()
            if stop.is_set() or (limit_s is not None and now_s - began_s > limit_s):
                connection.interrupt()  # again and again: between two statements it would be lost
            elif now_s - told_s >= TELL_EVERY_S and copy.exists():
                told_s = now_s
                log.info("compacting: %.1f MiB are written", copy.stat().st_size / 2**20)

    watcher = threading.Thread(target=watch, name="compact", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()

"""Keep the tables in one DuckDB file, and move rows and log positions together.

Rules
1. A commit is one transaction: rows, their roll-ups, positions, kept records, open streams, counters. It happened or it did
   not, also under kill -9: so a stream is stored and counted exactly once, whatever the log delivers again.
2. A position row names its owner and a version. A commit moves it only where both are still what this process last
   wrote; otherwise somebody else has taken over, nothing is committed, and `Fenced` is raised.
3. Nothing depends on an index or on the file being one: the statements would do on a lake.
4. A file made by an older Streamgauge is brought up to date when it is opened; one made by a newer is refused.

Internal tables (kept records, taps, counters) live in the schema `internal`, which SQL from outside cannot read.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import duckdb
import polars as pl

from analytics.measures.rollup import DEFAULT_STALL, rollups
from analytics.serving.guard import one_line
from analytics.storage.inlets import Inlets
from analytics.storage.packed import PACKED_EVENTS, Packer
from analytics.storage.rows import first_row
from analytics.storage.schema import open_file, prepare

log = logging.getLogger(__name__)

FILE = "streamgauge.duckdb"
PUBLIC_TABLES = (
    "streams", "events", "open_streams", "usage_reports", "server_stats", "spans", "log_positions", "losses", "dead_letters",
    "stream_minutes", "histogram_minutes", "stalls",
)  # fmt: skip

MEMORY_RETRIES = 6
"""A commit that finds no memory ends the readers' queries and tries again, for about 0.1 + 0.2 + … s ≈ 6 s."""


class StoreFailed(Exception):
    """The file cannot be written; str() is one line that says what to do. Nothing was half-committed."""


class Fenced(Exception):
    """Another consumer owns a position by now; this one must stop."""


class Position(Protocol):
    """How far one partition is consumed (`analytics.assembly.assemble`)."""

    @property
    def high(self) -> int: ...
    @property
    def low(self) -> int: ...
    @property
    def open_stream_ids(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """A position as the last commit left it."""

    high: int
    low: int
    open_stream_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tap:
    """The last that one run of one tap worker said of itself."""

    tap: str
    tap_worker: int
    incarnation: str
    started_wall_ns: int
    wall_ns: int
    stopping: bool
    counters: Mapping[str, int]


@dataclass(slots=True)
class Commit:
    """Everything that one transaction moves."""

    log_id: str
    positions: Mapping[str, Position] = field(default_factory=dict)
    """By partition."""
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """Rows to append, by public table; columns are matched by name."""
    open_streams: pl.DataFrame | None = None
    """All of `open_streams`; None leaves it alone."""
    keep: Sequence[tuple[str, str, bytes]] = ()
    """(partition, stream id, packed records) of long-open streams, in order."""
    forget: Sequence[str] = ()
    """Ids of finished streams whose kept records go."""
    taps: Sequence[Tap] = ()
    totals: Mapping[str, int] = field(default_factory=dict)
    """Increments of the ledger's counters."""


class Store:
    """The tables of one data folder. One owner thread; readers take `cursor()`s of their own."""

    def __init__(
        self, path: Path, *, memory_limit_bytes: int | None = None, stall: tuple[int, float] | None = None
    ) -> None:
        """Open or make the file. `stall` = (floor ns, factor), which the view `stalls` uses.

        Raises OSError with one line when another process has the file open, it is damaged, or made by a newer version.
        """
        self.path = path
        self._stall = stall or DEFAULT_STALL
        self.owner = str(uuid.uuid4())
        self.on_memory: Callable[[], object] = lambda: None
        self._versions: dict[tuple[str, str], int] = {}
        self._numbers: dict[str, int] = {}
        self._connection = open_file(path, memory_limit_bytes)
        self._inlets = Inlets(self._connection)
        self._packer = Packer()
        try:
            prepare(self._connection, stall)
        except duckdb.Error as e:
            self._connection.close()
            raise OSError(f"cannot prepare {path}: {one_line(e)} (is the disk full?)") from None
        except OSError:
            self._connection.close()
            raise
        row = first_row(
            self._connection.execute("SELECT coalesce(max(number), 0) FROM internal.open_stream_records")
        )
        self._kept = row[0] if row else 0

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own to the same tables, for another thread."""
        return self._connection.cursor()

    def claim(self, log_id: str, partition: str) -> StoredPosition | None:
        """Own a partition's position from now on: where to go on, None when it was never read.

        Whoever owned it before is fenced from the next commit on.
        """
        key = (log_id, partition)
        row = first_row(
            self._connection.execute(
                "UPDATE log_positions SET owner = ?, version = version + 1, updated_at = now() "
                "WHERE log_id = ? AND partition = ? RETURNING high, low, open_stream_ids, version",
                [self.owner, *key],
            )
        )
        self._versions[key] = row[3] if row else 0
        return StoredPosition(row[0], row[1], tuple(row[2])) if row else None

    def other_positions(self, log_id: str) -> list[tuple[str, str]]:
        """(log id, partition) of every position in another log with streams open."""
        return other_positions(self._connection, log_id)

    def disown(self, log_id: str, partition: str) -> None:
        """Forget a partition that another consumer reads now."""
        self._versions.pop((log_id, partition), None)

    def kept_records(self, log_id: str, partition: str) -> dict[str, list[bytes]]:
        """The records that commits kept for long-open streams, by stream, in order."""
        return kept_records(self._connection, log_id, partition)

    def taps(self) -> list[Tap]:
        """What is remembered of every tap."""
        return remembered_taps(self._connection)

    def totals(self) -> dict[str, int]:
        """The ledger's counters, over the life of the file."""
        return dict(self._connection.execute("SELECT name, value::BIGINT FROM internal.totals").fetchall())

    def commit(self, commit: Commit) -> None:
        """Do all of it, and the roll-ups of its rows, or nothing. Raises Fenced or StoreFailed."""
        tables = {**commit.tables, **rollups(commit.tables, self._stall)}
        if (events := tables.pop("events", None)) is not None:
            tables[PACKED_EVENTS] = self._packer.pack(events)
        for attempt in range(MEMORY_RETRIES + 1):
            try:
                self._commit(commit, tables)
                return
            except duckdb.OutOfMemoryException as e:
                self._roll_back()
                if attempt == MEMORY_RETRIES:
                    raise StoreFailed(f"not enough memory to commit: {one_line(e)}") from None
                log.warning("no memory to commit: readers' queries are ended, trying again")
                self.on_memory()
                time.sleep(0.1 * 2**attempt)
            except duckdb.TransactionException as e:
                self._roll_back()
                if attempt == MEMORY_RETRIES or "Could not" in str(e):
                    raise self._failed(e) from None
                time.sleep(0.02)
            except (duckdb.Error, OSError) as e:
                self._roll_back()
                raise self._failed(e) from None
            except BaseException:
                self._roll_back()
                raise

    def _failed(self, error: Exception) -> StoreFailed:
        return StoreFailed(
            f"cannot write {self.path}: {one_line(error)} (is the disk full? nothing was half-written; "
            "it goes on from its last commit when started again)"
        )

    def _commit(self, commit: Commit, tables: Mapping[str, pl.DataFrame]) -> None:
        run = self._connection.execute
        run("BEGIN TRANSACTION")
        versions = {
            (commit.log_id, partition): self._move(commit.log_id, partition, position)
            for partition, position in commit.positions.items()
        }
        for table, rows in tables.items():
            if not rows.is_empty():
                self._inlets.append(table, rows)
        if commit.open_streams is not None:
            run("DELETE FROM open_streams")
            if not commit.open_streams.is_empty():
                self._inlets.append("open_streams", commit.open_streams)
        kept = self._kept
        if commit.keep:
            rows = pl.DataFrame(
                {
                    "log_id": [commit.log_id] * len(commit.keep),
                    "partition": [k[0] for k in commit.keep],
                    "stream_id": [k[1] for k in commit.keep],
                    "number": range(kept + 1, kept + 1 + len(commit.keep)),
                    "payload": [k[2] for k in commit.keep],
                },
                schema_overrides={"number": pl.Int64},
            )
            kept += len(commit.keep)
            self._inlets.append("internal.open_stream_records", rows)
        if commit.forget:
            run(
                "DELETE FROM internal.open_stream_records WHERE stream_id IN (SELECT unnest(?::UUID[]))",
                [list(commit.forget)],
            )
        for tap in commit.taps:
            self._remember(tap)
        add_totals(self._connection, commit.totals)
        run("COMMIT")
        self._versions.update(versions)
        self._kept = kept

    def _move(self, log_id: str, partition: str, position: Position) -> int:
        version = self._versions.get((log_id, partition))
        if version is None:
            raise Fenced(f"partition {partition} is not claimed")
        values = [position.high, position.low, list(position.open_stream_ids)]
        if version == 0:
            row = first_row(
                self._connection.execute(
                    "SELECT count(*) FROM log_positions WHERE log_id = ? AND partition = ?",
                    [log_id, partition],
                )
            )
            if row != (0,):
                raise Fenced(f"another consumer has begun to read partition {partition}")
            self._connection.execute(
                "INSERT INTO log_positions (log_id, partition, high, low, open_stream_ids, owner, version, updated_at) "
                "VALUES (?, ?, ?, ?, ?, ?, 1, now())",
                [log_id, partition, *values, self.owner],
            )
            return 1
        row = first_row(
            self._connection.execute(
                "UPDATE log_positions SET high = ?, low = ?, open_stream_ids = ?, version = version + 1, updated_at = now() "
                "WHERE log_id = ? AND partition = ? AND owner = ? AND version = ?",
                [*values, log_id, partition, self.owner, version],
            )
        )
        if row != (1,):
            raise Fenced(f"another consumer has taken over partition {partition}")
        return version + 1

    def _remember(self, tap: Tap) -> None:
        key = [tap.tap, tap.tap_worker, tap.incarnation]
        self._connection.execute(
            "DELETE FROM internal.taps WHERE tap = ? AND tap_worker = ? AND incarnation = ?", key
        )
        self._connection.execute(
            "INSERT INTO internal.taps VALUES (?, ?, ?, make_timestamptz(?), make_timestamptz(?), ?, ?)",
            [
                *key,
                tap.started_wall_ns // 1000,
                tap.wall_ns // 1000,
                tap.stopping,
                json.dumps(dict(tap.counters)),
            ],
        )

    def _roll_back(self) -> None:
        with contextlib.suppress(duckdb.Error):
            self._connection.execute("ROLLBACK")
        self._inlets.forget()

    def close(self) -> None:
        """Checkpoint and close; what was committed is safe either way."""
        with contextlib.suppress(duckdb.Error):
            self._connection.execute("CHECKPOINT")
        self._connection.close()


# What a file and a lake are asked alike.


def other_positions(connection: duckdb.DuckDBPyConnection, log_id: str) -> list[tuple[str, str]]:
    """(log id, partition) of every position in another log with streams open."""
    return connection.execute(
        "SELECT log_id, partition FROM log_positions WHERE log_id <> ? AND len(open_stream_ids) > 0", [log_id]
    ).fetchall()


def kept_records(
    connection: duckdb.DuckDBPyConnection, log_id: str, partition: str
) -> dict[str, list[bytes]]:
    """The records that commits kept for streams that are still open, by stream, in order.

    A lake keeps those of finished streams until its upkeep takes them: the position says which are open.
    """
    kept: dict[str, list[bytes]] = {}
    for stream_id, payload in connection.execute(
        "SELECT stream_id::VARCHAR, payload FROM internal.open_stream_records "
        "WHERE log_id = $log_id AND partition = $partition AND stream_id::VARCHAR IN ("
        "  SELECT unnest(open_stream_ids) FROM log_positions WHERE log_id = $log_id AND partition = $partition) "
        "ORDER BY number",
        {"log_id": log_id, "partition": partition},
    ).fetchall():
        kept.setdefault(stream_id, []).append(payload)
    return kept


def remembered_taps(connection: duckdb.DuckDBPyConnection) -> list[Tap]:
    """What the tables, of a file or of a lake, remember of every tap."""
    rows = connection.execute(
        "SELECT tap, tap_worker, incarnation, epoch_ns(started_at), epoch_ns(last_alive_at), stopping, counters "
        "FROM internal.taps"
    ).fetchall()
    return [
        Tap(
            tap=row[0],
            tap_worker=row[1],
            incarnation=row[2],
            started_wall_ns=row[3],
            wall_ns=row[4],
            stopping=row[5],
            counters=json.loads(row[6]),
        )
        for row in rows
    ]


def add_totals(connection: duckdb.DuckDBPyConnection, increments: Mapping[str, int]) -> None:
    """Raise the ledger's counters, within the transaction that runs. Two threads never raise the same one."""
    rows = [(name, value) for name, value in increments.items() if value]
    if rows:
        connection.execute(
            "MERGE INTO internal.totals USING (VALUES "
            + ", ".join("(?, ?::HUGEINT)" for _ in rows)
            + ") AS more (name, value) ON totals.name = more.name "
            "WHEN MATCHED THEN UPDATE SET value = totals.value + more.value "
            "WHEN NOT MATCHED THEN INSERT VALUES (more.name, more.value)",
            [part for row in rows for part in row],
        )

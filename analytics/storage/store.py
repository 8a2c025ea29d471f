"""Commit rows and log positions together, into the one store (`analytics.storage.location`).

A commit, in this order:
1. Tables with more than `INLINED_ROWS` rows are written as Parquet files, which no snapshot names yet.
2. One transaction of the catalog: check and move the positions, add the files and the smaller tables' rows to a new snapshot,
   update counters, taps and kept records. It happened or it did not, also under kill -9. So each stream is stored and counted
   exactly once, whatever the log delivers again. A file whose transaction did not happen is an orphan, which upkeep deletes.

A position row names its owner and a version. A commit moves it only where both are as this process last wrote them. Otherwise
another process has claimed the partition: nothing is committed, and `PartitionLost` is raised.

Positions, taps and counters are tables of the store whose rows are inlined and updated in place: they have no history.
Tables whose names begin with `streamgauge_` are internal to the catalog and no part of the store.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import duckdb
import polars as pl

from analytics.assembly.partition import Position
from analytics.measures.rollup import DEFAULT_STALL, rollups
from analytics.schema.sql_quoting import literal
from analytics.schema.tables import LOG_POSITIONS, TAPS, frame
from analytics.storage.appender import Appender
from analytics.storage.catalog import NAME, Catalog, create_file, integers, is_conflict, without_nul
from analytics.storage.create_schema import prepare
from analytics.storage.database import attach, data_path_of, first_row, message, new_database
from analytics.storage.ducklake_format import (
    File,
    SnapshotBuilder,
    TableLayout,
    read_layouts,
    remove_file,
    write_file,
)
from analytics.storage.location import ALIAS, StoreLocation
from analytics.storage.open_streams_file import OpenStreamsFile

log = logging.getLogger(__name__)

Result = TypeVar("Result")

INLINED_ROWS = 250
"""Up to as many rows of one table and commit go into the catalog itself: less work than a Parquet file. Upkeep writes them to
files (`analytics.storage.upkeep`)."""
TRIES = 40
PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
"""Between tries of a transaction that another one overtook, doubled each time: about 30 s in all."""
MEMORY_BYTES = 2**30
"""DuckDB's memory limit unless the settings name another: commits and upkeep need it, queries of readers do not run here."""


_NUMBERS = 1 << 20
"""Kept records of one commit and partition, at most."""


class StoreFailed(Exception):
    """The store cannot be written; str() is one line that says what to do. Nothing was half-committed."""


class PartitionLost(Exception):
    """Another consumer owns a position by now; this one must stop."""


@dataclass(frozen=True, slots=True)
class Tap:
    """The last report of one run of one tap worker."""

    tap: str
    tap_worker: int
    incarnation: str
    started_wall_ns: int
    wall_ns: int
    stopping: bool
    counters: Mapping[str, int]


@dataclass(slots=True)
class Commit:
    """Everything that one transaction changes."""

    log_id: str
    positions: Mapping[str, Position] = field(default_factory=dict)
    """By partition."""
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """Rows to append, by public table; columns are matched by name."""
    kept_records: Sequence[tuple[str, str, bytes]] = ()
    """(partition, stream id, packed records) of long-open streams, in order."""
    finished_stream_ids: Sequence[str] = ()
    """Ids of finished streams whose kept records are deleted."""
    taps: Sequence[Tap] = ()
    totals: Mapping[str, int] = field(default_factory=dict)
    """Increments of the counters."""


class Store:
    """The tables, as one analytics process writes them. One owner thread; others take `cursor()`s of their own."""

    def __init__(
        self,
        location: StoreLocation,
        *,
        memory_limit_bytes: int | None = None,
        stall: tuple[int, float] | None = None,
        instance: str = "analytics",
        rebuilding: bool = False,
    ) -> None:
        """Open the store, or create it. `stall` = (floor ns, factor) of the roll-ups. `rebuilding`: its files may exist.

        `instance` names this process among those that share the store, the same after a restart. Raises OSError with one line.
        """
        self.location = location
        self.owner = str(uuid.uuid4())
        self.conflicts = 0
        """Transactions that were repeated because another process had committed."""
        self.stall = stall or DEFAULT_STALL
        self._versions: dict[tuple[str, str], int] = {}
        self._connection = new_database(memory_limit_bytes or MEMORY_BYTES)
        self._catalog: Catalog | None = None
        try:
            if location.catalog is not None and not location.catalog.exists():
                if not rebuilding and any(Path(str(location.tables)).glob("main/*/*.parquet")):
                    raise OSError(
                        f"the catalog {location.catalog} is missing, but {location.tables} has Parquet files. Restore it with "
                        "`streamgauge rebuild`, or move the folder away to start with empty tables"
                    )
                create_file(location.catalog)
            self._catalog = Catalog(self._connection, location)
            with self._catalog.creation():
                attach(self._connection, location, read_only=False)
                self.store_id = prepare(self._connection, self._catalog, location)
            self.layouts: Mapping[str, TableLayout] = read_layouts(self._catalog)
            self._positions = self.layouts["log_positions"].inlined
            self._schema_version = SnapshotBuilder(self._catalog).schema_version
            self.data_path = data_path_of(self._connection)
        except BaseException as e:
            if self._catalog is not None:
                self._catalog.close()
            self._connection.close()
            if isinstance(e, duckdb.Error):
                raise OSError(
                    f"cannot prepare the store {location.label}: {message(e, location)} (is the disk full?)"
                ) from None
            raise
        self._held = self.catalog.cursor()
        self._held.hold_open()
        self._appender = Appender(self._connection)
        self._open_streams = OpenStreamsFile(self._connection, self.data_path, instance)

    @property
    def catalog(self) -> Catalog:
        """The catalog's connection, of the owner thread."""
        assert self._catalog is not None
        return self._catalog

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own to the same tables, for another thread."""
        cursor = self._connection.cursor()
        cursor.execute(f"USE {ALIAS}")
        return cursor

    # -- positions -----------------------------------------------------------------------------------------------------

    def acquire_partition(self, log_id: str, partition: str) -> Position | None:
        """Own a partition's position: where to go on, None when it was never read.

        The former owner is fenced from its next commit on.
        """

        def claim() -> tuple[int, Position | None]:
            where = self._where(log_id, partition)
            with self.catalog.transaction():
                rows = self.catalog.query(
                    f"SELECT version, high, low, open_stream_ids FROM {self._positions} WHERE {where}"
                )
                if not rows:
                    self._insert_position(log_id, partition)
                    return 1, None
                self.catalog.change(
                    f"UPDATE {self._positions} SET owner = {self.catalog.text(self.owner)}, version = version + 1 WHERE {where}"
                )
            version, high, low = integers(rows[0][:3])
            return version + 1, Position(high, low, _ids(str(rows[0][3])))

        self._versions[log_id, partition], stored = self._repeated(claim)
        # A row that was only claimed was never read from.
        return None if stored == Position(0, 0, ()) else stored

    def _where(self, log_id: str, partition: str) -> str:
        return f"log_id = {self.catalog.text(log_id)} AND partition = {self.catalog.text(partition)}"

    def _insert_position(self, log_id: str, partition: str) -> None:
        row: dict[str, list[object]] = {
            "log_id": [log_id], "partition": [partition], "high": [0], "low": [0], "open_stream_ids": [[]],
            "owner": [self.owner], "version": [1], "updated_at": [time.time_ns() // 1000],
        }  # fmt: skip
        appends = SnapshotBuilder(self.catalog)
        appends.add_rows(self.layouts["log_positions"], frame(LOG_POSITIONS, row))
        appends.finish()

    def release_partition(self, log_id: str, partition: str) -> None:
        """Forget a partition that another consumer reads now."""
        self._versions.pop((log_id, partition), None)

    def other_positions(self, log_id: str) -> list[tuple[str, str]]:
        """(log id, partition) of every position in another log with streams open."""
        return self._connection.execute(
            "SELECT log_id, partition FROM log_positions WHERE log_id <> ? AND len(open_stream_ids) > 0",
            [log_id],
        ).fetchall()

    def kept_records(self, log_id: str, partition: str) -> dict[str, list[bytes]]:
        """The records that commits kept for long-open streams, by stream, in order."""
        kept: dict[str, list[bytes]] = {}
        for stream_id, payload in self._connection.execute(
            f"SELECT stream_id, payload FROM {NAME}.streamgauge_kept_records WHERE log_id = ? AND partition = ? "
            "ORDER BY number",
            [log_id, partition],
        ).fetchall():
            kept.setdefault(stream_id, []).append(payload)
        return kept

    def totals(self) -> dict[str, int]:
        """The counters, over the life of the store, of all consumers."""
        return dict(self._connection.execute("SELECT name, value FROM counters").fetchall())

    # -- commits -------------------------------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        """Do all of it, and the roll-ups of its rows, or nothing. Raises PartitionLost or StoreFailed."""
        tables = {**commit.tables, **rollups(commit.tables, self.stall)}
        files: list[File] = []
        try:
            for name, rows in tables.items():
                if rows.height > INLINED_ROWS:
                    files.append(write_file(self._appender, self.data_path, self.layouts[name], rows))
            small = {name: rows for name, rows in tables.items() if 0 < rows.height <= INLINED_ROWS}
            self._versions |= self._repeated(lambda: self._commit(commit, files, small))
        except BaseException as e:
            for file in files:
                remove_file(self.data_path, file)
            if isinstance(e, duckdb.Error | OSError):
                raise self._failed(e) from None
            raise

    def _commit(
        self, commit: Commit, files: Sequence[File], small: Mapping[str, pl.DataFrame]
    ) -> dict[tuple[str, str], int]:
        with self.catalog.transaction():
            moved = self._move(commit.log_id, commit.positions)
            appends = SnapshotBuilder(self.catalog)
            if appends.schema_version != self._schema_version:
                raise StoreFailed("another version of Streamgauge changed the store's schema. Start again")
            for file in files:
                appends.add_file(file)
            for name, rows in small.items():
                appends.add_rows(self.layouts[name], rows)
            self._report_taps(commit.taps, appends)
            self._add_totals(commit.totals, appends)
            appends.finish()
            if commit.kept_records:
                self._keep(commit, moved)
            if commit.finished_stream_ids:
                listed = ", ".join(literal(stream_id) for stream_id in commit.finished_stream_ids)
                self.catalog.change(f"DELETE FROM streamgauge_kept_records WHERE stream_id IN ({listed})")
        return moved

    def _move(self, log_id: str, positions: Mapping[str, Position]) -> dict[tuple[str, str], int]:
        """Check the owner and version of positions, and move them. Returns their new versions."""
        if not positions:
            return {}
        for partition in positions:
            if (log_id, partition) not in self._versions:
                raise PartitionLost(f"partition {partition} is not claimed")
        catalog = self.catalog
        found = {
            partition: (int(str(version)), owner)
            for partition, version, owner in catalog.query(
                f"SELECT {catalog.as_text('partition')}, version, {catalog.as_text('owner')} FROM {self._positions} "
                f"WHERE log_id = {catalog.text(log_id)}"
            )
        }
        now = time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime())
        moved = {}
        for partition, position in positions.items():
            version = self._versions[log_id, partition]
            if found.get(partition) != (version, self.owner):
                raise PartitionLost(f"another consumer has taken over partition {partition}")
            catalog.change(
                f"UPDATE {self._positions} SET high = {position.high}, low = {position.low}, "
                f"open_stream_ids = '[{', '.join(position.open_stream_ids)}]', version = {version + 1}, updated_at = '{now}' "
                f"WHERE {self._where(log_id, partition)}"
            )
            moved[log_id, partition] = version + 1
        return moved

    def _keep(self, commit: Commit, moved: Mapping[tuple[str, str], int]) -> None:
        partitions, stream_ids, payloads = zip(*commit.kept_records, strict=True)
        numbers = [moved[commit.log_id, p] * _NUMBERS + n for n, p in enumerate(partitions)]
        self.catalog.insert(
            "streamgauge_kept_records",
            pl.DataFrame(
                {
                    "log_id": [commit.log_id] * len(numbers), "partition": partitions, "stream_id": stream_ids,
                    "number": numbers, "payload": payloads,
                }
            ),
        )  # fmt: skip

    def _report_taps(self, taps: Sequence[Tap], appends: SnapshotBuilder) -> None:
        if not taps:
            return
        layout, text, new = self.layouts["taps"], self.catalog.text, []
        incarnations = ", ".join(text(tap.incarnation) for tap in taps)
        known = {
            (tap, int(str(worker)), incarnation)
            for tap, worker, incarnation in self.catalog.query(
                f"SELECT {self.catalog.as_text('tap')}, tap_worker, {self.catalog.as_text('incarnation')} "
                f"FROM {layout.inlined} WHERE incarnation IN ({incarnations})"
            )
        }
        for tap in taps:
            started_at, alive_at = (_instant(ns) for ns in (tap.started_wall_ns, tap.wall_ns))
            counters = json.dumps(dict(tap.counters))
            if (without_nul(tap.tap), tap.tap_worker, without_nul(tap.incarnation)) not in known:
                new.append(
                    (tap.tap, tap.tap_worker, tap.incarnation, started_at, alive_at, tap.stopping, counters)
                )
                continue
            self.catalog.change(
                f"UPDATE {layout.inlined} SET last_alive_at = '{alive_at.isoformat(' ')}', "
                f"stopped = {self.catalog.flag(tap.stopping)}, counters = {text(counters)} "
                f"WHERE tap = {text(tap.tap)} AND tap_worker = {tap.tap_worker} AND incarnation = {text(tap.incarnation)}"
            )
        appends.add_rows(layout, pl.DataFrame(new, schema=TAPS, orient="row"))

    def _add_totals(self, totals: Mapping[str, int], appends: SnapshotBuilder) -> None:
        more = {name: value for name, value in totals.items() if value}
        if not more:
            return
        layout = self.layouts["internal.counter_parts"]
        known = {
            str(name): int(str(row_id))
            for name, row_id in self.catalog.query(
                f"SELECT {self.catalog.as_text('name')}, min(row_id) FROM {layout.inlined} GROUP BY name"
            )
        }
        cases = " ".join(f"WHEN {known[name]} THEN {more[name]}" for name in more if name in known)
        if cases:
            rows = ", ".join(str(known[name]) for name in more if name in known)
            self.catalog.change(
                f"UPDATE {layout.inlined} SET value = value + CASE row_id {cases} END WHERE row_id IN ({rows})"
            )
        new = [name for name in more if name not in known]
        appends.add_rows(layout, pl.DataFrame({"name": new, "value": [more[name] for name in new]}))

    def write_open_streams(self, rows: pl.DataFrame) -> None:
        """Replace the file of streams in flight. Raises OSError."""
        try:
            self._open_streams.write(rows)
        except duckdb.Error as e:
            raise OSError(message(e, self.location)) from None

    # -- transactions ----------------------------------------------------------------------------------------------------

    def _repeated(self, do: Callable[[], Result]) -> Result:
        """Do it; when another transaction overtook it, again. Raises StoreFailed."""
        pause_s = PAUSE_S
        for left in reversed(range(TRIES)):
            try:
                return do()
            except duckdb.Error as e:
                if not left or not is_conflict(e):
                    raise self._failed(e) from None
                self.conflicts += 1
                log.debug("repeated: %s", message(e, self.location))
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  so that two do not meet again
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise AssertionError

    def _failed(self, error: BaseException) -> StoreFailed:
        return StoreFailed(
            f"cannot write the store {self.location.label}: {message(error, self.location)} (is the disk full? Nothing was "
            "half-written; the next start continues from the last commit)"
        )

    def size_bytes(self) -> int:
        """Bytes of the Parquet files that the newest snapshot names, and of a SQLite catalog."""
        row = first_row(
            self._connection.execute(
                f"SELECT coalesce(sum(file_size_bytes), 0)::BIGINT FROM {NAME}.ducklake_data_file WHERE end_snapshot IS NULL"
            )
        )
        size = int(row[0]) if row else 0
        return size + self.location.catalog.stat().st_size if self.location.catalog is not None else size

    def close(self) -> None:
        """Close it; what was committed is safe either way."""
        self._open_streams.close()
        self._held.close()
        self.catalog.close()
        self._connection.close()


def _ids(text: str) -> tuple[str, ...]:
    """The ids of a list as the catalog keeps it."""
    inner = text.strip("[]")
    return tuple(part.strip() for part in inner.split(",")) if inner else ()


def _instant(wall_ns: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(wall_ns // 1000 / 1e6, dt.UTC)

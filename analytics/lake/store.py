"""Keep the tables in a lake that several consumers share, and move rows and log positions together.

The rules of `analytics.storage.store` hold here. What is other, because others commit at the same time:
1. DuckLake finds conflicts by table: appends never conflict with appends, but a deletion conflicts with every other change
   of its table. So a commit *only appends*: positions, open streams, taps and counters are new rows with a higher version, and
   views show the newest (`schema.sql` beside). Consumers never wait for one another's rows.
2. A claim *deletes* the partition's former position rows and appends its own. That conflicts with every commit under way: each
   is done again on the newest snapshot, finds its position moved by nobody and goes through; that of the former owner finds
   another owner and is `Fenced`. Claims themselves are put in a row by a counter that each of them updates.
3. A conflict is no failure: the whole transaction is done again, `TRIES` times, with growing pauses. One that another merely
   overtook is done again by DuckLake, on the newer snapshot, with the files that are written: we see that, not how often.
4. What is superseded is taken away by `analytics.lake.upkeep`; `open_stream_records` of finished streams too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from typing import TypeVar

import duckdb
import polars as pl

from analytics.lake.place import INLINED_ROWS, NAME, Lake, attach, new_database, said
from analytics.lake.turns import Turns
from analytics.measures.rollup import DEFAULT_STALL, rollups
from analytics.storage.rows import first_row
from analytics.storage.schema import SCHEMA_VERSION, add_missing_columns, without_tables
from analytics.storage.store import (
    Commit,
    Fenced,
    Position,
    StoredPosition,
    StoreFailed,
    Tap,
    kept_records,
    other_positions,
    remembered_taps,
)

log = logging.getLogger(__name__)

Result = TypeVar("Result")

TRIES = 40
PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
"""Between tries, doubled each time: about 30 s in all."""
MEMORY_BYTES = 2 * 2**30
"""Of DuckDB, unless told otherwise: a host may run several consumers, and none of them answers queries."""
MAKING_S = 60.0
"""How long to wait for another process that makes the lake."""
OPTIONS = (
    ("parquet_compression", "zstd", ""),
    ("data_inlining_row_limit", "0", ", schema => 'internal', table_name => 'open_stream_records'"),
)
IN_LAKE_VIEWS = ("log_positions", "open_streams")
"""Tables of a file that are views of a lake."""
_NUMBERS = 1 << 20
"""Kept records of one commit and partition, at most."""


def is_conflict(error: duckdb.Error) -> bool:
    """Whether another transaction was in the way: it can be done again."""
    text = str(error).lower()
    return "conflict" in text or "maximum retry count" in text or "could not serialize" in text


class LakeStore:
    """The tables of one lake, as one consumer writes them. One owner thread; others take `cursor()`s of their own."""

    def __init__(
        self, lake: Lake, *, memory_limit_bytes: int | None = None, stall: tuple[int, float] | None = None
    ) -> None:
        """Attach the lake, make what it lacks. `stall` as in `Store`. Raises OSError with one line."""
        self.lake = lake
        self._stall = stall or DEFAULT_STALL
        self.owner = str(uuid.uuid4())
        self.on_memory: Callable[[], object] = lambda: None
        self.conflicts = 0
        """Transactions that had to be done again."""
        self.overtaken = 0
        """Transactions that DuckLake itself did again."""
        self._versions: dict[tuple[str, str], int] = {}
        self._shown = 0
        self._connection = new_database(memory_limit_bytes or MEMORY_BYTES)
        try:
            self._turns = Turns(self._connection, lake)
            with self._turns.exclusive(MAKING_S):
                attach(self._connection, lake, read_only=False)
                self._again(lambda: prepare(self._connection, stall))
        except BaseException as e:
            self._connection.close()
            if isinstance(e, StoreFailed):
                raise OSError(str(e)) from None
            raise

    @property
    def lake_id(self) -> str:
        """The lake's own id: consumers of one lake are one group."""
        row = first_row(self._connection.execute("SELECT value FROM internal.meta WHERE key = 'lake_id'"))
        assert row is not None, "made by `prepare`"
        return str(row[0])

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own to the same tables, for another thread."""
        cursor = self._connection.cursor()
        cursor.execute(f"USE {NAME}")
        return cursor

    # -- positions -----------------------------------------------------------------------------------------------------

    def claim(self, log_id: str, partition: str) -> StoredPosition | None:
        """As `Store.claim`: whoever owned it before is fenced from the next commit on."""
        with self._turns.exclusive():
            return self._again(lambda: self._claim(log_id, partition))

    def _claim(self, log_id: str, partition: str) -> StoredPosition | None:
        run = self._connection.execute
        key = (log_id, partition)
        with self._transaction():
            run("UPDATE internal.claims SET number = number + 1")
            row = first_row(
                run(
                    "SELECT high, low, open_stream_ids, version FROM log_positions WHERE log_id = ? AND partition = ?",
                    key,
                )
            )
            run("DELETE FROM internal.positions WHERE log_id = ? AND partition = ?", key)
            high, low, ids, version = row or (0, 0, [], 0)
            self._add_position(
                log_id, partition, StoredPosition(high, low, tuple(ids)), version + 1, self._shown
            )
        self._versions[key] = version + 1
        return StoredPosition(high, low, tuple(ids)) if row else None

    def disown(self, log_id: str, partition: str) -> None:
        """Forget a partition that another consumer reads now."""
        self._versions.pop((log_id, partition), None)

    def other_positions(self, log_id: str) -> list[tuple[str, str]]:
        """(log id, partition) of every position in another log with streams open."""
        return other_positions(self._connection, log_id)

    def kept_records(self, log_id: str, partition: str) -> dict[str, list[bytes]]:
        """The records that commits kept for long-open streams, by stream, in order."""
        return kept_records(self._connection, log_id, partition)

    def taps(self) -> list[Tap]:
        """What is remembered of every tap."""
        return remembered_taps(self._connection)

    def totals(self) -> dict[str, int]:
        """The ledger's counters, over the life of the lake, of all consumers."""
        return dict(self._connection.execute("SELECT name, value FROM internal.totals").fetchall())

    # -- commits -------------------------------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        """Do all of it, or nothing. Raises Fenced or StoreFailed."""
        shown = self._shown + (commit.open_streams is not None and bool(commit.positions))
        tables = {**commit.tables, **rollups(commit.tables, self._stall)}
        with self._turns.shared():
            self._versions |= self._again(lambda: self._commit(commit, tables, shown))
        self._shown = shown

    def _commit(
        self, commit: Commit, tables: Mapping[str, pl.DataFrame], shown: int
    ) -> dict[tuple[str, str], int]:
        moved = {}
        with self._transaction():
            self._check_owner(commit.log_id, commit.positions)
            for partition, position in commit.positions.items():
                version = self._versions[commit.log_id, partition] + 1
                moved[commit.log_id, partition] = version
                self._add_position(commit.log_id, partition, position, version, shown)
            for table, rows in tables.items():
                self._append(table, rows)
            if commit.open_streams is not None and shown > self._shown:
                self._append(
                    "internal.shown_streams",
                    commit.open_streams.with_columns(
                        owner=pl.lit(self.owner), number=pl.lit(shown, pl.Int64)
                    ),
                )
            if commit.keep:
                self._append("internal.open_stream_records", _kept_rows(commit, moved))
            self._append("internal.tap_news", _tap_rows(commit.taps))
            totals = {name: value for name, value in commit.totals.items() if value}
            self._append("internal.counted", pl.DataFrame({"name": [*totals], "value": [*totals.values()]}))
        return moved

    def _check_owner(self, log_id: str, positions: Mapping[str, Position]) -> None:
        """Compare, before the set: each position must be as this process last wrote it."""
        for partition in positions:
            if (log_id, partition) not in self._versions:
                raise Fenced(f"partition {partition} is not claimed")
        found = self._connection.execute(
            "SELECT partition, max(version), arg_max(owner, version) FROM internal.positions "
            "WHERE log_id = ? AND partition IN (SELECT unnest(?::VARCHAR[])) GROUP BY partition",
            [log_id, list(positions)],
        ).fetchall()
        ours = {partition: (self._versions[log_id, partition], self.owner) for partition in positions}
        if {partition: (version, owner) for partition, version, owner in found} != ours:
            taken = sorted(ours.items() ^ {(p, (v, o)) for p, v, o in found})
            raise Fenced(f"another consumer has taken over partition {taken[0][0]}")

    def _add_position(
        self, log_id: str, partition: str, position: Position, version: int, shown: int
    ) -> None:
        self._connection.execute(
            "INSERT INTO internal.positions BY NAME SELECT ? AS log_id, ? AS partition, ? AS version, ? AS owner, "
            "? AS high, ? AS low, ?::VARCHAR[] AS open_stream_ids, ? AS shown, now() AS updated_at",
            [
                log_id, partition, version, self.owner, position.high, position.low, list(position.open_stream_ids),
                shown,
            ],
        )  # fmt: skip

    def _append(self, table: str, rows: pl.DataFrame) -> None:
        if rows.is_empty():
            return
        if rows.height <= INLINED_ROWS:
            rows = _without_nul(rows)
        self._connection.register("appended", rows)
        try:
            self._connection.execute(f"INSERT INTO {table} BY NAME FROM appended")
        finally:
            self._connection.unregister("appended")

    # -- transactions ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with _transaction(self._connection):
            began = self._snapshot("current")
            yield
        self.overtaken += self._snapshot("last_committed") > began + 1

    def _snapshot(self, which: str) -> int:
        row = first_row(self._connection.execute(f"SELECT id FROM ducklake_{which}_snapshot('{NAME}')"))
        return int(row[0]) if row and row[0] is not None else 0

    def _again(self, do: Callable[[], Result]) -> Result:
        """Do it; after a conflict again, on the newest snapshot. Raises StoreFailed."""
        pause_s = PAUSE_S
        for left in reversed(range(TRIES)):
            try:
                return do()
            except duckdb.Error as e:
                if not left or not is_conflict(e):
                    raise StoreFailed(
                        f"cannot write the lake: {said(e, self.lake)} (nothing was half-written; "
                        "it goes on from its last commit when started again)"
                    ) from None
                self.conflicts += 1
                log.debug("done again: %s", said(e, self.lake))
            except OSError as e:
                raise StoreFailed(f"cannot write the lake: {e}") from None
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  so that two do not meet again
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise AssertionError

    def close(self) -> None:
        """Let go; what was committed is safe either way."""
        self._turns.close()
        self._connection.close()


def _kept_rows(commit: Commit, moved: Mapping[tuple[str, str], int]) -> pl.DataFrame:
    """Rows of `open_stream_records`, numbered so that later commits of a partition have larger numbers."""
    return pl.DataFrame(
        {
            "log_id": [commit.log_id] * len(commit.keep),
            "partition": [partition for partition, _, _ in commit.keep],
            "stream_id": [stream_id for _, stream_id, _ in commit.keep],
            "number": [
                moved[commit.log_id, partition] * _NUMBERS + n
                for n, (partition, _, _) in enumerate(commit.keep)
            ],
            "payload": [payload for _, _, payload in commit.keep],
        }
    )


def _tap_rows(taps: Sequence[Tap]) -> pl.DataFrame:
    instant = pl.Datetime("us", "UTC")
    return pl.DataFrame(
        {
            "tap": [t.tap for t in taps],
            "tap_worker": [t.tap_worker for t in taps],
            "incarnation": [t.incarnation for t in taps],
            "started_at": [t.started_wall_ns // 1000 for t in taps],
            "last_alive_at": [t.wall_ns // 1000 for t in taps],
            "stopping": [t.stopping for t in taps],
            "counters": [json.dumps(dict(t.counters)) for t in taps],
        }
    ).with_columns(pl.col("started_at", "last_alive_at").cast(instant))


def _without_nul(rows: pl.DataFrame) -> pl.DataFrame:
    """PostgreSQL's text holds no NUL; a server's text may: U+FFFD stands for it."""
    texts = [name for name, kind in rows.schema.items() if kind == pl.String]
    return rows.with_columns(pl.col(texts).str.replace_all("\x00", "\ufffd", literal=True)) if texts else rows


def prepare(connection: duckdb.DuckDBPyConnection, stall: tuple[int, float] | None) -> None:
    """Make what the lake lacks; a lake that is as it should be is left alone. Steps that can be done again.

    Raises OSError with one line for a lake of a newer version, duckdb.Error when it cannot be written.
    """
    meta = _meta(connection)
    version = int(meta.get("schema_version", 0))
    if version > SCHEMA_VERSION:
        raise OSError(
            f"the lake was made by a newer Streamgauge (schema {version}, this one knows {SCHEMA_VERSION}): upgrade it"
        )
    tables, views, comments = _statements()
    digest = hashlib.sha256(f"{tables}{views}{comments}".encode()).hexdigest()
    wanted = {"schema_version": str(SCHEMA_VERSION), "schema_sha256": digest}
    wanted["lake_id"] = meta.get("lake_id") or str(uuid.uuid4())
    if stall is not None:
        wanted |= {"stall_floor_ns": str(stall[0]), "stall_factor": str(stall[1])}
    if meta.get("schema_sha256") != digest:
        with _transaction(connection):
            connection.execute(tables)
            add_missing_columns(connection, tables)
            connection.execute(views)
        # Not in one transaction: options and comments of tables that it made crash DuckLake 1.0.
        for option, value, of in OPTIONS:
            connection.execute(f"CALL ducklake_set_option('{NAME}', '{option}', '{value}'{of})")
        with _transaction(connection):
            connection.execute(comments)
    changed = {key: value for key, value in wanted.items() if meta.get(key) != value}
    if not changed:
        return
    with _transaction(connection):
        if not meta:
            connection.execute("INSERT INTO internal.claims VALUES (0)")
        for key, value in changed.items():
            connection.execute("DELETE FROM internal.meta WHERE key = ?", [key])
            connection.execute("INSERT INTO internal.meta VALUES (?, ?)", [key, value])


def _meta(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    there = first_row(
        connection.execute(
            "SELECT 1 FROM duckdb_tables() WHERE database_name = ? AND schema_name = 'internal' AND table_name = 'meta'",
            [NAME],
        )
    )
    return dict(connection.execute("SELECT key, value FROM internal.meta").fetchall()) if there else {}


def _statements() -> tuple[str, str, str]:
    """Tables, views and comments, as a lake takes them."""
    here = resources.files("analytics")
    own = "|".join(IN_LAKE_VIEWS)
    public, beside, views, comments = (
        (here / name).read_text()
        for name in ("storage/schema.sql", "lake/schema.sql", "storage/views.sql", "storage/comments.sql")
    )
    public = without_tables(public, IN_LAKE_VIEWS)
    comments = re.sub(rf"COMMENT ON (TABLE|COLUMN) ({own})\b.*?;\n", "", comments, flags=re.DOTALL)
    views, told = _apart(views, "COMMENT ON ")
    beside, own_views = _apart(beside, "CREATE OR REPLACE VIEW ")
    return public + beside, own_views + views, comments + told


def _apart(script: str, begins: str) -> tuple[str, str]:
    """A script without the statements that begin so, and these."""
    apart = re.findall(rf"^{begins}.*?;\n", script, flags=re.DOTALL | re.MULTILINE)
    return re.sub(rf"^{begins}.*?;\n", "", script, flags=re.DOTALL | re.MULTILINE), "".join(apart)


@contextlib.contextmanager
def _transaction(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    connection.execute("BEGIN TRANSACTION")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(duckdb.Error):
            connection.execute("ROLLBACK")
        raise

"""Keep the store small and quick: merge files, delete old rows, back up the catalog. One process at a time.

Contract
1. Every analytics process runs this thread; each round the elected one (`Catalog.elected`) does what is due. The catalog has
   the time of each task's last run, so a task runs as often whichever process does it.
2. Reading, merging, flushing and expiring are DuckLake's own functions. With SQLite commits wait for each call. What deletes
   rows, flushing too, takes the exclusive lock: otherwise it would conflict with every commit under way.
3. A task that fails or meets a conflict is left to the next round. The numbers are right without any of this.
4. Readers are safe: snapshots, and the files that only they need, are kept for `READERS_S`, longer than a query may take and
   longer than the age of the last backup.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb

from analytics.storage.catalog import backup, is_conflict
from analytics.storage.database import first_row, message
from analytics.storage.ducklake_format import sync
from analytics.storage.location import ALIAS
from analytics.storage.rollup_compaction import compact_rollups
from analytics.storage.store import Store
from ingest.ids import smallest_uuid7

log = logging.getLogger(__name__)

ROUND_S = 2.0
SLOW_S = 2.0
"""A task that takes longer is logged."""
READERS_S = 330
"""A query takes at most 300 s."""
SMALL_FILE_BYTES = 8 * 2**20
"""Files up to this size are merged often, all others once an hour: a row is rewritten a few times in its life."""
FLUSHED_ROWS = 2_000
MERGED_FILES = 8
ORPHANS_S = 86_400
"""Files that no snapshot names are those of killed commits; younger ones may be of commits under way."""
OFTEN = (
    "events",
    "streams",
    "usage_reports",
    "server_stats",
    "spans",
    "stalls",
    "stream_minutes",
    "histogram_minutes",
)
"""Tables that grow with the traffic. The rows of others are few and stay inlined until `merge_all`."""
NEVER_FLUSHED = ("log_positions", "taps", "counter_parts")
"""Tables whose inlined rows are updated in place."""

BY_STREAM_ID = {"events": ("events",), "streams": ("usage_reports", "server_stats", "stalls", "streams")}
BY_TIME = {
    "streams": {"spans": "started_at", "losses": "lost_at", "dead_letters": "set_aside_at"},
    "rollups": {"stream_minutes": "minute", "histogram_minutes": "minute"},
}
"""By what has an age of its own: the tables whose rows go with it, and the column that holds a row's age."""


def ages_s(
    events_s: float | None, streams_s: float | None, rollups_s: float | None
) -> dict[str, float | None]:
    """The age in seconds at which rows of each kind are deleted, None = never.

    Events never outlive their streams, nor streams the roll-ups computed from them.
    """
    if streams_s is None:
        rollups_s = None
    else:
        events_s = min(events_s, streams_s) if events_s is not None else streams_s
        rollups_s = max(rollups_s, streams_s) if rollups_s is not None else None
    return {"events": events_s, "streams": streams_s, "rollups": rollups_s}


class Upkeep:
    """One process's upkeep. Owns a thread and connections of its own."""

    def __init__(
        self, store: Store, *, events_s: float | None, streams_s: float | None, rollups_s: float | None = None
    ) -> None:
        """Ages as `ages_s` takes them."""
        self._ages_s = ages_s(events_s, streams_s, rollups_s)
        self._location = store.location
        self._layouts = store.layouts
        self._data_path = store.data_path
        self._cursor = store.cursor()
        self._catalog, self._election = store.catalog.cursor(), store.catalog.cursor()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="upkeep", daemon=True)
        self.tasks: dict[str, tuple[float, Callable[[], object]]] = {
            "flush": (20, self.flush),
            "merge": (20, self.merge),
            "flush_all": (300, lambda: self.flush(least_rows=1)),
            "compact_rollups": (60, self.compact_rollups),
            "expire": (60, self.expire),
            "back_up": (60, self.back_up),
            "retain": (600, lambda: self.retain(time.time())),
            "merge_all": (3600, self.merge_all),
            "orphans": (ORPHANS_S, self.orphans),
        }
        """Every how many seconds what is done."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the task that runs."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for connection in (self._election, self._catalog, self._cursor):
            connection.close()

    def _repeat(self) -> None:
        while not self._stop.wait(ROUND_S):
            try:
                self.round()
            except duckdb.Error as e:
                log.warning("upkeep is skipped for now: %s", message(e, self._location))

    def round(self) -> list[str]:
        """Do what is due, if this process is elected; the names of what was done."""
        done: list[str] = []
        with self._election.elected() as elected:
            for task in self._due() if elected else ():
                if self._stop.is_set():
                    break
                began_s = time.monotonic()
                try:
                    self.tasks[task][1]()
                except (duckdb.Error, OSError) as e:
                    level = logging.DEBUG if is_conflict(e) else logging.WARNING
                    log.log(level, "%s is left to the next round: %s", task, message(e, self._location))
                    continue
                if (took_s := time.monotonic() - began_s) > SLOW_S:
                    log.info("upkeep: %s took %.1f s", task, took_s)
                self._note(task)
                done.append(task)
        return done

    def _due(self) -> list[str]:
        """What is to be done now. A task that was never done is due when its interval is over for the first time."""
        done_at_s = {
            str(task): float(str(at))
            for task, at in self._catalog.query("SELECT task, done_at_s FROM streamgauge_upkeep")
        }
        for task in self.tasks.keys() - done_at_s.keys():
            self._note(task)
        now_s = time.time()
        return [
            task
            for task, (every_s, _) in self.tasks.items()
            if task in done_at_s and not 0 <= now_s - done_at_s[task] < every_s
        ]

    def _note(self, task: str) -> None:
        with self._catalog.transaction():
            self._catalog.change(f"DELETE FROM streamgauge_upkeep WHERE task = '{task}'")
            self._catalog.change(
                f"INSERT INTO streamgauge_upkeep (task, done_at_s) VALUES ('{task}', {time.time():.3f})"
            )

    # -- the tasks -----------------------------------------------------------------------------------------------------

    def flush(self, least_rows: int = FLUSHED_ROWS) -> None:
        """Write inlined rows into files, of the tables that have so many."""
        counts = " UNION ALL ".join(
            f"SELECT '{table}', count(*) FROM {self._layouts[table].inlined}" for table in OFTEN
        )
        for table, rows in self._catalog.query(counts):
            if int(str(rows)) >= least_rows:
                self._flush("main", str(table))

    def merge(self) -> None:
        """Merge small files, of the tables that have some."""
        counts = self._catalog.query(
            "SELECT table_id, count(*) FROM ducklake_data_file WHERE end_snapshot IS NULL "
            f"AND file_size_bytes < {SMALL_FILE_BYTES} GROUP BY table_id"
        )
        small = {int(str(table_id)): int(str(files)) for table_id, files in counts}
        for table in OFTEN:
            if small.get(self._layouts[table].table_id, 0) >= MERGED_FILES:
                self._call("ducklake_merge_adjacent_files", f"'{table}', max_file_size => {SMALL_FILE_BYTES}")

    def merge_all(self) -> None:
        """Merge files of every size and table, and rewrite files whose rows are mostly deleted."""
        tables = self._cursor.execute(
            "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = ?", [ALIAS]
        ).fetchall()
        for schema, table in tables:
            if table not in NEVER_FLUSHED:
                self._flush(schema, table)
        self._call("ducklake_merge_adjacent_files")
        self._call("ducklake_rewrite_data_files", "delete_threshold => 0.5")

    def compact_rollups(self) -> None:
        """Sum the roll-ups of past minutes (`analytics.storage.rollup_compaction`)."""
        with self._catalog.exclusive():
            compact_rollups(self._cursor, time.time())

    def expire(self) -> None:
        """Forget old snapshots, and delete the files that nothing else needs.

        With SQLite, DuckLake 1.0 takes every instant of today (UTC) for older than `older_than`, so old rows are selected here.
        """
        before = (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=READERS_S)).strftime("%Y-%m-%d %H:%M:%S+00")
        snapshots = self._catalog.query(
            f"SELECT snapshot_id FROM ducklake_snapshot WHERE snapshot_time < '{before}' "
            "AND snapshot_id < (SELECT max(snapshot_id) FROM ducklake_snapshot)"
        )
        if snapshots:
            listed = ", ".join(str(snapshot_id) for (snapshot_id,) in snapshots)
            self._call("ducklake_expire_snapshots", f"versions => [{listed}]")
        if self._catalog.is_postgres:
            self._call("ducklake_cleanup_old_files", f"older_than => TIMESTAMPTZ '{before}'")
        else:
            self._clean_up(before)

    def _clean_up(self, before: str) -> None:
        """As DuckLake's function of that name, for local files."""
        old = self._catalog.query(
            "SELECT data_file_id, path, path_is_relative FROM ducklake_files_scheduled_for_deletion "
            f"WHERE schedule_start < '{before}'"
        )
        for _, path, is_relative in old:
            Path(self._data_path if is_relative == "1" else "", str(path)).unlink(missing_ok=True)
        if old:
            listed = ", ".join(str(file_id) for file_id, *_ in old)
            with self._catalog.transaction():
                self._catalog.change(
                    f"DELETE FROM ducklake_files_scheduled_for_deletion WHERE data_file_id IN ({listed})"
                )

    def orphans(self) -> None:
        """Delete the files of commits that were killed."""
        self._call("ducklake_delete_orphaned_files", f"older_than => now() - INTERVAL {ORPHANS_S} SECOND")

    def back_up(self) -> None:
        """Copy a SQLite catalog to `catalog.backup.sqlite`. PostgreSQL has backups of its own."""
        if self._location.catalog is not None:
            backup(self._location.catalog, self._location.backup)

    def retain(self, now_s: float) -> int:
        """Delete rows that are too old by now; returns how many."""
        deleted = 0
        for kind, age_s in self._ages_s.items():
            if age_s is None:
                continue
            for table in BY_STREAM_ID.get(kind, ()):
                deleted += self._delete(table, "stream_id < ?::UUID", smallest_uuid7(now_s - age_s))
            for table, column in BY_TIME.get(kind, {}).items():
                deleted += self._delete(table, f"{column} < make_timestamptz(?)", int((now_s - age_s) * 1e6))
        if deleted:
            self._sum_counters()
        return deleted

    def _delete(self, table: str, where: str, limit: object) -> int:
        row = first_row(self._cursor.execute(f"SELECT count(*) FROM {table} WHERE {where}", [limit]))
        if row is None or not row[0]:
            return 0
        with self._catalog.exclusive(), self._transaction():
            row = first_row(self._cursor.execute(f"DELETE FROM {table} WHERE {where}", [limit]))
            deleted = int(row[0]) if row else 0
            # In the same transaction, or the streams that are missing would be unexplained after a crash.
            self._cursor.execute(
                "INSERT INTO internal.counter_parts VALUES (?, ?)", [f"expired_{table}_rows", deleted]
            )
        return deleted

    def _sum_counters(self) -> None:
        """One row for each counter again."""
        table = self._layouts["internal.counter_parts"].inlined
        with self._catalog.exclusive(), self._catalog.transaction(alone=True):
            self._catalog.change(
                f"UPDATE {table} AS one SET value = (SELECT sum(part.value) FROM {table} AS part WHERE part.name = one.name)"
            )
            self._catalog.change(
                f"DELETE FROM {table} WHERE row_id NOT IN (SELECT min(row_id) FROM {table} GROUP BY name)"
            )

    def _flush(self, schema: str, table: str) -> None:
        with (
            self._catalog.exclusive()
        ):  # it deletes what it wrote to a file, which conflicts with every commit
            self._run("ducklake_flush_inlined_data", f"schema_name => '{schema}', table_name => '{table}'")

    def _call(self, function: str, arguments: str = "") -> None:
        with self._catalog.maintenance():
            self._run(function, arguments)

    def _run(self, function: str, arguments: str) -> None:
        newest = "SELECT coalesce(max(data_file_id), -1) FROM ducklake_data_file"
        [(last_id,)] = self._catalog.query(newest)
        # As Arrow: rows with instants would need the package pytz.
        separator = ", " if arguments else ""
        self._cursor.execute(f"CALL {function}('{ALIAS}'{separator}{arguments})").to_arrow_table()
        if "://" not in self._data_path:
            self._sync_files(f"f.data_file_id > {last_id}")

    def _sync_files(self, condition: str) -> None:
        """DuckLake does not wait for the disk; what it merged or flushed is deleted soon."""
        for (path,) in self._catalog.query(
            "SELECT s.path || t.path || f.path FROM ducklake_data_file AS f "
            "JOIN ducklake_table AS t ON t.table_id = f.table_id JOIN ducklake_schema AS s ON s.schema_id = t.schema_id "
            f"WHERE t.end_snapshot IS NULL AND f.end_snapshot IS NULL AND {condition}"
        ):
            sync(self._data_path + str(path))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._cursor.execute("BEGIN TRANSACTION")
        try:
            yield
            self._cursor.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(duckdb.Error):
                self._cursor.execute("ROLLBACK")
            raise

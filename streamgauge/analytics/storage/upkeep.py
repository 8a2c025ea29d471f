"""Keep the store small and fast: merge files, delete old rows, back up the catalog. One process at a time.

Contract
1. The tasks run in one process at a time (`ElectedTasks`).
2. Flushing, merging and expiring are DuckLake's own functions. With SQLite, commits wait for each call. Tasks that delete rows,
   including flushes, take the exclusive lock, because they would conflict with concurrent commits.
3. The numbers are correct without any of the tasks.
4. Snapshots and the files that only they need are kept for `READERS_S`: longer than a query may take, and longer than the
   age of the last backup.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import duckdb

from streamgauge.analytics.schema.tables import TABLES, Rows, Table
from streamgauge.analytics.storage.database import LINK, message_without_values, reason, transaction
from streamgauge.analytics.storage.ducklake_format import sync
from streamgauge.analytics.storage.elected_tasks import ElectedTasks
from streamgauge.analytics.storage.location import ALIAS
from streamgauge.analytics.storage.retention import OldRows, ages_s
from streamgauge.analytics.storage.rollup_compaction import ROLLUPS, compact_rollups
from streamgauge.analytics.storage.sqlite_catalog import back_up
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.guards import Guards

log = logging.getLogger(__name__)

STOP_BACKUP_S = 5.0
"""Less than `up` waits for analytics to stop."""
READERS_S = 330
"""A query takes at most 300 s."""
SMALL_FILE_BYTES = 8 * 2**20
"""Smaller files are merged often, all others once an hour, so each row is rewritten only a few times."""
FLUSHED_ROWS = 2_000
MERGED_FILES = 8
ORPHANS_S = 86_400
"""Age of files without a snapshot that are deleted. Younger ones may belong to a running commit."""
NOW_S = -2.0
"""Age that everything has: snapshots have times of a second."""
OFTEN = tuple(table for table in TABLES if table.grows_with_traffic)
"""Others have few rows, which stay inlined until `merge_all`."""


class Upkeep:
    """The upkeep thread of one process, with its own connections."""

    def __init__(
        self,
        store: Store,
        *,
        events_s: float | None,
        streams_s: float | None,
        rollups_s: float | None = None,
        guards: Guards | None = None,
    ) -> None:
        """Ages as `retention.ages_s` takes them."""
        self._location = store.location
        self._layouts = store.layouts
        self._data_path = store.data_path
        self._cursor = store.cursor()
        self._catalog = store.catalog.cursor()
        self._retention = OldRows(
            self._catalog, self._cursor, store.layouts, ages_s(events_s, streams_s, rollups_s), self._folders
        )
        self.tasks = {
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
        """(Interval in seconds, function) by task."""
        guards = guards or Guards(describe=partial(reason, store.location))
        self.elected = ElectedTasks(store, "upkeep", self.tasks, guards)

    def start(self) -> None:
        """Start the thread."""
        self.elected.start()

    def close(self) -> None:
        """Stop after the running task, and close the connections."""
        self.elected.close()
        for connection in (self._catalog, self._cursor):
            connection.close()

    def flush(self, least_rows: int = FLUSHED_ROWS, tables: Iterable[Table] = OFTEN) -> None:
        """Move inlined rows to files, in tables with at least `least_rows`."""
        for table in tables:
            [(rows,)] = self._catalog.query(f"SELECT count(*) FROM {self._layouts[table.name].inlined}")
            if int(str(rows)) >= least_rows:
                self._flush(table)

    def merge(self) -> None:
        """Merge the small files of tables with at least `MERGED_FILES`."""
        counts = self._catalog.query(
            "SELECT table_id, count(*) FROM ducklake_data_file WHERE end_snapshot IS NULL "
            f"AND file_size_bytes < {SMALL_FILE_BYTES} GROUP BY table_id"
        )
        small = {int(str(table_id)): int(str(files)) for table_id, files in counts}
        for table in OFTEN:
            if small.get(self._layouts[table.name].table_id, 0) >= MERGED_FILES:
                arguments = f"'{table.name}', max_file_size => {SMALL_FILE_BYTES}"
                self._call("ducklake_merge_adjacent_files", arguments, writes=[table.name])

    def merge_all(self) -> None:
        """Merge files of any size in all tables, and rewrite files with mostly deleted rows."""
        self._flush_all()
        self._call("ducklake_merge_adjacent_files", writes=self._layouts)
        self._call("ducklake_rewrite_data_files", "delete_threshold => 0.5", writes=self._layouts)

    def compact_rollups(self) -> None:
        """Sum the roll-ups of past minutes (`streamgauge.analytics.storage.rollup_compaction`)."""
        with self._catalog.exclusive():
            compact_rollups(self._cursor, time.time(), self._folders(table.name for table in ROLLUPS))

    def purge(self) -> None:
        """Remove deleted rows from files and catalog at once. Queries that run meanwhile may fail."""
        self._flush_all()
        deleted = self._catalog.query("SELECT table_id FROM ducklake_delete_file WHERE end_snapshot IS NULL")
        for name, layout in self._layouts.items():
            if (str(layout.table_id),) in deleted:  # one at a time needs less space
                self._call("ducklake_rewrite_data_files", f"'{name}', delete_threshold => 0", writes=[name])
        self.expire(NOW_S)
        if self._catalog.is_postgres:
            self._catalog.vacuum()
        else:  # no other process writes files
            self.orphans(NOW_S)

    def expire(self, age_s: float | None = None) -> None:
        """Delete old snapshots and the files that only they need.

        Old snapshots are selected here: with SQLite, DuckLake 1.0 treats every instant of today (UTC) as older than
        `older_than`.
        """
        age = dt.timedelta(seconds=READERS_S if age_s is None else age_s)
        before = (dt.datetime.now(dt.UTC) - age).strftime("%Y-%m-%d %H:%M:%S+00")
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
        """As ducklake_cleanup_old_files, for local files."""
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

    def orphans(self, age_s: float = ORPHANS_S) -> None:
        """Delete the files of commits that failed or were killed."""
        self._call("ducklake_delete_orphaned_files", f"older_than => now() - INTERVAL ({age_s}) SECOND")
        for link in Path(self._data_path).glob(f"*/*/*{LINK}") if "://" not in self._data_path else ():
            if link.stat().st_mtime < time.time() - age_s:  # of a process that was killed
                link.unlink(missing_ok=True)

    def back_up(self, timeout_s: float | None = None) -> None:
        """Copy a SQLite catalog to `catalog.backup.sqlite`. Raises OSError."""
        if self._location.catalog is not None:
            back_up(self._location.catalog, self._location.backup, timeout_s)

    def finish(self) -> None:
        """Stop, then move inlined rows to files and back up. So files and backup have all rows, also those whose records the log no
        longer has."""
        self.elected.stop()
        try:
            self.flush(1, (table for table in TABLES if table.rows in (Rows.APPENDED, Rows.SUMMED)))
            self.back_up(STOP_BACKUP_S)
        except (OSError, duckdb.Error) as e:
            why = message_without_values(e, self._location)
            log.warning(
                "the last rows are not in files or not in the backup: %s. The next start repeats it", why
            )

    def retain(self, now_s: float) -> int:
        """Delete rows that are too old. Returns their number."""
        return self._retention.delete_old_rows(now_s)

    def _flush_all(self) -> None:
        for table in TABLES:  # also those without inlined rows: they may have inlined deletions
            if table.rows is not Rows.UPDATED:
                self._flush(table)

    def _flush(self, table: Table) -> None:
        schema, _, name = table.qualified_name.partition(".")
        with self._catalog.exclusive():  # it deletes the inlined rows, which conflicts with every commit
            arguments = f"schema_name => '{schema}', table_name => '{name}'"
            self._run("ducklake_flush_inlined_data", arguments, [table.name])

    def _call(self, function: str, arguments: str = "", writes: Iterable[str] = ()) -> None:
        with self._catalog.maintenance():
            self._run(function, arguments, writes)

    def _folders(self, tables: Iterable[str]) -> list[str]:
        return [self._data_path + self._layouts[table].path for table in tables]

    def _run(self, function: str, arguments: str, writes: Iterable[str]) -> None:
        """Call a function of DuckLake. `writes`: the tables in which it writes files."""
        newest = "SELECT coalesce(max(data_file_id), -1) FROM ducklake_data_file"
        [(last_id,)] = self._catalog.query(newest)
        # As Arrow, because Python rows with instants require pytz.
        separator = ", " if arguments else ""
        folders = self._folders(writes)
        with transaction(self._cursor, *folders) if folders else contextlib.nullcontext():
            self._cursor.execute(f"CALL {function}('{ALIAS}'{separator}{arguments})").to_arrow_table()
        if "://" in self._data_path:
            return
        # DuckLake does not sync new files to the disk, and their sources are deleted later.
        folders_by_id = {layout.table_id: layout.path for layout in self._layouts.values()}
        for table_id, path in self._catalog.query(
            "SELECT table_id, path FROM ducklake_data_file "
            f"WHERE end_snapshot IS NULL AND data_file_id > {last_id}"
        ):
            sync(self._data_path + folders_by_id[int(str(table_id))] + str(path))

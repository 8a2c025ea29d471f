"""Keep a lake in order, by DuckLake's own means, beside the consumers: one process at a time, whichever holds the office.

Rules
1. Every consumer has this thread; each round it asks for the office (`analytics.lake.turns`), and who gets it does what is
   due. The lake itself knows when each task was last done, so that it is done as often whoever does it.
2. What deletes rows takes an exclusive turn, one short transaction each: no commit is done again because of it. Merging and
   flushing conflict with deletions alone and need no turn.
3. A task that meets a conflict is left for the next round. Nothing here is needed for the numbers to be right, only for the
   lake to stay small and quick.
4. Readers are safe: snapshots and the files that only these need are kept for `READERS_S`, longer than any query may take.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

import duckdb

from analytics.lake.place import NAME, said
from analytics.lake.store import LakeStore, is_conflict
from analytics.lake.turns import Turns
from analytics.storage.retention import BY_STREAM_ID, BY_TIME, ages_s, first_id_at
from analytics.storage.rows import first_row
from analytics.storage.settle import settle

log = logging.getLogger(__name__)

ROUND_S = 5.0
READERS_S = 900
SMALL_FILE_BYTES = 16 * 2**20
"""Files up to this size are merged every minute, all others up to DuckLake's target size once an hour: a row is rewritten a few
times in its life, not once a minute."""
ORPHANS_S = 86_400
"""Files that no snapshot knows are those of killed commits; younger ones may be of commits under way."""

_NEWEST = (
    "SELECT log_id, partition, max(version) AS version FROM internal.positions GROUP BY log_id, partition"
)
_SUPERSEDED = (
    # A position is needed while it is the newest of its partition; rows of open streams and kept records while it names them.
    f"DELETE FROM internal.positions AS old WHERE EXISTS (FROM ({_NEWEST}) AS newest WHERE newest.log_id = old.log_id "
    "AND newest.partition = old.partition AND newest.version > old.version)",
    "DELETE FROM internal.shown_streams AS old WHERE NOT EXISTS "
    "(FROM internal.positions AS now WHERE now.owner = old.owner AND now.shown <= old.number)",
    "DELETE FROM internal.open_stream_records WHERE stream_id::VARCHAR NOT IN "
    "(SELECT unnest(open_stream_ids) FROM internal.positions)",
    "DELETE FROM internal.tap_news AS old WHERE EXISTS (FROM internal.tap_news AS newer WHERE newer.tap = old.tap AND "
    "newer.tap_worker = old.tap_worker AND newer.incarnation = old.incarnation AND newer.last_alive_at > old.last_alive_at)",
    "DELETE FROM internal.upkeep AS old WHERE EXISTS "
    "(FROM internal.upkeep AS newer WHERE newer.task = old.task AND newer.done_at > old.done_at)",
)


class Upkeep:
    """One process's candidate for the office. Owns a thread and connections of its own."""

    def __init__(
        self,
        store: LakeStore,
        *,
        events_s: float | None,
        streams_s: float | None,
        rollups_s: float | None = None,
    ) -> None:
        """Ages at which rows go, as `analytics.storage.retention.ages_s` takes them."""
        self._ages_s = ages_s(events_s, streams_s, rollups_s)
        self._lake, self._owner = store.lake, store.owner
        self._cursor = store.cursor()
        self._office, self._turns = Turns(self._cursor, store.lake), Turns(self._cursor, store.lake)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)
        self.tasks: dict[str, tuple[float, Callable[[], object]]] = {
            "tidy": (30, self.tidy),
            "flush": (60, self.flush),
            "settle": (60, self.settle),
            "merge": (60, self.merge),
            "expire": (300, self.expire),
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
        self._office.close()
        self._turns.close()
        self._cursor.close()

    def _run(self) -> None:
        while not self._stop.wait(ROUND_S):
            try:
                self.round()
            except duckdb.Error as e:
                log.warning("no upkeep for now: %s", said(e, self._lake))

    def round(self) -> list[str]:
        """Do what is due, if the office is ours; the names of what was done."""
        done: list[str] = []
        with self._office.office() as mine:
            for task in self._due() if mine else ():
                if self._stop.is_set():
                    break
                try:
                    self.tasks[task][1]()
                except duckdb.Error as e:
                    level = logging.DEBUG if is_conflict(e) else logging.WARNING
                    log.log(level, "%s is left for the next round: %s", task, said(e, self._lake))
                    continue
                self._cursor.execute("INSERT INTO internal.upkeep VALUES (?, now(), ?)", [task, self._owner])
                done.append(task)
        return done

    def _due(self) -> list[str]:
        """What is to be done now. A task that was never done is due when its interval is over for the first time."""
        ages_s = dict(
            self._cursor.execute(
                "SELECT task, epoch(now() - max(done_at)) FROM internal.upkeep GROUP BY task"
            ).fetchall()
        )
        for task in self.tasks.keys() - ages_s.keys():
            self._cursor.execute("INSERT INTO internal.upkeep VALUES (?, now(), ?)", [task, self._owner])
        return [
            task for task, (every_s, _) in self.tasks.items() if task in ages_s and ages_s[task] >= every_s
        ]

    # -- the tasks -----------------------------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Take away superseded rows, and add the counters up."""
        with self._alone():
            for statement in _SUPERSEDED:
                self._cursor.execute(statement)
            totals = self._cursor.execute("SELECT name, value FROM internal.totals").fetchall()
            if totals:
                self._cursor.execute("DELETE FROM internal.counted")
                self._cursor.executemany("INSERT INTO internal.counted VALUES (?, ?)", totals)

    def settle(self) -> None:
        """Add up the roll-ups of minutes that are over (`analytics.storage.settle`)."""
        with self._turns.exclusive():
            settle(self._cursor, time.time())

    def flush(self) -> None:
        """Write rows that are in the catalog itself into files."""
        self._call("ducklake_flush_inlined_data")

    def merge(self) -> None:
        """Make few files of many small ones."""
        self._call("ducklake_merge_adjacent_files", f"max_file_size => {SMALL_FILE_BYTES}")

    def merge_all(self) -> None:
        """The same for files of every size; and files of which most rows are deleted are written anew."""
        self._call("ducklake_merge_adjacent_files")
        self._call("ducklake_rewrite_data_files", "delete_threshold => 0.5")

    def expire(self) -> None:
        """Forget old snapshots, and the files that nothing else needs."""
        self._call("ducklake_expire_snapshots", f"older_than => now() - INTERVAL {READERS_S} SECOND")
        self._call("ducklake_cleanup_old_files", f"older_than => now() - INTERVAL {READERS_S} SECOND")

    def orphans(self) -> None:
        """Delete the files of commits that were killed."""
        self._call("ducklake_delete_orphaned_files", f"older_than => now() - INTERVAL {ORPHANS_S} SECOND")

    def retain(self, now_s: float) -> int:
        """Delete rows that are too old by now; returns how many went."""
        gone = 0
        for kind, age_s in self._ages_s.items():
            if age_s is None:
                continue
            for table in BY_STREAM_ID.get(kind, ()):
                gone += self._expire_rows(table, "stream_id < ?::UUID", first_id_at(now_s - age_s))
            for table, column in BY_TIME.get(kind, {}).items():
                gone += self._expire_rows(
                    table, f"{column} < make_timestamptz(?)", int((now_s - age_s) * 1e6)
                )
        return gone

    def _expire_rows(self, table: str, where: str, limit: object) -> int:
        row = first_row(self._cursor.execute(f"SELECT count(*) FROM {table} WHERE {where}", [limit]))
        if row is None or not row[0]:
            return 0
        with self._alone():
            row = first_row(self._cursor.execute(f"DELETE FROM {table} WHERE {where}", [limit]))
            gone = int(row[0]) if row else 0
            self._cursor.execute(
                "INSERT INTO internal.counted VALUES (?, ?)", [f"expired_{table}_rows", gone]
            )
        return gone

    def _call(self, function: str, arguments: str = "") -> None:
        self._cursor.execute(
            f"CALL {function}('{NAME}'{', ' if arguments else ''}{arguments})"
        ).to_arrow_table()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with self._turns.exclusive():
            self._cursor.execute("BEGIN TRANSACTION")
            try:
                yield
                self._cursor.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(duckdb.Error):
                    self._cursor.execute("ROLLBACK")
                raise

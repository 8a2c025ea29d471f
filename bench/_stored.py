"""Roll-ups, upkeep and size of a store that a bench fills.

One process has the store open through DuckDB. A separate process reads the size of a catalog with Python's `sqlite3`
(`streamgauge.analytics.storage.sqlite_catalog`).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb

from streamgauge.analytics.measures.minute_rows import rollups
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.location import ALIAS, StoreLocation
from streamgauge.analytics.storage.store import Store
from streamgauge.analytics.storage.upkeep import Upkeep

ROLLUP_STREAMS = 20_000
"""Streams rolled up at once, with their events: some hundred MB."""
_PAGES = """
import json, sqlite3, sys
with sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True) as catalog:
    values = [catalog.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")]
print(json.dumps(values))
"""


def roll_up(store: Store, cursor: duckdb.DuckDBPyConnection, after: str | None = None) -> None:
    """Commit the roll-ups of all streams whose id is greater than `after`."""
    last = after or "00000000-0000-0000-0000-000000000000"
    while True:
        streams = cursor.execute(
            "SELECT * REPLACE (stream_id::VARCHAR AS stream_id) FROM streams WHERE stream_id > ?::UUID "
            f"ORDER BY streams.stream_id LIMIT {ROLLUP_STREAMS}",
            [last],
        ).pl()
        if streams.is_empty():
            return
        first, last = last, streams["stream_id"][-1]
        events = cursor.execute(
            "SELECT stream_id::VARCHAR AS stream_id, seq, choice, at_ns, kind FROM events "
            "WHERE stream_id > ?::UUID AND stream_id <= ?::UUID ORDER BY events.stream_id, seq",
            [first, last],
        ).pl()
        store.commit(Commit("", tables=rollups({"streams": streams, "events": events})))


@contextlib.contextmanager
def upkeep_of(store: Store) -> Iterator[Upkeep]:
    """Upkeep without its thread. The bench calls its tasks."""
    upkeep = Upkeep(store, events_s=None, streams_s=None)
    try:
        yield upkeep
    finally:
        upkeep.close()


def maintain(store: Store) -> None:
    """Run all upkeep tasks: merge files, compact minutes, delete old snapshots and files."""
    with upkeep_of(store) as upkeep:
        for task in ("flush", "compact_rollups", "merge", "merge_all", "expire"):
            upkeep.tasks[task][1]()
    with contextlib.closing(store.cursor()) as cursor:
        # `expire` keeps snapshots for the duration of the longest query, so it would delete nothing here.
        cursor.execute(f"CALL ducklake_expire_snapshots('{ALIAS}', older_than => now())")
        cursor.execute(f"CALL ducklake_cleanup_old_files('{ALIAS}', cleanup_all => true)")


def bytes_by_table(store: Store) -> dict[str, int]:
    """Bytes of the Parquet files in the newest snapshot, by table."""
    rows = store.catalog.query(
        "SELECT t.table_name, CAST(sum(f.file_size_bytes) AS BIGINT) FROM ducklake_data_file AS f "
        "JOIN ducklake_table AS t ON t.table_id = f.table_id "
        "WHERE f.end_snapshot IS NULL AND t.end_snapshot IS NULL GROUP BY t.table_name"
    )
    return {str(name): int(str(size)) for name, size in rows}


def catalog_bytes(location: StoreLocation) -> int:
    """Bytes of the used pages of a SQLite catalog. This process must have closed the store.

    Free pages are excluded: they come from recent snapshots and do not depend on the number of rows.
    """
    done = subprocess.run(
        [sys.executable, "-I", "-c", _PAGES, str(location.catalog)],
        capture_output=True,
        text=True,
        check=True,
    )
    page, pages, free = json.loads(done.stdout)
    return int(page) * (int(pages) - int(free))


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

"""Retention: which rows are deleted at which age, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import duckdb

from streamgauge.analytics.storage.catalog import Catalog
from streamgauge.analytics.storage.database import first_row, transaction
from streamgauge.analytics.storage.ducklake_format import TableLayout
from streamgauge.ingest.generated_ids import smallest_uuid7

_BY_STREAM_ID = {
    "events": ("events",),
    "streams": (
        "usage_reports",
        "server_stats",
        "output_stalls",
        "output_waits",
        "gateway_stalls",
        "streams",
    ),
}
_BY_TIME = {
    "streams": {
        "spans": "started_at",
        "hops": "outer_started_at",
        "hop_changes": "outer_started_at",
        "losses": "lost_at",
        "dead_letters": "set_aside_at",
        "alert_events": "changed_at",
    },
    "rollups": {
        "stream_minutes": "minute",
        "histogram_minutes": "minute",
        "client_minutes": "minute",
        "markers": "marked_at",
    },
}
"""By kind of age: the tables with that age, and the column with the age of a row."""


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


class Retention:
    """Deletes old rows. Used by the upkeep thread only."""

    def __init__(
        self,
        catalog: Catalog,
        cursor: duckdb.DuckDBPyConnection,
        layouts: Mapping[str, TableLayout],
        ages: Mapping[str, float | None],
        folders: Callable[[Iterable[str]], Iterable[str]],
    ) -> None:
        """`ages` as `ages_s` returns them. `folders`: of the files of tables."""
        self._folders = folders
        self._catalog = catalog
        self._cursor = cursor
        self._counters = layouts["internal.counter_parts"].inlined
        self._ages_s = ages

    def delete_old_rows(self, now_s: float) -> int:
        """Delete and count the rows that are too old. Returns their number. Raises duckdb.Error."""
        deleted = 0
        for kind, age_s in self._ages_s.items():
            if age_s is None:
                continue
            for table in _BY_STREAM_ID.get(kind, ()):
                deleted += self._delete(table, "stream_id < ?::UUID", smallest_uuid7(now_s - age_s))
            for table, column in _BY_TIME.get(kind, {}).items():
                deleted += self._delete(table, f"{column} < make_timestamptz(?)", int((now_s - age_s) * 1e6))
        if deleted:
            self._sum_counters()
        return deleted

    def _delete(self, table: str, where: str, limit: object) -> int:
        row = first_row(self._cursor.execute(f"SELECT count(*) FROM {table} WHERE {where}", [limit]))
        if row is None or not row[0]:
            return 0
        with self._catalog.exclusive(), transaction(self._cursor, *self._folders([table])):
            row = first_row(self._cursor.execute(f"DELETE FROM {table} WHERE {where}", [limit]))
            deleted = int(row[0]) if row else 0
            # In the same transaction: after a crash uncounted rows would look lost.
            self._cursor.execute(
                "INSERT INTO internal.counter_parts VALUES (?, ?)", [f"expired_{table}_rows", deleted]
            )
        return deleted

    def _sum_counters(self) -> None:
        """Restore one row per counter."""
        table = self._counters
        with self._catalog.exclusive(), self._catalog.transaction(alone=True):
            self._catalog.change(
                f"UPDATE {table} AS one SET value = (SELECT sum(part.value) FROM {table} AS part WHERE part.name = one.name)"
            )
            self._catalog.change(
                f"DELETE FROM {table} WHERE row_id NOT IN (SELECT min(row_id) FROM {table} GROUP BY name)"
            )

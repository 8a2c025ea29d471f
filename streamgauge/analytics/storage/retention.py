"""Retention: delete the rows that are older than the age of their table (`Table.retention`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import duckdb

from streamgauge.analytics.schema.tables import COUNTER_PARTS, STREAMS, TABLES, Retention, Table
from streamgauge.analytics.storage.catalog import Catalog
from streamgauge.analytics.storage.database import integer, transaction
from streamgauge.analytics.storage.ducklake_format import TableLayout
from streamgauge.analytics.storage.reconciliation import RECORDED_BY_TAP
from streamgauge.ingest.generated_ids import smallest_uuid7


def ages_s(
    events_s: float | None, streams_s: float | None, rollups_s: float | None
) -> dict[Retention, float | None]:
    """The age in seconds at which rows are deleted, None = never.

    Events never outlive their streams, nor streams the roll-ups computed from them.
    """
    if streams_s is None:
        rollups_s = None
    else:
        events_s = min(events_s, streams_s) if events_s is not None else streams_s
        rollups_s = max(rollups_s, streams_s) if rollups_s is not None else None
    return {Retention.EVENTS: events_s, Retention.STREAMS: streams_s, Retention.ROLLUPS: rollups_s}


def compared(table: Table, sign: str, at_s: float) -> tuple[str, object]:
    """SQL condition that compares the time column with an instant, and the value to bind."""
    if table.types[str(table.time_column)] == "UUID":  # a UUIDv7, which begins with its time
        return f"{table.time_column} {sign} ?::UUID", smallest_uuid7(at_s)
    return f"{table.time_column} {sign} make_timestamptz(?)", int(at_s * 1e6)


@dataclass
class OldRows:
    """Deletes old rows. Used by the upkeep thread only."""

    catalog: Catalog
    cursor: duckdb.DuckDBPyConnection
    layouts: Mapping[str, TableLayout]
    ages_s: Mapping[Retention, float | None]
    folders: Callable[[Iterable[str]], Iterable[str]]
    """Of the files of tables."""

    def delete_old_rows(self, now_s: float) -> int:
        """Delete and count the rows that are too old. Returns their number. Raises duckdb.Error."""
        deleted = 0
        # In reverse, so that the rows of a stream are deleted before the stream.
        for table in reversed(TABLES):
            age_s = self.ages_s.get(table.retention)
            if age_s is not None:
                deleted += self._delete(table.name, *compared(table, "<", now_s - age_s))
        if deleted:
            self._sum_counters()
        return deleted

    def _delete(self, table: str, where: str, limit: object) -> int:
        if not integer(self.cursor.execute(f"SELECT count(*) FROM {table} WHERE {where}", [limit])):
            return 0
        with self.catalog.exclusive(), transaction(self.cursor, *self.folders([table])):
            counted = f"SELECT count(*) FROM {table} WHERE {where} AND {RECORDED_BY_TAP if table == STREAMS.name else 'TRUE'}"
            expired = integer(self.cursor.execute(counted, [limit]))
            deleted = integer(self.cursor.execute(f"DELETE FROM {table} WHERE {where}", [limit]))
            # In the same transaction: after a crash uncounted rows would look lost.
            self.cursor.execute(
                f"INSERT INTO {COUNTER_PARTS.name} (name, value) VALUES (?, ?)",
                [f"expired_{table}_rows", expired],
            )
        return deleted

    def _sum_counters(self) -> None:
        """Restore one row per counter."""
        table = self.layouts[COUNTER_PARTS.name].inlined
        with self.catalog.exclusive(), self.catalog.transaction(alone=True):
            self.catalog.change(
                f"UPDATE {table} AS one SET value = (SELECT sum(part.value) FROM {table} AS part WHERE part.name = one.name)"
            )
            self.catalog.change(
                f"DELETE FROM {table} WHERE row_id NOT IN (SELECT min(row_id) FROM {table} GROUP BY name)"
            )

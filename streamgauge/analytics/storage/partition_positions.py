"""The table `log_positions`: how far each partition is read, and which process owns it.

A row has an owner and a version. Acquiring a partition sets the owner and increments the version. A commit moves a position
only if owner and version are as this process last wrote them. Otherwise another process has acquired the partition.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from streamgauge.analytics.assembly.partition import LogPosition
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.tables import LOG_POSITIONS
from streamgauge.analytics.storage.catalog import Catalog, integers
from streamgauge.analytics.storage.ducklake_format import SnapshotBuilder, TableLayout

Versions = dict[tuple[str, str], int]
"""By log id and partition."""


class PartitionLost(Exception):
    """Another consumer has acquired the partition. This consumer must stop."""


class PartitionPositions:
    """The positions that one process owns. Its inlined rows are updated in place and have no history."""

    def __init__(self, catalog: Catalog, layout: TableLayout, owner: str) -> None:
        """`owner` is unique among all processes."""
        self._catalog = catalog
        self._layout = layout
        self._owner = owner
        self.versions: Versions = {}
        """Version of each owned position, as last committed."""

    def acquire(self, log_id: str, partition: str) -> LogPosition | None:
        """Acquire a partition in a separate transaction. Returns its position, None if no commit has moved it yet."""
        table, where = self._layout.inlined, self._where(log_id, partition)
        with self._catalog.transaction():
            rows = self._catalog.query(
                f"SELECT version, high, low, open_stream_ids FROM {table} WHERE {where}"
            )
            if rows:
                self._catalog.change(
                    f"UPDATE {table} SET owner = {self._catalog.text(self._owner)}, version = version + 1 WHERE {where}"
                )
            else:
                self._insert(log_id, partition)
        if not rows:
            self.versions[log_id, partition] = 1
            return None
        version, high, low = integers(rows[0][:3])
        self.versions[log_id, partition] = version + 1
        stored = LogPosition(high, low, parse_list(str(rows[0][3])))
        return None if stored == LogPosition(0, 0, ()) else stored

    def _insert(self, log_id: str, partition: str) -> None:
        row: tuple[object, ...] = (log_id, partition, 0, 0, [], self._owner, 1, time.time_ns() // 1000)
        snapshot = SnapshotBuilder(self._catalog)
        snapshot.add_rows(self._layout, frame_of_rows(LOG_POSITIONS, [row]))
        snapshot.finish()

    def move(self, log_id: str, positions: Mapping[str, LogPosition]) -> Versions:
        """Update owned positions within a transaction. Returns their new versions. Raises PartitionLost."""
        if not positions:
            return {}
        for partition in positions:
            if (log_id, partition) not in self.versions:
                raise PartitionLost(f"partition {partition} was not acquired")
        catalog, table = self._catalog, self._layout.inlined
        found = {
            partition: (int(str(version)), owner)
            for partition, version, owner in catalog.query(
                f"SELECT {catalog.as_text('partition')}, version, {catalog.as_text('owner')} FROM {table} "
                f"WHERE log_id = {catalog.text(log_id)}"
            )
        }
        now = time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime())
        moved = {}
        for partition, position in positions.items():
            version = self.versions[log_id, partition]
            if found.get(partition) != (version, self._owner):
                raise PartitionLost(f"another consumer has acquired partition {partition}")
            catalog.change(
                f"UPDATE {table} SET high = {position.high}, low = {position.low}, "
                f"open_stream_ids = '[{', '.join(position.open_stream_ids)}]', version = {version + 1}, updated_at = '{now}' "
                f"WHERE {self._where(log_id, partition)}"
            )
            moved[log_id, partition] = version + 1
        return moved

    def _where(self, log_id: str, partition: str) -> str:
        return f"log_id = {self._catalog.text(log_id)} AND partition = {self._catalog.text(partition)}"


def parse_list(text: str) -> tuple[str, ...]:
    """The elements of a list as the catalog stores it: `[a, b]`."""
    inner = text.strip("[]")
    return tuple(part.strip() for part in inner.split(",")) if inner else ()

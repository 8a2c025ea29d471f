"""One transaction of the store: rows, log positions, counters, taps and kept records, all or nothing, also under kill -9.

It checks and moves the positions (`partition_positions`) and adds Parquet files and the rows of small tables to a new
snapshot. So each stream is stored and counted exactly once, however often the log delivers its records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from streamgauge.analytics.assembly.partition import LogPosition
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.storage.catalog import Catalog
from streamgauge.analytics.storage.ducklake_format import File, SnapshotBuilder, TableLayout
from streamgauge.analytics.storage.partition_positions import PartitionPositions, Versions
from streamgauge.analytics.storage.updated_rows import add_to_counters, write_tap_reports
from streamgauge.ingest.records import Alive


class StoreFailed(Exception):
    """The store cannot be written. The commit was stored as a whole or not at all: its positions say which."""


@dataclass(slots=True)
class Commit:
    """Everything that one transaction changes."""

    log_id: str
    positions: Mapping[str, LogPosition] = field(default_factory=dict)
    """By partition."""
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """Rows to append, by public table. Columns are matched by name."""
    kept_records: Sequence[tuple[str, str, bytes]] = ()
    """(partition, stream id, packed records) of long-open streams, in order."""
    finished_stream_ids: Sequence[str] = ()
    """Streams whose kept records are deleted."""
    taps: Sequence[Alive] = ()
    totals: Mapping[str, int] = field(default_factory=dict)
    """Increments of the counters."""


_MAX_KEPT_RECORDS = 1 << 20
"""More than one commit keeps for a partition, so numbers increase from commit to commit."""


def run_transaction(
    catalog: Catalog,
    layouts: Mapping[str, TableLayout],
    positions: PartitionPositions,
    commit: Commit,
    files: Sequence[File],
    small: Mapping[str, pl.DataFrame],
    *,
    schema_version: int,
) -> Versions:
    """Commit `files` and the rows of `small`, by table. Raises PartitionLost, StoreFailed and duckdb.Error."""
    with catalog.transaction():
        moved = positions.move(commit.log_id, commit.positions)
        snapshot = SnapshotBuilder(catalog)
        if snapshot.schema_version != schema_version:
            raise StoreFailed("another version of Streamgauge changed the store's schema. Restart analytics")
        for file in files:
            snapshot.add_file(file)
        for name, rows in small.items():
            snapshot.add_rows(layouts[name], rows)
        write_tap_reports(catalog, layouts["taps"], commit.taps, snapshot)
        add_to_counters(catalog, layouts["internal.counter_parts"], commit.totals, snapshot)
        snapshot.finish()
        if commit.kept_records:
            _keep_records(catalog, commit, moved)
        if commit.finished_stream_ids:
            listed = ", ".join(map(literal, commit.finished_stream_ids))
            catalog.change(f"DELETE FROM streamgauge_kept_records WHERE stream_id IN ({listed})")
    return moved


def _keep_records(catalog: Catalog, commit: Commit, moved: Versions) -> None:
    partitions, stream_ids, payloads = zip(*commit.kept_records, strict=True)
    numbers = [moved[commit.log_id, p] * _MAX_KEPT_RECORDS + n for n, p in enumerate(partitions)]
    catalog.insert(
        "streamgauge_kept_records",
        pl.DataFrame(
            {
                "log_id": [commit.log_id] * len(numbers), "partition": partitions, "stream_id": stream_ids,
                "number": numbers, "payload": payloads,
            }
        ),
    )  # fmt: skip

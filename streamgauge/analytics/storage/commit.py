"""One transaction of the store: rows, log positions, counters, taps and kept records, all or nothing, also under kill -9.

It checks and moves the positions (`partition_positions`) and adds Parquet files and the rows of small tables to a new
snapshot. So each stream is stored and counted exactly once, however often the log delivers its records.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from streamgauge.analytics.assembly.partition import LogPosition
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.schema.tables import COUNTER_PARTS, TAPS
from streamgauge.analytics.storage.catalog import Catalog, without_nul
from streamgauge.analytics.storage.ducklake_format import File, SnapshotBuilder, TableLayout
from streamgauge.analytics.storage.partition_positions import PartitionPositions, Versions
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
        write_tap_reports(catalog, layouts[TAPS.name], commit.taps, snapshot)
        add_to_counters(catalog, layouts[COUNTER_PARTS.name], commit.totals, snapshot)
        snapshot.finish()
        if commit.kept_records:
            _keep_records(catalog, commit, moved)
        if commit.finished_stream_ids:
            listed = ", ".join(map(literal, commit.finished_stream_ids))
            catalog.change(f"DELETE FROM streamgauge_kept_records WHERE stream_id IN ({listed})")
    return moved


def write_tap_reports(
    catalog: Catalog, layout: TableLayout, taps: Sequence[Alive], snapshot: SnapshotBuilder
) -> None:
    """Update the row of each run, or insert it."""
    if not taps:
        return
    text, new = catalog.text, []
    incarnations = ", ".join(text(tap.incarnation) for tap in taps)
    known = {
        (tap, int(str(worker)), incarnation)
        for tap, worker, incarnation in catalog.query(
            f"SELECT {catalog.as_text('tap')}, tap_worker, {catalog.as_text('incarnation')} "
            f"FROM {layout.inlined} WHERE incarnation IN ({incarnations})"
        )
    }
    for tap in taps:
        started_us, alive_us = tap.started_wall_ns // 1000, tap.wall_ns // 1000
        counters = json.dumps(dict(tap.counters))
        if (without_nul(tap.tap), tap.tap_worker, without_nul(tap.incarnation)) not in known:
            new.append(
                (tap.tap, tap.tap_worker, tap.incarnation, started_us, alive_us, tap.stopping, counters)
            )
            continue
        catalog.change(
            f"UPDATE {layout.inlined} SET last_alive_at = '{_instant(alive_us)}', "
            f"stopped = {catalog.flag(tap.stopping)}, counters = {text(counters)} "
            f"WHERE tap = {text(tap.tap)} AND tap_worker = {tap.tap_worker} AND incarnation = {text(tap.incarnation)}"
        )
    snapshot.add_rows(layout, frame_of_rows(TAPS, new))


def add_to_counters(
    catalog: Catalog, layout: TableLayout, increments: Mapping[str, int], snapshot: SnapshotBuilder
) -> None:
    """Increment one row of each counter, or insert it."""
    increments = {name: value for name, value in increments.items() if value}
    if not increments:
        return
    known = {
        str(name): int(str(row_id))
        for name, row_id in catalog.query(
            f"SELECT {catalog.as_text('name')}, min(row_id) FROM {layout.inlined} GROUP BY name"
        )
    }
    cases = " ".join(f"WHEN {known[name]} THEN {increments[name]}" for name in increments if name in known)
    if cases:
        rows = ", ".join(str(known[name]) for name in increments if name in known)
        catalog.change(
            f"UPDATE {layout.inlined} SET value = value + CASE row_id {cases} END WHERE row_id IN ({rows})"
        )
    new = [name for name in increments if name not in known]
    snapshot.add_rows(layout, pl.DataFrame({"name": new, "value": [increments[name] for name in new]}))


def _instant(at_us: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(at_us / 1e6, dt.UTC)


def _keep_records(catalog: Catalog, commit: Commit, moved: Versions) -> None:
    rows = [
        (
            commit.log_id,
            partition,
            stream_id,
            moved[commit.log_id, partition] * _MAX_KEPT_RECORDS + n,
            payload,
        )
        for n, (partition, stream_id, payload) in enumerate(commit.kept_records)
    ]
    columns = ("log_id", "partition", "stream_id", "number", "payload")
    catalog.insert("streamgauge_kept_records", pl.DataFrame(rows, schema=columns, orient="row"))

"""The tables `taps` and `internal.counter_parts`: rows that each commit updates in place.

Their rows stay inlined in the catalog and have no history. Every function runs within the transaction of a commit.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence

import polars as pl

from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.tables import TAPS
from streamgauge.analytics.storage.catalog import Catalog, without_nul
from streamgauge.analytics.storage.ducklake_format import SnapshotBuilder, TableLayout
from streamgauge.ingest.records import Alive


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

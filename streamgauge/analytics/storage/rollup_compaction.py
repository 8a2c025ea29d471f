"""Compact the roll-ups of past minutes: one row per key and minute, and a bounded number of rows per minute.

Contract
1. Commits only append (`streamgauge.analytics.measures.minute_rows`). Some minutes after its end, the rows of a minute are summed in one
   exclusive transaction. Later rows are summed in the next compaction. Until then the views sum them.
2. Names come from clients and upstreams. Each minute keeps its `MOST_NAMES` busiest models, clients and error types, and the
   `MOST_LABEL_VALUES` busiest values of each label. All others become `_other`.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from streamgauge.analytics.schema.dimensions import MOST_LABEL_VALUES, MOST_NAMES, OTHER
from streamgauge.analytics.schema.tables import HISTOGRAM_MINUTES, LABEL_MINUTES, TABLES, Rows, Table
from streamgauge.analytics.storage.database import first_row, transaction

ROLLUPS = tuple(table for table in TABLES if table.rows is Rows.SUMMED)
MINUTES_A_STEP = 120
SECONDS_OPEN = 120.0
"""Age of a minute at its compaction, counted from its end. Most of its streams have ended by then."""

_OTHERS = {
    "settled": "true",
    "icl_max_ns": "max(icl_max_ns)",
    "first_at": "min(first_at)",
    "last_at": "max(last_at)",
}
"""The columns outside of the key that are no sums."""
_SUM = f"CASE WHEN count({{0}}) > 0 THEN least(sum({{0}}), {2**63 - 1})::BIGINT END"
_DUE = "minute IN (SELECT minute FROM temp.due_minutes)"
_NEAR = "minute BETWEEN make_timestamptz(?) AND make_timestamptz(?)"
"""In addition to `_DUE`: DuckDB pushes this condition into the scan."""

_FOLDED_LABELS = f"""(
    SELECT * REPLACE (
        if(dense_rank() OVER (PARTITION BY minute, label, value = '{OTHER}' ORDER BY of_value DESC, value) > {MOST_LABEL_VALUES},
            '{OTHER}', value) AS value)
    FROM (SELECT *, sum(streams) OVER (PARTITION BY minute, label, value) AS of_value FROM {LABEL_MINUTES.name}))"""


def _added_up(table: Table) -> str:
    """SQL of the rows of the due minutes, one per key."""
    if table is HISTOGRAM_MINUTES:
        return (
            f"SELECT *, true AS settled FROM internal.unsettled_histograms WHERE {_NEAR} AND {_DUE} "
            "ORDER BY metric, minute, gateway, provider, model"
        )
    # Not by UPDATE, as other names: a label may have thousands of values in a minute.
    rows = _FOLDED_LABELS if table is LABEL_MINUTES else table.name
    key = table.key.split(", ")
    sums = (f"{_OTHERS.get(name, _SUM.format(name))} AS {name}" for name in table.types if name not in key)
    return (
        f"SELECT {', '.join([*key, *sums])} FROM {rows} WHERE {_NEAR} AND {_DUE} "
        f"GROUP BY {table.key} ORDER BY {table.key}"
    )


def compact_rollups(connection: duckdb.DuckDBPyConnection, now_s: float, folders: Sequence[str] = ()) -> int:
    """Compact the past minutes in steps. Returns their number. Raises duckdb.Error; finished steps remain.

    `folders`: those of the files of `ROLLUPS`."""
    done, last = 0, None
    run = connection.execute
    while True:
        with transaction(connection, *folders):
            chosen = _choose(connection, int((now_s - 60 - SECONDS_OPEN) * 1e6))
            if chosen:
                minutes, *ends = chosen
                for name in ("model", "error_type", "client_id", "client_app"):
                    _fold(connection, name, [table.name for table in ROLLUPS if name in table.types])
                for table in ROLLUPS:
                    run(f"CREATE OR REPLACE TEMP TABLE added_up AS {_added_up(table)}", ends)
                    run(f"DELETE FROM {table.name} WHERE minute IN (SELECT minute FROM temp.added_up)")
                    run(f"INSERT INTO {table.name} BY NAME FROM temp.added_up")
        if chosen is None or chosen == last:  # no progress
            return done
        done, last = done + minutes, chosen


def _choose(connection: duckdb.DuckDBPyConnection, until_us: int) -> tuple[int, int, int] | None:
    """Select the oldest due minutes into a temporary table. Returns their number, the first and the last in µs."""
    run = connection.execute
    unsettled = " UNION ".join(f"SELECT minute FROM {table.name} WHERE NOT settled" for table in ROLLUPS)
    run(
        f"CREATE OR REPLACE TEMP TABLE due_minutes AS SELECT minute FROM ({unsettled}) "
        f"WHERE minute <= make_timestamptz(?) ORDER BY minute LIMIT {MINUTES_A_STEP}",
        [until_us],
    )
    row = first_row(
        run("SELECT count(*), epoch_us(min(minute)), epoch_us(max(minute)) FROM temp.due_minutes")
    )
    return row if row is not None and row[0] else None


def _fold(connection: duckdb.DuckDBPyConnection, name: str, tables: Sequence[str]) -> None:
    """Replace names that are not among the busiest of their minute in the first table by `_other`."""
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE folded_names AS SELECT minute, {name} AS name FROM {tables[0]} "
        f"WHERE {_DUE} AND {name} <> '{OTHER}' GROUP BY minute, {name} "
        f"QUALIFY row_number() OVER (PARTITION BY minute ORDER BY sum(streams) DESC, {name}) > {MOST_NAMES}"
    )
    for table in tables:
        connection.execute(
            f"UPDATE {table} SET {name} = '{OTHER}', settled = false FROM temp.folded_names "
            f"WHERE {table}.minute = folded_names.minute AND {table}.{name} = folded_names.name"
        )

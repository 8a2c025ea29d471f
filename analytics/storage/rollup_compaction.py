"""Compact the roll-ups of past minutes: one row per key and minute, and a bounded number of rows per minute.

Contract
1. Commits only append (`streamgauge.analytics.measures.minute_rows`). Some minutes after its end, the rows of a minute are summed in one
   exclusive transaction. Later rows are summed in the next compaction. Until then the views sum them.
2. Names come from clients and upstreams. Each minute keeps its `MOST_NAMES` busiest models, clients and error types. All
   others become `_other`.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from streamgauge.analytics.schema.dimensions import MOST_NAMES, OTHER
from streamgauge.analytics.storage.database import first_row, transaction

ROLLUPS = ("stream_minutes", "histogram_minutes", "client_minutes")
MINUTES_A_STEP = 120
SECONDS_OPEN = 120.0
"""Age of a minute at its compaction, counted from its end. Most of its streams have ended by then."""

_KEY = "minute, gateway, provider, model, dialect, operation, outcome, error_phase, error_type, http_status"
_SUMS = (
    "streams", "streams_with_output", "streams_with_output_tokens", "aborted_after_terminal", "meeting_objective",
    "streams_with_stalls_known", "stalled_streams", "stalls", "stalled_ns", "output_ns",
    "waited_upstream_ns", "waited_client_ns", "tap_delay_ns", "input_tokens", "cached_input_tokens",
    "input_tokens_with_cache_known", "output_tokens", "reasoning_tokens", "output_tokens_with_reasoning_known", "events",
    "output_events", "text_chars", "reasoning_chars", "tool_calls", "malformed_events", "request_bytes", "response_bytes",
    "delivered_bytes", "lost_bytes",
)  # fmt: skip
_CLIENT_KEY = "minute, client_id, gateway, model, objective"
_CLIENT_SUMS = (
    "streams", "counted", "errors", "meeting_objective", "input_tokens", "cached_input_tokens", "output_tokens",
)  # fmt: skip
_DUE = "minute IN (SELECT minute FROM temp.due_minutes)"
_NEAR = "minute BETWEEN make_timestamptz(?) AND make_timestamptz(?)"
"""In addition to `_DUE`: DuckDB pushes this condition into the scan."""


def _sums(names: tuple[str, ...]) -> str:
    return ", ".join(
        f"CASE WHEN count({name}) > 0 THEN least(sum({name}), {2**63 - 1})::BIGINT END AS {name}"
        for name in names
    )


_ADDED = {
    "stream_minutes": (
        f"SELECT {_KEY}, true AS settled, {_sums(_SUMS)}, "
        "max(icl_max_ns) AS icl_max_ns, min(first_at) AS first_at, max(last_at) AS last_at "
        f"FROM stream_minutes WHERE {_NEAR} AND {_DUE} GROUP BY {_KEY} ORDER BY {_KEY}"
    ),
    "client_minutes": (
        f"SELECT {_CLIENT_KEY}, true AS settled, {_sums(_CLIENT_SUMS)} "
        f"FROM client_minutes WHERE {_NEAR} AND {_DUE} GROUP BY {_CLIENT_KEY} ORDER BY {_CLIENT_KEY}"
    ),
    "histogram_minutes": (
        f"SELECT *, true AS settled FROM internal.unsettled_histograms WHERE {_NEAR} AND {_DUE} "
        "ORDER BY minute, metric, gateway, provider, model"
    ),
}
"""By table: the summed rows of the due minutes."""


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
                _fold(connection, "model", ROLLUPS)
                _fold(connection, "error_type", ("stream_minutes",))
                _fold(connection, "client_id", ("client_minutes",))
                for table, added in _ADDED.items():
                    run(f"CREATE OR REPLACE TEMP TABLE added_up AS {added}", ends)
                    run(f"DELETE FROM {table} WHERE minute IN (SELECT minute FROM temp.added_up)")
                    run(f"INSERT INTO {table} BY NAME FROM temp.added_up")
        if chosen is None or chosen == last:  # no progress
            return done
        done, last = done + minutes, chosen


def _choose(connection: duckdb.DuckDBPyConnection, until_us: int) -> tuple[int, int, int] | None:
    """Select the oldest due minutes into a temporary table. Returns their number, the first and the last in µs."""
    run = connection.execute
    run(
        "CREATE OR REPLACE TEMP TABLE due_minutes AS SELECT minute FROM ("
        "SELECT minute FROM stream_minutes WHERE NOT settled UNION SELECT minute FROM histogram_minutes WHERE NOT settled "
        "UNION SELECT minute FROM client_minutes WHERE NOT settled"
        f") WHERE minute <= make_timestamptz(?) ORDER BY minute LIMIT {MINUTES_A_STEP}",
        [until_us],
    )
    row = first_row(
        run("SELECT count(*), epoch_us(min(minute)), epoch_us(max(minute)) FROM temp.due_minutes")
    )
    return row if row is not None and row[0] else None


def _fold(connection: duckdb.DuckDBPyConnection, name: str, tables: tuple[str, ...]) -> None:
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

"""Polars types of the tables' columns, in the order of schema.sql, and data frames with these columns.

UUIDs are text. Instants are microseconds in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from streamgauge.analytics.schema.columns import sql_columns

Columns = dict[str, pl.DataType]

_POLARS = {
    "UUID": pl.String(), "VARCHAR": pl.String(), "BOOLEAN": pl.Boolean(), "TIMESTAMPTZ": pl.Datetime("us", "UTC"),
    "SMALLINT": pl.Int16(), "INTEGER": pl.Int32(), "BIGINT": pl.Int64(), "FLOAT": pl.Float32(), "DOUBLE": pl.Float64(),
    "VARCHAR[]": pl.List(pl.String), "SMALLINT[]": pl.List(pl.Int16), "INTEGER[]": pl.List(pl.Int32),
}  # fmt: skip


def _columns(table: str) -> Columns:
    return {name: _POLARS[kind] for name, kind in sql_columns(table).items()}


STREAMS = _columns("streams")
EVENTS = _columns("events")
OPEN_STREAMS = _columns("open_streams")
USAGE_REPORTS = _columns("usage_reports")
SERVER_STATS = _columns("server_stats")
LOSSES = _columns("losses")
DEAD_LETTERS = _columns("dead_letters")
LOG_POSITIONS = _columns("log_positions")
TAPS = _columns("taps")
SPANS = _columns("spans")
STREAM_MINUTES = _columns("stream_minutes")
HISTOGRAM_MINUTES = _columns("histogram_minutes")
CLIENT_MINUTES = _columns("client_minutes")
OBJECTIVES = _columns("objectives")
PRICES = _columns("prices")
CLIENTS = _columns("clients")
MARKERS = _columns("markers")
OUTPUT_STALLS = _columns("output_stalls")
GATEWAY_STALLS = _columns("gateway_stalls")
OUTPUT_WAITS = _columns("output_waits")
HOPS = _columns("hops")
HOP_CHANGES = _columns("hop_changes")
ALERT_EVENTS = _columns("alert_events")


def frame(columns: Columns, values: Mapping[str, Sequence[Any]]) -> pl.DataFrame:
    """A data frame with these columns. Instants are given as microseconds since the epoch."""
    return pl.DataFrame(
        [
            pl.Series(name, values[name], pl.Int64, strict=False).cast(kind)
            if isinstance(kind, pl.Datetime)
            else pl.Series(name, values[name], kind, strict=True)
            for name, kind in columns.items()
        ]
    )


def frame_of_rows(columns: Columns, rows: Sequence[Sequence[Any]]) -> pl.DataFrame:
    """As `frame`, from rows with values in the order of the columns."""
    values = zip(*rows, strict=True) if rows else [()] * len(columns)
    return frame(columns, dict(zip(columns, values, strict=True)))


def with_all_columns(rows: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    """The rows with NULL in every missing column."""
    missing = [pl.lit(None, columns[name]).alias(name) for name in columns.keys() - set(rows.columns)]
    return rows.with_columns(missing) if missing else rows

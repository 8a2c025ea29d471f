"""The tables of the store: everything that other modules need to know about a table, beside its columns in schema.sql.

Creating, retention, export, rebuild, merging and compaction follow from `TABLES`. A new table is a described CREATE TABLE in
schema.sql and a `Table` here. The columns of `streams` are in `stream_columns`, those of settings in their dataclasses
(`setting_rows`). Requires neither DuckDB nor polars.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cache, partial
from importlib import resources

from streamgauge.analytics.schema import setting_rows
from streamgauge.analytics.schema.budgets import Budget
from streamgauge.analytics.schema.clients import Client
from streamgauge.analytics.schema.hop_columns import HopClocks, HopMatch, HopMeasures
from streamgauge.analytics.schema.objectives import Objective
from streamgauge.analytics.schema.prices import Price
from streamgauge.analytics.schema.stream_columns import (
    LIVE,
    STREAM_COLUMNS,
    OpenStreamRow,
    StreamRow,
    columns_of,
    create_table,
    with_hint,
)


class Retention(StrEnum):
    """Which setting is the age at which rows are deleted."""

    EVENTS = "events"
    STREAMS = "streams"
    ROLLUPS = "rollups"
    KEPT = "kept"
    """Rows are not deleted by age."""


class Rows(Enum):
    """How rows are written."""

    APPENDED = 1
    """Never changed. A rebuild copies them from the Parquet files."""
    SUMMED = 2
    """Roll-ups by minute. Rows that share a key are added up some minutes later. A rebuild computes them from the streams."""
    UPDATED = 3
    """Each commit updates them in place. They stay in the catalog, and a rebuild starts without them."""
    REPLACED = 4
    """Replaced as a whole. Stores with the same settings have the same rows."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table. Columns are those of schema.sql."""

    name: str
    """With the schema unless it is `main`."""
    retention: Retention
    time_column: str | None = None
    """Time of a row: an instant or a UUIDv7. None if rows are not deleted by age."""
    rows: Rows = Rows.APPENDED
    key: str = ""
    """Columns that identify a row. Empty: equal rows are the same row, unless they are updated in place."""
    sorted_by: str = ""
    """Sort order of merged files. Ids are UUIDv7, so they sort by time."""
    grows_with_traffic: bool = True
    """Its rows are flushed and its files merged often. Other tables have few rows."""

    def __post_init__(self) -> None:
        if (self.retention is Retention.KEPT) != (self.time_column is None):
            raise ValueError(f"table {self.name}: rows are deleted by age, or have no time column")

    @property
    def qualified_name(self) -> str:
        """Name with the schema."""
        return self.name if "." in self.name else f"main.{self.name}"

    @property
    def types(self) -> dict[str, str]:
        """SQL types by column, in order. Raises KeyError without a CREATE TABLE."""
        return ddl_columns()[self.name]


@cache
def schema_sql(name: str = "schema") -> str:
    """The text of a file of statements, with the tables that are declared in Python."""
    text = (resources.files("streamgauge.analytics.schema") / f"{name}.sql").read_text()
    of_settings = [
        setting_rows.create_table("objectives", Objective, "Order, from 0. The last matches every stream."),
        setting_rows.create_table(
            "prices", Price, "Order in the file, from 0. The first row that matches a stream applies."
        ),
        setting_rows.create_table("budgets", Budget, "Order in the settings, from 0."),
        setting_rows.create_table("clients", Client),
    ]
    text = text.replace("$SETTINGS", "\n\n".join(of_settings))
    hops = create_table("hops", HopClocks, columns_of(HopMatch) | columns_of(HopMeasures))
    return text.replace("$STREAMS", create_table("streams", StreamRow)).replace("$HOPS", hops)


@cache
def ddl_columns() -> dict[str, dict[str, str]]:
    """The columns of each table in schema.sql and `OPEN_STREAMS_SQL`."""
    return declared_columns(schema_sql() + OPEN_STREAMS_SQL)


OPEN_STREAMS_SQL = create_table(
    "open_streams", OpenStreamRow, {n: STREAM_COLUMNS[n] for n in with_hint(LIVE)}
)
"""Not a table of the store: analytics writes files (`streamgauge.analytics.storage.open_streams_file`), and readers have a view."""


def declared_columns(sql: str) -> dict[str, dict[str, str]]:
    """SQL types by column, in order, of each CREATE TABLE."""
    text = re.sub(r"--.*", "", sql)
    return {
        # The types of a map stand in parentheses.
        name: dict(column.split()[:2] for column in re.split(r",(?![^(]*\))", body))
        for name, body in re.findall(r"CREATE TABLE IF NOT EXISTS ([\w.]+) \((.*?)\);", text, re.DOTALL)
    }


_of_stream = partial(Table, retention=Retention.STREAMS, time_column="stream_id", sorted_by="stream_id")
_of_hop = partial(
    Table, retention=Retention.STREAMS, time_column="outer_started_at", sorted_by="outer_stream_id"
)
_seldom = partial(Table, retention=Retention.STREAMS, grows_with_traffic=False)
_rollup = partial(
    Table, retention=Retention.ROLLUPS, time_column="minute", rows=Rows.SUMMED, sorted_by="minute"
)
_in_place = partial(Table, retention=Retention.KEPT, rows=Rows.UPDATED, grows_with_traffic=False)
_from_settings = partial(Table, retention=Retention.KEPT, rows=Rows.REPLACED, grows_with_traffic=False)

STREAMS = _of_stream("streams", key="stream_id")
EVENTS = _of_stream("events", retention=Retention.EVENTS, key="stream_id, seq", sorted_by="stream_id, seq")
USAGE_REPORTS = _of_stream("usage_reports", key="stream_id, seq, at_ns")
SERVER_STATS = _of_stream("server_stats", key="stream_id, seq, source, name")
SPANS = Table("spans", Retention.STREAMS, "started_at", key="trace_id, span_id", sorted_by="started_at")
LOG_POSITIONS = _in_place("log_positions", key="log_id, partition")
TAPS = _in_place("taps", key="tap, tap_worker, incarnation")
COUNTER_PARTS = _in_place("internal.counter_parts")
LOSSES = _seldom("losses", time_column="lost_at")
DEAD_LETTERS = _seldom("dead_letters", time_column="set_aside_at")
STREAM_MINUTES = _rollup(
    "stream_minutes",
    key="minute, gateway, provider, model, dialect, operation, outcome, error_phase, error_type, http_status",
)
HISTOGRAM_MINUTES = _rollup(
    "histogram_minutes", key="minute, gateway, provider, model, metric", sorted_by="metric, minute"
)
CLIENT_MINUTES = _rollup("client_minutes", key="minute, client_id, client_app, gateway, model, objective")
LABEL_MINUTES = _rollup("label_minutes", key="minute, label, value, gateway, model")
OBJECTIVES = _from_settings("objectives", key="priority")
PRICES = _from_settings("prices", key="priority")
BUDGETS = _from_settings("budgets", key="priority")
CLIENTS = _from_settings("clients", key="client_id")
LABELS = _from_settings("labels", key="name")
MARKERS = _seldom("markers", retention=Retention.ROLLUPS, time_column="marked_at")
OUTPUT_STALLS = _of_stream("output_stalls", key="stream_id, seq")
OUTPUT_WAITS = _of_stream("output_waits", key="stream_id, from_ns")
GATEWAY_STALLS = _of_stream("gateway_stalls", key="stream_id, seq", grows_with_traffic=False)
HOPS = _of_hop("hops", key="outer_stream_id, inner_stream_id")
HOP_CHANGES = _of_hop("hop_changes")
ALERT_EVENTS = _seldom("alert_events", time_column="changed_at", key="alert_id, state, changed_at")
ALERT_RULES = _from_settings("alert_rules", key="rule")
SILENCES = _seldom("silences", retention=Retention.ROLLUPS, time_column="created_at")
PROMPT_SEGMENTS = _of_stream("prompt_segments", key="stream_id")
PROMPT_TOOLS = _of_stream("prompt_tools", key="stream_id, position")
AGENT_EVENTS = Table(
    "agent_events", Retention.STREAMS, "occurred_at", key="event_id", sorted_by="occurred_at"
)
MAX_SILENCE_S = 30 * 86_400

TABLES = tuple(value for value in [*globals().values()] if isinstance(value, Table))
"""Every table of the store, in the order of schema.sql."""
OPEN_STREAMS = Table("open_streams", Retention.KEPT, rows=Rows.REPLACED, key="stream_id")
"""Not a table of the store: each analytics process replaces a file (`streamgauge.analytics.storage.open_streams_file`)."""

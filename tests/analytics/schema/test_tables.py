"""The frames' columns are those of schema.sql and open_streams.sql."""

from pathlib import Path

import duckdb
import polars as pl
import pytest

from streamgauge.analytics.schema import tables

SCHEMA = Path(__file__).parents[3] / "analytics" / "schema"
DUCKDB_TYPES = {
    pl.String(): {"VARCHAR", "UUID"},
    pl.Int64(): {"BIGINT"},
    pl.Int32(): {"INTEGER"},
    pl.Int16(): {"SMALLINT"},
    pl.Float32(): {"FLOAT"},
    pl.Float64(): {"DOUBLE"},
    pl.Boolean(): {"BOOLEAN"},
    pl.Datetime("us", "UTC"): {"TIMESTAMP WITH TIME ZONE"},
    pl.List(pl.String()): {"VARCHAR[]"},
    pl.List(pl.Int16()): {"SMALLINT[]"},
    pl.List(pl.Int32()): {"INTEGER[]"},
}


@pytest.mark.parametrize(
    "table",
    [
        "streams",
        "events",
        "open_streams",
        "usage_reports",
        "server_stats",
        "losses",
        "stream_minutes",
        "histogram_minutes",
        "client_minutes",
        "objectives",
        "prices",
        "output_stalls",
        "output_waits",
        "hops",
        "hop_changes",
        "spans",
        "taps",
        "log_positions",
    ],
)
def test_columns_and_types_are_those_of_the_schema(table: str) -> None:
    con = duckdb.connect()
    for name in ("schema", "open_streams"):
        con.execute((SCHEMA / f"{name}.sql").read_text())
    described = con.execute(f"SELECT column_name, column_type FROM (DESCRIBE {table})").fetchall()
    columns: tables.Columns = getattr(tables, table.upper())
    assert list(columns) == [name for name, _ in described]
    for name, kind in described:
        assert kind in DUCKDB_TYPES[columns[name]], name

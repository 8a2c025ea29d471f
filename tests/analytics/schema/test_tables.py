"""Each table of schema.sql has one `Table`, with columns that exist."""

from __future__ import annotations

import duckdb
import polars as pl
import pytest

from streamgauge.analytics.schema.frames import polars_types
from streamgauge.analytics.schema.tables import (
    OPEN_STREAMS,
    OPEN_STREAMS_SQL,
    TABLES,
    Retention,
    Rows,
    Table,
    schema_sql,
)

ALL = [*TABLES, OPEN_STREAMS]
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
    pl.List(pl.Int64()): {"BIGINT[]"},
    pl.Map(pl.String(), pl.String()): {"MAP(VARCHAR, VARCHAR)"},
}


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute(schema_sql() + OPEN_STREAMS_SQL)
    return con


def test_each_created_table_is_described_once(con: duckdb.DuckDBPyConnection) -> None:
    created = con.execute("SELECT schema_name || '.' || table_name FROM duckdb_tables()").fetchall()
    assert sorted(table.qualified_name for table in ALL) == sorted(name for (name,) in created)


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.name)
def test_columns_and_types_are_those_of_the_schema(table: Table, con: duckdb.DuckDBPyConnection) -> None:
    described = con.execute(f"SELECT column_name, column_type FROM (DESCRIBE {table.name})").fetchall()
    columns = polars_types(table)
    assert list(columns) == [name for name, _ in described]
    for name, kind in described:
        assert kind in DUCKDB_TYPES[columns[name]], name


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_facts_name_columns_of_the_table(table: Table) -> None:
    named = {*table.key.split(", "), *table.sorted_by.split(", "), table.time_column or ""} - {""}
    assert named <= table.types.keys()
    if table.time_column is not None:
        assert table.types[table.time_column] in ("UUID", "TIMESTAMPTZ")
    if table.rows is Rows.SUMMED:
        assert {"minute", "settled"} <= table.types.keys()


def test_retention_requires_the_age_of_a_row() -> None:
    with pytest.raises(TypeError, match="retention"):
        Table("added")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="table added: "):
        Table("added", Retention.STREAMS)
    with pytest.raises(ValueError, match="table added: "):
        Table("added", Retention.KEPT, "added_at")

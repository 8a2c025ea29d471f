"""Polars data frames with the columns of a table, in its order.

UUIDs are text. Instants are microseconds in UTC.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

import polars as pl

from streamgauge.analytics.schema.tables import Table

_POLARS = {
    "UUID": pl.String(), "VARCHAR": pl.String(), "BOOLEAN": pl.Boolean(), "TIMESTAMPTZ": pl.Datetime("us", "UTC"),
    "SMALLINT": pl.Int16(), "INTEGER": pl.Int32(), "BIGINT": pl.Int64(), "FLOAT": pl.Float32(), "DOUBLE": pl.Float64(),
    "VARCHAR[]": pl.List(pl.String), "SMALLINT[]": pl.List(pl.Int16), "INTEGER[]": pl.List(pl.Int32),
}  # fmt: skip


@cache
def polars_types(table: Table) -> dict[str, pl.DataType]:
    """Polars types by column."""
    return {name: _POLARS[kind] for name, kind in table.types.items()}


def frame(table: Table, values: Mapping[str, Sequence[Any]], names: Collection[str] = ()) -> pl.DataFrame:
    """A data frame with all columns of the table, or with those of `names`. Instants are microseconds since the epoch."""
    kinds = polars_types(table)
    return pl.DataFrame(
        [
            pl.Series(name, values[name], pl.Int64, strict=False).cast(kinds[name])
            if isinstance(kinds[name], pl.Datetime)
            else pl.Series(name, values[name], kinds[name], strict=True)
            for name in names or kinds
        ]
    )


def frame_of_rows(table: Table, rows: Sequence[Sequence[Any]], names: Collection[str] = ()) -> pl.DataFrame:
    """As `frame`, from rows with values in the order of the columns."""
    names = names or polars_types(table)
    values = zip(*rows, strict=True) if rows else [()] * len(names)
    return frame(table, dict(zip(names, values, strict=True)), names)


def with_all_columns(rows: pl.DataFrame, table: Table) -> pl.DataFrame:
    """The rows with NULL in every missing column."""
    kinds = polars_types(table)
    missing = [pl.lit(None, kinds[name]).alias(name) for name in kinds.keys() - set(rows.columns)]
    return rows.with_columns(missing) if missing else rows

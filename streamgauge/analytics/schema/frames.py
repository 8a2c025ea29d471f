"""Polars data frames with the columns of a table, in its order.

UUIDs are text. Instants are microseconds in UTC.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import msgspec
import polars as pl

from streamgauge.analytics.schema.tables import Table

_POLARS = {
    "UUID": pl.String(), "VARCHAR": pl.String(), "BOOLEAN": pl.Boolean(), "TIMESTAMPTZ": pl.Datetime("us", "UTC"),
    "SMALLINT": pl.Int16(), "INTEGER": pl.Int32(), "BIGINT": pl.Int64(), "FLOAT": pl.Float32(), "DOUBLE": pl.Float64(),
    "VARCHAR[]": pl.List(pl.String), "SMALLINT[]": pl.List(pl.Int16), "INTEGER[]": pl.List(pl.Int32),
    "BIGINT[]": pl.List(pl.Int64), "MAP(VARCHAR,VARCHAR)": pl.Map(pl.String, pl.String),
}  # fmt: skip
_MOST_SHARED = 1_000
"""Rows of a column without a value that is kept for the next frame."""
_BITS: dict[pl.DataType, int] = {pl.Int16(): 16, pl.Int32(): 32, pl.Int64(): 64}


@cache
def polars_types(table: Table) -> dict[str, pl.DataType]:
    """Polars types by column."""
    return {name: _POLARS[kind] for name, kind in table.types.items()}


def frame(
    table: Table,
    values: Mapping[str, Sequence[Any]],
    names: Collection[str] = (),
    *,
    counters: Counter[str] | None = None,
) -> pl.DataFrame:
    """A data frame with all columns of the table, or with those of `names`. Instants are microseconds since the epoch."""
    kinds = polars_types(table)
    return pl.DataFrame([series(table, name, values[name], kinds[name], counters) for name in names or kinds])


def series(
    table: Table, name: str, values: Sequence[Any], kind: pl.DataType, counters: Counter[str] | None
) -> pl.Series:
    """One column. An integer outside of the range of its type is NULL and counted, as `out_of_range.TABLE.COLUMN`."""
    count = len(values)
    if 0 < count <= _MOST_SHARED and values[0] is None and list(values).count(None) == count:
        return _nulls(kind, count).alias(name)  # most columns of `streams`, in a fifth of the time
    if isinstance(kind, pl.Datetime):
        return pl.Series(name, values, pl.Int64, strict=False).cast(kind)
    if isinstance(kind, pl.List):
        # Polars needs four times as long to convert the lists themselves.
        texts = [None if one is None else msgspec.json.encode(one).decode() for one in values]
        return pl.Series(name, texts, pl.String).str.json_decode(kind)
    if isinstance(kind, pl.Map):
        return _maps(name, values, kind)
    try:
        return pl.Series(name, values, kind, strict=True)
    except (TypeError, OverflowError):
        if (bits := _BITS.get(kind)) is None:
            raise
    largest = 2 ** (bits - 1)
    kept = [None if value is None or not -largest <= value < largest else value for value in values]
    if counters is not None:
        counters[f"out_of_range.{table.name}.{name}"] += kept.count(None) - list(values).count(None)
    return pl.Series(name, kept, kind, strict=True)


@lru_cache(256)
def _nulls(kind: pl.DataType, count: int) -> pl.Series:
    return pl.Series([None] * count, dtype=kind)


def _maps(name: str, values: Sequence[Mapping[str, str] | None], kind: pl.Map) -> pl.Series:
    """Maps of text. From columns of their entries, which takes a tenth of the time that polars needs for each map on its own."""
    found = [(row, one) for row, one in enumerate(values) if one]
    if not found:
        return pl.Series(name, [None] * len(values), kind)
    entries = {
        "row": [row for row, one in found for _ in one],
        "key": [key for _, one in found for key in one],
        "value": [text for _, one in found for text in one.values()],
    }
    listed = (
        pl.DataFrame(entries, schema={"row": pl.UInt32, "key": pl.String, "value": pl.String})
        .group_by("row", maintain_order=True)
        .agg(pl.struct("key", "value").alias(name))
    )
    rows = pl.DataFrame({"row": pl.int_range(len(values), dtype=pl.UInt32, eager=True)})
    return rows.join(listed, on="row", how="left", maintain_order="left")[name].cast(kind)


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

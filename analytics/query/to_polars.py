"""Convert an Arrow table of DuckDB to a polars DataFrame.

UUIDs become text, instants are in UTC, and intervals become durations (a month counts as 30 days, as in DuckDB's comparisons).
Integers that DuckDB widened to HUGEINT become Int64 where they fit.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from analytics.query.errors import not_convertible


def to_polars(table: pa.Table) -> pl.DataFrame:
    """Raises QueryRejected for a type that polars does not have."""
    for i, column in enumerate(table.schema):
        if pa.types.is_interval(column.type):
            table = table.set_column(i, column.name, _durations(table.column(i)))
    try:
        found = pl.from_arrow(table)
    except (pl.exceptions.PolarsError, TypeError, ValueError, pa.ArrowException) as e:
        raise not_convertible(e) from None
    assert isinstance(found, pl.DataFrame)
    changed: list[pl.Expr] = []
    for name, kind in found.schema.items():
        if isinstance(kind, pl.Datetime) and kind.time_zone not in (None, "UTC"):
            changed.append(pl.col(name).dt.convert_time_zone("UTC"))
        elif isinstance(kind, pl.Decimal) and kind.scale == 0:
            number = found[name].cast(pl.Int64, strict=False)
            if number.null_count() == found[name].null_count():
                changed.append(pl.lit(number).alias(name))
    return found.with_columns(changed)


def _durations(column: pa.ChunkedArray) -> pa.Array:
    microseconds = [
        None if v is None else (v.months * 30 + v.days) * 86_400_000_000 + v.nanoseconds // 1000
        for v in column.to_pylist()
    ]
    return pa.array(microseconds, pa.int64()).cast(pa.duration("us"))

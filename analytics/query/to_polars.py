"""Convert an Arrow table of DuckDB to a polars DataFrame.

UUIDs become text, instants are in UTC, and intervals become durations (a month counts as 30 days, as in DuckDB's comparisons).
Integers that DuckDB widened to HUGEINT become Int64 where they fit.
"""

from __future__ import annotations

from datetime import date

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from streamgauge.analytics.query.errors import not_convertible

EPOCH = date(1970, 1, 1)
FIRST_DAY, LAST_DAY = (date.min - EPOCH).days, (date.max - EPOCH).days
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def to_polars(table: pa.Table) -> pl.DataFrame:
    """Raises QueryRejected for a type that polars does not have, and for times beyond the years of Python's types."""
    try:
        for i, column in enumerate(table.schema):
            if pa.types.is_interval(column.type):
                table = table.set_column(i, column.name, _durations(table.column(i)))
            _check(column.name, table.column(i))
        found = pl.from_arrow(table)
    except (
        pl.exceptions.PolarsError, pl.exceptions.PanicException, TypeError, ValueError, OverflowError, pa.ArrowException,
    ) as e:  # fmt: skip
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


def _check(name: str, values: pa.ChunkedArray | pa.Array) -> None:
    """Raises ValueError for values that polars or Python cannot represent, at any depth."""
    kind = values.type
    if pa.types.is_interval(kind) or isinstance(kind, pa.OpaqueType):
        raise ValueError(f"column {name!r} contains the type {kind}")
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        # As numbers, because `as_py` of a time imports pandas.
        if pa.types.is_date32(kind):
            found, first, last = pc.min_max(values.cast(pa.int32())), FIRST_DAY, LAST_DAY
        else:
            per_day = 86_400 * PER_SECOND["ms" if pa.types.is_date64(kind) else kind.unit]
            found, first, last = (
                pc.min_max(values.cast(pa.int64())),
                FIRST_DAY * per_day,
                (LAST_DAY + 1) * per_day - 1,
            )
        if found["min"].is_valid and not first <= found["min"].as_py() <= found["max"].as_py() <= last:
            raise ValueError(f"column {name!r} has times beyond the years 1 to 9999")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        _check(name, pc.list_flatten(values))
    elif pa.types.is_map(kind):
        for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
            _check(name, chunk.keys)
            _check(name, chunk.items)
    elif pa.types.is_struct(kind):
        for field in range(kind.num_fields):
            _check(name, pc.struct_field(values, [field]))


def _durations(column: pa.ChunkedArray) -> pa.Array:
    microseconds = [
        None if v is None else (v.months * 30 + v.days) * 86_400_000_000 + v.nanoseconds // 1000
        for v in column.to_pylist()
    ]
    return pa.array(microseconds, pa.int64()).cast(pa.duration("us"))

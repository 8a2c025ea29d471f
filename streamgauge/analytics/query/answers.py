"""Answers of queries: Arrow IPC bytes between processes, and polars DataFrames.

Only `to_polars` loads polars, which a process that only encodes does not need.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from streamgauge.analytics.query.query_errors import QueryRejected, not_convertible

if TYPE_CHECKING:
    import polars as pl

MAX_DEPTH = 16
"""Levels of lists, structs and maps in one column."""
EPOCH = date(1970, 1, 1)
FIRST_DAY, LAST_DAY = (date.min - EPOCH).days, (date.max - EPOCH).days
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def encode(table: pa.Table) -> memoryview:
    """The table as an IPC stream. ENUM values become text."""
    # Dictionaries, as which Arrow has ENUMs, are rejected by `decode`.
    sink = pa.BufferOutputStream()
    schema = pa.schema([column.with_type(_without_enums(column.type)) for column in table.schema])
    if schema != table.schema:
        table = table.cast(schema)
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_table(table)
    return memoryview(sink.getvalue())


def decode(body: bytes | memoryview, *, untrusted: bool) -> pa.Table:
    """The inverse. `untrusted`: the bytes come from a process that ran untrusted SQL. Raises QueryRejected.

    Rejects unions, dictionaries and deep types: polars and DuckDB crash on some of them, such as an empty list of ENUM.
    """
    try:
        # The types are checked before the first row is read, because reading is what may crash.
        stream = pa.ipc.open_stream(body)
        for column in stream.schema:
            _check_type(column.name, column.type, MAX_DEPTH)
        table = stream.read_all()
        if untrusted:
            # Offsets and lengths in the bytes may point anywhere, and polars and DuckDB do not check them.
            table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as e:
        raise QueryRejected(
            f"cannot read the answer: {' '.join(str(e).split())}. Simplify the statement."
        ) from None
    return table


def _check_type(name: str, kind: pa.DataType, depth: int) -> None:
    if depth == 0:
        raise not_convertible(f"column {name!r} is nested more than {MAX_DEPTH} levels deep")
    if pa.types.is_union(kind):
        raise not_convertible(f"column {name!r} contains a UNION")
    if pa.types.is_dictionary(kind):
        raise not_convertible(f"column {name!r} contains an ENUM")
    for place in range(kind.num_fields):
        _check_type(name, kind.field(place).type, depth - 1)


def _without_enums(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_map(kind):
        return pa.map_(_without_enums(kind.key_type), _without_enums(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_enums(field.type)) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_without_enums(kind.value_type), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_without_enums(kind.value_type))
    return kind


def to_polars(table: pa.Table) -> pl.DataFrame:
    """The table as a DataFrame. UUIDs become text, instants are in UTC, and intervals become durations (a month counts as 30 days,
    as in DuckDB's comparisons).

    Raises QueryRejected for a type that polars does not have, and for times beyond the years of Python's types.
    """
    import polars as pl

    try:
        for i, column in enumerate(table.schema):
            if pa.types.is_interval(column.type):
                table = table.set_column(i, column.name, _durations(table.column(i)))
            _check_values(column.name, table.column(i))
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
            # DuckDB widens sums of integers to HUGEINT. They are Int64 where they fit.
            number = found[name].cast(pl.Int64, strict=False)
            if number.null_count() == found[name].null_count():
                changed.append(pl.lit(number).alias(name))
    return found.with_columns(changed)


def _check_values(name: str, values: pa.ChunkedArray | pa.Array) -> None:
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
        _check_values(name, pc.list_flatten(values))
    elif pa.types.is_map(kind):
        for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
            _check_values(name, chunk.keys)
            _check_values(name, chunk.items)
    elif pa.types.is_struct(kind):
        for field in range(kind.num_fields):
            _check_values(name, pc.struct_field(values, [field]))


def _durations(column: pa.ChunkedArray) -> pa.Array:
    microseconds = [
        None if v is None else (v.months * 30 + v.days) * 86_400_000_000 + v.nanoseconds // 1000
        for v in column.to_pylist()
    ]
    return pa.array(microseconds, pa.int64()).cast(pa.duration("us"))

"""Answers between processes: Arrow IPC bytes of one table."""

from __future__ import annotations

import pyarrow as pa

from streamgauge.analytics.query.errors import QueryRejected, not_convertible

MAX_DEPTH = 16
"""Levels of lists, structs and maps in one column."""


def encode(table: pa.Table) -> memoryview:
    """The table as an IPC stream. ENUM values become text."""
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
        stream = pa.ipc.open_stream(body)
        for column in stream.schema:
            _check_type(column.name, column.type, MAX_DEPTH)
        table = stream.read_all()
        if untrusted:
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

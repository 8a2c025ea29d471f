"""Answers between processes: Arrow IPC bytes of one table."""

from __future__ import annotations

import pyarrow as pa

from analytics.query.errors import QueryRejected


def encode(table: pa.Table) -> memoryview:
    """The table as an IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return memoryview(sink.getvalue())


def decode(body: bytes, *, untrusted: bool) -> pa.Table:
    """The inverse. `untrusted`: the bytes come from a process that ran untrusted SQL. Raises QueryRejected."""
    try:
        table = pa.ipc.open_stream(body).read_all()
        if untrusted:
            table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as e:
        raise QueryRejected(
            f"cannot read the answer: {' '.join(str(e).split())}. Simplify the statement."
        ) from None
    return table

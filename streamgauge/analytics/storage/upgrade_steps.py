"""What an upgrade of a store changes, besides adding tables and columns: one function per version of the tables.

`STEPS[n]` makes the tables of version n from those of n - 1. A version without a function only has new tables, columns and views,
which follow from the declared ones (`streamgauge.analytics.storage.create_schema`), or means something else by its new rows.

Contract of a step
1. It runs in one transaction of the lake, before tables and columns are added. A process that is killed after the commit repeats it,
   so it changes nothing when it runs again: `rename_table` and `rename_column` look for the former name.
2. It does not set options, comments or sort orders: in one transaction with its changes they crash DuckLake 1.0.
3. Its time does not depend on the number of rows, unless docs/how-to/upgrade.md says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import duckdb

from streamgauge.analytics.schema.sql_quoting import identifier
from streamgauge.analytics.storage.location import ALIAS

Step = Callable[[duckdb.DuckDBPyConnection], None]

FORMER = {
    "f27dd5a84e5507f0f47ff1180f512006c0e5cf63dae80af60f92496c0b2fa25d": 1,
    "152f51a763e5fcafb1db100944ce16f92928e0b80dd596fa489822cd9c17f76a": 2,
}
"""Versions of stores that have no number, by the digest of their tables."""


def rename_table(connection: duckdb.DuckDBPyConnection, former: str, name: str) -> None:
    """Rename a table of the schema `main`, unless it is renamed."""
    if _columns(connection, former):
        connection.execute(f"ALTER TABLE {identifier(former)} RENAME TO {identifier(name)}")


def rename_column(connection: duckdb.DuckDBPyConnection, table: str, former: str, name: str) -> None:
    """Rename a column of a table in the schema `main`, unless it is renamed."""
    if former in _columns(connection, table):
        connection.execute(
            f"ALTER TABLE {identifier(table)} RENAME COLUMN {identifier(former)} TO {identifier(name)}"
        )


def _columns(connection: duckdb.DuckDBPyConnection, table: str) -> set[str]:
    found = connection.execute(
        "SELECT column_name FROM duckdb_columns() WHERE database_name = ? AND schema_name = 'main' AND table_name = ?",
        [ALIAS, table],
    ).fetchall()
    return {name for (name,) in found}


_SEGMENT_LISTS = ("kinds", "names", "messages", "sizes", "hashes", "roles", "marks")


def _segments_as_json(connection: duckdb.DuckDBPyConnection) -> None:
    """One JSON column instead of a list per member of a segment, as `streamgauge.ingest.records.Segment` is encoded."""
    if _SEGMENT_LISTS[0] not in _columns(connection, "prompt_segments"):
        return
    unsigned = f"(if(s[5] < 0, s[5]::HUGEINT + {2**64}, s[5]))::UBIGINT"
    segment = (
        f"json_array(s[1], s[2], s[3], s[4], to_base64(unhex(lpad(hex({unsigned}), 16, '0'))), s[6], s[7])"
    )
    connection.execute("ALTER TABLE prompt_segments ADD COLUMN segments VARCHAR")
    connection.execute(
        f"UPDATE prompt_segments SET segments = to_json([{segment} FOR s IN list_zip({', '.join(_SEGMENT_LISTS)})])"
    )
    for name in _SEGMENT_LISTS:
        connection.execute(f"ALTER TABLE prompt_segments DROP COLUMN {name}")


STEPS: Mapping[int, Step] = {4: _segments_as_json}

"""Several stores as one: each table is the union of the stores' tables, and the views are computed over the unions.

The first store is attached as `lake`, the others as `lake_2`, `lake_3`, …, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from streamgauge.analytics.schema.ddl import statements
from streamgauge.analytics.storage.database import attach, data_path_of
from streamgauge.analytics.storage.location import ALIAS, StoreLocation

SEARCH_PATH = "SET search_path = 'memory.main'"
FROM_SETTINGS = ("objectives", "prices", "clients")
"""Stores with the same settings have the same rows in these tables, which count once."""
_TABLES = """
SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = ? AND schema_name IN ('main', 'internal')
"""


def combine(connection: duckdb.DuckDBPyConnection, others: Sequence[StoreLocation]) -> list[str]:
    """Attach the other stores next to `lake` and create the unions and views. Returns the other stores' folders of files.

    Raises OSError and duckdb.Error.
    """
    aliases, data_paths = [ALIAS], []
    for number, location in enumerate(others, 2):
        aliases.append(f"{ALIAS}_{number}")
        attach(connection, location, read_only=True, alias=aliases[-1])
        data_paths.append(data_path_of(connection, aliases[-1]))
    connection.execute(f"USE memory; CREATE SCHEMA IF NOT EXISTS internal; {SEARCH_PATH}")
    for schema, table in connection.execute(_TABLES, [ALIAS]).fetchall():
        # The histograms of one minute in two stores must be merged, as those of minutes that are not settled.
        columns = "* REPLACE (false AS settled)" if table == "histogram_minutes" else "*"
        all_rows = "" if table in FROM_SETTINGS else "ALL "
        union = f" UNION {all_rows}BY NAME ".join(
            f"SELECT {columns} FROM {a}.{schema}.{table}" for a in aliases
        )
        connection.execute(f"CREATE VIEW memory.{schema}.{table} AS {union}")
    connection.execute(statements()[1])
    return data_paths

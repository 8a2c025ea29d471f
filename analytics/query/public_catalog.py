"""What readers see of the catalog: the store's tables and views, and `open_streams`.

DuckDB's own functions also list internal databases, temporary views with paths of files, and system views. This module
defines macros of the same names in the database `memory`, which DuckDB finds first. `SHOW TABLES` and the views of
`information_schema` use these names, so they show the same. The statement filter rejects `system.main.duckdb_tables()`.
"""

from __future__ import annotations

import duckdb

from streamgauge.analytics.query.open_streams_view import NAME as OPEN_STREAMS
from streamgauge.analytics.storage.location import ALIAS

_STORE = f"database_name = '{ALIAS}' AND schema_name = 'main'"
_VISIBLE = {
    "duckdb_schemas": _STORE,
    "duckdb_tables": _STORE,
    "duckdb_views": f"{_STORE} OR database_name = 'memory' AND view_name = '{OPEN_STREAMS}'",
    "duckdb_columns": f"{_STORE} OR database_name = 'memory' AND table_name = '{OPEN_STREAMS}'",
    "duckdb_constraints": _STORE,
    "duckdb_indexes": _STORE,
    "duckdb_functions": "internal",
}
_SHOWN = {"duckdb_views": "* REPLACE (if(contains(sql, 'internal.'), NULL, sql) AS sql)"}
"""Definitions of some views name tables of the schema `internal`."""


def define(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the macros for all connections of this database."""
    for name, visible in _VISIBLE.items():
        connection.execute(
            f"CREATE OR REPLACE MACRO memory.main.{name}() AS TABLE "
            f"SELECT {_SHOWN.get(name, '*')} FROM system.main.{name}() WHERE {visible}"
        )

"""Write a time range of the store into one plain DuckDB file."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import duckdb

from streamgauge.analytics.schema.ddl import statements
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.schema.tables import STREAMS, TABLES, Table
from streamgauge.analytics.storage.database import attach, check_version, message, new_database
from streamgauge.analytics.storage.location import ALIAS, StoreLocation
from streamgauge.analytics.storage.retention import compared


def export(
    location: StoreLocation,
    path: Path,
    *,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    report: Callable[[str, int], None] = lambda table, rows: None,
) -> int:
    """Copy tables, views and comments. Rows are selected by the start of their stream, in [since, until).

    Calls `report` with each table and its rows. Returns the rows of `streams`. Raises OSError, also if the file exists.
    """
    if path.exists():
        raise OSError(f"cannot write {path}: the file exists. Choose another name, or remove it")
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    connection = new_database()
    try:
        attach(connection, location, read_only=True)
        check_version(connection, location)
        connection.execute(f"ATTACH {literal(str(part))} AS exported")
        tables, views, comments = statements()
        connection.execute("USE exported")
        connection.execute("BEGIN TRANSACTION")
        connection.execute(tables)
        streams = 0
        for table in TABLES:
            where, values = _range(table, since, until)
            [(rows,)] = connection.execute(
                f"INSERT INTO {table.name} BY NAME FROM {ALIAS}.{table.qualified_name}{where}", values
            ).fetchall()
            report(table.name, rows)
            streams = rows if table is STREAMS else streams
        connection.execute(views)
        connection.execute("COMMIT")
        connection.execute(comments)
        connection.execute(f"USE {ALIAS}; CHECKPOINT exported; DETACH exported")
        part.chmod(0o600)
        part.replace(path)
        return streams
    except duckdb.Error as e:
        raise OSError(f"cannot export to {path}: {message(e, location)}") from None
    finally:
        connection.close()
        part.unlink(missing_ok=True)


def _range(table: Table, since: dt.datetime | None, until: dt.datetime | None) -> tuple[str, list[object]]:
    """WHERE clause and its values."""
    limits = [(sign, at.timestamp()) for sign, at in ((">=", since), ("<", until)) if at is not None]
    if table.time_column is None or not limits:
        return "", []
    conditions, values = zip(*(compared(table, *limit) for limit in limits), strict=True)
    return f" WHERE {' AND '.join(conditions)}", list(values)

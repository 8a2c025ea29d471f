"""Write a time range of the store into one plain DuckDB file."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import duckdb

from streamgauge.analytics.schema.ddl import statements
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.storage.database import attach, message, new_database
from streamgauge.analytics.storage.location import ALIAS, StoreLocation
from streamgauge.ingest.generated_ids import smallest_uuid7

BY_ID = (
    "streams",
    "events",
    "usage_reports",
    "server_stats",
    "output_stalls",
    "output_waits",
    "gateway_stalls",
)
BY_TIME = {
    "spans": "started_at", "hops": "outer_started_at", "hop_changes": "outer_started_at",
    "alert_events": "changed_at", "losses": "lost_at", "dead_letters": "set_aside_at", "stream_minutes": "minute",
    "histogram_minutes": "minute", "client_minutes": "minute", "markers": "marked_at",
}  # fmt: skip
WHOLE = ("log_positions", "taps", "objectives", "prices", "clients", "internal.counter_parts")


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
        connection.execute(f"ATTACH {literal(str(part))} AS exported")
        tables, views, comments = statements()
        connection.execute("USE exported")
        connection.execute("BEGIN TRANSACTION")
        connection.execute(tables)
        streams = 0
        for table in (*BY_ID, *BY_TIME, *WHOLE):
            where, values = _range(table, since, until)
            [(rows,)] = connection.execute(
                f"INSERT INTO {table} BY NAME FROM {_source(table)}{where}", values
            ).fetchall()
            report(table, rows)
            streams = rows if table == "streams" else streams
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


def _source(table: str) -> str:
    return f"{ALIAS}.{table}" if "." in table else f"{ALIAS}.main.{table}"


def _range(table: str, since: dt.datetime | None, until: dt.datetime | None) -> tuple[str, list[object]]:
    conditions: list[str] = []
    values: list[object] = []
    for limit, sign in ((since, ">="), (until, "<")):
        if limit is None or table in WHOLE:
            continue
        if table in BY_ID:
            conditions.append(f"stream_id {sign} ?::UUID")
            values.append(smallest_uuid7(limit.timestamp()))
        else:
            conditions.append(f"{BY_TIME[table]} {sign} make_timestamptz(?)")
            values.append(int(limit.timestamp() * 1e6))
    return (" WHERE " + " AND ".join(conditions) if conditions else ""), values

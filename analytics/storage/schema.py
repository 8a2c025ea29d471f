"""Open the DuckDB file, and make in it what this version needs: tables, missing columns, views.

An older file gets the columns that it lacks (NULL in its rows), the roll-ups of its rows, and this version's views; each
change is noted in `internal.migrations`. All of it is one transaction: an upgrade that is killed leaves the file as it was,
for the version of before as well. A newer file is refused. What is in the schema `internal` is not for SQL from outside.

Versions: 1 the first; 2 has roll-ups by the minute, and stalls in a table of their own; 3 packs `events`, which is a view of
them now.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

import duckdb

from analytics.measures.rollup import DEFAULT_STALL, rollups
from analytics.serving.guard import one_line
from analytics.storage import packed
from analytics.storage.inlets import Inlets
from analytics.storage.rows import first_row

SCHEMA_VERSION = 3
WAL_BYTES = 64 * 2**20
"""The file takes over what its `.wal` has when that is so large."""
BACKFILL_STREAMS = 20_000
"""Streams whose roll-ups are made at once when an older file is opened: with their events, some hundred MB."""

_INTERNAL = """
CREATE SCHEMA IF NOT EXISTS internal;
CREATE TABLE IF NOT EXISTS internal.meta (key VARCHAR NOT NULL, value VARCHAR NOT NULL);
CREATE TABLE IF NOT EXISTS internal.migrations (version INTEGER NOT NULL, what VARCHAR NOT NULL, done_at TIMESTAMPTZ NOT NULL);
CREATE TABLE IF NOT EXISTS internal.open_stream_records (
    log_id VARCHAR NOT NULL, partition VARCHAR NOT NULL, stream_id UUID NOT NULL, number BIGINT NOT NULL,
    payload BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS internal.taps (
    tap VARCHAR NOT NULL, tap_worker INTEGER NOT NULL, incarnation VARCHAR NOT NULL, started_at TIMESTAMPTZ NOT NULL,
    last_alive_at TIMESTAMPTZ NOT NULL, stopping BOOLEAN NOT NULL, counters VARCHAR NOT NULL
);
CREATE TABLE IF NOT EXISTS internal.totals (name VARCHAR NOT NULL, value HUGEINT NOT NULL);
"""


def open_file(path: Path, memory_limit_bytes: int | None) -> duckdb.DuckDBPyConnection:
    """The file, for writing, with its bounds on memory, threads and spill. Raises OSError with one line."""
    try:
        connection = duckdb.connect(str(path))
    except duckdb.IOException as e:
        text = one_line(e)
        if "lock" in text.lower():
            raise OSError(
                f"{path} is open in another process: only one analytics may run on a data folder (stop that one first)"
            ) from None
        raise OSError(f"cannot open {path}: {text}") from None
    except duckdb.Error as e:
        raise OSError(
            f"cannot open {path}: {one_line(e)} (move the file away to begin with empty tables)"
        ) from None
    limit = memory_limit_bytes or _default_memory_bytes(connection)
    connection.execute(f"SET memory_limit = '{limit // 2**20} MiB'")
    connection.execute("SET max_temp_directory_size = '8 GiB'")
    # Each checkpoint writes the unfinished row group of every table anew: four times as seldom as by default saves a twentieth
    # of all CPU, and a pause of a quarter of a second becomes one of half a second.
    connection.execute(f"SET checkpoint_threshold = '{WAL_BYTES // 2**20} MiB'")
    # The consumer's Python has a core of its own; and inserting with one thread costs a third of what it does with two.
    connection.execute(f"SET threads = {max(1, len(os.sched_getaffinity(0)) - 1)}")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _default_memory_bytes(connection: duckdb.DuckDBPyConnection) -> int:
    """Half of what DuckDB would take (80 % of the machine or its cgroup), and never more than 8 GiB."""
    row = first_row(connection.execute("SELECT parse_formatted_bytes(current_setting('memory_limit'))"))
    return max(min(int(row[0]) // 2 if row else 2**31, 8 * 2**30), 256 * 2**20)


def prepare(connection: duckdb.DuckDBPyConnection, stall: tuple[int, float] | None) -> None:
    """Make what is missing, bring an older file up to date, make the views anew. `stall` as in `Store`.

    Raises OSError with one line for a file of a newer version, duckdb.Error when it cannot be written; nothing is
    changed then, once the connection is closed.
    """
    here = resources.files("analytics.storage")
    schema = without_tables((here / "schema.sql").read_text(), packed.STORED_AS)
    connection.execute("BEGIN TRANSACTION")
    connection.execute(_INTERNAL)
    found = first_row(connection.execute("SELECT max(version) FROM internal.migrations"))
    version = found[0] if found else None
    if version is not None and version > SCHEMA_VERSION:
        raise OSError(
            f"the tables were made by a newer Streamgauge (schema {version}, this one knows {SCHEMA_VERSION}): upgrade it"
        )
    if version == 1:
        connection.execute("DROP VIEW IF EXISTS stalls")
    if version is not None and version < 3:
        connection.execute("ALTER TABLE events RENAME TO plain_events")
    connection.execute(schema)
    connection.execute((here / "packed.sql").read_text())
    added = add_missing_columns(connection, schema)
    notes = [f"columns added: {', '.join(added)}"] if added else []
    if version is None:
        notes = ["first schema"]
    elif version < 3:
        packed.append(connection, "plain_events")
        connection.execute("DROP TABLE plain_events")
        notes.append("events packed")
    if version == 1:
        notes.append(f"roll-ups made of {backfill(connection, stall or DEFAULT_STALL)} streams")
    for note in notes:
        connection.execute("INSERT INTO internal.migrations VALUES (?, ?, now())", [SCHEMA_VERSION, note])
    meta = {"schema_version": str(SCHEMA_VERSION)}
    if stall is not None:
        meta |= {"stall_floor_ns": str(stall[0]), "stall_factor": str(stall[1])}
    for key, value in meta.items():
        connection.execute("DELETE FROM internal.meta WHERE key = ?", [key])
        connection.execute("INSERT INTO internal.meta VALUES (?, ?)", [key, value])
    connection.execute((here / "views.sql").read_text())
    comments = (here / "comments.sql").read_text()
    for view in packed.STORED_AS:
        comments = comments.replace(f"COMMENT ON TABLE {view} ", f"COMMENT ON VIEW {view} ")
    connection.execute(comments)
    connection.execute("COMMIT")


def without_tables(schema: str, tables: Iterable[str]) -> str:
    """The statements of schema.sql but those that make these tables."""
    return re.sub(
        rf"CREATE TABLE IF NOT EXISTS ({'|'.join(tables)}) \(.*?\n\);\n", "", schema, flags=re.DOTALL
    )


def backfill(connection: duckdb.DuckDBPyConnection, stall: tuple[int, float]) -> int:
    """Roll-ups of all streams there are, in the order of their ids, which is that of time; returns how many."""
    done, after = 0, "00000000-0000-0000-0000-000000000000"
    inlets = Inlets(connection)  # a transaction would hold each frame that was registered in it
    while True:
        streams = connection.execute(
            f"SELECT * REPLACE (stream_id::VARCHAR AS stream_id) FROM streams WHERE stream_id > ?::UUID "
            f"ORDER BY streams.stream_id LIMIT {BACKFILL_STREAMS}",
            [after],
        ).pl()
        if streams.is_empty():
            inlets.forget()
            return done
        last = streams["stream_id"][-1]
        events = connection.execute(
            "SELECT stream_id::VARCHAR AS stream_id, seq, choice, at_ns, kind FROM events "
            "WHERE stream_id > ?::UUID AND stream_id <= ?::UUID ORDER BY events.stream_id, seq",
            [after, last],
        ).pl()
        for table, rows in rollups({"streams": streams, "events": events}, stall).items():
            inlets.append(table, rows)
        done, after = done + streams.height, last


def add_missing_columns(connection: duckdb.DuckDBPyConnection, schema: str) -> list[str]:
    """Columns that the schema has by now and an older file has not; they are NULL in its rows."""
    columns = (
        "SELECT table_name, column_name, data_type FROM duckdb_columns() "
        "WHERE schema_name = 'main' AND NOT internal ORDER BY table_name, column_index"
    )
    with contextlib.closing(duckdb.connect()) as empty:
        empty.execute(schema)
        wanted = empty.execute(columns).fetchall()
    there = {(table, column) for table, column, _ in connection.execute(columns).fetchall()}
    added = []
    for table, column, kind in wanted:
        if (table, column) not in there:
            connection.execute(f'ALTER TABLE {table} ADD COLUMN "{column}" {kind}')
            added.append(f"{table}.{column}")
    return added

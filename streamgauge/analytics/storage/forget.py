"""Forget a caller: delete its rows, and every byte of its ids in the data folder.

Contract
1. The caller's streams are those of a client id, session or label, the inner streams of their hops (the same requests behind a
   gateway) and the answers on their WebSockets. A trace that also has streams of others keeps its id there. Events of agents are the
   caller's if the streams of their session are.
2. Requires the data folder's lock. All its streams must have ended and be stored. A tap may run.
3. `forget` can be killed at any point and repeated. Everything that needs the ids comes before the transaction that deletes the
   rows. What follows does not depend on the caller: rewriting files, expiring snapshots, compacting the catalog.
4. Later prompts of the same session that repeat a prompt of the caller are stored whole, and rows of tools that other streams also have are
   moved to these. If an earlier part of a later prompt is unknown, the prompt is deleted.
5. The transaction counts the deleted rows as `forgotten_TABLE_rows`. Roll-ups without the client's id stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Set
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import duckdb

from streamgauge.analytics.reports.stored_prompts import encoded, prompts
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.schema.tables import (
    AGENT_EVENTS,
    ALERT_EVENTS,
    COUNTER_PARTS,
    LOG_POSITIONS,
    SPANS,
    STREAMS,
    TABLES,
    Table,
)
from streamgauge.analytics.storage import database
from streamgauge.analytics.storage.create_schema import BEFORE_UPGRADE
from streamgauge.analytics.storage.location import ALIAS, StoreLocation
from streamgauge.analytics.storage.open_streams_file import FOLDER
from streamgauge.analytics.storage.partition_positions import parse_list
from streamgauge.analytics.storage.reconciliation import RECORDED_BY_TAP
from streamgauge.analytics.storage.sqlite_catalog import back_up, compact
from streamgauge.analytics.storage.store import Store
from streamgauge.analytics.storage.upkeep import Upkeep
from streamgauge.ingest.private_files import write_private
from streamgauge.ingest.record_log.erasing import erase, find_streams, hold_readers
from streamgauge.ingest.record_log.interface import LogBroken
from streamgauge.ingest.record_log.reader_cursors import read_cursors
from streamgauge.ingest.record_log.segments import log_identity
from streamgauge.ingest.records import Opened, unpack

_STREAMS = "(SELECT stream_id FROM temp.forgotten_streams)"
_NEXT = f"""
INSERT INTO temp.forgotten_streams
SELECT stream_id FROM streams WHERE connection_id IN {_STREAMS} AND stream_id NOT IN {_STREAMS}
UNION SELECT inner_stream_id FROM hops WHERE outer_stream_id IN {_STREAMS} AND inner_stream_id NOT IN {_STREAMS}"""
_TRACES = f"""
CREATE OR REPLACE TEMP TABLE forgotten_traces AS SELECT trace_id FROM streams WHERE stream_id IN {_STREAMS}
EXCEPT SELECT trace_id FROM streams WHERE stream_id NOT IN {_STREAMS}"""
_SESSIONS = f"""
SELECT session_id FROM streams WHERE stream_id IN {_STREAMS} EXCEPT SELECT session_id FROM streams WHERE stream_id NOT IN {_STREAMS}"""
_IDS = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{32}")
_OWN_FOLDERS = ("log", "tables", "run")
_OLD_CATALOGS = ("catalog.damaged-*", "catalog.before-upgrade*", "catalog.new*", "catalog.backup.new*")
_DUCKDB = b"DUCK"
"""Bytes 8 to 12 of a DuckDB file."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose streams are meant."""

    kind: Literal["client", "session", "label"]
    value: str
    """Client id, session id, or the stored value of a label."""
    label: str = ""
    """Name of the label."""

    def __str__(self) -> str:
        return f"{self.kind} {f'{self.label}=' if self.label else ''}{self.value}"

    @property
    def streams(self) -> str:
        """SQL condition of its rows in `streams`."""
        columns = {
            "client": "client_id",
            "session": "session_id, parent_session_id",
            "label": f"labels[{literal(self.label)}]",
        }
        return f"{literal(self.value)} IN ({columns[self.kind]})"

    def rows(self, table: Table) -> str:
        """SQL condition of its rows in a table, after `_select`. Empty: the table has none."""
        value, named, parts = literal(self.value), literal(f"{self.label}={self.value}"), []
        for name in table.types:
            if name.endswith("stream_id") and name != "base_stream_id" and table is not ALERT_EVENTS:
                parts.append(f"{name} IN {_STREAMS}")
            elif name in ("client_id", "client") and self.kind == "client":
                parts.append(f"{name} = {value}")
            elif name == "label" and self.kind == "label":
                parts.append(f"concat_ws('=', label{', value' if 'value' in table.types else ''}) = {named}")
        if table is AGENT_EVENTS:
            return "event_id IN (FROM temp.forgotten_events)"
        if table is SPANS:
            parts.append("stream_id IS NULL AND trace_id IN (FROM temp.forgotten_traces)")
        elif table is ALERT_EVENTS and self.kind == "label":
            parts.append(f"place ->> 'label' = {named}")
        elif table is ALERT_EVENTS and self.kind == "client":
            parts.append(f"contains(concat_ws(' ', place, message, array_to_string(evidence, ' ')), {value})")
        return " OR ".join(parts)


@dataclass(slots=True)
class Forgotten:
    """What was deleted, or would be."""

    streams: int = 0
    tables: dict[str, int] = field(default_factory=dict)
    """Rows by table."""
    shared_traces: int = 0
    """Traces whose id remains, because they have streams of others."""
    log_records: int = 0
    other_files: list[str] = field(default_factory=list)
    """Files in the data folder that are not ours and may have its rows, such as those of `export`."""
    pending: int = 0
    """Streams of the same clients that are open or not stored yet."""

    @property
    def obstacle(self) -> str | None:
        """Why the caller cannot be forgotten now, and what to do."""
        if self.pending:
            return (
                f"{self.pending} streams of the same client are open or not stored yet. Start analytics until "
                "`streamgauge status` shows none in flight, stop it, and repeat"
            )
        if self.other_files:
            return f"{', '.join(self.other_files)} may have its data. Move such files out of the data folder, or delete them"
        return None


def find(location: StoreLocation, data: Path, caller: Caller) -> Forgotten:
    """Count the rows and streams that `forget` would delete. Reads only, and analytics may run. Raises OSError."""
    with closing(database.new_database()) as connection:
        database.attach(connection, location, read_only=True)
        database.check_version(connection, location)
        try:
            run = _Run(location, data, caller, connection)
            run.erase_records(dry_run=True)
            return run.found
        except (duckdb.Error, LogBroken) as e:
            raise _failed(location, e) from None


def forget(
    location: StoreLocation, data: Path, caller: Caller, report: Callable[[str], None] = lambda step: None
) -> Forgotten:
    """Delete the caller's rows and bytes. Requires the data folder's lock. Calls `report` at the start of each step.

    Raises OSError, also if streams of the caller are open or not stored yet.
    """
    try:
        with hold_readers(data / "log"):
            with closing(Store(location)) as store, closing(store.cursor()) as cursor:
                report("find the streams")
                run = _Run(location, data, caller, cursor)
                if run.found.obstacle:
                    raise OSError(f"cannot forget the {caller}: {run.found.obstacle}")
                report("record log")
                run.erase_records(report)
                run.other_files(rewrite=True)
                report("rows")
                run.delete_rows(store)
                report("Parquet files")
                with closing(Upkeep(store, events_s=None, streams_s=None)) as upkeep:
                    upkeep.purge()
                if location.dsn:
                    store.catalog.drop_schema(BEFORE_UPGRADE)
            report("catalog")
            if location.catalog is not None:
                for path in Path(str(location.tables), FOLDER).glob("*"):
                    path.unlink()  # of the analytics process that is stopped
                compact(location.catalog)
                back_up(location.catalog, location.backup)
            if (
                redaction := data / "log" / "redaction.sqlite"
            ).exists():  # of `ship`, without rows of ended streams
                compact(redaction)
        return run.found
    except (duckdb.Error, LogBroken) as e:
        raise _failed(location, e) from None


def _failed(location: StoreLocation, error: Exception) -> OSError:
    return OSError(f"cannot forget the caller in {location.label}: {database.message(error, location)}")


def client_named(location: StoreLocation, name: str) -> str | None:
    """The client id with this name in the store. Raises OSError."""
    with closing(database.new_database()) as connection:
        database.attach(connection, location, read_only=True)
        found = connection.execute("SELECT client_id FROM clients WHERE name = ?", [name]).fetchall()
    return str(found[0][0]) if found else None


def _select(connection: duckdb.DuckDBPyConnection, caller: Caller) -> None:
    """Select the streams and traces of the caller in the current database into temporary tables."""
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE forgotten_streams AS SELECT stream_id FROM streams WHERE {caller.streams}"
    )
    while database.integer(connection.execute(_NEXT)):  # a gateway may be behind a gateway
        pass
    connection.execute(_TRACES)
    own = f"session_id = {literal(caller.value)}" if caller.kind == "session" else "FALSE"
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE forgotten_events AS SELECT event_id FROM turn_events "
        f"WHERE session_id IN ({_SESSIONS}) OR stream_id IN {_STREAMS} OR {own}"
    )


class _Run:
    """The caller in one store and data folder."""

    def __init__(
        self, location: StoreLocation, data: Path, caller: Caller, connection: duckdb.DuckDBPyConnection
    ) -> None:
        self._location, self._data, self._caller, self._connection = location, data, caller, connection
        connection.execute("BEGIN TRANSACTION")  # one snapshot
        _select(connection, caller)
        wheres = {table.name: where for table in TABLES if (where := caller.rows(table))}
        counts = ", ".join(f"(SELECT count(*) FROM {table} WHERE {where})" for table, where in wheres.items())
        [counted] = connection.execute(f"SELECT {counts}").fetchall()
        rows = dict(zip(wheres, counted, strict=True))
        self.found = Forgotten(rows[STREAMS.name], {table: count for table, count in rows.items() if count})
        of_streams = f"FROM streams WHERE stream_id IN {_STREAMS}"
        stored = self._texts(f"SELECT stream_id {of_streams}")
        traces = self._texts("FROM temp.forgotten_traces")
        self.found.shared_traces = len(self._texts(f"SELECT trace_id {of_streams}") - traces - {None})
        # The log has the records of a WebSocket under its own id, also those of its answers.
        self._logged = stored | self._texts(f"SELECT connection_id {of_streams}")
        self._ids = self._logged | traces | self._texts(f"SELECT session_id {of_streams}") | {caller.value}
        clients: set[str | None] = {caller.value}
        if caller.kind != "client":  # the log does not have the session of each stream
            clients = self._texts(f"SELECT client_id {of_streams}")
        self._log_dir = data / "log"
        self._read_until = self._read_positions()
        open_ids = self._texts("SELECT unnest(open_stream_ids) FROM log_positions")
        kept = self._kept(clients)
        connection.execute("COMMIT")
        in_log, unread = find_streams(self._log_dir, clients, self._read_until)
        self.found.pending = len(((in_log | kept) & (unread | open_ids)) - stored)
        if caller.kind == "client":  # also those whose rows are already deleted by age
            self._logged |= in_log
        self.other_files()

    def erase_records(
        self, report: Callable[[str], None] = lambda step: None, *, dry_run: bool = False
    ) -> None:
        """Erase the records of the streams from the log, and the states of their WebSockets. `dry_run`: only count them."""
        self.found.log_records = erase(
            self._log_dir,
            self._logged,
            self._read_until,
            dry_run=dry_run,
            on_wait=lambda segment: report(f"wait up to a minute until the tap ends the segment {segment}"),
        )
        for path in () if dry_run else (self._log_dir / "websockets").glob("*"):
            if path.name[:36] in self._logged:
                path.unlink()

    def other_files(self, *, rewrite: bool = False) -> None:
        """Find files that may have ids and are not ours. `rewrite`: delete old catalogs, and lines of text logs."""
        for path in sorted(self._data.rglob("*")):
            inside = path.relative_to(self._data)
            if inside.parts[0] in _OWN_FOLDERS or not path.is_file():
                continue
            if inside.match("catalog.*"):
                if rewrite and any(map(inside.match, _OLD_CATALOGS)):
                    path.unlink()
                continue
            with path.open("rb") as file:
                is_duckdb = file.read(12)[8:] == _DUCKDB
                file.seek(0)
                has_ids = is_duckdb or any(map(self._has_ids, file))
            if has_ids and (is_duckdb or path.suffix != ".log"):
                self.found.other_files.append(str(path))
            elif has_ids and rewrite:
                lines = path.read_bytes().splitlines(keepends=True)
                write_private(path, b"".join(line for line in lines if not self._has_ids(line)))

    def _has_ids(self, line: bytes) -> bool:
        named = self._caller.kind == "session" and self._caller.value.encode() in line  # it may have any form
        return named or not self._ids.isdisjoint(_IDS.findall(line.decode(errors="replace")))

    def delete_rows(self, store: Store) -> None:
        """Delete and count the rows in one transaction."""
        self._delete_from_positions(store)
        if not self.found.tables:
            return
        run = self._connection.execute
        recorded = f"SELECT count(*) FROM streams WHERE stream_id IN {_STREAMS} AND {RECORDED_BY_TAP}"
        counted = {**self.found.tables, STREAMS.name: database.integer(run(recorded))}
        counters = ", ".join(f"('forgotten_{table}_rows', {rows})" for table, rows in counted.items())
        folders = [store.data_path + store.layouts[table].path for table in (*counted, ALERT_EVENTS.name)]
        with store.catalog.exclusive(), database.transaction(self._connection, *folders):
            self._keep_prompts()
            for table in TABLES:
                if table.name in self.found.tables:
                    run(f"DELETE FROM {table.name} WHERE {self._caller.rows(table)}")
            run(f"UPDATE {ALERT_EVENTS.name} SET stream_id = NULL WHERE stream_id IN {_STREAMS}")
            run(f"INSERT INTO {COUNTER_PARTS.name} (name, value) VALUES {counters}")

    def _keep_prompts(self) -> None:
        """Make the prompts of others independent of those of the caller."""
        run, repeats = (
            self._connection.execute,
            f"base_stream_id IN {_STREAMS} AND stream_id NOT IN {_STREAMS}",
        )
        ids = self._texts(f"SELECT stream_id FROM prompt_segments WHERE {repeats}")
        for stream_id, segments in prompts(lambda sql: run(sql).pl(), ids).items():
            whole = "base_stream_id = NULL, differences = 0, kept_first = 0, kept_last = 0, segments = ?"
            run(f"UPDATE prompt_segments SET {whole} WHERE stream_id = ?", [encoded(segments), stream_id])
        run(f"DELETE FROM prompt_segments WHERE {repeats}")
        run(f"""
            UPDATE prompt_tools SET stream_id = other.stream_id FROM (
                SELECT tool_set, arg_min(stream_id, started_at) AS stream_id FROM prompt_segments
                WHERE stream_id NOT IN {_STREAMS} GROUP BY tool_set) AS other
            WHERE other.tool_set = prompt_tools.tool_set AND prompt_tools.stream_id IN {_STREAMS}""")

    def _delete_from_positions(self, store: Store) -> None:
        """Remove the streams from positions. Those of a log that was read before may name streams that ended in another."""
        catalog, table = store.catalog, store.layouts[LOG_POSITIONS.name].inlined
        with catalog.transaction():
            for row_id, listed in catalog.query(f"SELECT row_id, open_stream_ids FROM {table}"):
                ids = parse_list(str(listed))
                if not self._logged.isdisjoint(ids):
                    kept = ", ".join(each for each in ids if each not in self._logged)
                    catalog.change(f"UPDATE {table} SET open_stream_ids = '[{kept}]' WHERE row_id = {row_id}")

    # -- streams that are not stored ---------------------------------------------------------------------------------

    def _read_positions(self) -> dict[str, int]:
        """Offset of the first entry that `ship`, else analytics, has not read, by partition of the local log."""
        shipped = read_cursors(self._log_dir).get("ship")
        if shipped is not None or not (self._log_dir / "id").exists():
            return shipped or {}
        high = "SELECT partition, high FROM log_positions WHERE log_id = ?"
        return dict(self._connection.execute(high, [log_identity(self._log_dir)]).fetchall())

    def _kept(self, clients: Set[str | None]) -> set[str]:
        """Long-open streams of these clients."""
        kept = self._connection.execute(
            f"SELECT payload FROM __ducklake_metadata_{ALIAS}.streamgauge_kept_records"
        )
        return {
            record.stream
            for (payload,) in kept.fetchall()
            for record in unpack(payload)[0]
            if isinstance(record, Opened) and record.client_id in clients
        }

    def _texts(self, sql: str) -> set[Any]:
        return {
            None if value is None else str(value) for (value,) in self._connection.execute(sql).fetchall()
        }

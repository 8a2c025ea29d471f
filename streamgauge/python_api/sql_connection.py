"""Connect to the tables from Python: over the SQL server of a running `serve` or `up --serve`, else to the store itself."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import click
from duckdb import DuckDBPyConnection, DuckDBPyRelation, tokenize
from duckdb import Error as DuckDBError

from streamgauge.analytics.query.query_errors import QueryError, QueryRejected, QueryTimeout, StoreUnavailable
from streamgauge.analytics.query.reader import Reader, limited
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.schema.tables import OPEN_STREAMS
from streamgauge.analytics.storage.database import load, new_database, one_line
from streamgauge.analytics.storage.location import locate
from streamgauge.ingest.listening import split_address
from streamgauge.ingest.ready_file import read_of_running
from streamgauge.python_api.python_instants import use_zoneinfo
from streamgauge.settings.flags import load_with_running_parts
from streamgauge.settings.model import Settings

DEFAULT_PORT = split_address(Settings.model_fields["sql_listen"].default)[1]
DATABASE = "gauge"
"""Name of the attached server in `Connection.duckdb`."""
_UNLIMITED = 2**62
_REFUSED = "refused: "
_TOO_SLOW = "too slow: "
_PARAMETER = re.compile(rb"\?|\$(\w+)")
Params = Sequence[Any] | Mapping[str, Any]
"""Values of a statement's parameters."""
T = TypeVar("T")
_UNREACHABLE = ("Could not connect", "Could not resolve", "Failed to send message", "Connection")


def connect(
    data: str | os.PathLike[str] | None = None, *, server: str | None = None, token: str | None = None
) -> Connection:
    """Connect to the tables and views, read-only.

    1. With `server` (`HOST:PORT`, or `HOST` for port 9494), to this SQL server.
    2. Else to the SQL server that runs on the data folder (`serve`, or `up --serve`).
    3. Else to the store of the data folder itself. Analytics may be running or stopped.

    `data` is the data folder, by default that of the settings (`STREAMGAUGE_DATA`, `./streamgauge.toml`), else
    `streamgauge-data`. `token` is the server's; by default `STREAMGAUGE_SQL_TOKEN`, else the one in `DATA/run/serve.json`.

    Extensions are loaded from installed packages. Raises `StoreUnavailable`.

    >>> import streamgauge as sg
    >>> with sg.connect("streamgauge-data") as con:
    ...     con.sql("SELECT outcome, count(*) FROM streams GROUP BY ALL").fetchall()
    [('ok', 3)]
    """
    try:
        used = dict.fromkeys(("store", "lake_path", "sql_token"))
        settings = load_with_running_parts({"data": None if data is None else Path(data), **used})
    except click.UsageError as e:
        raise StoreUnavailable(f"cannot connect: {e.format_message()}") from None
    use_zoneinfo()
    running = read_of_running(settings.data / "run" / "serve.json")
    secret = settings.sql_token.get_secret_value() if settings.sql_token else None
    if server is not None:
        found = token or secret or (running or {}).get("token")
        if found is None:
            raise StoreUnavailable(
                f"cannot connect to {server}: no token. Pass token=…, or set STREAMGAUGE_SQL_TOKEN. "
                "The server's folder has it in run/serve.json."
            )
        return Connection(_Server(_address(server), found))
    if running is not None:
        return Connection(_Server(str(running["quack"]), token or str(running["token"])))
    location = locate(settings.store, settings.data, settings.lake_path)
    return Connection(_Store(Reader(location), location.label))


class Connection:
    """A read-only connection to the tables. Threads may share it: statements of each thread have their own cursor. Closes with a
    `with` block, or `close`."""

    def __init__(self, source: _Server | _Store) -> None:
        """Use `connect`."""
        self._source = source

    @property
    def source(self) -> str:
        """`quack:HOST:PORT` of the server, or the store."""
        return self._source.label

    @property
    def duckdb(self) -> DuckDBPyConnection:
        """DuckDB's own connection, for libraries that require one, such as marimo.

        With a server, statements run in this process and read from the attached database `gauge`, one table per statement.
        `FROM on_server('SELECT …')` runs a statement on the server. Without a server the database is `lake`. Cursors of the
        connection have no default database: write `gauge.streams` or `lake.streams` there.
        """
        return self._source.connection()

    def sql(self, query: str, params: Params = ()) -> DuckDBPyRelation:
        """Run one SELECT, WITH, FROM, DESCRIBE or SUMMARIZE statement.

        `params` are the values of `?` (a list) or of `$name` (a dict). The statement runs on the server if there is one, within
        its limits. The result is a DuckDB relation: `.fetchall()`, `.df()`, `.pl()`, `.to_arrow_table()`, `.filter(…)`, and a table
        in Jupyter. Instants are in UTC. Each use of the relation runs the statement again.

        Without a server, a statement can name a data frame or Arrow table of the caller: `con.sql("FROM streams JOIN prices USING
        (response_model)")`. With a server, use `con.duckdb.sql(…)` for that.

        Raises `QueryRejected`, `QueryTimeout` and `StoreUnavailable`. Reading the relation later raises `duckdb.Error`.
        """
        try:
            return self._source.relation(query, params)
        except DuckDBError as e:
            raise self._source.translated(e, query) from None

    def execute(self, query: str, params: Params = ()) -> DuckDBPyRelation:
        """As `sql`."""
        return self.sql(query, params)

    def context(self, session_id: str) -> DuckDBPyRelation:
        """What fills the context of a session: rows of `context_parts`, by request. Raises as `sql`."""
        return self.sql(
            "FROM context_parts WHERE session_id = ? ORDER BY started_at, stream_id, part", [session_id]
        )

    def tables(self) -> list[str]:
        """Names of the tables and views."""
        return [name for (name,) in self.sql("SELECT name FROM (SHOW TABLES)").fetchall()]

    def close(self) -> None:
        """Close the connection. Relations can no longer be read."""
        self._source.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<streamgauge.Connection to {self.source}>"


class _Cursors(Generic[T]):
    """One cursor per thread. Two threads on one cursor of DuckDB can wait for each other for ever: for its lock and for the GIL."""

    def __init__(self, new: Callable[[], T]) -> None:
        """`new` returns a cursor and what else belongs to it."""
        self._new = new
        self._own = threading.local()
        self._closed = False

    def get(self) -> T:
        """The cursor of this thread. Raises StoreUnavailable after `close`."""
        if self._closed:
            raise StoreUnavailable("cannot query: the connection is closed. Call streamgauge.connect again.")
        if not hasattr(self._own, "cursor"):
            self._own.cursor = self._new()
        cursor: T = self._own.cursor
        return cursor

    def close(self) -> None:
        self._closed = True


class _Server:
    """A SQL server. Statements run there."""

    def __init__(self, address: str, token: str) -> None:
        """Raises StoreUnavailable."""
        self.label = address
        self._is_attached = False
        self._connection = new_database()
        self._cursors = _Cursors(self._connection.cursor)
        try:
            load(self._connection, "httpfs", "quack")
            self._connection.execute(
                f"CREATE SECRET streamgauge (TYPE quack, TOKEN {literal(token)}, SCOPE {literal(address)})"
            )
            self.relation("SELECT 1", ()).fetchall()
        except (OSError, DuckDBError) as e:
            self._connection.close()
            raise (
                self.translated(e, "") if isinstance(e, DuckDBError) else StoreUnavailable(str(e))
            ) from None

    def relation(self, query: str, params: Params) -> DuckDBPyRelation:
        cursor = self._cursors.get()
        statement = _with_values(cursor, query, params) if params else query
        return cursor.sql(f"FROM quack_query({literal(self.label)}, {literal(statement)})")

    def connection(self) -> DuckDBPyConnection:
        self._cursors.get()
        if not self._is_attached:
            address = literal(self.label)
            self._connection.execute(
                f"CREATE MACRO memory.main.on_server(statement) AS TABLE FROM quack_query({address}, statement)"
            )
            self._connection.execute(f"ATTACH {address} AS {DATABASE}")
            self._connection.execute(f"SET search_path = '{DATABASE}.main,memory.main'")
            self._is_attached = True
        return self._connection

    def translated(self, error: DuckDBError, query: str) -> QueryError:
        text = one_line(error)
        for prefix, kind in ((_TOO_SLOW, QueryTimeout), (_REFUSED, QueryRejected)):
            if prefix in text:
                return kind(text.partition(prefix)[2])
        if "Authentication failed" in text:
            return StoreUnavailable(
                f"cannot connect to {self.label}: the token is wrong. Pass token=… with the one in the server's run/serve.json."
            )
        if any(part in text for part in _UNREACHABLE):
            return StoreUnavailable(
                f"cannot connect to {self.label}: {text}. Start the server with `streamgauge up --serve` or `streamgauge serve`."
            )
        return QueryRejected(text)

    def close(self) -> None:
        self._cursors.close()
        self._connection.close()


class _Store:
    """The store itself. Statements run in this process."""

    def __init__(self, reader: Reader, label: str) -> None:
        self.label = label
        self._reader = reader
        # The caller of `Connection.sql` is several frames above the call of DuckDB.
        reader.connection.execute("SET GLOBAL python_scan_all_frames = true")
        self._cursors = _Cursors(reader.cursor_with_view)
        self._cursor, self._open_streams = self._cursors.get()

    def relation(self, query: str, params: Params) -> DuckDBPyRelation:
        cursor, open_streams = self._cursors.get()
        open_streams.prepare(query)
        return cursor.sql(limited(cursor, query, _UNLIMITED), params=params or None)

    def connection(self) -> DuckDBPyConnection:
        self._cursors.get()
        self._open_streams.prepare(OPEN_STREAMS.name)
        return self._cursor

    def translated(self, error: DuckDBError, query: str) -> QueryError:
        return self._reader.translated(error, 0.0, query)

    def close(self) -> None:
        self._cursors.close()
        self._cursor.close()
        self._reader.close()


def _with_values(cursor: DuckDBPyConnection, query: str, params: Params) -> str:
    """The statement with the values of its parameters as literals. The protocol of the server has no parameters."""
    named = (
        dict(params) if isinstance(params, Mapping) else {str(n): value for n, value in enumerate(params, 1)}
    )
    raw = query.encode()  # the offsets of `tokenize` are in bytes
    starts = [start for start, _ in tokenize(query)]
    made, done, position = [], 0, 0
    for start in starts:
        found = _PARAMETER.match(raw, start)
        if found is None:
            continue
        position += 1
        name = found[1].decode() if found[1] else str(position)
        if name not in named:
            raise QueryRejected(
                f"cannot run the statement: it has no value for the parameter {found[0].decode()}"
            )
        made += [raw[done:start], _literal_of(cursor, named[name]).encode()]
        done = found.end()
    return b"".join([*made, raw[done:]]).decode()


def _literal_of(cursor: DuckDBPyConnection, value: object) -> str:
    # DuckDB itself writes the value as text, so that each type has the form that its CAST reads.
    kind, text = cursor.execute("SELECT typeof($1), $1::VARCHAR", [value]).fetchall()[0]
    return "NULL" if text is None else f"CAST({literal(text)} AS {kind})"


def _address(server: str) -> str:
    """`quack:HOST:PORT` of `HOST:PORT` or `HOST`."""
    server = server.removeprefix("quack:")
    has_port = server.rpartition(":")[2].isdigit() and not server.endswith("]")
    return f"quack:{server}" if has_port else f"quack:{server}:{DEFAULT_PORT}"

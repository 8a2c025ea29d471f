"""Connect to the tables from Python: over the SQL server of a running `serve` or `up --serve`, else to the store itself."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Protocol

import click
from duckdb import DuckDBPyConnection, DuckDBPyRelation
from duckdb import Error as DuckDBError

from analytics.query import open_streams_view
from analytics.query.errors import QueryError, QueryRejected, QueryTimeout, StoreUnavailable
from analytics.query.reader import Reader, limited
from analytics.schema.sql_quoting import literal
from analytics.storage.database import load, new_database, one_line
from analytics.storage.location import locate
from ingest.ready_file import read_of_running
from streamgauge.python_instants import use_zoneinfo
from streamgauge.running_parts import load_with_running_parts

DEFAULT_PORT = 9494
DATABASE = "gauge"
"""Name of the attached server in `Connection.duckdb`."""
_UNLIMITED = 2**62
_REFUSED = "refused: "
_TOO_SLOW = "too slow: "
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
        settings = load_with_running_parts({"data": None if data is None else Path(data)})
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
    return Connection(_Store(Reader(location, lock_down=False), location.label))


class Connection:
    """A read-only connection to the tables. Use one per thread. Closes with a `with` block, or `close`."""

    def __init__(self, source: _Source) -> None:
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

    def sql(self, query: str) -> DuckDBPyRelation:
        """Run one SELECT, WITH, FROM, DESCRIBE or SUMMARIZE statement.

        It runs on the server if there is one, within its limits. The result is a DuckDB relation: `.fetchall()`, `.df()`, `.pl()`,
        `.to_arrow_table()`, `.filter(…)`, and a table in Jupyter. Instants are in UTC. Each use of the relation runs the
        statement again.

        Raises `QueryRejected`, `QueryTimeout` and `StoreUnavailable`. Reading the relation later raises `duckdb.Error`.
        """
        try:
            return self._source.relation(query)
        except DuckDBError as e:
            raise self._source.translated(e, query) from None

    def execute(self, query: str) -> DuckDBPyRelation:
        """As `sql`."""
        return self.sql(query)

    def tables(self) -> list[str]:
        """Names of the tables and views."""
        return [name for (name,) in self.sql("SELECT name FROM (SHOW TABLES)").fetchall()]

    def close(self) -> None:
        """Close the connection. Relations can no longer be read."""
        self._source.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<streamgauge.Connection to {self.source}>"


class _Source(Protocol):
    @property
    def label(self) -> str: ...
    def relation(self, query: str) -> DuckDBPyRelation: ...
    def connection(self) -> DuckDBPyConnection: ...
    def translated(self, error: DuckDBError, query: str) -> QueryError: ...
    def close(self) -> None: ...


class _Server:
    """A SQL server. Statements run there."""

    def __init__(self, address: str, token: str) -> None:
        """Raises StoreUnavailable."""
        self.label = address
        self._is_attached = False
        self._connection = new_database()
        try:
            load(self._connection, "httpfs", "quack")
            self._connection.execute(
                f"CREATE SECRET streamgauge (TYPE quack, TOKEN {literal(token)}, SCOPE {literal(address)})"
            )
            self.relation("SELECT 1").fetchall()
        except (OSError, DuckDBError) as e:
            self._connection.close()
            raise (
                self.translated(e, "") if isinstance(e, DuckDBError) else StoreUnavailable(str(e))
            ) from None

    def relation(self, query: str) -> DuckDBPyRelation:
        return self._connection.sql(f"FROM quack_query({literal(self.label)}, {literal(query)})")

    def connection(self) -> DuckDBPyConnection:
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
        self._connection.close()


class _Store:
    """The store itself. Statements run in this process."""

    def __init__(self, reader: Reader, label: str) -> None:
        self.label = label
        self._reader = reader
        self._cursor = reader.cursor()

    def relation(self, query: str) -> DuckDBPyRelation:
        open_streams_view.prepare(self._cursor, query, [self._reader.data_path])
        return self._cursor.sql(limited(self._cursor, query, _UNLIMITED))

    def connection(self) -> DuckDBPyConnection:
        open_streams_view.prepare(self._cursor, open_streams_view.NAME, [self._reader.data_path])
        return self._cursor

    def translated(self, error: DuckDBError, query: str) -> QueryError:
        return self._reader.translated(error, 0.0, query)

    def close(self) -> None:
        self._cursor.close()
        self._reader.close()


def _address(server: str) -> str:
    """`quack:HOST:PORT` of `HOST:PORT` or `HOST`."""
    server = server.removeprefix("quack:")
    has_port = server.rpartition(":")[2].isdigit() and not server.endswith("]")
    return f"quack:{server}" if has_port else f"quack:{server}:{DEFAULT_PORT}"

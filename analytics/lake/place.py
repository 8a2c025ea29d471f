"""Where a lake is, and how a process attaches it: `--store ducklake:postgres:DSN`, `--data-path DIR|s3://…`.

A lake is DuckLake's: the catalog in PostgreSQL, the rows as Parquet files in a folder that every process reaches, or in S3.
Rules
1. The DSN may hold a password: it is never shown, neither in a log line nor in an error.
2. The data path is told once, when the lake is made; the catalog remembers it. Another one later is refused.
3. S3 is reached with the account that other tools find too (`analytics.lake.s3`). PostgreSQL's own variables and files
   (`PGPASSWORD`, `~/.pgpass`, `PGSSLMODE` …) hold too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from analytics.lake.dsn import without_password
from analytics.lake.s3 import account
from analytics.serving.guard import one_line
from analytics.storage.extensions import load
from analytics.storage.rows import first_row

NAME = "lake"
"""Of the attached catalog, in every process."""
SCHEME = "ducklake:postgres:"
RETRIES = (
    "SET ducklake_retry_wait_ms = 10; SET ducklake_retry_backoff = 1.2; SET ducklake_max_retry_count = 30"
)
"""A commit that another one overtook is done again by DuckLake itself: within 12 s in all, and 2 s apart at most. (By its own
factor of 1.5 the last of 30 pauses would be 21 minutes.)"""
INLINED_ROWS = 300
"""As many rows of one table and commit go into the catalog itself instead of a Parquet file of their own."""


@dataclass(frozen=True, slots=True)
class Lake:
    """One lake. `data_path` None: the one that its catalog knows."""

    dsn: str = field(repr=False)
    """As libpq takes it: `host=… dbname=…` or `postgresql://…`."""
    data_path: str | None = None

    @property
    def store(self) -> str:
        """As `parse` takes it."""
        return SCHEME + self.dsn


def parse(store: str, data_path: str | None = None) -> Lake | None:
    """The lake that `--store` names; None for `duckdb`, the file in the data folder. Raises ValueError."""
    if store == "duckdb":
        if data_path:
            raise ValueError("--data-path belongs to --store ducklake:postgres:…")
        return None
    dsn = store.removeprefix(SCHEME)
    if dsn == store or not dsn.strip():
        raise ValueError(
            "--store is duckdb, or ducklake:postgres:DSN (such as ducklake:postgres:host=db dbname=lake)"
        )
    if data_path and "://" not in data_path:
        data_path = str(Path(data_path).absolute())
    elif data_path and not data_path.startswith("s3://"):
        raise ValueError("--data-path is a folder or s3://BUCKET/PREFIX")
    return Lake(dsn, data_path)


def new_database(memory_limit_bytes: int | None = None) -> duckdb.DuckDBPyConnection:
    """A process's own database, in memory, to which a lake is attached."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
    if memory_limit_bytes is not None:
        connection.execute(f"SET memory_limit = '{memory_limit_bytes // 2**20} MiB'")
    connection.execute(f"SET threads = {max(1, len(os.sched_getaffinity(0)) - 1)}")
    return connection


def attach(connection: duckdb.DuckDBPyConnection, lake: Lake, *, read_only: bool) -> None:
    """Attach the lake as `lake` and make it the default; one that is not there is made unless it is only read.

    Two must not make it at once. Raises OSError with one line.
    """
    load(connection, "ducklake", "postgres_scanner")
    options = ["READ_ONLY"] if read_only else []
    if lake.data_path is not None and not read_only:
        options.append(f"DATA_PATH {quoted(lake.data_path)}")
    try:
        _let_in(connection)
        connection.execute(
            f"ATTACH {quoted(lake.store)} AS {NAME}" + (f" ({', '.join(options)})" if options else "")
        )
        connection.execute(f"USE {NAME}")
        connection.execute(RETRIES)
        # As the lake's own option it crashes DuckLake 1.0.
        connection.execute(f"SET ducklake_default_data_inlining_row_limit = {INLINED_ROWS}")
    except duckdb.Error as e:
        raise OSError(f"the lake cannot be attached: {said(e, lake)}") from None


def attach_catalog(connection: duckdb.DuckDBPyConnection, lake: Lake, name: str) -> None:
    """Attach the catalog's PostgreSQL itself, for its locks. Raises OSError with one line."""
    load(connection, "postgres_scanner")
    try:
        connection.execute(f"ATTACH {quoted(lake.dsn)} AS {name} (TYPE postgres)")
    except duckdb.Error as e:
        raise OSError(f"the lake's catalog cannot be reached: {said(e, lake)}") from None


def data_path_of(connection: duckdb.DuckDBPyConnection) -> str:
    """Where the attached lake's files are."""
    row = first_row(
        connection.execute(
            f"SELECT value FROM ducklake_options('{NAME}') WHERE option_name = 'data_path' AND scope = 'GLOBAL'"
        )
    )
    return str(row[0]) if row else ""


def said(error: duckdb.Error, lake: Lake) -> str:
    """An error in one line, without the DSN and what it holds."""
    return without_password(one_line(error).replace(lake.dsn, "…"))


def quoted(text: str) -> str:
    """An SQL string."""
    return "'" + text.replace("'", "''") + "'"


def _let_in(connection: duckdb.DuckDBPyConnection) -> None:
    """Tell DuckDB of the S3 account, if there is one."""
    found = account(os.environ)
    if found is None:
        return
    load(connection, "httpfs")
    parts = {
        "KEY_ID": found.key_id,
        "SECRET": found.secret,
        "SESSION_TOKEN": found.session_token,
        "REGION": found.region,
    }
    options = [f"{name} {quoted(value)}" for name, value in parts.items() if value]
    if found.endpoint:
        scheme, _, host = found.endpoint.rpartition("://")
        options += [f"ENDPOINT {quoted(host.rstrip('/'))}", "URL_STYLE 'path'"]
        options.append(f"USE_SSL {str(scheme != 'http').lower()}")
    connection.execute(f"CREATE OR REPLACE SECRET streamgauge_s3 (TYPE s3, {', '.join(options)})")

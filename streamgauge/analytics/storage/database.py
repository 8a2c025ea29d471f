"""DuckDB connections: an in-memory database, the attached store and its version, extensions and limits.

Extensions are loaded from their PyPI packages. Nothing is downloaded or copied into a home folder.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb

from streamgauge.analytics.extras import missing_package
from streamgauge.analytics.schema.ddl import TABLES_VERSION, schema_digest, statements, view_names
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.schema.tables import declared_columns
from streamgauge.analytics.storage.location import ALIAS, StoreLocation, without_password
from streamgauge.analytics.storage.s3_account import account
from streamgauge.ingest.processes import cpus

RETRIES = (
    "SET ducklake_retry_wait_ms = 10; SET ducklake_retry_backoff = 1.2; SET ducklake_max_retry_count = 30"
)
"""DuckLake repeats a conflicting transaction for at most 12 s, with pauses of at most 2 s. (With its default backoff of 1.5
the last of 30 pauses would take 21 minutes.)"""

LINK = ".link"
"""Ending of the second link of a file whose COMMIT is running."""
_AFTER_MESSAGE = re.compile(r"\nLINE |\s*Stack Trace:|\s*This error signals an assertion failure")
DAMAGED = ("malformed", "not a database")
"""Parts of SQLite's messages about a damaged file."""


class RegisteredRows:
    """A table to register whose rows can be replaced: registering one takes milliseconds. DuckDB reads it as an Arrow stream."""

    def __init__(self, rows: Any) -> None:
        """`rows`: a data frame or an Arrow table, later another one of the same schema."""
        self.rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self.rows.__arrow_c_stream__(requested_schema)


def new_database(memory_limit_bytes: int | None = None) -> duckdb.DuckDBPyConnection:
    """An in-memory database in UTC that does not load extensions by itself. `memory_limit_bytes` None: DuckDB's default."""
    # `load` takes extensions only from installed packages, as trusted as DuckDB itself. Their signatures would be checked at each
    # LOAD, which hashes the whole file: 0.3 s of CPU per database.
    connection = duckdb.connect(config={"allow_unsigned_extensions": True})
    connection.execute("SET GLOBAL TimeZone = 'UTC'")  # also of its cursors
    connection.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
    if memory_limit_bytes is not None:
        connection.execute(f"SET memory_limit = '{memory_limit_bytes // 2**20} MiB'")
    connection.execute(f"SET threads = {max(1, cpus() - 1)}")
    return connection


def attach(
    connection: duckdb.DuckDBPyConnection,
    location: StoreLocation,
    *,
    read_only: bool,
    uri: str | None = None,
    alias: str = ALIAS,
) -> None:
    """Attach the store as `alias` and make it the default database.

    Creates the store if it does not exist, unless `read_only`. Two processes must not create it at once. `uri`: a copy of the
    catalog. Raises OSError.
    """
    load(connection, "ducklake", "sqlite_scanner" if location.catalog else "postgres_scanner")
    options = ["READ_ONLY"] if read_only else []
    if location.catalog is not None:  # the data folder may have been moved
        options += [f"DATA_PATH {literal(str(location.tables))}", "OVERRIDE_DATA_PATH true"]
    elif location.tables is not None and not read_only:
        options.append(f"DATA_PATH {literal(location.tables)}")
    try:
        _authenticate_s3(connection)
        connection.execute(
            f"ATTACH {literal(uri or location.uri)} AS {alias}"
            + (f" ({', '.join(options)})" if options else "")
        )
        connection.execute(f"USE {alias}")
        connection.execute(RETRIES)
    except duckdb.Error as e:
        raise cannot_attach(location, e) from None


def cannot_attach(location: StoreLocation, error: duckdb.Error) -> OSError:
    """The error of a store that cannot be attached, with what to do."""
    text = message(error, location)
    is_damaged = location.catalog is not None and any(part in text for part in DAMAGED)
    remedy = ". The catalog is damaged: restore it with `streamgauge rebuild`" if is_damaged else ""
    return OSError(f"cannot attach the store {location.label}: {text}{remedy}")


def check_version(connection: duckdb.DuckDBPyConnection, location: StoreLocation, alias: str = ALIAS) -> bool:
    """Whether an attached store has the declared tables and views. False: views may have other columns. Raises OSError if the version of
    the tables differs, or a declared column or view is missing."""
    try:
        found = first_row(connection.execute(f"SELECT number, digest FROM {alias}.internal.tables_version"))
    except duckdb.CatalogException:
        found = None
    if found == (TABLES_VERSION, schema_digest()):
        return True
    number = None if found is None else int(found[0])
    if number is not None and number > TABLES_VERSION:
        raise OSError(newer(location, number))
    tables, view_statements, _ = statements()
    views = view_names(view_statements)
    declared = {
        f"{table}.{column}" for table, columns in declared_columns(tables).items() for column in columns
    }
    rows = connection.execute(
        "SELECT if(schema_name = 'main', '', schema_name || '.') || unnest([table_name, table_name || '.' || column_name]) "
        "FROM duckdb_columns() WHERE database_name = ?",
        [alias],
    ).fetchall()
    stored = {name for (name,) in rows}
    if stored.isdisjoint(views):  # they follow the tables
        raise OSError(
            f"cannot read the store {location.label}: it is being created. Try again when analytics is ready"
        )
    if number != TABLES_VERSION or not declared.union(views) <= stored:
        raise OSError(
            f"cannot read the store {location.label}: it is being upgraded, or will be when analytics of this version starts. "
            "It keeps every row, and takes less than a minute for a million streams. Try again then"
        )
    return False


def newer(location: StoreLocation, number: int) -> str:
    """The error of a store of a newer version."""
    return (
        f"cannot open the store {location.label}: its tables have version {number}, and this version of Streamgauge has "
        f"{TABLES_VERSION}. Install the version that wrote them, or restore the store from before its upgrade"
    )


def data_path_of(connection: duckdb.DuckDBPyConnection, alias: str = ALIAS) -> str:
    """Folder of the attached store's files, with a slash at the end."""
    row = first_row(
        connection.execute(
            f"SELECT value FROM ducklake_options('{alias}') WHERE option_name = 'data_path' AND scope = 'GLOBAL'"
        )
    )
    return str(row[0]) if row else ""


def load(connection: duckdb.DuckDBPyConnection, *names: str) -> None:
    """LOAD the named extensions (`httpfs`, `quack`, …), in this order.

    Raises OSError when a package is missing or made for another DuckDB.
    """
    for name in names:
        try:
            package = resources.files(f"duckdb_extension_{name}")
        except ModuleNotFoundError:
            raise OSError(
                f"cannot load the DuckDB extension {name!r}: {missing_package(f'duckdb_extension_{name}')}"
            ) from None
        path = package / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
        if not path.is_file():
            raise OSError(
                f"cannot load the DuckDB extension {name!r}: its package is not for DuckDB {duckdb.__version__}. Install version "
                f"{duckdb.__version__} of it"
            )
        connection.execute(f"LOAD {literal(str(path))}")


@contextlib.contextmanager
def transaction(connection: duckdb.DuckDBPyConnection, *folders: str) -> Iterator[None]:
    """BEGIN … COMMIT, or ROLLBACK on an exception.

    `folders`: those of the tables in which DuckLake may write files. If COMMIT fails it removes them, even if only the answer is
    lost and the snapshot names them. So local files have a second link meanwhile, and are put back.
    """
    connection.execute("BEGIN TRANSACTION")
    before, links = lake_files(folders), set[Path]()
    try:
        yield
        for file in lake_files(folders) - before:
            with contextlib.suppress(OSError):  # a file system without links
                links.add(link := file.with_suffix(LINK))
                link.hardlink_to(file)
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(duckdb.Error):
            connection.execute("ROLLBACK")
        for link in links:
            with contextlib.suppress(OSError):  # it exists, or has no link
                link.with_suffix(".parquet").hardlink_to(link)
        raise
    finally:
        for link in links:
            link.unlink(missing_ok=True)


def lake_files(folders: Iterable[str]) -> set[Path]:
    """The files that DuckLake itself has written into local folders."""
    local = (Path(folder) for folder in folders if "://" not in folder)
    return {file for folder in local for file in folder.glob("ducklake-*.parquet")}


_QUOTES_VALUES = (duckdb.DataError, duckdb.IntegrityError, duckdb.ParserException, duckdb.BinderException)
_STATEMENT = re.compile('query ".*":', re.DOTALL)
"""SQLite and PostgreSQL quote the failed statement with its values."""


def first_row(result: duckdb.DuckDBPyConnection) -> tuple[Any, ...] | None:
    """The first row, None without one. Reads the result to its end, because an open one keeps its transaction open."""
    rows = result.fetchall()
    return rows[0] if rows else None


def integer(result: duckdb.DuckDBPyConnection) -> int:
    """The single integer of a result, such as a number of rows."""
    row = first_row(result)
    return int(row[0]) if row else 0


def one_line(error: BaseException) -> str:
    """DuckDB's message in one line, without the statement and the stack trace."""
    return " ".join(_AFTER_MESSAGE.split(str(error), maxsplit=1)[0].split())


def message(error: BaseException, location: StoreLocation) -> str:
    """An error in one line, without the DSN and its password."""
    text = one_line(error)
    return without_password(text.replace(location.dsn, "…") if location.dsn else text)


def message_without_values(error: BaseException, location: StoreLocation | None = None) -> str:
    """As `message`, for log lines: without stored values."""
    if isinstance(error, _QUOTES_VALUES):
        return type(error).__name__
    text = one_line(error) if location is None else message(error, location)
    return _STATEMENT.sub("query:", text)


def reason(location: StoreLocation | None, error: BaseException) -> str | None:
    """Why a task failed, if it is no bug: an error of the store or the system. For `Guards`."""
    return message_without_values(error, location) if isinstance(error, (duckdb.Error, OSError)) else None


def _authenticate_s3(connection: duckdb.DuckDBPyConnection) -> None:
    """Register the S3 account of the environment, if any."""
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
    options = [f"{name} {literal(value)}" for name, value in parts.items() if value]
    if found.endpoint:
        scheme, _, host = found.endpoint.rpartition("://")
        options += [f"ENDPOINT {literal(host.rstrip('/'))}", "URL_STYLE 'path'"]
        options.append(f"USE_SSL {str(scheme != 'http').lower()}")
    connection.execute(f"CREATE OR REPLACE SECRET streamgauge_s3 (TYPE s3, {', '.join(options)})")

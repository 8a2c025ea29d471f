"""Ask the running analytics: SQL in, a polars DataFrame out.

The client is an in-memory DuckDB that sends the whole statement and runs none of it. Every failure is an `AskError`
of one line. When analytics was restarted (another token, another port) the data folder says so, and the question is
put once more.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa

from analytics.lake.place import SCHEME, Lake, attach, data_path_of, new_database, parse
from analytics.serving import endpoint as endpoints
from analytics.serving.endpoint import Endpoint
from analytics.serving.guard import Guard, NotAdmitted, one_line
from analytics.serving.serve import directive, lock_down
from analytics.serving.watch import Ended, Watch, growth_bytes
from analytics.storage.extensions import load


class AskError(Exception):
    """The question got no answer; str() is one line."""


class NotRunning(AskError):
    """No analytics answers (not started, stopped, restarting)."""


class Refused(AskError):
    """The statement is wrong, not admitted, or its answer too large."""


class TooSlow(AskError):
    """The time limit was over."""


class Asker:
    """Asks one analytics. Safe to share between threads."""

    def __init__(self, target: Endpoint | Path | str) -> None:
        """`target`: an endpoint, the data folder of a Streamgauge (read again when analytics is restarted), or a lake."""
        if isinstance(target, str) and target.startswith(SCHEME):
            target = Endpoint("", "", lake=target)
        self._data = None if isinstance(target, Endpoint) else Path(target)
        self._endpoint = target if isinstance(target, Endpoint) else None
        self._lock = threading.Lock()
        self._lake: tuple[str, LakeAsker] | None = None
        self._connection = duckdb.connect()
        load(self._connection, "httpfs", "quack")
        self._connection.execute("SET http_retries = 0")
        self._http_timeout_s = 0

    def query(self, sql: str, *, max_rows: int = 100_000, timeout_s: float = 20.0) -> pl.DataFrame:
        """The rows of one SELECT. UUIDs are text, instants are UTC.

        Raises Refused (also when there are more than `max_rows` rows), TooSlow, NotRunning. The server's own bounds
        are the upper limit of both.
        """
        asked = self._current()
        try:
            return self._ask(asked, sql, max_rows, timeout_s)
        except NotRunning:
            fresh = self._current()
            if fresh == asked:
                raise
            return self._ask(fresh, sql, max_rows, timeout_s)

    def close(self) -> None:
        """Let go of the connection."""
        if self._lake is not None:
            self._lake[1].close()
        self._connection.close()

    def _current(self) -> Endpoint:
        if self._data is None:
            assert self._endpoint is not None
            return self._endpoint
        found = endpoints.read(self._data)
        if found is None:
            raise NotRunning(f"analytics does not run on {self._data} (start it with: streamgauge up)")
        return found

    def _lake_of(self, to: Endpoint) -> LakeAsker:
        with self._lock:
            if self._lake is None or self._lake[0] != to.lake:
                lake = parse(to.lake or "")
                assert lake is not None
                self._lake = (lake.store, LakeAsker(lake))
            return self._lake[1]

    def _ask(self, to: Endpoint, sql: str, max_rows: int, timeout_s: float) -> pl.DataFrame:
        if to.lake is not None:
            return self._lake_of(to).query(sql, max_rows=max_rows, timeout_s=timeout_s)
        statement = directive(max_rows, timeout_s) + sql
        call = f"FROM quack_query({_quoted(to.quack)}, {_quoted(statement)}, token = {_quoted(to.token)})"
        with self._lock:
            cursor = self._connection.cursor()
            wanted_s = int(timeout_s) + 10
            if wanted_s > self._http_timeout_s:
                cursor.execute(f"SET GLOBAL http_timeout = {wanted_s}")
                self._http_timeout_s = wanted_s
        try:
            return frame(cursor.execute(call))
        except duckdb.Error as e:
            raise _translated(e, to) from None
        finally:
            cursor.close()


MOST_MEMORY_BYTES = 4 * 2**30
"""Of DuckDB in a process that reads the tables itself; less on machines with less than 10 GiB."""


class LocalAsker:
    """Asks a database of this process, by the same rules as the running analytics. Safe to share between threads."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        """`connection` is to the database that is asked, and is locked down and owned from now on."""
        self._connection = connection
        row = connection.execute("SELECT parse_formatted_bytes(current_setting('memory_limit'))").fetchone()
        limit_bytes = min(int(row[0]) // 2 if row else MOST_MEMORY_BYTES, MOST_MEMORY_BYTES)
        connection.execute(f"SET memory_limit = '{limit_bytes // 2**20} MiB'")
        self._growth_bytes = growth_bytes(connection)
        lock_down(connection)
        row = connection.execute("SELECT current_database()").fetchone()
        self._catalog = row[0] if row else ""
        self._guard = Guard(connection, catalog=self._catalog)
        self._lock = threading.Lock()

    def query(self, sql: str, *, max_rows: int = 100_000, timeout_s: float = 20.0) -> pl.DataFrame:
        """As `Asker.query`."""
        try:
            with self._lock:
                admitted = self._guard.admit(sql)
                cursor = self._connection.cursor()
        except NotAdmitted as e:
            raise Refused(str(e)) from None
        cursor.execute(f'USE "{self._catalog}"')
        watch = Watch(cursor, deadline_s=time.monotonic() + timeout_s, growth_bytes=self._growth_bytes)
        try:
            found = frame(cursor.execute(f"FROM (\n{admitted.sql}\n) LIMIT {max_rows + 1}"))
        except duckdb.InterruptException:
            if watch.ended is Ended.MEMORY:
                raise Refused("too much memory: interrupted; aggregate fewer rows or groups") from None
            raise TooSlow(f"too slow: interrupted after {timeout_s:g} s") from None
        except duckdb.IOException as e:
            raise NotRunning(f"the tables cannot be read: {one_line(e)}") from None
        except duckdb.Error as e:
            raise Refused(one_line(e)) from None
        finally:
            watch.done()
            cursor.close()
        if found.height > max_rows:
            raise Refused(f"too many rows: more than {max_rows}; aggregate, or add a LIMIT")
        return found

    def close(self) -> None:
        """Let go of the database."""
        self._connection.close()


class FileAsker(LocalAsker):
    """Asks the file of a data folder that no process owns."""

    def __init__(self, path: Path) -> None:
        """Open the file for reading. Raises NotRunning when it is not there or another process has it."""
        if not path.is_file():
            raise NotRunning(f"there are no tables at {path} yet")
        try:
            connection = duckdb.connect(str(path), read_only=True)
        except duckdb.Error as e:
            raise NotRunning(f"cannot read {path}: {one_line(e)}") from None
        connection.execute("SET TimeZone = 'UTC'")
        super().__init__(connection)


class LakeAsker(LocalAsker):
    """Asks a lake, attached for reading; each question sees the newest commits."""

    def __init__(self, lake: Lake) -> None:
        """Raises NotRunning when the lake cannot be reached, or was not made yet."""
        connection = new_database()
        try:
            attach(connection, lake, read_only=True)
        except OSError as e:
            connection.close()
            raise NotRunning(str(e)) from None
        if not connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'streams'").fetchall():
            connection.close()
            raise NotRunning("the lake has no tables yet: analytics makes them when it is started")
        files = data_path_of(connection)
        connection.execute(f"SET allowed_directories = [{_quoted(files)}]")
        super().__init__(connection)


def frame(result: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """A result as polars sees it, with UUIDs as text, instants in UTC, intervals as durations, sums of integers as integers.

    Raises Refused for a type that polars has not.
    """
    table = result.to_arrow_table()
    for i, column in enumerate(table.schema):
        if pa.types.is_interval(column.type):
            table = table.set_column(i, column.name, _durations(table.column(i)))
    try:
        found = pl.from_arrow(table)
    except (pl.exceptions.PolarsError, TypeError, ValueError) as e:
        raise Refused(f"a column's type cannot be sent, cast it to VARCHAR: {e}".splitlines()[0]) from None
    assert isinstance(found, pl.DataFrame)
    changed: list[pl.Expr] = []
    for name, kind in found.schema.items():
        if isinstance(kind, pl.Datetime) and kind.time_zone not in (None, "UTC"):
            changed.append(pl.col(name).dt.convert_time_zone("UTC"))
        elif isinstance(kind, pl.Decimal) and kind.scale == 0:  # DuckDB's HUGEINT
            number = found[name].cast(pl.Int64, strict=False)
            if number.null_count() == found[name].null_count():
                changed.append(pl.lit(number).alias(name))
    return found.with_columns(changed)


def _durations(column: pa.ChunkedArray) -> pa.Array:
    """Intervals, whose months have no length of their own: DuckDB compares them as 30 days, so do we."""
    micros = [
        None if v is None else (v.months * 30 + v.days) * 86_400_000_000 + v.nanoseconds // 1000
        for v in column.to_pylist()
    ]
    return pa.array(micros, pa.int64()).cast(pa.duration("us"))


def _translated(error: duckdb.Error, to: Endpoint) -> AskError:
    text = one_line(error)
    said = text.removeprefix("Invalid Input Error: ").removeprefix("Invalid Input Error: ")
    if said.startswith(("refused: ", "too many rows: ", "too much memory: ", "failed: ")):
        return Refused(said.removeprefix("refused: "))
    if said.startswith(("too slow: ", "busy: ")):
        return TooSlow(said)
    if (
        isinstance(error, duckdb.IOException | duckdb.HTTPException)
        or "Could not" in text
        or "Unauthorized" in text
    ):
        if "imeout" in text or "timed out" in text:
            return TooSlow(f"no answer in time from {to.quack}")
        return NotRunning(f"analytics does not answer at {to.quack}")
    if "uthenti" in said or "connection id" in said.lower():
        return NotRunning(f"analytics at {to.quack} does not know this token (restarted?)")
    return Refused(said)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

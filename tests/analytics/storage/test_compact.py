"""A file that is mostly free becomes small, nothing in it changes, and a kill at any instant leaves one of the two whole."""

from __future__ import annotations

import dis
import inspect
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analytics import consume
from analytics.consume import AnalyzeOptions, serve_until
from analytics.serving.ask import Asker
from analytics.serving.endpoint import Endpoint
from analytics.storage import compact as compacting
from analytics.storage import home
from analytics.storage.compact import compact
from analytics.storage.store import FILE, Store

ROOT = Path(__file__).resolve().parents[3]
NEVER = threading.Event()
VALUES = {
    "UUID": "uuid()",
    "VARCHAR": "'v' || i",
    "BLOB": "encode('b' || i)",
    "BOOLEAN": "i % 2 = 0",
    "TIMESTAMP WITH TIME ZONE": "make_timestamptz(1790000000000000 + i)",
    "VARCHAR[]": "['a', 'b' || i]",
    "SMALLINT[]": "[1, 2]",
    "INTEGER[]": "[i, 3]",
}
"""An expression of `i` for each type of column; numbers are `i`."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with rows in every table, most of whose blocks are free."""
    return mostly_free(tmp_path / FILE, 400_000)


def mostly_free(path: Path, events: int, *, rows_in_all: bool = True) -> Path:
    store = Store(path, stall=(10**9, 7.0))
    with closing(store.cursor()) as cursor:
        run = cursor.execute
        columns = run(
            "SELECT schema_name || '.' || table_name, list(column_name ORDER BY column_index), "
            "list(data_type ORDER BY column_index) FROM duckdb_columns() WHERE database_name = current_database() "
            "AND (schema_name, table_name) IN (SELECT (schema_name, table_name) FROM duckdb_tables()) "
            "AND table_name NOT IN ('migrations', 'meta') GROUP BY ALL"
        ).fetchall()
        for table, names, types in columns if rows_in_all else ():
            values = ", ".join(
                f"({VALUES.get(kind, 'i')})::{kind} AS {name}"
                for name, kind in zip(names, types, strict=True)
            )
            run(f"INSERT INTO {table} BY NAME SELECT {values} FROM range(1, 51) AS t(i)").fetchall()
        run("CREATE SEQUENCE IF NOT EXISTS internal.numbers").fetchall()
        run("SELECT nextval('internal.numbers') FROM range(7)").fetchall()
        run("CREATE INDEX IF NOT EXISTS by_cause ON losses (cause)").fetchall()
        run(
            "INSERT INTO internal.packed_events BY NAME SELECT uuidv7() AS stream_id, i AS number, 0 AS first_number, "
            f"i AS read_number, (hash(i) % 5_000_000_000)::BIGINT AS at_ns, 'text' AS label FROM range({events}) AS t(i)"
        ).fetchall()
        run("CHECKPOINT").fetchall()
        run("DELETE FROM internal.packed_events WHERE number > 50 AND number % 50 > 0").fetchall()
    store.close()
    return path


def told(path: Path) -> dict[str, Any]:
    """Everything in the file, but the note that it was compacted."""
    with closing(duckdb.connect(str(path), read_only=True)) as connection:
        found: dict[str, Any] = {}
        for catalogue in ("tables", "views", "columns", "indexes", "sequences", "constraints", "schemas"):
            rows = connection.execute(
                f"FROM duckdb_{catalogue}() WHERE database_name = current_database()"
            ).pl()
            drop = [c for c in rows.columns if c.endswith("_oid") or c == "estimated_size"]
            found[catalogue] = sorted(map(str, rows.drop(drop).rows()))
        for schema, table in connection.execute(
            "SELECT schema_name, table_name FROM duckdb_tables()"
        ).fetchall():
            where = "WHERE name <> 'compactions'" if table == "totals" else ""
            found[f"{schema}.{table}"] = connection.execute(
                f"SELECT t::VARCHAR FROM {schema}.{table} AS t {where}"
            ).fetchall()
        return found


def test_it_becomes_small_and_nothing_else_changes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacting, "LEAST_BYTES", 2**20)
    path.chmod(0o600)
    before, size = told(path), path.stat().st_size
    assert len(before["internal.packed_events"]) > 8000
    assert len(before["main.stream_minutes"]) == 50
    assert compact(path, stop=NEVER)
    assert path.stat().st_size < size / 2
    assert path.stat().st_mode & 0o777 == 0o600
    assert told(path) == before
    assert [one.name for one in path.parent.iterdir()] == [FILE]
    store = Store(path)
    assert store.totals()["compactions"] == 1
    store.close()
    assert not compact(path, stop=NEVER)  # it is not free any more


def test_one_that_is_in_use_or_small_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.stat()
    assert not compact(path, stop=NEVER)  # smaller than LEAST_BYTES: not even opened
    assert path.stat() == before
    monkeypatch.setattr(compacting, "LEAST_BYTES", 2**20)
    monkeypatch.setattr(compacting, "LEAST_FREE", 0.99)
    assert not compact(path, stop=NEVER)
    assert compact(path, stop=NEVER, always=True)


def test_without_room_or_time_or_when_told_to_stop_it_stays_as_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compacting, "LEAST_BYTES", 2**20)
    before = told(path)
    with monkeypatch.context() as full:
        full.setattr(compacting, "SPARE_BYTES", 2**62)
        assert not compact(path, stop=NEVER)
    assert "no room on the disk" in caplog.text
    stop = threading.Event()
    stop.set()
    real = compacting._copy

    def slow(*args: Any) -> None:
        real(*args)
        args[0].execute(
            "SELECT sum(a.i * b.i) FROM range(10_000_000) a(i), range(10_000_000) b(i)"
        ).fetchall()

    monkeypatch.setattr(compacting, "_copy", slow)
    assert not compact(path, stop=stop)
    assert not compact(path, stop=NEVER, limit_s=0.1)
    assert told(path) == before
    assert [one.name for one in path.parent.iterdir()] == [FILE]


def test_a_copy_that_lacks_a_row_does_not_take_its_place(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Lossy:
        """A connection that forgets a row between the copy and the check."""

        def __init__(self, real: duckdb.DuckDBPyConnection) -> None:
            self.real = real

        def execute(self, sql: str, *values: Any) -> duckdb.DuckDBPyConnection:
            found = self.real.execute(sql, *values)
            if sql.startswith("COPY FROM"):
                self.real.execute("DELETE FROM compacted.stalls WHERE seq = 7").fetchall()
            return found

    before, real = told(path), compacting._copy
    monkeypatch.setattr(compacting, "_copy", lambda connection, *more: real(Lossy(connection), *more))  # type: ignore[arg-type]
    assert not compact(path, stop=NEVER, always=True)
    assert "the copy of main.stalls has (49,) rows, not (50,)" in caplog.text
    assert told(path) == before


def test_it_is_done_when_analytics_starts_and_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = mostly_free(tmp_path / FILE, 400_000, rows_in_all=False)
    size, asker, stop = path.stat().st_size, Asker(tmp_path), threading.Event()
    monkeypatch.setattr(consume, "SWEEP_S", 0.05)
    monkeypatch.setattr(home, "COMPACT_EVERY_S", 0.0)
    ready: queue.Queue[Endpoint] = queue.Queue()
    options = AnalyzeOptions(tmp_path, quack_port=0)
    thread = threading.Thread(target=serve_until, args=(options, stop, ready.put))
    thread.start()
    try:
        ready.get(timeout=60)
        events = asker.query("SELECT count(*), sum(at_ns) FROM events").row(0)
        assert path.stat().st_size == size  # small, so far
        monkeypatch.setattr(compacting, "LEAST_BYTES", 2**20)
        ready.get(timeout=60)
        assert path.stat().st_size < size / 2
        assert asker.query("SELECT count(*), sum(at_ns) FROM events").row(0) == events
        assert asker.query("SELECT value FROM counters WHERE name = 'compactions'").item() == 1
    finally:
        stop.set()
        thread.join(60)
    assert ready.empty()  # once was enough
    mostly_free(path, 400_000, rows_in_all=False)
    stop.clear()
    thread = threading.Thread(target=serve_until, args=(options, stop, ready.put))
    thread.start()
    try:
        ready.get(timeout=60)
        assert path.stat().st_size < size / 2
        assert asker.query("SELECT value FROM counters WHERE name = 'compactions'").item() == 2
    finally:
        stop.set()
        thread.join(60)


KILLED = """
import os, signal, sys, threading, time
from pathlib import Path
import analytics.storage.compact as compacting

path, file = Path(sys.argv[1]), compacting.__file__

def run(line):
    def on_line(frame, event, arg):
        if frame.f_code.co_filename != file:
            return None
        if event == "line" and frame.f_lineno == line:
            os.kill(os.getpid(), signal.SIGKILL)
        return on_line
    sys.settrace(on_line)
    compacting.compact(path, stop=threading.Event(), always=True)

def run_for(bytes_):
    copy = path.with_name(path.name + ".compacting")
    def watch():
        while True:
            if any(p.exists() and p.stat().st_size >= bytes_ for p in (copy, copy.with_name(copy.name + ".wal"))):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0)
    threading.Thread(target=watch, daemon=True).start()
    compacting.compact(path, stop=threading.Event(), always=True)

for wanted in sys.stdin:
    how, _, number = wanted.partition(" ")
    if (child := os.fork()) == 0:
        os.dup2(2, 1)  # without a file of its own a program is interactive to DuckDB: what takes 2 s gets a progress bar
        {"line": run, "bytes": run_for}[how](int(number))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def lines_of(*functions: Any) -> list[int]:
    """Every line of these functions at which something is done."""
    return sorted(
        {line for one in functions for _, line in dis.findlinestarts(inspect.unwrap(one).__code__) if line}
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("functions", "writing"),
    [
        pytest.param(("_replace",), (1, 2**20), id="at the last"),
        pytest.param(
            ("compact", "_copy", "_ended_by", "_to_disk", "_remove", "_logs"),
            range(2**18, 2**22, 2**19),
            id="at every line",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_killed_anywhere_it_leaves_the_old_file_or_the_new_one(
    path: Path, functions: Sequence[str], writing: Sequence[int]
) -> None:
    """At every line, and while DuckDB writes: once the copy has so many bytes."""
    path.unlink()
    before = told(mostly_free(path, 150_000))
    full = path.read_bytes()
    killed = changed = 0
    points = [f"bytes {size}" for size in writing]
    points += [f"line {n}" for n in lines_of(*(getattr(compacting, name) for name in functions))]
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for point in points:
            path.write_bytes(full)
            child.stdin.write(f"{point}\n")
            child.stdin.flush()
            code = int(child.stdout.readline())
            killed += code == -signal.SIGKILL
            if path.read_bytes() != full:
                changed += path.stat().st_size < len(full)
                assert told(path) == before, point
            compact(path, stop=NEVER)  # as the next start does: what the kill left beside it goes
            assert [one.name for one in path.parent.iterdir()] == [FILE], point
    assert killed > len(points) // 2  # the others are lines of what did not happen
    assert changed > 0

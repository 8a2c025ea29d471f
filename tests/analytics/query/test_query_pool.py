"""Queries in child processes: hostile statements affect neither the caller nor other queries."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from streamgauge.analytics.query import query_pool
from streamgauge.analytics.query.child_process import MIB, TRUSTED, UNTRUSTED, ChildProcess
from streamgauge.analytics.query.query_errors import QueryError, QueryRejected, QueryTimeout, StoreUnavailable
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.query.sandbox import UNTRUSTED_NICENESS
from streamgauge.analytics.storage.location import StoreLocation, locate
from tests.analytics.query.conftest import ROWS, RUNAWAY, add_stream, make_store
from tests.deadline import DEADLINE_S, until

LIMITS = replace(UNTRUSTED, memory_bytes=512 * MIB)
TIMEOUT_S = 0.5
LATEST_S = TIMEOUT_S + 20
DEEP_JSON = "(repeat('[', 20000) || repeat(']', 20000))"
DEEP_OBJECT = "(repeat('{\"a\":', 20000) || '1' || repeat('}', 20000))"
DEEP_STRUCTURE = "repeat('[', 9000) || '\"INT\"' || repeat(']', 9000)"

HOSTILE = {
    "json literal to variant": f"SELECT '{'[' * 20000}{']' * 20000}'::JSON::VARIANT",
    "json to variant": f"SELECT {DEEP_JSON}::JSON::VARIANT",
    "deep objects": f"SELECT {DEEP_OBJECT}::JSON::VARIANT",
    "from_json": f"SELECT from_json('[1]', {DEEP_STRUCTURE})",
    "json_transform": f"SELECT json_transform('[1]', {DEEP_STRUCTURE})",
    "json_structure": "SELECT json_structure(repeat('[', 120000) || repeat(']', 120000))",
    "repeat": "SELECT repeat('x', 0 - (-3000000000))",
    "repeat of a decimal": "SELECT repeat('x', 1000000000.00000000000::BIGINT)",
    "range value": "SELECT range(0, 1 - (-200000000))",
    "format": "SELECT format('{:>{}}', 'x', 2000000000)",
    "chained ctes": "WITH a0 AS (SELECT 1 AS x)"
    + "".join(f", a{i + 1} AS (SELECT *, * FROM a{i})" for i in range(20))
    + " SELECT * FROM a20",
    "struct doubling": "WITH a0 AS (SELECT {'x': 1} AS s)"
    + "".join(f", a{i + 1} AS (SELECT {{'l': s, 'r': s}} AS s FROM a{i})" for i in range(25))
    + " SELECT s FROM a25",
    "cube": f"SELECT count(*) FROM streams, range(1000) t(r) GROUP BY CUBE ({', '.join(f'r % {i + 2}' for i in range(15))})",
    "recursion": "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t",
    "many unions": "SELECT 1" + " UNION ALL SELECT 1" * 12_000,
    "quantile states": "SELECT quantile_cont(range, 0.5) FROM range(1000000000)",
    "one long call": "SELECT levenshtein(s, s || 'x') FROM (SELECT repeat('ab', 100000) AS s)",
    "insert": "INSERT INTO streams VALUES (uuid(), now(), 'ok', 1)",
    "delete": "DELETE FROM streams",
    "copy": "COPY streams TO '/tmp/streamgauge-hostile.csv'",
    "attach": "ATTACH '/tmp/streamgauge-hostile.duckdb' AS other",
    "install": "INSTALL spatial",
    "sqlite_scan": "FROM sqlite_scan('/tmp/x', 'ducklake_snapshot')",
    "file": "FROM '/etc/passwd'",
}


@pytest.fixture(scope="module")
def untrusted(location: StoreLocation) -> Iterator[QueryPool]:
    with QueryPool(location, untrusted=True, limits=LIMITS) as process:
        process.query("SELECT 1")  # the start of a child does not count towards deadlines
        yield process


@pytest.fixture
def trusted(location: StoreLocation) -> Iterator[QueryPool]:
    with QueryPool(location, untrusted=False) as process:
        yield process


@pytest.mark.parametrize("sql", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_statement_ends_at_the_deadline_and_the_next_query_works(
    untrusted: QueryPool, sql: str
) -> None:
    started_s = time.monotonic()
    with pytest.raises((QueryRejected, QueryTimeout)) as error:
        untrusted.query(sql, timeout_s=TIMEOUT_S)
    assert time.monotonic() - started_s < LATEST_S
    assert str(error.value)
    assert "\n" not in str(error.value)
    assert untrusted.query("SELECT count(*) FROM streams").item() == ROWS


CRASHES = ["json literal to variant", "repeat", "chained ctes"]
"""One of each kind; the children of both pools run the same code."""
KINDS = [*CRASHES, "from_json", "recursion", "many unions", "delete", "attach"]
"""One of each end: rejected, out of memory, killed by a signal, too slow."""


def test_hostile_statements_of_the_sql_command_end_in_one_line(trusted: QueryPool) -> None:
    for name in CRASHES:
        with pytest.raises((QueryRejected, QueryTimeout)) as error:
            trusted.query(HOSTILE[name], timeout_s=0.3)
        assert "\n" not in str(error.value)
        assert trusted.query("SELECT count(*) FROM streams").item() == ROWS


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("from_json", "signal SIGSEGV.*nested deeper than the stack"),
        ("json literal to variant", "limit is 200 levels"),
        ("many unions", "longer than 64 KiB"),
    ],
)
def test_errors_name_the_limit(untrusted: QueryPool, name: str, reason: str) -> None:
    with pytest.raises(QueryRejected, match=reason):
        untrusted.query(HOSTILE[name])


def test_errors_show_no_stack_trace(untrusted: QueryPool) -> None:
    with pytest.raises(QueryRejected) as error:
        untrusted.query("SELECT reservoir_quantile(range, NULL::DOUBLE[]) FROM range(10)")
    assert "Stack Trace" not in str(error.value)
    assert "assertion" not in str(error.value)


def test_long_error_messages_are_cut(untrusted: QueryPool) -> None:
    with pytest.raises(QueryRejected, match="xxx") as error:
        untrusted.query("SELECT error(repeat('x', 500_000))")
    assert len(str(error.value)) < 3000
    assert untrusted.query("SELECT 1").item() == 1


def test_out_of_memory_error_names_the_limit(untrusted: QueryPool) -> None:
    with pytest.raises(QueryRejected, match="more than 512 MiB of memory"):
        untrusted.query(HOSTILE["repeat"])


def test_large_answer_is_rejected(location: StoreLocation) -> None:
    with QueryPool(location, untrusted=True, limits=replace(LIMITS, max_answer_bytes=MIB)) as process:
        with pytest.raises(QueryRejected, match="larger than 1 MiB"):
            process.query("SELECT repeat('x', 1000) FROM range(2000)")
        with pytest.raises(QueryRejected, match="more than 10 rows"):
            process.query("FROM range(11)", max_rows=10)


def test_types_are_preserved_between_child_and_parent(untrusted: QueryPool) -> None:
    row = untrusted.query(
        "SELECT stream_id, started_at, INTERVAL 90 SECOND AS i, sum(ttft_ns) OVER () AS total "
        "FROM streams ORDER BY stream_id LIMIT 1"
    ).row(0, named=True)
    assert row["stream_id"] == "0198b2d0-0000-7000-8000-000000000000"
    assert row["started_at"].isoformat() == "2026-09-21T14:13:20+00:00"
    assert (row["i"].total_seconds(), row["total"]) == (90.0, ROWS * (ROWS - 1) // 2)


@pytest.mark.parametrize(
    "value",
    [
        "INTERVAL 178956970 YEAR",
        "[INTERVAL 1 DAY]",
        "MAP {1: INTERVAL 1 DAY}",
        "{'a': [DATE '5881580-07-10']}",
        "TIMESTAMP 'infinity'",
        "union_value(x := 1)",
        "[NULL::MAP(INTEGER, UNION(a MAP(INTEGER, JSON)))]",
        "NULL::INTEGER" + "[]" * 17,
        "1::VARIANT",
        "123::BIGNUM",
    ],
)
def test_values_without_a_python_type_are_rejected_with_a_remedy(untrusted: QueryPool, value: str) -> None:
    with pytest.raises(QueryRejected, match=r"cannot convert the answer: .*Cast the column to VARCHAR\."):
        untrusted.query(f"SELECT {value}")
    assert untrusted.query(f"SELECT ({value})::VARCHAR").height == 1


@pytest.mark.parametrize("is_untrusted", [True, False])
def test_each_query_sees_the_newest_commit(tmp_path: Path, is_untrusted: bool) -> None:
    location = make_store(tmp_path, rows=3)
    with QueryPool(location, untrusted=is_untrusted) as process:
        for expected in (3, 4, 5):
            assert process.query("SELECT count(*) FROM streams").item() == expected
            add_stream(location)


def test_a_missing_store_is_unavailable_until_it_exists(tmp_path: Path) -> None:
    with QueryPool(locate("sqlite", tmp_path), untrusted=False) as process:
        with pytest.raises(StoreUnavailable, match="streamgauge up"):
            process.query("SELECT 1")
        assert list(tmp_path.iterdir()) == []
        make_store(tmp_path, rows=3)

        def stored() -> int | None:
            with contextlib.suppress(
                StoreUnavailable
            ):  # of a process that started before the store was complete
                return int(process.query("SELECT count(*) FROM streams").item())
            return None

        assert until(stored, "the store") == 3


CATALOG_QUERIES = (
    "SHOW TABLES",
    "SHOW ALL TABLES",
    "SELECT * FROM duckdb_tables()",
    "SELECT * FROM duckdb_views(), (SELECT count(*) FROM open_streams)",
    "SELECT DISTINCT database_name, schema_name, table_name FROM duckdb_columns(), (SELECT count(*) FROM open_streams)",
    "FROM duckdb_schemas()",
    "SELECT DISTINCT database_name, function_name FROM duckdb_functions() WHERE NOT internal",
    "FROM duckdb_constraints()",
    "FROM information_schema.tables",
    "FROM information_schema.schemata",
    "SELECT DISTINCT table_catalog, table_schema, table_name FROM information_schema.columns",
    "FROM pragma_table_info('streams')",
)
INTERNAL_NAMES = (
    "streamgauge_",
    "ducklake_",
    "answers",
    "temp",
    "system",
    "sqlite_",
    ".live",
    "/tmp",
    tempfile.gettempdir(),
    ".parquet",
)


def test_lists_of_tables_show_no_internal_names(untrusted: QueryPool) -> None:
    for sql in CATALOG_QUERIES:
        shown = str(untrusted.query(sql).rows())
        assert not [name for name in INTERNAL_NAMES if name in shown], sql
    assert untrusted.query("SHOW TABLES")["name"].to_list() == [
        "by_outcome", "events", "open_streams", "streams",
    ]  # fmt: skip


def test_errors_show_no_paths_of_the_store(untrusted: QueryPool, location: StoreLocation) -> None:
    assert location.tables is not None
    (moved := Path(location.tables)).rename(moved.with_name("moved"))
    try:
        with pytest.raises(QueryError) as error:
            untrusted.query("FROM streams")
    finally:
        moved.with_name("moved").rename(moved)
    assert "/tables" not in str(error.value).replace("…", "")
    assert str(moved.parent) not in str(error.value)


def test_caller_does_not_wait_for_a_child_that_stops_responding(untrusted: QueryPool) -> None:
    untrusted.query("SELECT 1")
    for child in list(untrusted._children):
        child.ready.wait(DEADLINE_S)
        os.kill(child.pid, signal.SIGSTOP)
    started_s = time.monotonic()
    with pytest.raises(QueryTimeout):
        untrusted.query("SELECT 1", timeout_s=0.5)
    assert time.monotonic() - started_s < 20
    for child in list(untrusted._children):
        child.kill()
    assert untrusted.query("SELECT 1").item() == 1


@contextmanager
def busy_starter(pool: QueryPool) -> Iterator[None]:
    """No child starts within the block, as on an overloaded machine."""
    done = threading.Event()
    pool._starter.submit(done.wait, 30)
    try:
        yield
    finally:
        done.set()


def end_children(pool: QueryPool) -> None:
    for child in list(pool._children):
        child.close()


def running(pool: QueryPool) -> list[int]:
    """Assigned queries of each child, after all starts so far."""
    pool._starter.submit(int).result(DEADLINE_S)
    return [child.running for child in pool._children if child.running]


def test_reader_waits_at_most_its_limit_plus_2_s_for_a_slow_start(location: StoreLocation) -> None:
    with QueryPool(location, untrusted=True, limits=LIMITS) as process:
        process.query("SELECT 1")
        with busy_starter(process):
            end_children(process)
            started_s = time.monotonic()
            with pytest.raises(QueryTimeout, match=r"^busy: no query process was ready within 1\.2 s\. Try"):
                process.query("SELECT 1", timeout_s=0.2)
            assert time.monotonic() - started_s < 20
        assert running(process) == []
        assert process.query("SELECT 1").item() == 1


def test_child_that_starts_after_its_query_gave_up_is_released(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with QueryPool(location, untrusted=True, limits=LIMITS) as process:
        process.query("SELECT 1")
        begun, go_on = threading.Event(), threading.Event()
        start = process._start

        def slow_start(alone: bool, running: int) -> ChildProcess:
            begun.set()
            go_on.wait(DEADLINE_S)
            return start(alone, running)

        monkeypatch.setattr(process, "_start", slow_start)
        with busy_starter(process):
            end_children(process)
            late = threading.Thread(
                target=pytest.raises,
                args=(QueryTimeout, process.query, "SELECT 1"),
                kwargs={"timeout_s": 0.2},
            )
            late.start()
        assert begun.wait(DEADLINE_S)
        late.join()
        go_on.set()
        assert running(process) == []

        def answer() -> int | None:
            with suppress(QueryTimeout):  # on a busy machine
                return int(process.query("SELECT 1").item())
            return None

        assert until(answer, "an answer") == 1


def test_first_start_does_not_count_towards_the_time_limit(location: StoreLocation) -> None:
    with QueryPool(location, untrusted=True) as untrusted, QueryPool(location, untrusted=False) as trusted:
        for process in (untrusted, trusted):
            process._starter.submit(int).result(DEADLINE_S)
        for child in (*untrusted._children, *trusted._children):
            os.kill(child.pid, signal.SIGSTOP)
            threading.Timer(9.0, os.kill, (child.pid, signal.SIGCONT)).start()
        with ThreadPoolExecutor() as readers:
            answers = [
                readers.submit(process.query, "SELECT 1", timeout_s=8) for process in (untrusted, trusted)
            ]
            assert [answer.result().item() for answer in answers] == [1, 1]


@pytest.mark.parametrize("is_untrusted", [True, False])
def test_first_start_is_bounded(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch, is_untrusted: bool
) -> None:
    monkeypatch.setattr(query_pool, "START_S", 0.5)
    with QueryPool(location, untrusted=is_untrusted) as process:
        process._starter.submit(int).result(DEADLINE_S)
        with busy_starter(process):
            end_children(process)
            with pytest.raises(
                StoreUnavailable, match=r"^cannot start a query process: it was not ready after 0\.5 s\. Try"
            ):
                process.query("SELECT 1", timeout_s=10)
        assert running(process) == []


def test_reader_waits_at_most_its_limit_plus_2_s_for_a_locked_catalog(tmp_path: Path) -> None:
    location = make_store(tmp_path, rows=3)
    assert location.catalog is not None
    with QueryPool(location, untrusted=True, limits=LIMITS) as process:
        process.query("SELECT 1")
        with closing(sqlite3.connect(location.catalog, isolation_level=None)) as other:
            other.execute("PRAGMA locking_mode = EXCLUSIVE")
            other.execute("PRAGMA journal_mode = DELETE")
            other.execute("BEGIN EXCLUSIVE")
            started_s = time.monotonic()
            with pytest.raises(StoreUnavailable, match="database is locked"):
                process.query("SELECT 1", timeout_s=0.2)
            assert time.monotonic() - started_s < 20
        assert process.query("SELECT count(*) FROM streams").item() == 3


def test_untrusted_children_have_a_lower_priority(untrusted: QueryPool) -> None:
    untrusted.query("SELECT 1")
    assert UNTRUSTED_NICENESS in {os.getpriority(os.PRIO_PROCESS, child.pid) for child in untrusted._children}


def run_all(actions: list[Callable[[], object]]) -> list[object]:
    """Run the actions concurrently. Returns each result or QueryError, in order."""
    results: list[object] = [None] * len(actions)

    def run(place: int) -> None:
        try:
            results[place] = actions[place]()
        except QueryError as e:
            results[place] = e

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


SLOW = "SELECT count(*) FROM range(14000) a, range(14000) b WHERE a.range + b.range = 7"
"""Takes about half a second."""


def test_trusted_queries_survive_the_crash_of_another(trusted: QueryPool) -> None:
    trusted.query("SELECT 1")
    results = run_all(
        [
            lambda: trusted.query(SLOW, timeout_s=60).item(),
            lambda: time.sleep(0.2) or trusted.query(HOSTILE["from_json"]),
            lambda: trusted.query(SLOW, timeout_s=60).item(),
        ]
    )
    assert (results[0], results[2]) == (8, 8)
    assert isinstance(results[1], QueryRejected)
    assert trusted.query("SELECT count(*) FROM streams").item() == ROWS


def test_trusted_queries_share_one_child(trusted: QueryPool) -> None:
    results = run_all([lambda n=n: trusted.query(f"SELECT {n}").item() for n in range(12)])
    assert results == list(range(12))
    assert len(trusted._children) == 1


def test_queries_beyond_the_limits_wait_or_are_rejected(location: StoreLocation) -> None:
    limits = replace(TRUSTED, concurrent=1, waiting=1)
    with QueryPool(location, untrusted=False, limits=limits) as process:
        process.query("SELECT 1")
        errors = [str(e) for e in run_all([lambda: process.query(RUNAWAY, timeout_s=0.7)] * 3)]
    assert sum("already waiting" in e for e in errors) == 1
    assert sum("time limit" in e or "for 1 others" in e for e in errors) == 2


def test_cpu_time_is_limited(location: StoreLocation) -> None:
    limits = replace(TRUSTED, cpu_s=1)
    with (
        QueryPool(location, untrusted=False, limits=limits) as process,
        pytest.raises(QueryTimeout, match="CPU"),
    ):
        process.query(RUNAWAY, timeout_s=10)


def test_close_ends_all_children_and_removes_all_files(location: StoreLocation) -> None:
    process = QueryPool(location, untrusted=True, limits=LIMITS)
    process.query("SELECT 1")
    children, folder = list(process._children), process._folder
    process.close()
    assert children
    assert not any(Path(f"/proc/{child.pid}").exists() for child in children)
    assert not folder.exists()
    with pytest.raises(StoreUnavailable, match="closed"):
        process.query("SELECT 1")

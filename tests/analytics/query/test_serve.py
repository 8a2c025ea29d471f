"""A real SQL server and real clients: hostile SQL changes nothing, and a crashed server is restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from streamgauge.analytics.query import serve
from streamgauge.analytics.query.child_process import MIB, ChildProcess, Limits
from streamgauge.analytics.query.quack_gate import directive
from streamgauge.analytics.query.query_errors import StoreUnavailable
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.query.serve import SERVE_LIMITS, SqlServer, run
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.storage.database import load
from streamgauge.analytics.storage.location import StoreLocation, locate
from streamgauge.ingest.ready_file import read_ready_file
from tests.analytics.query.conftest import ROWS, RUNAWAY, add_stream, make_store
from tests.analytics.query.test_query_pool import CATALOG_QUERIES, HOSTILE, INTERNAL_NAMES, KINDS
from tests.deadline import DEADLINE_S, until
from tests.guard_injection import Fault, derived
from tests.options import serve_options

LIMITS = replace(SERVE_LIMITS, memory_bytes=512 * MIB, max_rows=10_000, timeout_s=DEADLINE_S)


@dataclass(frozen=True)
class Endpoint:
    quack: str
    token: str


@dataclass
class Client:
    """A stock DuckDB client."""

    connection: duckdb.DuckDBPyConnection
    endpoint: Endpoint

    def query(self, sql: str, timeout_s: float = DEADLINE_S, max_rows: int = 1000) -> list[tuple[Any, ...]]:
        return self.connection.execute(f"FROM {self._call(directive(max_rows, timeout_s) + sql)}").fetchall()

    def count(self, sql: str) -> int:
        """Rows of the answer."""
        row = self.connection.execute(f"SELECT count(*) FROM {self._call(sql)}").fetchone()
        assert row is not None
        return int(row[0])

    def types(self, sql: str) -> list[tuple[str, str]]:
        """Names and types of the answer's columns."""
        return [row[:2] for row in self.connection.execute(f"DESCRIBE FROM {self._call(sql)}").fetchall()]

    def _call(self, sql: str) -> str:
        endpoint = self.endpoint
        return f"quack_query({literal(endpoint.quack)}, {literal(sql)}, token = {literal(endpoint.token)})"

    def until_answered(self, sql: str) -> list[tuple[Any, ...]]:
        """Repeat while the server restarts."""

        def answer() -> list[tuple[Any, ...]] | None:
            try:
                return self.query(sql)
            except duckdb.Error:
                return None

        return until(answer, f"an answer to {sql}")


def ready_file(data: Path) -> Path:
    return data / "run" / "serve.json"


@contextmanager
def serving(location: StoreLocation, data: Path, limits: Limits = LIMITS) -> Iterator[Client]:
    server = SqlServer(serve_options(location=location, data=data, limits=limits))
    thread = threading.Thread(target=server.run)
    with closing(server):
        thread.start()
        try:
            found = until_ready(data, thread.is_alive)
            with duckdb.connect() as connection:
                load(connection, "httpfs", "quack")
                connection.execute(f"SET http_retries = 0; SET http_timeout = {2 * DEADLINE_S:.0f}")
                yield Client(connection, Endpoint(found["quack"], found["token"]))
        finally:
            server.stop()
            thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert read_ready_file(ready_file(data)) is None


def until_ready(data: Path, is_running: Callable[[], bool]) -> dict[str, Any]:
    """The ready file of a server that starts."""

    def found() -> dict[str, Any] | None:
        assert is_running()
        return read_ready_file(ready_file(data))

    return until(found, "a ready server")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def served(data: Path) -> Iterator[tuple[StoreLocation, Client]]:
    location = make_store(data)
    with serving(location, data) as client:
        yield location, client


@pytest.fixture
def client(served: tuple[StoreLocation, Client]) -> Client:
    return served[1]


def test_endpoint_is_published(client: Client, data: Path) -> None:
    assert read_ready_file(ready_file(data)) == {"pid": os.getpid(), **vars(client.endpoint)}


def test_queries_are_answered(client: Client) -> None:
    assert client.query("SELECT outcome, count(*) >= 5000 FROM streams GROUP BY 1") == [("ok", True)]
    assert client.query("SELECT count(*) FROM open_streams") == [(0,)]
    assert client.query("SELECT n >= 5000 FROM by_outcome") == [(True,)]
    [(_, plan)] = client.query("EXPLAIN SELECT outcome FROM streams")
    assert "Table: streams" in plan


def test_a_stock_client_attaches_and_reads(client: Client) -> None:
    with client.connection.cursor() as cursor:
        cursor.execute(f"ATTACH '{client.endpoint.quack}' AS remote (TOKEN '{client.endpoint.token}')")
        try:
            assert cursor.execute("SELECT count(*) >= 5000 FROM remote.streams").fetchone() == (True,)
            assert cursor.execute("SELECT sum(ttft_ns) FROM remote.streams WHERE ttft_ns < 3").fetchone() == (
                3,
            )
            assert cursor.execute("SELECT outcome FROM remote.by_outcome").fetchall() == [("ok",)]
            assert cursor.execute("SELECT count(*) FROM remote.open_streams").fetchone() == (0,)
            for sql in (
                "DELETE FROM remote.streams",
                "DROP TABLE remote.streams",
                "CREATE TABLE remote.x (a INT)",
            ):
                with pytest.raises(duckdb.Error):
                    cursor.execute(sql).fetchall()
            assert cursor.execute("SELECT count(*) >= 5000 FROM remote.streams").fetchone() == (True,)
        finally:
            cursor.execute("DETACH remote")


def test_new_commits_are_visible_at_once(served: tuple[StoreLocation, Client]) -> None:
    location, client = served
    before = client.query("SELECT count(*) FROM streams")[0][0]
    add_stream(location)
    assert client.query("SELECT count(*) FROM streams") == [(before + 1,)]


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("DROP TABLE streams", "read-only"),
        ("FROM read_text('/etc/hostname')", "not allowed"),
        ("FROM __ducklake_metadata_lake.main.ducklake_snapshot", "no public table"),
        ("FROM answers.main.a1", "no public table"),
        ("SELECT getenv('HOME')", "not allowed"),
        ("SELECT no_such FROM streams", "no_such"),
    ],
)
def test_other_statements_are_rejected(client: Client, sql: str, reason: str) -> None:
    with pytest.raises(duckdb.Error, match=reason):
        client.query(sql)


def test_rows_and_time_are_limited(client: Client) -> None:
    with pytest.raises(duckdb.Error, match="more than 10 rows"):
        client.query("FROM range(11)", max_rows=10)
    with pytest.raises(duckdb.Error, match=r"too slow: .*0\.5 s"):
        client.query(RUNAWAY, timeout_s=0.5)
    assert client.query("SELECT 42") == [(42,)]


def test_a_wrong_token_is_rejected(client: Client) -> None:
    with pytest.raises(duckdb.Error):
        Client(client.connection, Endpoint(client.endpoint.quack, "not-the-token-at-all")).query("SELECT 1")


def listener_of(server: int) -> int:
    """The process of this server that listens. The others run queries."""
    for children in Path(f"/proc/{server}/task").glob("*/children"):
        for pid in children.read_text().split():
            if b"quack_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    raise AssertionError("no process listens")


def quack_pid() -> int:
    return listener_of(os.getpid())


def test_hostile_statements_affect_no_other_reader(served: tuple[StoreLocation, Client]) -> None:
    """One reader sends a hostile statement of each kind. The queries of another are answered, by the same process."""
    client = served[1]
    pid = quack_pid()
    errors: dict[str, str] = {}

    def attack() -> None:
        hostile = Client(client.connection.cursor(), client.endpoint)
        for name in KINDS:
            with pytest.raises(duckdb.Error) as error:
                hostile.query(HOSTILE[name], timeout_s=0.7)
            errors[name] = str(error.value)

    attacker = threading.Thread(target=attack)
    attacker.start()
    answers = 0
    while attacker.is_alive():
        assert client.query("SELECT count(*) >= 5000 FROM streams") == [(True,)]
        answers += 1
    attacker.join()
    assert [*errors] == KINDS
    assert all("refused: " in error or "too slow: " in error for error in errors.values())
    assert answers > 10
    assert quack_pid() == pid


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_stopped_listener_is_replaced_at_the_same_address(
    by: signal.Signals, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "CHILD_SILENT_S", 2.0)
    pid = quack_pid()
    os.kill(pid, by)
    until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the listener")
    assert client.until_answered("SELECT count(*) >= 5000 FROM streams") == [(True,)]


@pytest.mark.parametrize(
    ("kind", "name"),
    [(SqlServer, "_on_event"), (ChildProcess, "_receive"), (QueryPool, "answer")],
)
def test_an_exception_in_a_thread_costs_at_most_the_queries_of_that_time(
    kind: type, name: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each method raises at its first call from each place."""
    fault = Fault(always=False)
    with monkeypatch.context() as patch:
        patch.setattr(kind, name, derived(kind, name, fault))
        for _ in range(10):
            with suppress(duckdb.Error):
                Client(client.connection.cursor(), client.endpoint).query("SELECT 1", timeout_s=0.5)
            if fault.raised:
                break
            os.kill(quack_pid(), signal.SIGKILL)
            client.until_answered("SELECT 1")
    assert fault.raised
    assert client.until_answered("SELECT count(*) >= 5000 FROM streams") == [(True,)]


def test_readers_see_neither_internal_names_nor_answers_of_others(client: Client) -> None:
    other = Client(client.connection.cursor(), client.endpoint)
    other.query("SELECT 'other-reader' AS planted_column, 42 AS planted_answer")
    for sql in CATALOG_QUERIES:
        shown = str(client.query(sql))
        assert not [name for name in (*INTERNAL_NAMES, "planted") if name in shown], sql


def test_answers_keep_types_and_names(client: Client) -> None:
    sql = (
        'SELECT stream_id, started_at, 1::HUGEINT AS h, \'{}\'::JSON AS j, INTERVAL 1 DAY AS i, 1 AS i, NULL AS "a""b" '
        "FROM streams"
    )
    assert client.types(sql) == [
        ("stream_id", "UUID"),
        ("started_at", "TIMESTAMP WITH TIME ZONE"),
        ("h", "HUGEINT"),
        ("j", "JSON"),
        ("i", "INTERVAL"),
        ("i_1", "INTEGER"),
        ('a"b', "INTEGER"),
    ]


def test_types_that_crash_the_listener_are_rejected(client: Client) -> None:
    pid = quack_pid()
    for value in (
        "NULL::MAP(INTEGER, UNION(a MAP(INTEGER, JSON)))",
        "NULL::INTEGER" + "[]" * 17,
        "1::VARIANT",
    ):
        with pytest.raises(duckdb.Error, match=r"Cast the column to VARCHAR"):
            client.query(f"SELECT {value}")
    assert quack_pid() == pid


def test_enums_are_answered_as_text(client: Client) -> None:
    """DuckDB fails when it reads a list of ENUM without values from Arrow."""
    pid = quack_pid()
    for value, answer in {
        "list('a'::ENUM('a')) FILTER (false)": None,
        "['a'::ENUM('a')]": ["a"],
        "{'x': list('a'::ENUM('a')) FILTER (false), 'y': MAP {'a'::ENUM('a'): 1}}": {
            "x": None,
            "y": {"a": 1},
        },
    }.items():
        assert client.query(f"SELECT {value}") == [(answer,)], value
    assert quack_pid() == pid


def test_only_plain_scans_have_no_limits(location: StoreLocation, tmp_path: Path) -> None:
    limits = replace(LIMITS, max_rows=100, max_answer_bytes=MIB)
    with serving(location, tmp_path, limits) as client:
        assert client.count("FROM streams") == ROWS
        assert client.count("SELECT stream_id, outcome FROM main.streams") == ROWS
        for sql, reason in {
            "FROM streams WHERE true": "more than 100 rows",
            "SELECT repeat('x', 50000) FROM streams LIMIT 50": "larger than 1 MiB",
        }.items():
            with pytest.raises(duckdb.Error, match=reason):
                client.count(sql)


def test_a_short_token_a_used_port_and_a_missing_store_are_errors(client: Client, tmp_path: Path) -> None:
    missing = locate("sqlite", tmp_path)
    with pytest.raises(ValueError, match="at least 16"):
        run(serve_options(location=missing, data=tmp_path, token="short"))
    with pytest.raises(OSError, match="already in use"):
        run(
            serve_options(
                location=missing, data=tmp_path, listen=client.endpoint.quack.removeprefix("quack:")
            )
        )
    with (
        closing(SqlServer(serve_options(location=missing, data=tmp_path))) as server,
        pytest.raises(StoreUnavailable, match="streamgauge up"),
    ):
        server.run()
    assert list(tmp_path.iterdir()) == []


def test_sigterm_stops_cleanly(tmp_path: Path) -> None:
    make_store(tmp_path, rows=ROWS)
    program = (
        "import sys; from pathlib import Path; from streamgauge.analytics.query.serve import *; "
        "from streamgauge.analytics.storage.location import locate; data = Path(sys.argv[1]); "
        "sys.exit(run(ServeOptions(location=locate('sqlite', data), data=data, listen='localhost:0', token=None)))"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) as server:
        until_ready(tmp_path, lambda: server.poll() is None)
        server.send_signal(signal.SIGTERM)
        assert server.wait(DEADLINE_S) == 0
    assert read_ready_file(ready_file(tmp_path)) is None

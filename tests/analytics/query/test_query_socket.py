"""The Unix socket on which a running analytics answers `sql` and `status`."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from streamgauge.analytics.query import query_socket
from streamgauge.analytics.query.query_errors import (
    AnswerTooLarge,
    QueryError,
    QueryRejected,
    QueryTimeout,
    StoreUnavailable,
)
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.query.query_socket import SOCKET, NotListening, QueryServer, ask
from streamgauge.analytics.query.render import render
from streamgauge.analytics.query.sandbox import OWN_NICENESS
from streamgauge.analytics.storage.location import locate
from tests.analytics.stores import new_store
from tests.deadline import DEADLINE_S, until

ONE = {"max_rows": 10, "timeout_s": 20.0}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    new_store(tmp_path).close()
    (tmp_path / "run").mkdir(exist_ok=True)
    return tmp_path


@contextlib.contextmanager
def serving(data: Path) -> Iterator[QueryServer]:
    server = QueryServer(data, locate("sqlite", data))
    try:
        yield server
    finally:
        server.close()


def test_answers_are_those_of_a_process_of_its_own(data: Path) -> None:
    sql = "SELECT range AS n, 'é' || range AS text, [range] AS l, TIMESTAMPTZ '2026-01-02 03:04:05Z' AS t FROM range(3)"
    with serving(data), QueryPool(locate("sqlite", data), untrusted=False) as pool:
        rows = pool.query(sql)
        for form in ("table", "json", "csv"):
            assert ask(data, sql, form, **ONE) == render(rows, form)
        assert pl.read_parquet(io.BytesIO(ask(data, sql, "parquet", **ONE))).equals(rows)


def test_enums_and_types_without_a_form_are_those_of_a_process_of_its_own(data: Path) -> None:
    enum = "::ENUM('a', 'b')"
    selected = [
        f"'a'{enum}",
        f"NULL{enum}",
        f"[]{enum}[]",
        f"['a']{enum}[]",
        f"{{'k': 'a'{enum}}}",
        f"MAP {{'k': 'a'{enum}}}",
    ]
    selected += ["union_value(k := 1)", "[" * 18 + "1" + "]" * 18]

    def outcome(answer: Callable[[], bytes]) -> bytes | tuple[type[QueryError], str]:
        try:
            return answer()
        except QueryError as e:
            return type(e), str(e)

    with serving(data), QueryPool(locate("sqlite", data), untrusted=False) as pool:
        for sql in (f"SELECT {value} AS v" for value in selected):
            for form in ("table", "json", "csv", "parquet"):
                own = outcome(lambda sql=sql, form=form: render(pool.query(sql), form))
                assert outcome(lambda sql=sql, form=form: ask(data, sql, form, **ONE)) == own, (sql, form)


def test_the_query_process_has_a_low_priority(data: Path) -> None:
    with serving(data) as server:
        ask(data, "SELECT 1", "json", **ONE)
        assert server._pool is not None
        (child,) = server._pool._children
        threads = os.listdir(f"/proc/{child.pid}/task")
        assert {os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in threads} == {OWN_NICENESS}


def test_errors_are_those_of_a_process_of_its_own(data: Path) -> None:
    with serving(data), QueryPool(locate("sqlite", data), untrusted=False) as pool:
        for sql in ("selec 1", "DROP TABLE streams", "SELECT 1; SELECT 2", "SELECT nothing"):
            with pytest.raises(QueryRejected) as own:
                pool.query(sql)
            with pytest.raises(QueryRejected) as asked:
                ask(data, sql, "json", **ONE)
            assert (str(asked.value), asked.value.position) == (str(own.value), own.value.position)
        with pytest.raises(QueryRejected, match="more than 10 rows"):
            ask(data, "FROM range(11)", "json", **ONE)
        with pytest.raises(QueryTimeout, match="time limit"):
            ask(
                data,
                "SELECT count(*) FROM range(100000) a, range(10000000) b",
                "json",
                max_rows=1,
                timeout_s=0.5,
            )


def test_an_answer_above_the_limit_is_refused(data: Path) -> None:
    with serving(data):
        for sql in ("SELECT repeat('x', 40_000_000)", "SELECT repeat('é', 3_000_000) FROM range(10)"):
            with pytest.raises(AnswerTooLarge, match="larger than 32 MiB"):
                ask(data, sql, "csv", **ONE)


def test_only_the_user_can_connect_and_a_stale_socket_is_replaced(data: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as stale:
        stale.bind(str(data / SOCKET))
    with pytest.raises(NotListening):
        ask(data, "SELECT 1", "json", **ONE)
    with serving(data):
        assert stat.S_IMODE((data / SOCKET).stat().st_mode) == 0o600
        assert ask(data, "SELECT 1 AS a", "json", **ONE) == b'[{"a": 1}]\n'
    assert not (data / SOCKET).exists()
    with pytest.raises(NotListening):
        ask(data, "SELECT 1", "json", **ONE)


def test_a_path_longer_than_the_address_of_a_socket(tmp_path: Path) -> None:
    data = tmp_path / ("x" * 120)
    new_store(data).close()
    (data / "run").mkdir(exist_ok=True)
    with serving(data):
        assert ask(data, "SELECT 1 AS a", "csv", **ONE) == b"a\n1\n"


def test_a_crash_of_the_query_process_leaves_the_server(data: Path) -> None:
    with serving(data) as server:
        ask(data, "SELECT 1", "json", **ONE)
        assert server._pool is not None
        (child,) = server._pool._children
        os.kill(child.pid, signal.SIGSEGV)
        until(lambda: child.died is not None, "the end of the process")
        assert ask(data, "SELECT 2 AS a", "json", **ONE) == b'[{"a": 2}]\n'


def test_further_callers_are_refused_and_silent_ones_dropped(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_socket, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(query_socket, "REQUEST_S", 1.0)
    with serving(data) as server, socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(data / SOCKET))
        assert silent.recv(100)
        with pytest.raises(QueryTimeout, match="busy: 1 queries"):
            ask(data, "SELECT 1", "json", **ONE)
        assert server.health() == {"queries.refused": 1.0}
        assert silent.recv(100) == b""  # the server closes the connection after `REQUEST_S`
        assert ask(data, "SELECT 1 AS a", "json", **ONE) == b'[{"a": 1}]\n'


def test_an_error_of_accept_does_not_stop_the_server(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(data) as server:
        listener = server._listener
        errors = [OSError(errno.EMFILE, "Too many open files")]

        class Failing:
            def accept(self) -> tuple[socket.socket, object]:
                if errors:
                    raise errors.pop()
                return listener.accept()

        monkeypatch.setattr(server, "_listener", Failing())
        ask(data, "SELECT 1", "json", **ONE)  # by the accept that waits already
        until(lambda: not errors, "an answer without an error")
        assert ask(data, "SELECT 2 AS a", "json", **ONE) == b'[{"a": 2}]\n'
        monkeypatch.undo()


def test_a_malformed_request_is_answered(data: Path) -> None:
    with serving(data), socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(data / SOCKET))
        caller.recv(100)
        query_socket.pipe_messages.send(caller.fileno(), {"sql": "SELECT 1"})
        answer = query_socket.pipe_messages.receive(caller.fileno())
        assert answer is not None
        assert answer[0]["error"] == "QueryRejected"


def test_a_stopped_server_is_not_listening(data: Path) -> None:
    """SIGSTOP: the kernel still accepts the connection."""
    script = (
        "import sys, time; from pathlib import Path; from streamgauge.analytics.query.query_socket import QueryServer;"
        "from streamgauge.analytics.storage.location import locate; data = Path(sys.argv[1]);"
        "server = QueryServer(data, locate('sqlite', data)); print('up', flush=True); time.sleep(60)"
    )
    server = subprocess.Popen([sys.executable, "-c", script, str(data)], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        server.send_signal(signal.SIGSTOP)
        with pytest.raises(NotListening):
            ask(data, "SELECT 1", "json", **ONE)
    finally:
        server.kill()
        server.wait()


def test_queries_fail_while_the_server_stops(data: Path) -> None:
    with serving(data) as server:
        ask(data, "SELECT 1", "json", **ONE)
        failed: list[type[Exception]] = []

        def slow() -> None:
            try:
                ask(
                    data,
                    "SELECT count(*) FROM range(100000) a, range(10000000) b",
                    "json",
                    max_rows=1,
                    timeout_s=60,
                )
            except (StoreUnavailable, NotListening) as e:
                failed.append(type(e))

        thread = threading.Thread(target=slow)
        thread.start()
        pool = server._pool
        assert pool is not None
        until(lambda: any(child.running for child in pool._children), "the statement")
        server.close()
        thread.join(DEADLINE_S)
        assert failed

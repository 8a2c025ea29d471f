"""Readers and analytics in separate processes do not block, slow or stop each other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest

from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.storage.database import load
from streamgauge.ingest.private_files import write_json
from tests.analytics.query.test_serve import listener_of
from tests.deadline import DEADLINE_S, until
from tests.e2e.running import Up, simulator, up

CHAT = {"model": "any", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
QUICK = {"x-simulate": '{"ttft_ms": 5, "gap_ms": 1, "tokens": 8, "fault": "none"}'}
COUNT = "SELECT count(*) AS n FROM streams"
ATTACH_AND_HOLD = """
import sys
from pathlib import Path
import duckdb
from streamgauge.analytics.storage.database import load
from streamgauge.analytics.storage.location import locate
connection = duckdb.connect()
load(connection, "ducklake", "sqlite_scanner")
connection.execute(locate("sqlite", Path(sys.argv[1])).attach_statement)
cursor = connection.execute("SELECT * FROM lake.events")  # its transaction stays open
cursor.fetchone()
print("attached", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with simulator() as url:
        yield url


def send(running: Up, requests: int = 1) -> None:
    for _ in range(requests):
        answer = httpx.post(
            f"{running.tap}/v1/chat/completions", json=CHAT, headers=QUICK, timeout=DEADLINE_S
        )
        assert answer.status_code == 200


def counted(done: subprocess.CompletedProcess[str]) -> int:
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout)
    return int(row["n"])


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop the process with SIGSTOP within the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_sql_and_status_answer_while_analytics_is_stopped_killed_and_absent(
    upstream: str, tmp_path: Path
) -> None:
    """Afterwards another `up` uses the folder at another path."""
    with up(upstream, tmp_path / "data") as running:
        send(running, 3)
        running.rows(3)

        def answered(*, is_silent: bool) -> None:
            began_s = time.monotonic()
            sql = running.run("sql", COUNT, "--format", "json", "--timeout", "10")
            assert counted(sql) == 3
            assert (silent in sql.stderr) is is_silent
            assert time.monotonic() - began_s < DEADLINE_S
            began_s = time.monotonic()
            done = running.run("status")
            assert done.returncode == 0, done.stdout + done.stderr
            assert "captured 3 streams" in done.stdout
            assert (silent in done.stdout) is is_silent
            assert f"ATTACH 'ducklake:sqlite:{running.data}/catalog.sqlite' AS lake" in done.stdout
            assert time.monotonic() - began_s < DEADLINE_S

        pid = running.part("analyze")["pid"]
        silent = f"analyze (pid {pid}) does not respond since "
        with stopped(pid):
            state = running.part("up")  # what `up` writes after 10 s
            state["parts"]["analyze"]["silent_since"] = datetime.now(UTC).isoformat(timespec="seconds")
            write_json(running.data / "run" / "up.json", state)
            answered(is_silent=True)
        os.kill(pid, signal.SIGKILL)
        assert counted(running.run("sql", COUNT, "--format", "json")) == 3
        assert running.stop() == 0
        assert not (running.data / "run" / "analyze.json").exists()
        answered(is_silent=False)
    (tmp_path / "data").rename(tmp_path / "moved")
    with up(upstream, tmp_path / "moved") as running:
        send(running)
        running.rows(4)
        assert counted(running.run("sql", COUNT, "--format", "json")) == 4
        assert running.run("status").returncode == 0


def test_analytics_killed_with_three_attached_readers_restarts_while_they_stay_attached(
    upstream: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        running = stack.enter_context(up(upstream, tmp_path / "data"))
        send(running, 2)
        running.rows(2)
        readers = []
        for _ in range(3):
            reader = subprocess.Popen(
                [sys.executable, "-c", ATTACH_AND_HOLD, str(running.data)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(reader.wait)
            stack.callback(reader.kill)
            readers.append(reader)
            assert reader.stdout is not None
            assert reader.stdout.readline() == "attached\n"
        pid = running.part("analyze")["pid"]
        send(running)
        os.kill(pid, signal.SIGKILL)
        until(lambda: is_back(running, pid), "analytics to be back")
        running.rows(3)
        send(running)
        running.rows(4)
        assert all(reader.poll() is None for reader in readers)


def is_back(running: Up, former: int) -> bool | None:
    try:
        return running.part("analyze")["pid"] != former or None
    except (OSError, ValueError):
        return None


def served(running: Up, sql: str) -> list[tuple[Any, ...]]:
    """Rows that a stock DuckDB client receives from the SQL port."""
    here = running.part("serve")
    with duckdb.connect() as connection:
        load(connection, "httpfs", "quack")
        connection.execute("SET http_retries = 0")
        return connection.execute(
            f"FROM quack_query({literal(here['quack'])}, {literal(sql)}, token = {literal(here['token'])})"
        ).fetchall()


def answered_by_server(running: Up) -> bool | None:
    try:
        return bool(served(running, COUNT)) or None
    except duckdb.Error:
        return None


def test_serve_restarts_its_child_on_the_same_port_while_a_client_is_connected(
    upstream: str, tmp_path: Path
) -> None:
    with up(upstream, tmp_path / "data", "--serve", "--sql-listen", "localhost:0") as running:
        send(running, 2)
        running.rows(2)
        here = running.part("serve")
        assert here["quack"] in running.log.read_text()
        with duckdb.connect() as connection:
            load(connection, "httpfs", "quack")
            connection.execute(f"ATTACH '{here['quack']}' AS remote (TOKEN '{here['token']}')")
            assert connection.execute("SELECT count(*) FROM remote.streams").fetchone() == (2,)
            os.kill(listener_of(here["pid"]), signal.SIGKILL)
            until(lambda: answered_by_server(running), "the server to answer again", 30)
            with pytest.raises(duckdb.Error):  # its session ended with the child
                connection.execute("SELECT count(*) FROM remote.streams").fetchone()
            connection.execute("DETACH remote")
            connection.execute(f"ATTACH '{here['quack']}' AS remote (TOKEN '{here['token']}')")
            assert connection.execute("SELECT count(*) FROM remote.streams").fetchone() == (2,)
        for part in ("tap", "analyze", "serve"):
            os.utime(running.data / "run" / f"{part}.json", (0, 0))
        for part in ("tap", "analyze", "serve"):
            file = running.data / "run" / f"{part}.json"
            until(lambda file=file: file.stat().st_mtime > 0 or None, f"a heartbeat of {part}")
        assert running.part("serve") == here
        assert running.part("up")["parts"]["serve"]["restarts"] == 0
        assert running.stop() == 0
        assert not (running.data / "run" / "serve.json").exists()

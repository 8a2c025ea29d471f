"""`streamgauge up`: ready, rejected, restarted, stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.deadline import DEADLINE_S, until
from tests.e2e.running import Up, answers, simulator, up

CHAT = {"model": "any", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
QUICK = {"x-simulate": '{"ttft_ms": 5, "gap_ms": 1, "tokens": 8, "fault": "none"}'}


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with simulator() as url:
        yield url


@pytest.fixture(scope="module")
def running(upstream: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A pipeline with a store of its own making. Tests share it, so they name their requests."""
    data = tmp_path_factory.mktemp("shared") / "data"
    with up(f"sim={upstream}", data, creates_store=True) as running:
        yield running
        assert running.stop() == 0


def ask(tap: str, **headers: str) -> None:
    with httpx.stream(
        "POST", f"{tap}/v1/chat/completions", json=CHAT, headers={**QUICK, **headers}
    ) as response:
        response.read()
        assert response.status_code == 200, response.text


def once(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streamgauge", *argv], cwd=cwd, capture_output=True, text=True, timeout=90
    )


def named(request_id: str) -> dict[str, str]:
    return {"x-request-id": request_id}


def test_one_stream_becomes_one_row(running: Up) -> None:
    ask(running.tap, **named("one"))
    (row,) = running.rows(1, "request_id = 'one'")
    assert row["gateway"] == "sim"
    assert row["outcome"] == "ok"
    assert row["ttft_ns"] >= 5_000_000
    assert row["output_event_count"] == 8
    (events,) = running.sql(f"SELECT count(*) AS n FROM events WHERE stream_id = '{row['stream_id']}'")
    assert events["n"] == row["event_count"]


def test_sql_and_status_load_no_data_library_and_analytics_no_pandas(
    running: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(running.tap, **named("pandas"))
    running.rows(1, "request_id = 'pandas'")
    assert "pandas" not in Path(f"/proc/{running.part('analyze')['pid']}/maps").read_text()
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # Python reports each import
    for command in (["sql", "FROM streams"], ["status"]):
        done = once(*command, "--data", str(running.data), cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "streamgauge.settings.model" in done.stderr
        for library in ("pandas", "duckdb", "polars", "pyarrow"):
            assert library not in done.stderr


def test_data_folder_is_readable_only_by_its_owner(running: Up) -> None:
    ask(running.tap, **named("owner"))
    running.rows(1, "request_id = 'owner'")
    for path in [running.data, *running.data.rglob("*")]:
        if path.is_file() and path.suffix in {".json", ".sqlite", ""}:
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert stat.S_IMODE(running.data.stat().st_mode) & 0o077 == 0


def test_second_up_on_the_same_folder_is_rejected_in_one_line(
    running: Up, upstream: str, tmp_path: Path
) -> None:
    done = once("up", "--upstream", upstream, "--data", str(running.data), cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert str(running.process.pid) in done.stderr
    ask(running.tap, **named("second"))
    running.rows(1, "request_id = 'second'")


def test_status_reconciles(running: Up, tmp_path: Path) -> None:
    for _ in range(3):
        ask(running.tap, **named("status"))
    running.rows(3, "request_id = 'status'")
    done = once("status", "--data", str(running.data), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_streams_in_flight_are_queryable_until_they_end(running: Up) -> None:
    force = json.dumps({"ttft_ms": 20, "gap_ms": 50, "tokens": 2000, "fault": "none"})
    headers = {"x-simulate": force, **named("in-flight")}
    body = {"json": CHAT, "headers": headers, "timeout": 60}
    with httpx.stream("POST", f"{running.tap}/v1/chat/completions", **body) as answer:  # type: ignore[arg-type]
        chunks = answer.iter_bytes()
        next(chunks)
        (row,) = until(
            lambda: running.sql("FROM open_streams WHERE output_event_count > 3") or None,
            "the open stream",
            10,
        )
        assert row["gateway"] == "sim"
        assert row["ttft_ns"] >= 20_000_000
    running.rows(1, "request_id = 'in-flight'")
    until(lambda: not running.sql("FROM open_streams"), "no stream to be open", 10)


def test_up_without_serve_opens_no_sql_port(running: Up) -> None:
    assert "serve" not in running.part("up")["parts"]
    assert not (running.data / "run" / "serve.json").exists()
    assert not {"quack", "token"} & running.part("analyze").keys()


@pytest.mark.parametrize("flag", ["--listen", "--admin"])
def test_port_of_the_tap_in_use_is_rejected_in_one_line(flag: str, upstream: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        argv = {"--listen": "127.0.0.1:0", "--admin": "127.0.0.1:0"} | {flag: f"127.0.0.1:{port}"}
        flat = [part for pair in argv.items() for part in pair]
        done = once("up", "--serve", "--upstream", upstream, "--data", "data", *flat, cwd=tmp_path)
        assert done.returncode == 2
        errors = done.stderr.strip().splitlines()
        assert len(errors) == 1, done.stderr
        assert str(port) in errors[0]
        assert flag in errors[0]


def test_killed_part_is_restarted_and_logged_and_ctrl_c_stops_all_parts_cleanly(
    upstream: str, tmp_path: Path
) -> None:
    with up(upstream, tmp_path / "data") as running:
        ask(running.tap)
        running.rows(1)
        for name in ("analyze", "tap"):
            pid = running.part(name)["pid"]
            os.kill(pid, signal.SIGKILL)

            def back(name: str = name, pid: int = pid) -> bool | None:
                try:
                    return running.part(name)["pid"] != pid or None
                except (OSError, ValueError):
                    return None

            until(back, f"{name} to be back")
        until(lambda: answers(f"{running.admin}/readyz"), "the tap to be ready")
        ask(running.tap)
        running.rows(2)
        assert running.part("up")["parts"]["analyze"]["restarts"] == 1
        assert "analyze" in running.log.read_text()
        assert "SIGKILL" in running.log.read_text()
        for _ in range(3):
            ask(running.tap)
        pids = [part["pid"] for part in running.part("up")["parts"].values()]
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(DEADLINE_S) == 0
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
    command = ("sql", "SELECT count(*) AS n FROM streams", "--format", "json")
    done = once(*command, "--data", str(tmp_path / "data"), cwd=tmp_path)
    assert json.loads(done.stdout) == [{"n": 5}], done.stdout + done.stderr


def test_an_unreachable_kafka_is_a_warning_and_all_parts_end_when_up_is_killed(
    upstream: str, tmp_path: Path
) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        unreachable = f"127.0.0.1:{s.getsockname()[1]}"
    with up(upstream, tmp_path / "data", "--kafka", unreachable) as running:
        ask(running.tap)
        until(
            lambda: (unreachable in running.log.read_text() and "WARNING" in running.log.read_text()) or None,
            "a warning",
        )
        ask(running.tap)
        pids = [part["pid"] for part in running.part("up")["parts"].values()]
        running.process.kill()
        running.process.wait()

        def gone() -> bool | None:
            for pid in pids:
                state = Path(f"/proc/{pid}/stat")
                if state.exists() and state.read_text().split()[2] != "Z":
                    return None
            return True

        until(gone, "the parts to end")

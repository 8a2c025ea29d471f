"""The demo proves what it shows: exit code 0 only when everything was measured as it was simulated."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from streamgauge import demo_run
from streamgauge.demo import demo_command
from streamgauge.demo_run import Demo, DemoOptions
from streamgauge.simulator.remote_ledger import RemoteLedger
from streamgauge.simulator.server import SimulatorOptions
from streamgauge.simulator.traffic import Traffic, TrafficOptions
from tests.streamgauge.simulator.simulator_thread import simulator_thread
from tests.streamgauge.simulator.test_measurement_check import measured, simulated

ANY_PORTS = [
    "--listen",
    "127.0.0.1:0",
    "--admin",
    "127.0.0.1:0",
    "--simulator",
    "127.0.0.1:0",
]


def test_demo_ends_by_itself_with_a_table_and_a_verdict(tmp_path: Path) -> None:
    arguments = ["--seconds", "6", "--rate", "10", "--rate-faults", "0.3", "--seed", "test", "--no-dashboard"]
    arguments += ["--time-scale", "0.4"]
    data = tmp_path / "data"
    done = subprocess.run(
        [sys.executable, "-m", "streamgauge", "demo", *arguments, *ANY_PORTS, "--data", str(data)],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every stream was measured exactly once, and as it was simulated." in done.stdout
    assert "TTFT p50 ms" in done.stdout
    for part in ("tap", "analyze", "simulator", "up"):
        assert not (data / "run" / f"{part}.json").exists()


def verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, streams: list[dict[str, Any]], rows: list[Any]
) -> tuple[int, str]:
    """What the demo makes of these rows."""

    class Nothing:
        def __init__(self, location: object, *, untrusted: bool) -> None: ...
        def close(self) -> None: ...

    ledger = RemoteLedger("http://127.0.0.1:1")
    monkeypatch.setattr(ledger, "rows", lambda: rows)
    monkeypatch.setattr(demo_run, "QueryPool", Nothing)
    said: list[str] = []
    demo = Demo(DemoOptions(seconds=1), say=said.append)

    async def settled(*args: object) -> list[dict[str, Any]]:
        return streams

    monkeypatch.setattr(demo, "_settled", settled)
    traffic = Traffic(TrafficOptions(base_url="http://127.0.0.1:1"))
    code = asyncio.run(demo._compare(traffic, ledger, tmp_path, datetime.now(UTC)))
    return code, "\n".join(said)


def test_one_false_measurement_fails_the_demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [simulated(i) for i in range(3)]
    streams = [measured(row) for row in rows]
    assert verdict(monkeypatch, tmp_path, streams, rows)[0] == 0
    streams[1]["output_tokens"] += 1
    code, said = verdict(monkeypatch, tmp_path, streams, rows)
    assert code == 1
    assert "r1: output_tokens: simulated 10, measured 11" in said
    assert "1 measurement is not what was simulated" in said


@pytest.mark.parametrize(
    ("flag", "what"),
    [
        ("--listen", "the tap"),
        ("--admin", "the tap's admin page"),
        ("--dashboard-port", "the dashboard"),
    ],
)
def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path, flag: str, what: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        value = str(port) if flag.endswith("port") else f"127.0.0.1:{port}"
        data = tmp_path / "data"
        arguments = [*ANY_PORTS, "--dashboard-port", "0", "--data", str(data), flag, value]
        result = CliRunner().invoke(demo_command, arguments)
    assert isinstance(result.exception, OSError)
    assert what in str(result.exception)
    assert flag in str(result.exception)
    assert str(port) in str(result.exception)
    assert not data.exists()


def test_a_data_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    arguments = [*ANY_PORTS, "--no-dashboard", "--data", str(tmp_path / "file" / "data")]
    result = CliRunner().invoke(demo_command, arguments)
    assert isinstance(result.exception, OSError)
    assert "choose another folder with --data" in str(result.exception)


def test_the_simulator_takes_another_port_when_its_own_is_taken(tmp_path: Path) -> None:
    """The demo's own simulator process, beside one that holds the wanted port."""
    with simulator_thread(SimulatorOptions(listen="127.0.0.1:0")) as other:
        assert demo_run.taken(other.url.removeprefix("http://")) == "address already in use"
    assert demo_run.taken("127.0.0.1:0") is None


def test_ctrl_c_stops_every_process_and_removes_the_temporary_folder(tmp_path: Path) -> None:
    environment = dict(os.environ, TMPDIR=str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-m", "streamgauge", "demo", "--no-dashboard", *ANY_PORTS],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        while "sent " not in (line := process.stdout.readline()):
            assert line, "the demo ended before it began"
        (data,) = tmp_path.glob("streamgauge-demo-*")
        pids = [json.loads(path.read_bytes())["pid"] for path in (data / "run").glob("*.json")]
        assert len(pids) >= 4
        process.terminate()
        assert process.wait(90) == 0
    finally:
        process.kill()
        process.wait()
    assert not list(tmp_path.glob("streamgauge-demo-*"))
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]

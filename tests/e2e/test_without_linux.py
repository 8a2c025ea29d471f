"""The commands for one machine without what Linux alone has: as on macOS, as far as that can be had here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deadline import DEADLINE_S, until
from tests.e2e.running import Up, answers, simulator, tables_of_run, up

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MACOS = {
    "PYTHONPATH": os.pathsep.join((str(HERE / "without_linux"), str(ROOT))),
    "STREAMGAUGE_INTERPRETED": "1",
    "STREAMGAUGE_RELAY": "python",
}
REQUEST = {"model": "gpt-sim-mini", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
CLIENT = """
import json, os, sys, urllib.request
body = json.dumps({"model": "gpt-sim-mini", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}).encode()
headers = {"Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)).read()
"""


def streamgauge(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streamgauge", *words],
        cwd=folder, env={**os.environ, **MACOS, "XDG_DATA_HOME": str(folder)}, capture_output=True, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with simulator() as url:
        yield url


@pytest.fixture(scope="module")
def running(upstream: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    data = tmp_path_factory.mktemp("up") / "data"
    with up(upstream, data, dashboard=True, **MACOS) as found:
        yield found


def test_names_of_linux_are_gone(tmp_path: Path) -> None:
    code = (
        "import os, select, sys; print(sys.platform, hasattr(os, 'memfd_create'), hasattr(select, 'epoll'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **MACOS}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "darwin False False\n"


def test_up_records_a_stream_and_shows_it(running: Up) -> None:
    body = json.dumps(REQUEST).encode()
    headers = {"Content-Type": "application/json"}
    url = f"{running.tap}/v1/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as response:
        assert b"[DONE]" in response.read()
    (row,) = running.rows(1)
    assert (row["outcome"], row["request_model"]) == ("ok", "gpt-sim-mini")
    until(lambda: answers(str(running.part("dashboard")["url"])), "the dashboard")
    data = ("--data", str(running.data))
    asked = streamgauge(
        "sql", "SELECT count(*) AS n FROM streams", "--format", "json", *data, folder=running.data
    )
    assert json.loads(asked.stdout) == [{"n": 1}], asked.stderr
    shown = streamgauge("top", "--once", *data, folder=running.data)
    assert "gpt-sim-mini" in shown.stdout, shown.stderr
    state = streamgauge("status", *data, folder=running.data)
    assert state.returncode == 0, state.stdout + state.stderr


def test_parts_of_a_killed_up_end(upstream: str, tmp_path: Path) -> None:
    with up(upstream, tmp_path / "data", **MACOS) as found:
        until(lambda: (found.data / "run" / "analyze.json").exists(), "analytics")
        pids = [int(found.part(name)["pid"]) for name in ("tap", "analyze")]
        found.process.kill()
        found.process.wait()
        until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids), "the parts to end")


def test_run_measures_a_command(upstream: str, tmp_path: Path) -> None:
    given = (
        "run",
        "--upstream",
        upstream,
        "--no-dashboard",
        "--name",
        "first",
        "--",
        sys.executable,
        "-I",
        "-c",
        CLIENT,
    )
    done = streamgauge(*given, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    with tables_of_run(tmp_path / "streamgauge" / "runs" / "first") as tables:
        assert tables.query("SELECT outcome, request_model FROM streams").rows() == [("ok", "gpt-sim-mini")]


def test_files_are_read(tmp_path: Path) -> None:
    recorded = ROOT / "tests" / "analytics" / "captures" / "fireworks" / "responses.sse"
    done = streamgauge("read", str(recorded), folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_capture_says_what_it_needs(tmp_path: Path) -> None:
    done = streamgauge("capture", "--interface", "lo", "--data", str(tmp_path / "data"), folder=tmp_path)
    assert done.returncode != 0
    assert "this needs Linux" in done.stderr
    assert "tcpdump" in done.stderr

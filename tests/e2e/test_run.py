"""`streamgauge run`: the command has the terminal and its exit code, and its requests are summarized."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamgauge.client_programs import Call
from streamgauge.run import FORWARDED, KEYS, run_in_terminal
from tests.deadline import until
from tests.e2e.running import simulator, up
from tests.tables import tables

CLIENT = """
import json, os, signal, sys, urllib.request
print("out", sys.stdin.read(), os.isatty(0))
print("err", file=sys.stderr)
for model in sys.argv[2:]:
    body = {"model": model, "stream": True, "stream_options": {"include_usage": True}, "messages": [{"role": "user", "content": "hi"}]}
    path = "/nowhere" if model == "none" else "/chat/completions"
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(), headers)
    try:
        urllib.request.urlopen(request).read()
    except OSError:
        pass
if sys.argv[1].startswith("-"):
    os.kill(os.getpid(), -int(sys.argv[1]))
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with simulator("--rate-faults", "0", "--time-scale", "0.1") as url:
        yield url


def run(*argv: str, home: Path, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "streamgauge", "run", *argv]
    environment = {**os.environ, "XDG_DATA_HOME": str(home)}
    return subprocess.run(
        command, env=environment, cwd=home, input="in", capture_output=True, text=True, timeout=120, check=False, **options
    )  # type: ignore[call-overload,no-any-return]  # fmt: skip


def client(code: str, *models: str) -> list[str]:
    return ["--", sys.executable, "-c", CLIENT, code, *models]


def test_command_keeps_its_streams_and_exit_code_and_its_requests_are_summarized(
    upstream: str, tmp_path: Path
) -> None:
    (tmp_path / "prices.csv").write_text("model,input,cached_input,output,currency\ngpt-*,1,0.5,10,USD\n")
    given = ("--upstream", upstream, "--no-dashboard", "--name", "first", "--price-file", "prices.csv")
    found = run(*given, *client("7", "gpt-sim-mini", "gpt-sim-mini", "none"), home=tmp_path)
    assert (found.stdout, found.returncode) == ("out in False\n", 7)
    lines = found.stderr.splitlines()
    assert lines[0] == "err"
    summary = "\n".join(lines[1:])
    assert "3, 1 failed" in summary
    assert "gpt-sim-mini" in summary
    assert "2 requests · TTFT p50 " in summary
    assert "1 × HTTP 404" in summary
    assert " USD (2 requests with a price)" in summary
    data = tmp_path / "streamgauge" / "runs" / "first"
    assert f"streamgauge dashboard --data {data}" in summary
    rows = tables(data).query("SELECT tap, request_model, outcome FROM streams ORDER BY started_at").rows()
    assert rows == [("first", "gpt-sim-mini", "ok")] * 2 + [("first", "none", "http_error")]


def test_command_that_a_signal_ends_and_one_without_requests(upstream: str, tmp_path: Path) -> None:
    given = ("--upstream", upstream, "--no-dashboard")
    found = run(*given, *client(f"-{signal.SIGTERM:d}"), home=tmp_path)
    assert found.returncode == -signal.SIGTERM
    assert "no request reached the tap" in found.stderr
    assert "/v1" in found.stderr


def test_interrupt_of_the_terminal_is_left_to_the_command_and_a_stop_is_forwarded(
    upstream: str, tmp_path: Path
) -> None:
    """Ctrl-C signals both processes. A program may go on, as agents do."""
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: print('interrupted', flush=True))\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.1)\n"  # after `pause`, a signal might come too early
    )
    command = [
        sys.executable,
        "-m",
        "streamgauge",
        "run",
        "--upstream",
        upstream,
        "--no-dashboard",
        "--",
        sys.executable,
        "-c",
        code,
    ]
    process = subprocess.Popen(
        command,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    process.terminate()
    assert process.wait(60) == 3
    process.stdout.close()


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (*FORWARDED, *KEYS, signal.SIGCHLD)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_stop_that_comes_while_the_command_starts_is_forwarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = subprocess.Popen

    def interrupted(*given: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = spawn(*given, **options)
        os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    assert run_in_terminal(Call(["sleep", "60"], {}, tmp_path)) == -signal.SIGTERM


@pytest.mark.usefixtures("handlers")
def test_stop_that_another_thread_receives_is_forwarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gives a signal to another thread while the main thread has one that it has not handled."""
    spawn = subprocess.Popen
    started = threading.Event()

    def announced(*given: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = spawn(*given, **options)
        started.set()
        return process

    def receive() -> None:
        started.wait()
        time.sleep(0.2)  # the main thread waits for the command then
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", announced)
    thread = threading.Thread(target=receive)
    thread.start()
    assert run_in_terminal(Call(["sleep", "60"], {}, tmp_path)) == -signal.SIGTERM
    thread.join()


def test_joined_run_uses_the_running_tap(upstream: str, tmp_path: Path) -> None:
    with up(f"sim={upstream}", tmp_path / "data") as running:
        until(lambda: (running.data / "run" / "analyze.json").exists(), "analytics")
        found = run("--join", "--data", str(running.data), *client("0", "gpt-sim-mini"), home=tmp_path)
        assert found.returncode == 0
        assert "1, 0 failed" in found.stderr
        assert [row["gateway"] for row in running.sql("SELECT gateway FROM streams")] == ["sim"]


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["no-such-program"], 127, "no such command"),
        (["--upstream", "nowhere", "true"], 2, "not a URL"),
        (["--name", "a b", "true"], 2, "--name"),
        (["--join", "--data", "nothing", "true"], 2, "no tap runs on nothing"),
    ],
)
def test_run_that_cannot_start_says_why(argv: list[str], code: int, message: str, tmp_path: Path) -> None:
    found = run("--no-dashboard", *argv, home=tmp_path)
    assert found.returncode == code
    assert message in found.stderr
    assert not (tmp_path / "streamgauge").exists()

"""`streamgauge run`: the command has the terminal and its exit code, and its requests are summarized."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamgauge.commands.client_programs import Call
from streamgauge.commands.run import FORWARDED, KEYS, run_in_terminal
from tests.deadline import DEADLINE_S, until
from tests.e2e.running import answers, simulator, tables_of_run, up

CLIENT = """
import json, os, pathlib, signal, sys, time, urllib.request
while "AWAITED" in os.environ and not pathlib.Path(os.environ["AWAITED"]).exists():
    time.sleep(0.02)
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


def run(*argv: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "streamgauge", "run", *argv]
    return subprocess.run(
        command, env={**os.environ, "XDG_DATA_HOME": str(home), **environment}, cwd=home, input="in", capture_output=True, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def client(code: str, *models: str) -> list[str]:
    return ["--", sys.executable, "-c", CLIENT, code, *models]


def test_command_keeps_its_streams_and_exit_code_and_its_requests_are_summarized(
    upstream: str, tmp_path: Path
) -> None:
    (tmp_path / "prices.csv").write_text("model,input,cached_input,output,currency\ngpt-*,1,0.5,10,USD\n")
    given = ("--upstream", upstream, "--no-dashboard", "--name", "first", "--price-file", "prices.csv")
    data = tmp_path / "streamgauge" / "runs" / "first"
    models = ("gpt-sim-mini", "gpt-sim-mini", "none")
    environment = {
        "AWAITED": str(data / "run" / "analyze.json"),
        "STREAMGAUGE_KAFKA": "none:1",
        "STREAMGAUGE_STORE": "postgres:host=none",
    }
    found = run(*given, *client("7", *models), home=tmp_path, **environment)
    assert (found.stdout, found.returncode) == ("out in False\n", 7)
    lines = found.stderr.splitlines()
    assert lines[0] == "err"
    summary = "\n".join(lines[1:])
    assert "3, 1 failed" in summary
    assert "gpt-sim-mini" in summary
    assert "2 requests · TTFT p50 " in summary
    assert "1 × HTTP 404" in summary
    assert " USD (2 requests with a price)" in summary
    assert f"streamgauge dashboard --data {data}" in summary
    rows = (
        tables_of_run(data)
        .query("SELECT tap, request_model, outcome FROM streams ORDER BY started_at")
        .rows()
    )
    assert rows == [("first", "gpt-sim-mini", "ok")] * 2 + [("first", "none", "http_error")]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, 137)])
def test_command_that_a_signal_ends_has_the_exit_code_of_a_shell(
    upstream: str, tmp_path: Path, number: int, code: int
) -> None:
    found = run("--upstream", upstream, "--no-dashboard", *client(f"-{number:d}"), home=tmp_path)
    assert (found.returncode, found.stdout) == (code, "out in False\n")


def test_duration_is_that_of_the_command(upstream: str, tmp_path: Path) -> None:
    code = "import time; began = time.monotonic(); time.sleep(0.3); print(time.monotonic() - began)"
    began_s = time.monotonic()
    given = ("--upstream", upstream, "--no-dashboard", "--name", "one")
    found = run(*given, "--", sys.executable, "-c", code, home=tmp_path)
    whole_s, own_s = time.monotonic() - began_s, float(found.stdout)
    shown, unit = found.stderr.splitlines()[0].removeprefix("one: ").split()
    shown_s = float(shown) * {"s": 1, "ms": 0.001}[unit]
    # The start of `run` and of the tap, and the end, are not included. They take longer than the interpreter of the command.
    assert own_s <= shown_s < (own_s + whole_s) / 2


STOP_ANALYTICS = """
import os, pathlib, signal, sys
def analytics():
    for task in pathlib.Path(f"/proc/{os.getppid()}/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"analyze" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\\0"):
                return int(child)
while (pid := analytics()) is None:
    pass
os.kill(pid, signal.SIGSTOP)
pathlib.Path("pid").write_text(str(pid))
"""


def test_requests_that_are_not_stored_yet_are_stored_in_the_background(upstream: str, tmp_path: Path) -> None:
    """Analytics is asked to stop while it starts."""
    given = ("--upstream", upstream, "--no-dashboard", "--name", "one")
    own = ("--", sys.executable, "-c", STOP_ANALYTICS + CLIENT, "0", "gpt-sim-mini")
    # The kernel would end a stopped process that has lost its parent by SIGHUP.
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        found = run(*given, *own, home=tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    data, pid = tmp_path / "streamgauge" / "runs" / "one", int((tmp_path / "pid").read_text())
    try:
        assert found.returncode == 0
        assert "pending    1 request not in the tables yet" in found.stderr
        assert f"streamgauge dashboard --data {data}" in found.stderr
        assert not (data / "catalog.sqlite").exists()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert tables_of_run(data).query("SELECT request_model, outcome FROM streams").rows() == [
        ("gpt-sim-mini", "ok")
    ]


def test_requests_that_analytics_cannot_store_are_in_the_log_with_the_reason(
    upstream: str, tmp_path: Path
) -> None:
    (tmp_path / "prices.csv").write_text("nothing\n")
    given = ("--upstream", upstream, "--no-dashboard", "--name", "one", "--price-file", "prices.csv")
    log = tmp_path / "streamgauge" / "runs" / "one" / "run.log"
    code = f"while 'cannot use' not in open({str(log)!r}).read(): pass\n{CLIENT}"
    found = run(*given, "--", sys.executable, "-c", code, "0", "gpt-sim-mini", home=tmp_path)
    assert "pending    1 request only in the record log: " in found.stderr
    assert "prices.csv" in found.stderr
    command = f"analyze --data {tmp_path / 'streamgauge' / 'runs' / 'one'}"
    assert f"Store them with streamgauge {command}" in found.stderr


HINTED = re.compile(r"OpenAI +(\S+)\n +Anthropic +(\S+)\n +Google +(\S+)\n +Then run +(.+)\n")
WITH_OWN_URL = "import os, pathlib; os.environ['OPENAI_BASE_URL'] = pathlib.Path('url').read_text()\n"


def test_hint_for_a_program_that_ignores_the_variables_can_be_followed(upstream: str, tmp_path: Path) -> None:
    (tmp_path / "url").write_text("http://127.0.0.1:9")
    (tmp_path / "client.py").write_text(WITH_OWN_URL + CLIENT)
    given = ("--upstream", upstream, "--no-dashboard", "--data", "one run")
    own = ("--", sys.executable, "client.py", "0", "gpt-sim-mini")
    found = run(*given, *own, home=tmp_path)
    assert "no request reached the tap" in found.stderr
    hint = HINTED.search(found.stderr)
    assert hint is not None
    (tmp_path / "url").write_text(hint[1])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    awaited = str(tmp_path / "one run" / "run" / "analyze.json")
    again = subprocess.run(
        ["bash", "-c", hint[4]], env={**os.environ, "PATH": path, "AWAITED": awaited}, cwd=tmp_path, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert "requests      1, 0 failed" in again.stderr
    models = tables_of_run(tmp_path / "one run").query("SELECT request_model FROM streams").rows()
    assert models == [("gpt-sim-mini",)]


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
    assert process.wait(DEADLINE_S) == 3
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
        given = ("--join", "--data", str(running.data), "--", "true")
        hint = HINTED.search(run(*given, home=tmp_path).stderr)
        assert hint is not None
        assert hint[4] == shlex.join(["streamgauge", "run", *given])
        paths = ("/models", "/v1/models", "/v1beta/models")
        assert all(answers(url + path) for url, path in zip(hint.groups()[:3], paths, strict=True))


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["no-such-program"], 127, "no such command"),
        (["./no-such-program"], 127, "no such command"),
        (["/etc/passwd"], 126, "not executable"),
        (["/etc"], 126, "not executable"),
        (["--listen", "nowhere", "true"], 2, "HOST:PORT"),
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


def test_program_of_another_kind_and_a_used_address_are_named(upstream: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program\n")
    (tmp_path / "text").chmod(0o755)
    found = run("--upstream", upstream, "--no-dashboard", "./text", home=tmp_path)
    assert found.returncode == 126
    assert "cannot run ./text: Exec format error" in found.stderr
    address = upstream.partition("://")[2]
    found = run("--upstream", upstream, "--no-dashboard", "--listen", address, "true", home=tmp_path)
    assert found.returncode == 2
    assert f"cannot listen on {address}: Address already in use" in found.stderr

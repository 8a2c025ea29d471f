"""The checks before `streamgauge up` starts a part, and its supervisor."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ingest.ready_file import read_ready_file
from streamgauge import part_progress, up
from streamgauge.settings import Settings
from streamgauge.up import Part, Supervisor


@pytest.fixture
def quack_like() -> Iterator[socket.socket]:
    """A listening socket with the only option that Quack sets."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening


def settings(**given: object) -> Settings:
    free = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "metrics": "", "no_dashboard": True}
    return Settings(**(free | {"data": Path("unused")} | given))  # type: ignore[arg-type]


def test_port_of_an_ended_sql_server_is_free_while_clients_are_connected(quack_like: socket.socket) -> None:
    port = quack_like.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        accepted, _ = quack_like.accept()
        accepted.close()  # the server's side closes first, as after a kill
        quack_like.close()
        up._check(settings(serve=True, sql_host="127.0.0.1", sql_port=port))


def test_port_of_a_running_sql_server_is_refused(quack_like: socket.socket) -> None:
    port = quack_like.getsockname()[1]
    with pytest.raises(OSError, match=rf"127\.0\.0\.1:{port}: address already in use\. .*--sql-port"):
        up._check(settings(serve=True, sql_host="127.0.0.1", sql_port=port))


@pytest.mark.parametrize("name", ["listen", "admin", "metrics", "otlp_listen"])
def test_port_of_ended_connections_is_free_and_of_a_listener_is_refused(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(OSError, match=rf"cannot listen on {address}: .*--{name.replace('_', '-')}"):
            up._check(settings(**{name: address}))
        with socket.create_connection(listening.getsockname()):
            listening.accept()[0].close()
            listening.close()
            up._check(settings(**{name: address}))


PART = """
import sys, threading, time
from pathlib import Path
from ingest import ready_file
path = Path(sys.argv[1])
{start}
ready_file.HEARTBEAT_S = 0.05
ready_file.write_ready_file(path, {{}})
heartbeat = ready_file.Heartbeat(path)
hang = path.with_suffix(".hang")
while True:
    heartbeat.beat()
    time.sleep(0.02)
    if hang.exists():
        hang.unlink()
        threading.Event().wait()
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor observes ten times as often."""
    monkeypatch.setattr(up, "OBSERVE_S", 0.1)
    monkeypatch.setattr(up, "SILENT_AFTER_S", 1.0)
    monkeypatch.setattr(up, "WAITING_S", 0.3)
    monkeypatch.setattr(part_progress, "WINDOW_S", 0.5)


def supervisor(run_dir: Path, *, start: str = "", hung_after_s: float = 60.0) -> Supervisor:
    run_dir.mkdir(exist_ok=True)
    argv = [sys.executable, "-c", PART.format(start=start), str(run_dir / "analyze.json")]
    return Supervisor(run_dir, [Part("analyze", argv, dict(os.environ))], hung_after_s)


@contextmanager
def watching(supervised: Supervisor) -> Iterator[Part]:
    assert supervised.start() is None
    thread = threading.Thread(target=supervised.watch)
    thread.start()
    try:
        yield supervised.parts[0]
    finally:
        supervised.stopping = True
        thread.join()
        for part in supervised.parts:
            part.grace_s = 0.1
        supervised.stop()


def until(condition: Callable[[], Any], what: str) -> None:
    end_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end_s, f"waited 30 s for {what}"
        time.sleep(0.02)


def in_state_file(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "up.json").read_text())["parts"]["analyze"]
    return found


@pytest.mark.parametrize("how", ["stopped", "deadlocked"])
def test_hung_part_is_reported_once_and_restarted(
    how: str, quick: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    supervised = supervisor(tmp_path, hung_after_s=1.5)
    with watching(supervised) as part:
        pid = part.pid
        assert pid is not None
        assert in_state_file(tmp_path)["silent_since"] is None
        if how == "stopped":
            os.kill(pid, signal.SIGSTOP)
        else:
            (tmp_path / "analyze.hang").write_text("")
        until(lambda: in_state_file(tmp_path)["silent_since"], "the report")
        assert in_state_file(tmp_path)["pid"] == pid
        until(lambda: part.pid != pid and supervised.ready(part), "the restart")
        assert in_state_file(tmp_path) == {"pid": part.pid, "restarts": 1, "silent_since": None}
        assert part.pid is not None
        os.kill(part.pid, signal.SIGKILL)
        until(lambda: in_state_file(tmp_path)["pid"] is None, "the report of the end")
    messages = [record.message for record in caplog.records]
    assert sum("has made no progress for" in message for message in messages) == 1
    assert f"killing analyze (pid {pid}): no progress for 2 s" in messages


def test_part_that_resumes_is_not_restarted(
    quick: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with watching(supervisor(tmp_path)) as part:
        pid = part.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        until(lambda: in_state_file(tmp_path)["silent_since"], "the report")
        os.kill(pid, signal.SIGCONT)
        until(lambda: in_state_file(tmp_path)["silent_since"] is None, "the heartbeat")
        assert part.restarts == 0
    assert f"analyze (pid {pid}) makes progress again" in caplog.messages


def test_parts_are_not_judged_while_the_folder_cannot_be_written(quick: None, tmp_path: Path) -> None:
    supervised = supervisor(tmp_path, hung_after_s=0.3)
    with watching(supervised) as part:
        assert part.progress is not None
        (tmp_path / "up.json").unlink()
        assert part.pid is not None
        os.kill(part.pid, signal.SIGSTOP)
        time.sleep(1)
        assert part.restarts == 0
        os.kill(part.pid, signal.SIGCONT)


def test_slow_start_is_waited_for_while_the_part_works(
    quick: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    work = "end_s = time.monotonic() + 2\nwhile time.monotonic() < end_s: pass"
    with watching(supervisor(tmp_path, start=work, hung_after_s=1.0)) as part:
        assert part.restarts == 0
        assert read_ready_file(tmp_path / "analyze.json")
    assert any(
        message.startswith("still starting after") and message.endswith("analyze")
        for message in caplog.messages
    )


def test_start_ends_if_a_part_makes_no_progress(
    quick: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    supervised = supervisor(tmp_path, start="threading.Event().wait()", hung_after_s=1.0)
    try:
        assert supervised.start() == 1
    finally:
        supervised.stop()
    assert "no progress for 1 s" in caplog.text
    assert "--hung-after" in caplog.text


def test_stop_removes_the_ready_file_of_a_killed_part(quick: None, tmp_path: Path) -> None:
    supervised = supervisor(tmp_path / "run")
    assert supervised.start() is None
    (part,) = supervised.parts
    assert part.process is not None
    part.process.kill()
    part.process.wait()
    supervised.stop()
    assert not (tmp_path / "run" / "analyze.json").exists()

"""An exception in the main thread of each part of `up`: the part works again, and no stream is lost."""

from __future__ import annotations

import http.server
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deadline import DEADLINE_S, until
from tests.e2e.running import Up, answers, up
from tests.e2e.test_broken_starts import IMPORTED_FIRST, all_ready, state

EVENTS = (
    b'data: {"object":"chat.completion.chunk","model":"m","choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}'
    b"\n\ndata: [DONE]\n\n"
)
CONTAIN_IT = {"tap", "dashboard"}
"""Their event loop may continue after the exception, depending on where it was raised."""


class Stream(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(EVENTS)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def upstream() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stream) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def send(running: Up) -> bool:
    """One stream through the tap. False: it did not answer."""
    request = urllib.request.Request(
        f"{running.tap}/v1/chat/completions",
        b'{"model": "m", "stream": true}',
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            assert response.read() == EVENTS
    except (urllib.error.URLError, ConnectionError, FileNotFoundError):
        return False
    return True


def kill_main_thread(running: Up, name: str, raised: Path) -> None:
    before = state(running)[name]
    os.kill(before["pid"], signal.SIGUSR1)
    until(lambda: name in raised.read_text().split(), f"the exception in {name}")
    if name not in CONTAIN_IT:
        until(lambda: state(running).get(name, before)["restarts"] > before["restarts"], f"the end of {name}")


@pytest.mark.kafka
def test_each_part_works_again_after_an_exception_in_its_main_thread(
    kafka_broker: str, upstream: str, tmp_path: Path
) -> None:
    plans = tmp_path / "plans"
    plans.mkdir()
    raised = plans / "raised"
    raised.touch()
    flags = (
        "--kafka",
        kafka_broker,
        "--kafka-topic",
        "killed-main-threads",
        "--serve",
        "--sql-listen",
        "localhost:0",
    )
    environment = {"BROKEN_STARTS": str(plans), "PYTHONPATH": IMPORTED_FIRST}
    with up(upstream, tmp_path / "data", *flags, dashboard=True, **environment) as running:
        assert send(running)
        sent = 1
        for name in list(state(running)):
            kill_main_thread(running, name, raised)
            until(lambda: all_ready(running), "all parts to be ready")
            until(lambda: send(running), "an answer of the tap")
            sent += 1
            rows = running.rows(sent)
            assert {row["outcome"] for row in rows} == {"ok"}
        assert set(raised.read_text().split()) == {"tap", "ship", "analyze", "serve", "dashboard"}
        assert until(lambda: answers(running.part("dashboard")["url"]), "the dashboard")
        done = running.run("sql", "SELECT count(*) AS streams FROM streams", "--format", "csv")
        assert done.stdout.split() == ["streams", str(sent)], done.stderr
        log = running.log.read_text()
        for name in {"ship", "analyze", "serve"}:
            assert any(
                f"{name} (pid" in line and "exited: " in line and "Injected" in line
                for line in log.splitlines()
            ), name

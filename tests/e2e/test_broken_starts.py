"""`up` while parts cannot start: the tap answers every request, the reasons show, and a mended part starts by itself."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamgauge.ingest.ready_file import read_ready_file
from tests.deadline import DEADLINE_S, until
from tests.e2e.running import Up
from tests.ports import free_port

IMPORTED_FIRST = os.pathsep.join((str(Path(__file__).parent / "broken_start"), os.environ["PYTHONPATH"]))
QUICK = (
    "import sys; from streamgauge import cli; from streamgauge.commands import up; up.BACKOFF_MAX_S = up.START_BACKOFF_MAX_S = 0.2;"
    "sys.argv[0] = 'streamgauge'; cli.main()"
)
"""`streamgauge` with short delays between two starts of a part."""
REFUSED_WRITES = ("full disk", "read-only folder", "too many open files")
"""Ways that the dashboard survives: it serves, and shows that it is ready when its folder can be written again."""
WAYS = (
    "killed", "exits", "bad setting", "missing package", "exception at import", "out of memory", *REFUSED_WRITES, "hangs",
)  # fmt: skip
PARTS = {
    "ship": (),
    "analyze": ("no thread",),  # without its metrics port it runs, with a warning
    "serve": ("port taken",),
    "dashboard": ("port taken", "no thread"),
}
"""The parts besides the tap, and the ways that only they have."""


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Client:
    """Sends requests to the tap, one after the other, from its first answer on."""

    def __init__(self, port: int) -> None:
        self.port, self.answers, self.failures = port, 0, [""] * 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
            try:
                connection.request("GET", "/v1/models")
                found = connection.getresponse().read()
                assert found == b"ok", found
                self.answers += 1
            except (OSError, http.client.HTTPException, AssertionError) as e:
                if self.answers:
                    self.failures.append(repr(e))
            finally:
                connection.close()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def up(upstream: str, data: Path, *argv: str, **environment: str) -> Iterator[tuple[Up, Client]]:
    """Run `up` with all parts. At the end the tap has answered every request and has never been restarted."""
    log, port = data.parent / "up.log", free_port()
    command = [
        "up", "--upstream", upstream, "--data", str(data), "--listen", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0",
        "--metrics", "127.0.0.1:0", "--dashboard-listen", "127.0.0.1:0", "--serve", "--sql-listen", "localhost:0", "--drain-timeout", "1",
        "--hung-after", "10",
    ]  # fmt: skip
    with log.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, "-c", QUICK, *command, *argv],
            stdout=sink, stderr=subprocess.STDOUT, text=True, cwd=data.parent, env={**os.environ, **environment},
        )  # fmt: skip
    client = Client(port)
    try:
        until(lambda: client.answers, "the first answer of the tap")
        running = Up(process, data, log)
        yield running, client
        assert process.poll() is None
        answers = client.answers
        until(lambda: client.answers > answers, "another answer")
        client.close()
        assert client.failures == []
        assert state(running)["tap"]["restarts"] == 0
    finally:
        client.close()
        process.terminate()
        process.wait(DEADLINE_S)
        print(log.read_text()[-20_000:])


def state(running: Up) -> dict[str, Any]:
    """What `up` has written about its parts; {} while it does so."""
    content: dict[str, Any] = (read_ready_file(running.data / "run" / "up.json") or {}).get("parts", {})
    return content


def all_ready(running: Up) -> bool:
    return bool(state(running)) and all(
        part["failure"] is None
        and (read_ready_file(running.data / "run" / f"{name}.json") or {}).get("pid") == part["pid"]
        for name, part in state(running).items()
    )


@pytest.mark.parametrize("share", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_tap_serves_while_each_part_fails_to_start_in_ten_ways(
    share: int, upstream: str, tmp_path: Path
) -> None:
    """All parts fail in one run. In the short form each one has half of the ways, and each way breaks two parts."""
    plans = tmp_path / "plans"
    plans.mkdir()
    for number, (part, more) in enumerate(PARTS.items()):
        ways = [*WAYS[number % share :: share], *(more if share == 1 else ())]
        if part == "dashboard":
            ways = [*(way for way in ways if way not in REFUSED_WRITES), REFUSED_WRITES[0]]
        (plans / part).write_text("".join(f"{way}\n" for way in ways))
    planned = {plan.name: plan.read_text() for plan in plans.iterdir()}
    environment = {
        "BROKEN_STARTS": str(plans), "BROKEN_DATA": str(tmp_path / "data"), "PYTHONPATH": IMPORTED_FIRST,
    }  # fmt: skip
    with up(upstream, tmp_path / "data", "--kafka", f"127.0.0.1:{free_port()}", **environment) as (
        running,
        _,
    ):

        def all_failed() -> bool:
            assert running.process.poll() is None, running.log.read_text()
            return "dashboard ready at" in running.log.read_text() and not any(
                (plans / part).read_text() for part in PARTS
            )

        until(all_failed, "all parts to fail in all ways", 400)
        assert not all_ready(running)
        (plans / "writable").touch()
        until(lambda: all_ready(running), "all parts to be ready", 400)
        for name, ways in planned.items():
            failures = len(ways.splitlines()) - (name == "dashboard")
            assert state(running)[name]["restarts"] >= failures
    lines = [line for line in running.log.read_text().splitlines() if "exited: " in line]
    for reason in (
        "signal SIGKILL", "exit code 3", "'none' is not", "is not installed", "RuntimeError", "MemoryError", "No space left",
        "Read-only", "Too many open files",
    ):  # fmt: skip
        assert any(reason in line for line in lines), reason


def test_reason_shows_in_status_and_the_mended_part_starts_by_itself(upstream: str, tmp_path: Path) -> None:
    data, secrets, catalog = tmp_path / "data", tmp_path / "secrets", tmp_path / "data" / "catalog.sqlite"
    catalog.mkdir(parents=True)
    secrets.mkdir()
    settings = tmp_path / "streamgauge.toml"
    settings.write_text('objectives = [{model = 3}]\nprice_file = "prices.csv"\n')
    flags = ("--no-dashboard", "--otlp-listen", "0.0.0.0:0")
    with up(upstream, data, *flags, STREAMGAUGE_SECRETS_DIR=str(secrets)) as (running, _):

        def fails(text: str) -> bool:
            return text in (state(running).get("analyze", {}).get("failure") or "")

        until(lambda: fails("objective 1: model = 3 is not text"), "the invalid objective")
        settings.write_text('price_file = "prices.csv"\n')
        until(lambda: fails("cannot read the price file prices.csv"), "the missing price file")
        (tmp_path / "prices.csv").write_text("model,input,output,currency\nm,1,2,EUR\n")
        until(lambda: fails("catalog.sqlite"), "the catalog that is a folder")
        catalog.rmdir()
        catalog.write_bytes(b"damaged" * 1000)
        until(lambda: fails("The catalog is damaged"), "the damaged catalog")
        done = running.run("status", "--format", "json")
        assert done.returncode == 1, done.stderr
        assert "The catalog is damaged" in json.loads(done.stdout)["failed_parts"]["analyze"]
        catalog.unlink()
        until(lambda: fails("Set --otlp-token"), "the missing token")

        def only_analytics_fails() -> bool:
            done = running.run("status", "--format", "json")
            assert done.returncode == 1, done.stderr
            return json.loads(done.stdout)["failed_parts"].keys() == {"analyze"}

        # The SQL server is started again until analytics has created the whole store.
        until(only_analytics_fails, "the SQL server")
        done = running.run("status")
        assert "analyze does not run: --otlp-listen 0.0.0.0:0 is not a loopback address" in done.stdout
        (secrets / "streamgauge_otlp_token").write_text("a-token-of-24-characters")
        until(lambda: all_ready(running), "all parts to be ready")
        until(lambda: running.run("status").returncode == 0, "a status without a fault")
    log = running.log.read_text()
    assert "analyze (pid" in log
    assert "is ready" in log


def test_tap_starts_on_a_full_disk(upstream: str, tmp_path: Path) -> None:
    (tmp_path / "tap").write_text("full disk\n")
    environment = {
        "BROKEN_STARTS": str(tmp_path), "BROKEN_DATA": str(tmp_path / "data"), "PYTHONPATH": IMPORTED_FIRST,
    }  # fmt: skip
    with up(upstream, tmp_path / "data", "--no-dashboard", **environment) as (_, client):
        until(lambda: client.answers > 20, "answers")

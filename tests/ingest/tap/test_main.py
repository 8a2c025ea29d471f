"""The tap as a process: start, ready file, counters, errors, stop."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamgauge.ingest.http1.upstreams import parse_upstreams
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.records import Alive, AnyRecord, Closed, Opened, unpack
from streamgauge.ingest.tap import is_compiled
from streamgauge.ingest.tap.main import TapOptions, run
from tests import host_headers
from tests.deadline import DEADLINE_S
from tests.options import tap_options

LIMIT_S = DEADLINE_S
PROGRAM = """
import logging, pickle, sys
from streamgauge.ingest.tap.process import supervisor
from streamgauge.ingest.tap.main import run
supervisor._ANSWER_TIMEOUT_S, supervisor._HUNG_AFTER_ANSWERS = 1.0, 2
logging.basicConfig(level=logging.INFO)
sys.exit(run(pickle.loads(bytes.fromhex(sys.argv[1]))))
"""


class Hello(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def until(met: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LIMIT_S
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError, http.client.HTTPException):
            if value := met():
                return value
        assert time.monotonic() < deadline
        time.sleep(0.02)


def get(url: str) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=LIMIT_S)
    try:
        connection.request("GET", parts.path or "/")
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@contextlib.contextmanager
def tap(
    upstream: str, data: Path, cwd: Path | None = None, **options: Any
) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    import pickle

    given = tap_options(
        upstreams=parse_upstreams([upstream]), data=data, listen="127.0.0.1:0", admin="127.0.0.1:0", **options
    )
    process = subprocess.Popen([sys.executable, "-P", "-c", PROGRAM, pickle.dumps(given).hex()], cwd=cwd)
    try:
        yield process, until(lambda: json.loads((data / "run" / "tap.json").read_bytes()))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def logged(data: Path) -> list[AnyRecord]:
    reader = EmbeddedReader(data / "log", "test")
    records: list[AnyRecord] = []
    while entries := reader.poll(0.1):
        for entry in entries:
            records += unpack(entry.payload)[0]
    reader.close()
    return records


@pytest.mark.parametrize("workers", [1, 2])
def test_tap_becomes_ready_serves_and_stops_cleanly(upstream: str, tmp_path: Path, workers: int):
    data = tmp_path / "data"
    with tap(upstream, data, workers=workers, allowed_hosts=("gauge.example.com",)) as (process, ready):
        assert ready["pid"] == process.pid
        assert stat.S_IMODE((data / "run" / "tap.json").stat().st_mode) == 0o600
        assert stat.S_IMODE((data / "log").stat().st_mode) == 0o700
        assert stat.S_IMODE((data / "client.key").stat().st_mode) == 0o600
        for _ in range(6):
            assert get(ready["listen"] + "/x") == (200, b"hello")
        admin = ready["admin"]
        assert get(admin + "/healthz") == (200, b"ok\n")
        assert get(admin + "/readyz") == (200, b"ready\n")
        assert get(admin + "/recordingz") == (200, b"recording\n")
        assert get(admin + "/nothing")[0] == 404
        for path in ("/healthz", "/metrics", "/ledger", "/nothing"):
            for headers in host_headers.FOREIGN:
                status, text = host_headers.answer(admin + path, headers)
                assert (status, "--allowed-host" in text, "streamgauge_tap" in text) == (403, True, False)
        assert [host_headers.answer(admin + "/readyz", h)[0] for h in host_headers.OWN] == [200, 200, 200]
        ledger = until(lambda: (n := json.loads(get(admin + "/ledger")[1]))["streams_closed"] == 6 and n)
        assert (ledger["streams_opened"], ledger["workers_now"], ledger["lost_records"]) == (6, workers, 0)
        assert (ledger["body_bytes"], ledger["uncaptured_bytes"]) == (30, 30)
        families = {f.name: f for f in text_string_to_metric_families(get(admin + "/metrics")[1].decode())}
        assert families["streamgauge_tap_streams_opened"].samples[0].value == 6
        assert families["streamgauge_tap_streams_opened"].type == "counter"
        assert families["streamgauge_tap_compiled_workers"].samples[0].value == workers * is_compiled()
        causes = families["streamgauge_tap_streams_closed_by_cause"].samples
        assert {s.labels["cause"]: s.value for s in causes}["complete"] == 6
        log_thread = "log thread" if workers == 1 else "worker 1: log thread"
        for family in ("streamgauge_tap_guard_failures", "streamgauge_tap_guard_fault"):
            assert {s.labels["guard"]: s.value for s in families[family].samples}[log_thread] == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    assert not (data / "run" / "tap.json").exists()
    records = logged(data)
    assert sum(isinstance(r, Opened) for r in records) == sum(isinstance(r, Closed) for r in records) == 6
    last = {r.tap_worker: r for r in records if isinstance(r, Alive)}
    assert len(last) == workers
    assert all(r.stopping for r in last.values())


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP])
def test_dead_or_hung_worker_is_restarted_and_counted(upstream: str, tmp_path: Path, by: signal.Signals):
    with tap(upstream, tmp_path, workers=2) as (process, ready):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 2
        assert get(ready["listen"])[0] == 200
        os.kill(int(children[0]), by)
        ledger = until(
            lambda: (
                (n := json.loads(get(ready["admin"] + "/ledger")[1]))["worker_restarts"] == 1
                and n["workers_now"] == 2
                and n
            )
        )
        assert ledger["workers_now"] == 2
        until(lambda: get(ready["admin"] + "/readyz")[0] == 200)
        for _ in range(8):
            assert get(ready["listen"])[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0


def test_workers_end_when_the_tap_is_killed(upstream: str, tmp_path: Path):
    with tap(upstream, tmp_path, workers=2) as (process, _):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
        process.wait()

        def ended(pid: str) -> bool:
            try:
                return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except FileNotFoundError:
                return True

        assert until(lambda: all(ended(pid) for pid in children))


def options(data: Path, **given: Any) -> TapOptions:
    defaults: dict[str, Any] = {"upstreams": parse_upstreams(["http://127.0.0.1:1"]), "data": data}
    return tap_options(**{**defaults, "listen": "127.0.0.1:0", "admin": "127.0.0.1:0", **given})


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("which", ["listen", "admin"])
def test_port_in_use_is_an_error_of_one_line(tmp_path: Path, workers: int, which: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot listen on {address}: Address already in use") as error:
            run(options(tmp_path, workers=workers, **{which: address}))
        assert "\n" not in str(error.value)


def test_unwritable_data_folder_is_an_error_of_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write to the data folder"):
        run(options(tmp_path / "file"))


def test_second_tap_on_the_same_log_is_refused(upstream: str, tmp_path: Path):
    with tap(upstream, tmp_path), pytest.raises(OSError, match=r"another process .*--data"):
        run(options(tmp_path))


def test_missing_upstream_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="--upstream"):
        run(options(tmp_path, upstreams=()))


def test_invalid_ca_file_is_refused(tmp_path: Path):
    ca = tmp_path / "ca.pem"
    ca.write_text("nothing")
    with pytest.raises(ValueError, match=r"ca\.pem is not a PEM file"):
        run(options(tmp_path / "d", upstream_ca=ca, upstreams=parse_upstreams(["https://localhost:1"])))


def test_missing_ca_file_is_refused_even_without_an_https_upstream(tmp_path: Path):
    with pytest.raises(ValueError, match=r"ca\.pem is not a PEM file"):
        run(options(tmp_path, upstream_ca=tmp_path / "ca.pem"))


@pytest.mark.parametrize("flag", ["tls", "upstream"])
def test_key_without_a_certificate_is_refused(tmp_path: Path, flag: str):
    with pytest.raises(ValueError, match=rf"--{flag}-key .*k\.pem has no certificate.*--{flag}-cert FILE"):
        run(options(tmp_path, **{f"{flag}_key": tmp_path / "k.pem"}))


@pytest.mark.parametrize("listen", ["127.0.0.1:4101", "0.0.0.0:4101"])
def test_one_address_for_requests_and_admin_is_refused(tmp_path: Path, listen: str):
    with pytest.raises(ValueError, match="are the same address"):
        run(options(tmp_path, listen=listen, admin="127.0.0.1:4101"))


@pytest.mark.parametrize(
    "url",
    [
        "http://gateway..internal:4000",
        f"http://{'a' * 64}.internal",
        "http://" + "a." * 127 + "com",
        "gateway=http://gate way",
        "gateway=http://gate%20way",
        "gateway=http://gateway:4000/a b",
        "gateway=http://.",
    ],
)
def test_upstream_that_no_connection_can_be_opened_to_is_refused(url: str):
    with pytest.raises(ValueError, match=r"has no valid host name|has a space") as error:
        parse_upstreams([url])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://my_service:4000", "my_service"),
        ("http://gateway.internal.", "gateway.internal."),
        ("http://[::1]:4000", "::1"),
        ("a=http://m\xfcller.example", "xn--mller-kva.example"),
    ],
)
def test_host_of_an_upstream(url: str, host: str):
    assert parse_upstreams([url])[0].host == host


def test_workers_log_in_the_parents_format(tmp_path: Path):
    program = (
        "import logging; from streamgauge.ingest.tap.process.worker_process import _log_as; "
        "_log_as(logging.Formatter('<%(name)s|%(message)s>'), 20, 3); "
        "logging.getLogger('streamgauge.tap').info('message')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "<streamgauge.tap.w3|message>\n"


def test_client_key_is_created_once_and_kept(tmp_path: Path):
    from streamgauge.ingest.keyed_ids import load_client_key

    key = load_client_key(tmp_path / "client.key")
    assert len(key) == 32
    assert load_client_key(tmp_path / "client.key") == key
    (tmp_path / "client.key").write_bytes(b"")
    with pytest.raises(ValueError, match="holds no key"):
        load_client_key(tmp_path / "client.key")

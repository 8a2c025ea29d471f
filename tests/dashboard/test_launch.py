"""Start and stop of the dashboard: ready file, one-line errors, token."""

from __future__ import annotations

import os
import signal
import socket
import stat
import time
import urllib.request
from pathlib import Path

import pytest

from streamgauge.dashboard import launch
from streamgauge.dashboard.launch import run
from streamgauge.ingest.listening import join_address
from tests import host_headers
from tests.dashboard.running_dashboard import running
from tests.deadline import DEADLINE_S
from tests.options import dashboard_options


def test_ready_file_exists_while_the_dashboard_responds(tmp_path: Path) -> None:
    with running(tmp_path) as dashboard:
        assert dashboard.ready["pid"] == dashboard.process.pid
        assert stat.S_IMODE(dashboard.ready_file.stat().st_mode) == 0o600
        assert dashboard.url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{dashboard.url}/_stcore/health", timeout=DEADLINE_S) as answer:
            assert answer.status == 200
        os.utime(dashboard.ready_file, (0, 0))
        heartbeat_until_s = time.monotonic() + DEADLINE_S
        while not dashboard.ready_file.stat().st_mtime:
            assert time.monotonic() < heartbeat_until_s
            time.sleep(0.05)
        page = urllib.request.Request(f"{dashboard.url}/streams", headers={"Accept": "text/html"})
        with urllib.request.urlopen(page, timeout=DEADLINE_S) as answer:
            assert b"window.__streamlit={BACKEND_BASE_URL" in answer.read()
        assert_only_own_hosts_are_served(dashboard.url)
        dashboard.process.send_signal(signal.SIGTERM)
        assert dashboard.process.wait(timeout=DEADLINE_S) == 0
        assert not dashboard.ready_file.exists()


def assert_only_own_hosts_are_served(url: str) -> None:
    for headers in host_headers.FOREIGN:
        for path in ("/", "/_stcore/health", "/static/nothing.js"):
            status, text = host_headers.answer(url + path, headers)
            assert (status, "--allowed-host" in text) == (403, True)
        status, text = host_headers.answer(f"{url}/_stcore/stream", f"{headers}\r\n{host_headers.WEBSOCKET}")
        assert (status, "--allowed-host" in text) == (403, True)
    for headers in ("Host: 127.0.0.1", "Host: localhost\r\nOrigin: http://[::1]:1"):
        assert host_headers.answer(f"{url}/_stcore/health", headers)[0] == 200
        upgrade = f"{headers}\r\n{host_headers.WEBSOCKET}"
        assert host_headers.answer(f"{url}/_stcore/stream", upgrade)[0] == 101


def test_port_in_use_is_a_one_line_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            OSError,
            match=rf"^cannot listen on 127\.0\.0\.1:{port}: Address already in use\. .*--dashboard-listen$",
        ):
            run(dashboard_options(data=tmp_path, listen=f"127.0.0.1:{port}"))


def test_foreign_address_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"^cannot listen on 192\.0\.2\.1:0: .*--dashboard-listen$"):
        run(dashboard_options(data=tmp_path, listen="192.0.2.1:0"))


def test_data_folder_that_is_not_writable_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"^cannot write to the data folder .*file: .*$"):
        run(dashboard_options(data=tmp_path / "file"))


def test_no_requests_to_other_sites() -> None:
    settings = launch.streamlit_config("127.0.0.1", 1)
    assert settings["browser.gatherUsageStats"] is False
    assert settings["server.headless"] is True
    assert settings["server.fileWatcherType"] == "none"
    theme = Path(str(settings["theme.base"])).read_text()
    assert "http" not in theme


@pytest.mark.parametrize(
    ("host", "required"),
    [("127.0.0.1", False), ("::1", False), ("localhost", False), ("0.0.0.0", True), ("10.1.2.3", True)],
)
def test_token_is_required_beyond_loopback_and_stored(host: str, required: bool, tmp_path: Path) -> None:
    options = dashboard_options(data=tmp_path, listen=join_address(host, 0))
    token = launch._token(options)
    assert (token is not None) is required
    assert launch._token(options) == token
    if required:
        assert stat.S_IMODE(os.stat(tmp_path / "dashboard-token").st_mode) == 0o600
        assert len(token or "") >= 24


def test_token_of_the_options_is_used(tmp_path: Path) -> None:
    assert launch._token(dashboard_options(data=tmp_path, token="mine")) == "mine"

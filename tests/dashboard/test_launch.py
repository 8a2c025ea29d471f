"""Starting and stopping: announced when it answers, refused with one line, gone without a trace."""

from __future__ import annotations

import os
import signal
import socket
import stat
import urllib.request
from pathlib import Path

import pytest

from dashboard import launch
from dashboard.launch import DashboardOptions, run
from tests.dashboard.running_dashboard import running


def test_it_is_announced_when_it_answers_and_withdrawn_when_it_stops(tmp_path: Path) -> None:
    with running(tmp_path) as site:
        assert site.said["pid"] == site.process.pid
        assert stat.S_IMODE(site.announced.stat().st_mode) == 0o600
        assert site.url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{site.url}/_stcore/health", timeout=10) as answer:
            assert answer.status == 200
        page = urllib.request.Request(f"{site.url}/streams", headers={"Accept": "text/html"})
        with urllib.request.urlopen(page, timeout=10) as answer:
            assert b"window.__streamlit={BACKEND_BASE_URL" in answer.read()
        site.process.send_signal(signal.SIGTERM)
        assert site.process.wait(timeout=30) == 0
        assert not site.announced.exists()


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            OSError, match=rf"^dashboard port {port} on 127.0.0.1 is in use: .*--dashboard-port.*$"
        ):
            run(DashboardOptions(data=tmp_path, port=port))


def test_a_foreign_address_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"^dashboard address 192\.0\.2\.1:0 cannot be listened on: .*$"):
        run(DashboardOptions(data=tmp_path, host="192.0.2.1", port=0))


def test_a_data_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"^data folder .*file cannot be written: .*$"):
        run(DashboardOptions(data=tmp_path / "file", port=0))


def test_no_word_goes_to_other_sites() -> None:
    settings = launch.settings("127.0.0.1", 1)
    assert settings["browser.gatherUsageStats"] is False
    assert settings["server.headless"] is True
    assert settings["server.fileWatcherType"] == "none"
    theme = Path(str(settings["theme.base"])).read_text()
    assert "http" not in theme


@pytest.mark.parametrize(
    ("host", "wanted"),
    [("127.0.0.1", False), ("::1", False), ("localhost", False), ("0.0.0.0", True), ("10.1.2.3", True)],
)
def test_a_token_is_wanted_beyond_the_loopback_and_kept(host: str, wanted: bool, tmp_path: Path) -> None:
    options = DashboardOptions(data=tmp_path, host=host)
    token = launch._token(options)
    assert (token is not None) is wanted
    assert launch._token(options) == token
    if wanted:
        assert stat.S_IMODE(os.stat(tmp_path / "dashboard-token").st_mode) == 0o600
        assert len(token or "") >= 24


def test_a_token_of_the_settings_wins(tmp_path: Path) -> None:
    assert launch._token(DashboardOptions(data=tmp_path, token="mine")) == "mine"

"""The broker script is idempotent, reports errors as one line, and leaves no process behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kafka import SCRIPT, Broker, skip_without_java


def broker(*arguments: str | Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"PATH": path} if path is not None else {})}
    environment.pop("JAVA_HOME", None)
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, env=environment
    )


def test_missing_java_is_one_line_with_the_package_to_install(tmp_path: Path) -> None:
    done = broker("start", "--port", "0", "--data", tmp_path, path=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == (
        "broker: Java 17 is not installed. On Debian: apt-get install openjdk-17-jre-headless maven, or pass --install.\n"
    )


def test_missing_maven_is_one_line_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "java").write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    (tmp_path / "java").chmod(0o755)
    done = broker("start", "--port", "0", "--data", tmp_path / "data", path=str(tmp_path))
    assert (done.returncode, done.stderr) == (
        2,
        "broker: Maven is not installed. On Debian: apt-get install maven, or pass --install.\n",
    )


def test_old_java_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "java").write_text("#!/bin/sh\necho 'java version \"11.0.2\"' >&2\n")
    (tmp_path / "java").chmod(0o755)
    done = broker("start", "--port", "0", "--data", tmp_path / "data", path=str(tmp_path))
    assert done.returncode == 2
    assert "is older than Java 17" in done.stderr


def test_stop_and_status_without_a_broker_are_no_errors(tmp_path: Path) -> None:
    assert broker("stop", "--data", tmp_path / "none").returncode == 0
    done = broker("status", "--data", tmp_path / "none")
    assert (done.returncode, done.stdout) == (1, f"not running ({tmp_path / 'none'})\n")


def test_config_must_be_key_and_value(tmp_path: Path) -> None:
    done = broker("start", "--data", tmp_path, "--config", "x")
    assert (done.returncode, done.stderr) == (2, "broker: --config 'x' is not KEY=VALUE\n")


@pytest.mark.kafka
def test_port_in_use_is_one_line(tmp_path: Path) -> None:
    skip_without_java()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = broker("start", "--port", str(port), "--data", tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        f"broker: cannot listen on port {port}: already in use. Choose another with --port.",
    )


@pytest.mark.kafka
def test_start_and_stop_are_idempotent(own_broker: Callable[..., Broker]) -> None:
    running = own_broker()
    pid = running.pid
    assert running.start() == running.address
    assert running.pid == pid
    status = broker("status", "--data", running.data).stdout
    assert status.startswith(f"{running.address} pid {pid} data {running.data} kafka 4.")
    running.stop()
    running.stop()
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"  # not yet reaped


@pytest.mark.kafka
def test_property_that_kafka_rejects_is_one_line_with_its_reason(tmp_path: Path) -> None:
    skip_without_java()
    done = broker("start", "--port", "0", "--data", tmp_path, "--config", "log.retention.bytes=many")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) <= 2  # the first run also prints that it resolves Kafka
    assert "log.retention.bytes" in done.stderr

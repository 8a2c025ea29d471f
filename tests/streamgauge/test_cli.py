"""What the command says, and that wrong input ends in one line and exit code 2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamgauge.cli import ORDER


def streamgauge(*argv: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streamgauge", *argv],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("command", ORDER)
def test_every_command_has_help_that_teaches(command: str, tmp_path: Path) -> None:
    done = streamgauge(command, "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 4


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["up"], "no upstream"),
        (["up", "--upstream", "localhost"], "is not a URL"),
        (["up", "--upstream", "http://a", "--upstream", "http://a"], "two upstreams are named"),
        (["up", "--upstream", "http://a", "--nope"], "--nope"),
        (["up", "--upstream", "http://a", "--listen", "4100"], "HOST:PORT"),
        (["up", "--upstream", "http://a", "--sql-port", "99999"], "--sql-port"),
        (["up", "--upstream", "http://a", "--store", "duckdb"], "--store must be sqlite or postgres:DSN"),
        (["up", "--upstream", "http://a", "--lake-path", "x"], "--lake-path requires --store postgres:DSN"),
        (["serve", "--sql-token", "short"], "at least 16 characters"),
        (["serve"], "has no tables yet"),
        (["export", "--duckdb", "x.duckdb"], "cannot attach the store"),
        (["export", "--duckdb", "x.duckdb", "--since", "soon"], "neither an age"),
        (["rebuild"], "cannot rebuild"),
        (["up", "--upstream", "http://a", "--kafka", "nowhere"], "HOST:PORT"),
        (["up", "--upstream", "http://a", "--kafka-options", "{"], "JSON"),
        (["nope"], "nope"),
    ],
)
def test_wrong_input_is_one_clear_line(argv: list[str], says: str, tmp_path: Path) -> None:
    done = streamgauge(*argv, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert says in done.stderr
    assert "-- (" not in done.stderr


def test_flags_go_before_environment_before_file(tmp_path: Path) -> None:
    (tmp_path / "streamgauge.toml").write_text('listen = "127.0.0.1:1"\nadmin = "127.0.0.1:2"\nworkers = 3\n')
    done = streamgauge("config", "check", cwd=tmp_path, STREAMGAUGE_ADMIN="127.0.0.1:22")
    assert "listen = 127.0.0.1:1 " in done.stdout
    assert "admin = 127.0.0.1:22 " in done.stdout
    assert "workers = 3 " in done.stdout


def test_an_unknown_setting_in_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "streamgauge.toml").write_text('lisen = "127.0.0.1:1"\n')
    done = streamgauge("config", "check", cwd=tmp_path)
    assert done.returncode == 2
    assert "lisen" in done.stderr


def test_secrets_are_never_printed(tmp_path: Path) -> None:
    done = streamgauge("config", "check", cwd=tmp_path, STREAMGAUGE_SQL_TOKEN="planted-secret")
    assert "planted-secret" not in done.stdout + done.stderr
    assert "sql_token = (set)" in done.stdout


def test_config_check_shows_the_lake_without_its_password(tmp_path: Path) -> None:
    store = "postgres:host=db password=planted-secret dbname=lake"
    done = streamgauge("config", "check", cwd=tmp_path, STREAMGAUGE_STORE=store)
    assert "host=db password=… dbname=lake" in done.stdout
    assert "planted-secret" not in done.stdout + done.stderr


def test_a_data_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = streamgauge(
        "up", "--upstream", "http://a", "--data", str(tmp_path / "file" / "data"), cwd=tmp_path
    )
    assert done.returncode == 2
    assert "data folder" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1

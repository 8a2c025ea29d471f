"""Sources of settings, their precedence, and values with units."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from streamgauge.settings.flags import flags, load
from streamgauge.settings.model import REMOVED, RENAMED, Settings, setting_sources, unknown_variables
from streamgauge.settings.process_options import analyze_options, dashboard_options, tap_options

HARNESS = {name for name in os.environ if name.startswith("STREAMGAUGE_")}
"""Variables of the machine that runs the tests."""


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("STREAMGAUGE_SECRETS_DIR", "CREDENTIALS_DIRECTORY", "STREAMGAUGE_CLIENT_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("variable", ["STREAMGAUGE_SECRETS_DIR", "CREDENTIALS_DIRECTORY"])
def test_file_in_the_secrets_folder_is_a_setting(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "streamgauge_client_key").write_text("from-a-file\n")
    (tmp_path / "streamgauge_kafka_options").write_text('{"sasl_plain_password": "p"}')
    monkeypatch.setenv(variable, str(tmp_path))
    settings = Settings()
    assert settings.client_key is not None
    assert settings.client_key.get_secret_value() == "from-a-file"
    assert settings.kafka_options == {"sasl_plain_password": "p"}


def test_precedence_is_environment_then_secrets_folder_then_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "streamgauge.toml").write_text('client_key = "from-toml"\nsql_token = "from-toml"\n')
    (tmp_path / "streamgauge_client_key").write_text("from-a-file")
    (tmp_path / "streamgauge_sql_token").write_text("from-a-file")
    monkeypatch.setenv("STREAMGAUGE_SECRETS_DIR", str(tmp_path))
    monkeypatch.setenv("STREAMGAUGE_CLIENT_KEY", "from-environment")
    settings = Settings()
    assert settings.client_key is not None
    assert settings.sql_token is not None
    assert settings.client_key.get_secret_value() == "from-environment"
    assert settings.sql_token.get_secret_value() == "from-a-file"


def test_missing_secrets_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMGAUGE_SECRETS_DIR", str(tmp_path / "gone"))
    with pytest.raises(ValueError, match="gone: not a folder"):
        Settings()


def test_unknown_variables_and_what_they_stand_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "WROKERS",
        "LISTEN",
        "QUACK_PORT",
        "CONFG",
        "BANANA",
        "INTERPRETED",
        "SERVICE_HOST",
        "PORT_4100_TCP_ADDR",
    ):
        monkeypatch.setenv(f"STREAMGAUGE_{name}", "x")
    monkeypatch.setenv("STREAMGAUGE_TAP_PORT", "tcp://10.0.0.1:4100")  # from a Service named streamgauge-tap
    found = {name: correct for name, correct in unknown_variables().items() if name not in HARNESS}
    assert found == {
        "STREAMGAUGE_WROKERS": "Did you mean STREAMGAUGE_WORKERS?",
        "STREAMGAUGE_QUACK_PORT": "It is now STREAMGAUGE_SQL_LISTEN.",
        "STREAMGAUGE_CONFG": "Did you mean STREAMGAUGE_CONFIG?",
        "STREAMGAUGE_BANANA": None,
    }


def test_former_names_stand_for_settings() -> None:
    assert not {*RENAMED, *REMOVED} & set(Settings.model_fields)
    assert not set(RENAMED) & set(REMOVED)
    assert set(RENAMED.values()) <= set(Settings.model_fields)


def test_source_of_each_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "streamgauge.toml").write_text('listen = "127.0.0.1:1"\nworkers = 2\nsql_token = "x"')
    (tmp_path / "streamgauge_sql_token").write_text("y")
    monkeypatch.setenv("STREAMGAUGE_SECRETS_DIR", str(tmp_path))
    monkeypatch.setenv("STREAMGAUGE_WORKERS", "3")
    monkeypatch.setenv("STREAMGAUGE_ADMIN", "127.0.0.1:2")
    sources = setting_sources(["admin"])
    assert {name: source for name, source in sources.items() if source != "default"} == {
        "listen": "file streamgauge.toml",
        "workers": "environment STREAMGAUGE_WORKERS",
        "sql_token": f"secrets folder {tmp_path}",
        "admin": "flag --admin",
    }


@pytest.mark.parametrize(
    ("size", "bytes_"), [("64MiB", 64 * 2**20), ("2GiB", 2 * 2**30), ("5MB", 5_000_000), ("2097152", 2**21)]
)
@pytest.mark.parametrize("source", ["environment", "file"])
def test_sizes_accept_units(
    size: str, bytes_: int, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if source == "environment":
        monkeypatch.setenv("STREAMGAUGE_RECORD_LOG_MAX_BYTES", size)
    else:
        (tmp_path / "streamgauge.toml").write_text(f'record_log_max_bytes = "{size}"')
    assert Settings().record_log_max_bytes == bytes_


@pytest.mark.parametrize(
    ("duration", "seconds"), [("5m", 300.0), ("250ms", 0.25), ("2h", 7200.0), ("30", 30.0), ("0", 0.0)]
)
@pytest.mark.parametrize("source", ["environment", "file"])
def test_durations_accept_units(
    duration: str, seconds: float, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if source == "environment":
        monkeypatch.setenv("STREAMGAUGE_IDLE_TIMEOUT", duration)
    else:
        (tmp_path / "streamgauge.toml").write_text(f'idle_timeout = "{duration}"')
    assert Settings().idle_timeout == seconds


def test_allowed_hosts_come_from_environment_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMGAUGE_ALLOWED_HOST", "tap, Gauge.example.com")
    settings = Settings()
    assert settings.allowed_host == ("tap", "gauge.example.com")
    assert flags(settings, ["allowed_host"]) == [
        "--allowed-host",
        "tap",
        "--allowed-host",
        "gauge.example.com",
    ]
    assert tap_options(settings).allowed_hosts == settings.allowed_host
    assert analyze_options(settings).allowed_hosts == settings.allowed_host
    assert analyze_options(settings).telemetry.allowed_hosts == settings.allowed_host
    assert dashboard_options(settings).allowed_hosts == settings.allowed_host
    monkeypatch.delenv("STREAMGAUGE_ALLOWED_HOST")
    (tmp_path / "streamgauge.toml").write_text('allowed_host = ["a.example.com", "*.b.example.com"]')
    assert Settings().allowed_host == ("a.example.com", "*.b.example.com")
    with pytest.raises(ValueError, match="'https://a' is not a host name such as"):
        Settings(allowed_host=("https://a",))


@pytest.mark.parametrize("value", ["0", "10s", 60])
def test_hung_after_is_zero_or_at_least_ten_seconds(value: object) -> None:
    Settings(hung_after=value)  # type: ignore[arg-type]
    with pytest.raises(click.UsageError, match=r"^--hung-after: 9\.9s is not 0 or at least 10s\.$"):
        load({"hung_after": "9.9s"})

"""Sources of settings, their precedence, and values with units."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamgauge.settings import Settings, misspelled_variables


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


def test_misspelled_variable_suggests_a_setting(monkeypatch: pytest.MonkeyPatch):
    for name in (
        "STREAMGAUGE_LISTN",
        "STREAMGAUGE_LISTEN",
        "STREAMGAUGE_SERVICE_HOST",
        "STREAMGAUGE_PORT_4100_TCP",
    ):
        monkeypatch.setenv(name, "x")
    assert misspelled_variables() == {"STREAMGAUGE_LISTN": "STREAMGAUGE_LISTEN"}


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


def test_size_below_the_minimum_is_rejected() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 1048576"):
        Settings(record_log_max_bytes="1kB")

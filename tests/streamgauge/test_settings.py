"""Where settings come from, and which goes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamgauge.settings import Settings, misspelt_environment


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("STREAMGAUGE_SECRETS_DIR", "CREDENTIALS_DIRECTORY", "STREAMGAUGE_CLIENT_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("variable", ["STREAMGAUGE_SECRETS_DIR", "CREDENTIALS_DIRECTORY"])
def test_a_file_in_the_secrets_folder_is_a_setting(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "streamgauge_client_key").write_text("from-a-file\n")
    (tmp_path / "streamgauge_kafka_options").write_text('{"sasl_plain_password": "p"}')
    monkeypatch.setenv(variable, str(tmp_path))
    settings = Settings()
    assert settings.client_key is not None
    assert settings.client_key.get_secret_value() == "from-a-file"
    assert settings.kafka_options == {"sasl_plain_password": "p"}


def test_the_environment_goes_before_the_secrets_folder_and_that_before_the_file(
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


def test_a_secrets_folder_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMGAUGE_SECRETS_DIR", str(tmp_path / "gone"))
    with pytest.raises(ValueError, match="gone, which is not a folder"):
        Settings()


def test_a_misspelt_variable_is_told_with_what_it_may_mean(monkeypatch: pytest.MonkeyPatch):
    for name in (
        "STREAMGAUGE_LISTN",
        "STREAMGAUGE_LISTEN",
        "STREAMGAUGE_SERVICE_HOST",
        "STREAMGAUGE_PORT_4100_TCP",
    ):
        monkeypatch.setenv(name, "x")
    assert misspelt_environment() == {"STREAMGAUGE_LISTN": "STREAMGAUGE_LISTEN"}

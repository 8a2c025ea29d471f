"""Commands use the settings of the running parts, unless they are set."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from streamgauge.settings.flags import load_with_running_parts
from streamgauge.settings.model import Settings

USED = {
    "pid": 1,
    "kafka": "broker:9092",
    "kafka_topic": "t",
    "kafka_options": [],
    "store": "postgres:host=db",
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    return tmp_path


def write(data: Path, part: str, **content: object) -> None:
    (data / "run" / f"{part}.json").write_text(json.dumps({"pid": 1, **content}))


def chosen(settings: Settings) -> tuple[str | None, str, str]:
    return settings.kafka, settings.kafka_topic, settings.store


def test_unset_settings_are_those_of_analytics(data: Path) -> None:
    write(data, "ship", brokers="other:9092", topic="other")
    write(data, "analyze", **USED)
    assert chosen(load_with_running_parts({"data": data})) == ("broker:9092", "t", "postgres:host=db")


def test_topic_of_ship_is_used_without_analytics(data: Path) -> None:
    write(data, "ship", brokers="other:9092", topic="other")
    assert chosen(load_with_running_parts({"data": data})) == ("other:9092", "other", "sqlite")


def test_flags_environment_and_file_win(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(data, "analyze", **USED)
    monkeypatch.setenv("STREAMGAUGE_KAFKA_TOPIC", "env")
    Path("streamgauge.toml").write_text('kafka = "file:9092"')
    assert chosen(load_with_running_parts({"data": data, "store": "sqlite"})) == (
        "file:9092",
        "env",
        "sqlite",
    )


def test_store_with_a_password_must_be_passed(data: Path) -> None:
    write(data, "analyze", store="postgres:host=db password=…")
    with pytest.raises(
        click.UsageError, match=r"which requires a password. Pass --store or set STREAMGAUGE_STORE"
    ):
        load_with_running_parts({"data": data})


def test_missing_ready_files_change_nothing(data: Path) -> None:
    assert chosen(load_with_running_parts({"data": data})) == (None, "streamgauge", "sqlite")

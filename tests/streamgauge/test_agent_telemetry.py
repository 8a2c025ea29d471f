"""Which calls of agents get telemetry, and that settings of the user stay. The real agents are in tests/e2e."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamgauge.commands.agent_telemetry import AGENTS, switch_on
from streamgauge.commands.client_programs import Call

URL = "http://127.0.0.1:4318"
FILES = {
    "claude": (
        ".claude/settings.json",
        json.dumps({"env": {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://otel.example.com"}}),
    ),
    "codex": (".codex/config.toml", '[otel]\nexporter = "none"\n'),
    "gemini": (".gemini/settings.json", json.dumps({"telemetry": {"enabled": False}})),
}
VARIABLES = {
    "claude": "CLAUDE_CODE_ENABLE_TELEMETRY", "gemini": "GEMINI_TELEMETRY_ENABLED",
}  # fmt: skip
FLAGS = {"codex": ["-c", "otel.exporter=none"], "gemini": ["--no-telemetry"]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(name: str, home: Path, *flags: str, **environment: str) -> Call:
    made = Call([f"/usr/bin/{name}", *flags], {"HOME": str(home / "home"), **environment}, home)
    switch_on(made, URL)
    return made


@pytest.mark.parametrize("name", AGENTS)
def test_telemetry_goes_to_the_receiver_and_prompts_are_not_logged(name: str, home: Path) -> None:
    made = call(name, home)
    said = "\n".join([*made.argv, *(f"{key}={value}" for key, value in made.environment.items())])
    assert URL in said
    assert made.notes == []
    assert {
        "claude": "OTEL_LOG_USER_PROMPTS" not in said,  # off by default
        "codex": "otel.log_user_prompt=false" in said,
        "gemini": "GEMINI_TELEMETRY_LOG_PROMPTS=false" in said,
    }[name]


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("folder", ["home", "."])
def test_settings_in_a_file_of_the_user_or_the_project_stay(name: str, folder: str, home: Path) -> None:
    path, text = FILES[name]
    (home / folder / path).parent.mkdir(parents=True)
    (home / folder / path).write_text(text)
    made = call(name, home)
    assert URL not in repr((made.argv, made.environment))
    assert len(made.notes) == 1


@pytest.mark.parametrize("name", VARIABLES)
def test_variable_of_the_user_stays(name: str, home: Path) -> None:
    made = call(name, home, **{VARIABLES[name]: "0"})
    assert made.environment == {"HOME": str(home / "home"), VARIABLES[name]: "0"}


@pytest.mark.parametrize("name", FLAGS)
def test_flag_of_the_user_stays(name: str, home: Path) -> None:
    made = call(name, home, *FLAGS[name])
    assert made.argv[1:] == FLAGS[name]
    assert made.environment == {"HOME": str(home / "home")}


@pytest.mark.parametrize("name", AGENTS)
def test_files_without_a_table_of_telemetry_or_that_cannot_be_read_have_none(name: str, home: Path) -> None:
    path, _ = FILES[name]
    (home / path).parent.mkdir(parents=True)
    for text in ("[1", "[1]", '{"env": 1}', ""):
        (home / path).write_text(text)
        assert URL in repr(vars(call(name, home)))

"""Objectives in the file, as flags and in the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from click import UsageError
from click.testing import CliRunner

from streamgauge.analytics.schema.objectives import DEFAULT, MAX_OBJECTIVES, Objective
from streamgauge.cli import cli
from streamgauge.settings.flags import flags, load
from streamgauge.settings.model import Settings
from streamgauge.settings.process_options import analyze_options
from streamgauge.settings.tables import parse_objectives

FILE = """
[[objectives]]
model = "gpt-*"
ttft = "800ms"
itl = 0.0505
error_rate = 0.01
goodput = 0.95

[[objectives]]
name = "the rest of vLLM"
gateway = "vllm"
error_rate = 0.1

[[objectives]]
label = "team=search"
error_rate = 0.1
"""
EXPECTED = (
    Objective("model=gpt-*", "gpt-*", "*", "*", 800_000_000, 50_500_000, 0.01, 0.95),
    Objective("the rest of vLLM", "*", "vllm", "*", None, None, 0.1, None),
    Objective("team=search", error_rate=0.1, label="team=search"),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tables_of_the_file(folder: Path) -> None:
    (folder / "streamgauge.toml").write_text(FILE)
    settings = load({})
    assert settings.objectives == EXPECTED
    assert analyze_options(settings).objectives == (*EXPECTED, DEFAULT)


def test_objective_without_globs_is_the_default() -> None:
    settings = load({"objectives": ('{"ttft": "3s"}', '{"model": "never reached", "ttft": "1s"}')})
    (default,) = settings.all_objectives
    assert default == Objective("all", ttft_ns=3_000_000_000, itl_ns=100_000_000, error_rate=0.05)


def test_flags_for_a_child_process_give_the_same_objectives() -> None:
    argv = flags(Settings(objectives=EXPECTED), ["objectives"])
    assert argv[::2] == ["--objectives"] * 3
    assert load({"objectives": tuple(argv[1::2])}).objectives == EXPECTED


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMGAUGE_OBJECTIVES", '[{"model": "a?", "goodput": 0.5}]')
    assert load({}).objectives == (Objective("model=a?", "a?", goodput=0.5),)


def test_config_check_prints_tables_that_are_valid_settings(folder: Path) -> None:
    (folder / "streamgauge.toml").write_text(FILE)
    printed = CliRunner().invoke(cli, ["config", "check"])
    assert printed.exit_code == 0, printed.output
    assert "# All other streams: name default, ttft 2000ms, itl 100ms, error_rate 0.05" in printed.output
    (folder / "streamgauge.toml").write_text(printed.output)
    assert load({}).objectives == EXPECTED


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"ttft": "1s", "modle": "x"}, "objective 1: unknown key 'modle', did you mean 'model'? Allowed: name, model, gateway, "
         "client, ttft, itl, error_rate, goodput, severity, label"),
        ({"model": "gpt-*"}, "objective 1: it has no limit. Add one of ttft, itl, error_rate, goodput"),
        ({"ttft": "soon"}, "objective 1: ttft = 'soon' is not a duration such as 800ms or 2s"),
        ({"ttft": 0}, "objective 1: ttft = 0 is not a duration such as 800ms or 2s"),
        ({"itl": True}, "objective 1: itl = True is not a duration such as 800ms or 2s"),
        ({"goodput": 1}, "objective 1: goodput = 1 is not a share from 0 to less than 1"),
        ({"error_rate": 5}, "objective 1: error_rate = 5 is not a share from 0 to 1"),
        ({"error_rate": 0.1, "model": "[ab]"}, "objective 1: model = '[ab]' is not a name with the wildcards * and ?"),
        ({"error_rate": 0.1, "model": 4}, "objective 1: model = 4 is not text in quotes"),
        ({"error_rate": 0.1, "name": "default"}, "'default' is taken: give each entry its own"),
    ],
)  # fmt: skip
def test_wrong_table_names_the_key_and_the_allowed_values(table: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as wrong:
        load({"objectives": (table,)})
    assert wrong.value.message == f"--objectives: {message}."


def test_same_name_twice_and_too_many_objectives() -> None:
    with pytest.raises(ValueError, match="'all' is taken"):
        parse_objectives([{"ttft": 1}, {"itl": 1}])
    with pytest.raises(ValueError, match=f"above the limit of {MAX_OBJECTIVES}"):
        parse_objectives([{"model": f"m{n}", "ttft": 1} for n in range(MAX_OBJECTIVES + 1)])

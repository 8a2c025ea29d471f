"""Labels in the file, as flags and in the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from click import UsageError
from click.testing import CliRunner

from streamgauge.cli import cli
from streamgauge.ingest.labels import Label
from streamgauge.settings.flags import flags, load
from streamgauge.settings.model import Settings
from streamgauge.settings.process_options import tap_options

EXPECTED = (
    Label("team", "header:x-team", plain=True, prometheus=True),
    Label("user", "body:metadata.user_id"),
)
FILE = """
upstream = "http://localhost:1"

[[labels]]
name = "team"
source = "header:X-Team"
plain = true
prometheus = true

[[labels]]
name = "user"
source = "body:metadata.user_id"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_table_of_the_file_and_of_config_check(folder: Path) -> None:
    (folder / "streamgauge.toml").write_text(FILE)
    assert tap_options(load({})).labels == EXPECTED
    printed = CliRunner().invoke(cli, ["config", "check"])
    assert printed.exit_code == 0, printed.output
    (folder / "streamgauge.toml").write_text(printed.output)
    assert load({}).labels == EXPECTED


def test_flags_and_the_environment_give_the_same_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = flags(Settings(labels=EXPECTED), ["labels"])
    assert load({"labels": tuple(argv[1::2])}).labels == EXPECTED
    monkeypatch.setenv("STREAMGAUGE_LABELS", " ".join(argv[1::2]))
    assert load({}).labels == EXPECTED


def test_flag_is_repeatable() -> None:
    given = ["--label", "team=header:x-team", "--label", "app=header:x"]
    refused = CliRunner().invoke(cli, ["config", "check", *given])
    assert refused.exit_code == 2
    assert "the name 'app' has another meaning" in refused.output
    assert CliRunner().invoke(cli, ["config", "check", *given[:2], "--label", "n=path:1"]).exit_code == 0


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (["a=client_app", "a=path:1"], "'a' is taken"),
        ([f"a{n}=client_app" for n in range(9)], "above the limit of 8"),
        (
            '[{"name": "a", "source": "client_app", "plane": true}]',
            "unknown key 'plane', did you mean 'plain'?",
        ),
        ('[{"name": "a", "source": "client_app", "plain": 1}]', "plain = 1 is not true or false"),
        ("a=cookie:x", "is not a label such as"),
        (
            [{"name": "team", "source": "header:x-team"}, {"name": "model", "source": "path:1"}],
            "label 2: the name 'model' has another meaning",
        ),
    ],
)
def test_invalid_labels_are_refused(labels: object, why: str) -> None:
    with pytest.raises(UsageError, match="--labels") as refused:
        load({"labels": labels})
    assert why in refused.value.message

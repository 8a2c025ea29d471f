"""A setting is a field of `Settings`, an option of its process and the place that uses it. A key of a table is one field."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, ValidationError

from streamgauge.analytics.schema.setting_rows import Glob, changed, create_table
from streamgauge.settings.tables import model_of, problem

ROOT = Path(__file__).parents[2]
ADDED = {
    "streamgauge/settings/model.py": (
        "    stall_floor: Seconds",
        '    stall_colour: Literal["red", "blue"] = _setting(\n'
        '        MEASUREMENT, "analyze", "COLOUR", "Colour of stalls.", default="red")\n',
    ),
    "streamgauge/analytics/options.py": ("    client_key: bytes", "    stall_colour: str\n"),
    "streamgauge/analytics/main.py": (
        "def run(options: AnalyzeOptions",
        "def colour_of(options: AnalyzeOptions) -> str:\n    return options.stall_colour\n\n\n",
    ),
}
"""File → the line before which the text is added."""
USE = """
from streamgauge.analytics.main import colour_of
from streamgauge.settings.flags import load
from streamgauge.settings.process_options import analyze_options
print(colour_of(analyze_options(load({}))))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program with another setting."""
    found = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "streamgauge", found / "streamgauge", ignore=shutil.ignore_patterns("__pycache__"))
    for name, (before, text) in ADDED.items():
        path = found / name
        source = path.read_text()
        assert source.count(f"\n{before}") == 1, name
        path.write_text(source.replace(f"\n{before}", f"\n{text}{before}"))
    return found


def run(tree: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHONPATH": str(tree), "STREAMGAUGE_DATA": str(tree / "data")} | environment
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=tree, env=variables, capture_output=True, text=True, timeout=60, check=False
    )


def test_setting_reaches_its_process_from_every_source(tree: Path) -> None:
    used = run(tree, "-c", USE, STREAMGAUGE_STALL_COLOUR="blue")
    assert used.stdout == "blue\n", used.stderr
    checked = run(tree, "-m", "streamgauge", "config", "check", "--stall-colour", "blue", "--format", "json")
    assert json.loads(checked.stdout)["settings"]["stall_colour"]["value"] == "blue", checked.stderr
    reference = run(tree, "-m", "streamgauge", "config", "reference").stdout
    assert (
        "| `--stall-colour COLOUR` | `STREAMGAUGE_STALL_COLOUR`, `stall_colour` | `red` | Colour of stalls. |"
        in reference
    )
    help_text = run(tree, "-m", "streamgauge", "analyze", "--help-all").stdout
    assert "--stall-colour COLOUR" in help_text


def test_misspelt_name_and_wrong_value_of_the_setting_are_errors(tree: Path) -> None:
    (tree / "wrong.toml").write_text('stall_color = "blue"\n')
    misspelt = run(tree, "-m", "streamgauge", "config", "check", "--config", "wrong.toml")
    assert misspelt.returncode == 2
    assert "stall_colour" in misspelt.stderr
    wrong = run(tree, "-m", "streamgauge", "analyze", "--stall-colour", "green")
    assert wrong.returncode == 2
    assert "--stall-colour" in wrong.stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Quotas from the settings."""

    model: Glob = "*"
    """Glob of the model."""
    amount: float
    """Most tokens."""
    owner: Annotated[str | None, Field(pattern="^[a-z]+$", description="a name in lower case")] = None
    """Who asks for more. NULL: nobody."""


def test_key_of_a_table_is_a_field_of_its_row() -> None:
    table = model_of(Quota)
    row = Quota(**table.model_validate({"amount": 1.5, "owner": "finance"}).model_dump())
    assert changed(row) == {"amount": 1.5, "owner": "finance"}
    assert create_table("quotas", Quota) == (
        "-- Quotas from the settings.\nCREATE TABLE IF NOT EXISTS quotas (\n"
        "    model VARCHAR NOT NULL, -- Glob of the model.\n"
        "    amount DOUBLE NOT NULL, -- Most tokens.\n"
        "    owner VARCHAR -- Who asks for more. NULL: nobody.\n);"
    )
    for wrong, message in (
        ({"ownr": "finance"}, "unknown key 'ownr', did you mean 'owner'? Allowed: model, amount, owner"),
        ({"owner": "Finance"}, "owner = 'Finance' is not a name in lower case"),
    ):
        with pytest.raises(ValidationError) as error:
            table.model_validate({"amount": 1} | wrong)
        assert problem(error.value, table) == message

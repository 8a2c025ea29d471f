"""Read deployment files and published schemas, for the tests of the deployment files."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from streamgauge.cli import cli
from streamgauge.settings.model import Settings

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def documents(path: Path) -> list[dict[str, Any]]:
    """The YAML documents of a file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def assert_command_parses(argv: list[str]) -> None:
    """Parse a streamgauge command line without running it."""
    context = click.Context(cli, info_name="streamgauge")
    name, command, rest = cli.resolve_command(context, [str(word) for word in argv])
    assert command is not None
    command.make_context(name, rest, parent=context)


def assert_settings_exist(names: set[str]) -> None:
    """Assert that STREAMGAUGE_* variables are settings or locations of settings."""
    known = {f"STREAMGAUGE_{name.upper()}" for name in Settings.model_fields}
    ours = {name for name in names if not name.startswith(("AWS_", "PG"))}  # variables of other tools
    assert ours <= known | {"STREAMGAUGE_CONFIG", "STREAMGAUGE_SECRETS_DIR"}


@cache
def published(module: str, version: str) -> Path:
    """The folder of a Go module, which has the schemas of its project."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed; it fetches the schema")
    done = subprocess.run(
        ["go", "mod", "download", "-json", f"{module}@{version}"], capture_output=True, text=True, cwd="/"
    )
    result = json.loads(done.stdout or "{}")
    if "Dir" not in result:
        pytest.skip(f"{module}@{version} is not available: {result.get('Error', done.stderr)[:200]}")
    return Path(result["Dir"])

"""Every command has a man page that groff renders without warnings. `tests/test_docs.py` checks that they are current."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from streamgauge.cli import cli
from tests.deadline import DEADLINE_S
from tests.deploy.manifests import DEPLOY

PAGES = sorted((DEPLOY / "man").iterdir())


def names(group: click.Group, name: str) -> Iterator[str]:
    yield name
    context = click.Context(group)
    for child in group.list_commands(context):
        command = group.get_command(context, child)
        assert command is not None
        if isinstance(command, click.Group):
            yield from names(command, f"{name}-{child}")
        else:
            yield f"{name}-{child}"


def test_group_and_every_command_have_a_page() -> None:
    assert [page.name for page in PAGES] == sorted(f"{name}.1" for name in names(cli, "streamgauge"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_renders_without_warnings(page: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("no groff; on Debian: apt-get install groff-base")
    command = ["groff", "-k", "-man", "-ww", "-Tascii", "-P-cbou", page]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (0, "")
    sections = [line for line in done.stdout.splitlines()[1:-1] if re.match(r"[A-Z]", line)]
    assert sections[:3] == ["NAME", "SYNOPSIS", "DESCRIPTION"]
    assert "EXIT STATUS" in sections

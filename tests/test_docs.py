"""The documentation tells the truth: its commands parse, its reference is current, its links lead somewhere."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from analytics.query.reader import Reader
from analytics.storage.location import SQLITE, locate
from analytics.storage.store import Store
from streamgauge.cli import ORDER, cli

ROOT = Path(__file__).resolve().parent.parent
GENERATED: dict[Path, str] = runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]()
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")])


def console_commands(text: str) -> list[str]:
    """Every `$ command` of the console blocks, continuation lines (quotes still open) joined."""
    commands: list[str] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.S):
        pending = ""
        for line in block.splitlines():
            if not pending and not line.startswith("$ "):
                continue
            pending = f"{pending}\n{line}" if pending else line[2:]
            try:
                shlex.split(pending, comments=True)
            except ValueError:  # a quote is open
                continue
            if not pending.endswith("\\"):
                commands.append(pending)
                pending = ""
    return commands


def parse(argv: list[str]) -> None:
    """Parse a streamgauge command line as click would, without running it."""
    context = click.Context(cli, info_name="streamgauge")
    name, command, rest = cli.resolve_command(context, argv)
    assert command is not None
    made = command.make_context(name, rest, parent=context)
    if isinstance(command, click.Group):
        command.resolve_command(
            made, made.protected_args + made.args if hasattr(made, "protected_args") else made.args
        )


STREAMGAUGE = [
    pytest.param(command, id=f"{page.name}: {command.splitlines()[0][:60]}")
    for page in PAGES
    for command in console_commands(page.read_text())
    if re.match(r"(\.venv/bin/)?streamgauge ", command)
]


@pytest.mark.parametrize("command", STREAMGAUGE)
def test_every_documented_command_parses(command: str) -> None:
    parse(shlex.split(command.removesuffix(" &"), comments=True)[1:])


@pytest.fixture(scope="module")
def empty_tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    location = locate(SQLITE, tmp_path_factory.mktemp("tables"))
    Store(location).close()
    reader = Reader(location, lock_down=False)
    yield reader
    reader.close()


@pytest.mark.parametrize("command", [p for p in STREAMGAUGE if " sql " in str(p.values[0])])
def test_every_documented_query_runs(command: str, empty_tables: Reader) -> None:
    words = shlex.split(command, comments=True)
    empty_tables.query(next(word for word in words[2:] if " " in word), max_rows=1000, timeout_s=20)


def test_every_make_target_in_the_docs_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        for target in re.findall(r"`make ([a-z-]+)", page.read_text()) + re.findall(
            r"^\$ make ([a-z-]+)", page.read_text(), re.M
        ):
            assert target in targets, f"{page.name}: make {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{page.name}: {target}"
        if anchor and path.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in slugs, f"{page.name}: {target}"


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.name)
def test_generated_pages_are_current(page: Path) -> None:
    assert page.read_text() == GENERATED[page], "run `make reference`"


def test_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text()
    for name in ORDER:
        assert re.search(rf"\b{name}\b", text), name

"""The documentation agrees with the code: commands parse, queries run, generated pages are current, links resolve."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest

from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.storage.location import SQLITE, locate
from streamgauge.analytics.storage.store import Store
from streamgauge.cli import COMMAND_ORDER, cli

ROOT = Path(__file__).resolve().parent.parent
GENERATED: dict[Path, str] = runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]()
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")])


def console_commands(text: str) -> list[str]:
    """The `$ command` lines of all console blocks, with continuation lines (open quotes) joined."""
    commands: list[str] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.S):
        pending = ""
        for line in block.splitlines():
            if not pending and not line.startswith("$ "):
                continue
            pending = f"{pending}\n{line}" if pending else line[2:]
            try:
                shlex.split(pending, comments=True)
            except ValueError:  # open quote
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
    parsed = command.make_context(name, rest, parent=context)
    if isinstance(command, click.Group):
        command.resolve_command(
            parsed, parsed.protected_args + parsed.args if hasattr(parsed, "protected_args") else parsed.args
        )


STREAMGAUGE = [
    pytest.param(command, id=f"{page.name}: {command.splitlines()[0][:60]}")
    for page in PAGES
    for command in console_commands(page.read_text())
    if re.match(r"(\.venv/bin/)?streamgauge ", command)
]


@pytest.mark.parametrize("command", STREAMGAUGE)
def test_every_documented_command_parses(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(command.removesuffix(" &"), comments=True)[1:]
    monkeypatch.chdir(tmp_path)
    for word in words:
        if re.fullmatch(r"[\w-]+\.duckdb", word):  # a command checks that its file exists
            Path(word).touch()
    parse(words)


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
def test_every_relative_link_and_anchor_resolves(page: Path) -> None:
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


def messages_of(path: Path) -> Iterator[str]:
    """The string literals of a module, with `…` for each formatted value."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[-+.\d]*[a-z]", "…", node.value)


def test_every_quoted_message_of_the_troubleshooting_page_is_in_the_code() -> None:
    page = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text()
    quoted = {
        message
        for row in re.findall(r"^\| (.*?) \|", page, re.M)
        for message in re.findall(r"`([^`]+)`", row)
        if len(message.split()) > 3
    }
    assert len(quoted) > 30
    texts = [
        text for path in (ROOT / "streamgauge").rglob("*.py") for text in messages_of(path) if " " in text
    ]
    unknown = []
    for message in quoted:
        pattern = re.compile(".*".join(re.escape(part) for part in message.split("…")), re.S)
        if not any(pattern.search(text) for text in texts):
            unknown.append(message)
    assert unknown == []


def test_every_image_exists_and_is_used() -> None:
    shown = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", page.read_text())
    }
    assert shown == set((ROOT / "docs" / "images").iterdir())


def test_external_links_are_well_formed() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([a-z]+:[^)\s]*)\)", page.read_text()):
            url = urlsplit(target)
            assert url.scheme in ("https", "http"), f"{page.name}: {target}"
            assert "." in (url.hostname or "") or url.hostname == "localhost", f"{page.name}: {target}"


def test_every_page_named_in_the_code_exists() -> None:
    named = {
        (path.relative_to(ROOT), page)
        for package in ("streamgauge", "bench", "deploy", "tests")
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".sql", ".yaml", ".service", ".toml", "") and path.is_file()
        for page in re.findall(r"(?<![\w/-])docs/(?!gen-ai/)[\w/-]+\.md", path.read_text(errors="ignore"))
    }
    assert [(path, page) for path, page in named if not (ROOT / page).exists()] == []


def test_every_source_file_named_in_a_page_exists() -> None:
    example = "tests/analytics/captures/acme/"
    for page in PAGES:
        for path in re.findall(
            r"`((?:ingest|analytics|dashboard|streamgauge|deploy|tests|bench)/[\w/.-]+)`", page.read_text()
        ):
            assert path.startswith(example) or (ROOT / path).exists(), f"{page.name}: {path}"


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


def test_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text()
    for name in COMMAND_ORDER:
        assert re.search(rf"\b{name}\b", text), name

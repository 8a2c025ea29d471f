"""docs/reference/dialects.md agrees with the code, and the example of docs/how-to/add-a-dialect.md runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamgauge.analytics.dialects import all_dialects, vendors
from streamgauge.analytics.dialects.dialect import ExchangeInfo

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "reference" / "dialects.md").read_text()
HOW_TO = (DOCS / "how-to" / "add-a-dialect.md").read_text()
BY_NAME = {dialect.name: dialect for dialect in all_dialects()}


def _rows() -> list[list[str]]:
    table = PAGE.partition("| system |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def _quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def _providers() -> set[str]:
    known = {*vendors.HOSTS.values(), *vendors.SERVERS.values(), *vendors.MEMBERS.values()}
    known |= {*vendors.HEADERS.values(), *vendors.PATHS.values()}
    return known | {dialect.provider for dialect in all_dialects()}


def test_table_lists_exactly_the_dialects() -> None:
    assert {_quoted(row[2])[0] for row in _rows()} == {*BY_NAME, "unknown"}


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row[0])
def test_documented_endpoints_are_claimed_by_their_dialect(row: list[str]) -> None:
    _, provider, dialect, endpoints, _, _ = row
    if _quoted(dialect) == ["unknown"]:
        return
    assert _quoted(provider)[0] in _providers()
    assert _quoted(endpoints)
    for path in _quoted(endpoints):
        host = "api.writer.com" if _quoted(dialect) == ["writer_completion"] else ""
        assert BY_NAME[_quoted(dialect)[0]].claims(ExchangeInfo(path=path, host=host)) > 0, path


def test_documented_providers_match_the_code() -> None:
    providers = {
        "host": set(vendors.HOSTS.values()),
        "response header": set(vendors.HEADERS.values()) | set(vendors.SERVERS.values()),
        "path": set(vendors.PATHS.values()),
        "field": set(vendors.MEMBERS.values()) | {"ollama", "openrouter"},
    }
    for how, names in providers.items():
        (listed,) = re.findall(rf"^\| {how} \| (.*) \|$", PAGE, re.M)
        assert set(_quoted(listed)) == names, how


def test_vendor_by_host_header_or_path() -> None:
    def vendor(**exchange: Any) -> str | None:
        return vendors.vendor_of(ExchangeInfo(**exchange))

    assert vendor(host="api.groq.com") == "groq"
    assert vendor(host="my-resource.openai.azure.com") == "azure.ai.openai"
    assert vendor(host="notgroq.com.evil.example") is None
    assert vendor(host="10.0.0.1", response_headers={"x-xerotier-worker-id": "w"}) == "xerotier"
    assert vendor(host="10.0.0.1", response_headers={"server": "llama.cpp"}) == "llama.cpp"
    assert vendor(path="/openai/deployments/x/chat/completions") == "azure.ai.openai"
    assert vendor(host="api.groq.com", response_headers={"x-litellm-version": "1"}) == "groq"
    assert vendor() is None


USE_OF_EXAMPLE = """
import json, sys
from pathlib import Path
from streamgauge.ingest.redaction.body_redactor import BodyRedactor
from streamgauge.python_api.recorded_response import ExchangeHints, members, read_file

recording, redacted = Path(sys.argv[1]), Path(sys.argv[2])
redacted.write_bytes(BodyRedactor().feed(recording.read_bytes()))
hints = {"recorded": ExchangeHints(), "elsewhere": ExchangeHints(path="/elsewhere"), "redacted": ExchangeHints(path="/elsewhere")}
files = {"redacted": redacted}
print(json.dumps({name: members(read_file(files.get(name, recording), hint)) for name, hint in hints.items()}, default=str))
"""


def test_how_to_example_is_one_file_in_a_copy_of_the_tree(tmp_path: Path) -> None:
    """The steps of the guide, literally. All that changes beside its files is what `make reference` writes."""
    code, body, sidecar = (
        re.findall(rf"```{kind}\n(.*?)```", HOW_TO, re.DOTALL)[0] for kind in ("python", "text", "json")
    )
    for folder in (
        "deploy",
        "docs",
        "streamgauge",
        "tests/analytics/captures",
    ):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for file in ("pyproject.toml", "README.md", "mkdocs.yml", "LICENSE"):
        shutil.copy(ROOT / file, tmp_path)
    recording = tmp_path / "tests" / "analytics" / "captures" / "acme" / "talk.sse"
    recording.parent.mkdir()
    recording.write_text(body + "\n")
    recording.with_suffix(".json").write_text(sidecar)
    (tmp_path / "streamgauge" / "analytics" / "dialects" / "acme_talk.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*arguments: str | Path) -> str:
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(tmp_path / "docs" / "generate.py")
    changed = {
        str(path.relative_to(tmp_path))
        for path in tmp_path.rglob("*")
        if path.is_file() and path.suffix in (".py", ".json", ".md", ".1", ".sql", ".toml")
        and (not (was := ROOT / path.relative_to(tmp_path)).exists() or was.read_bytes() != path.read_bytes())
    }  # fmt: skip
    assert changed == {
        "streamgauge/analytics/dialects/acme_talk.py", "tests/analytics/captures/acme/talk.json",
        "docs/reference/dialects.md", "streamgauge/ingest/redaction/json_keys.json",
    }  # fmt: skip
    assert "| Acme | `acme` | `acme_talk` |" in (tmp_path / "docs" / "reference" / "dialects.md").read_text()

    redacted = tmp_path / "redacted.sse"
    found = json.loads(run("-c", USE_OF_EXAMPLE, recording, redacted))
    expected = json.loads(sidecar)["expected"]
    assert {key: found["recorded"][key] for key in expected} == expected
    assert found["recorded"]["malformed_events"] == 0
    assert found["elsewhere"]["dialect"] == "acme_talk", "recognised by its events too"
    filled = expected | {"text": "x" * 11}
    assert {key: found["redacted"][key] for key in expected} == filled
    assert redacted.read_text() == (body + "\n").replace("Hello", "xxxxx").replace(" there", "xxxxxx")


def test_how_to_is_short() -> None:
    words = re.sub(r"```.*?```", "", HOW_TO, flags=re.DOTALL).split()
    assert len(words) < 250

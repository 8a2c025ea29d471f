"""docs/reference/dialects.md agrees with the code, and the example of docs/how-to/add-a-dialect.md runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from streamgauge.analytics.decoding import dialect_selection
from streamgauge.analytics.dialects import all_dialects, vendors
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.openai_completions import PROVIDER_FIELDS
from streamgauge.recorded_response import ExchangeHints, members, read_file

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "dialects.md").read_text()
HOW_TO = (DOCS / "how-to" / "add-a-dialect.md").read_text()
BY_NAME = {dialect.name: dialect for dialect in all_dialects()}


def _rows() -> list[list[str]]:
    table = PAGE.partition("| system |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def _quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def _providers() -> set[str]:
    known = {*vendors.HOSTS.values(), *vendors.SERVERS.values(), *PROVIDER_FIELDS.values()}
    known |= {vendor for _, vendor in (*vendors.HEADERS, *vendors.PATHS)}
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
        "response header": {vendor for _, vendor in vendors.HEADERS} | set(vendors.SERVERS.values()),
        "path": {vendor for _, vendor in vendors.PATHS},
        "field": set(PROVIDER_FIELDS.values()) | {"ollama", "openrouter"},
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


def test_how_to_example_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, body, sidecar = (
        re.findall(rf"```{kind}\n(.*?)```", HOW_TO, re.DOTALL)[0] for kind in ("python", "text", "json")
    )
    module: dict[str, Any] = {}
    exec(compile(code, "acme_talk.py", "exec"), module)
    with_acme = (*all_dialects(), module["DIALECT"])
    monkeypatch.setattr(dialect_selection, "all_dialects", lambda: with_acme)
    (tmp_path / "talk.sse").write_text(body + "\n")
    (tmp_path / "talk.json").write_text(sidecar)
    expected = json.loads(sidecar)["expected"]
    found = members(read_file(tmp_path / "talk.sse", ExchangeHints()))
    assert {key: found[key] for key in expected} == expected
    assert found["malformed_events"] == 0
    found = members(read_file(tmp_path / "talk.sse", ExchangeHints(path="/elsewhere")))
    assert found["dialect"] == "acme_talk", "recognised by its events too"


def test_how_to_is_short() -> None:
    words = re.sub(r"```.*?```", "", HOW_TO, flags=re.DOTALL).split()
    assert len(words) < 250

"""docs/explanation/guarantees.md names existing tests, docs/reference/limits.md has the limits of the code."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
value_of = runpy.run_path(str(ROOT / "docs" / "generate.py"))["value_of"]
PAGE = (ROOT / "docs" / "explanation" / "guarantees.md").read_text()
LIMITS = (ROOT / "docs" / "reference" / "limits.md").read_text()
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "ms": 1}


def test_every_named_test_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 50
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"^(def|class|async def) {name}\b", (ROOT / path).read_text(), re.MULTILINE)
    ]
    assert missing == []


def test_every_chaos_test_is_on_the_page() -> None:
    for path in sorted((ROOT / "tests" / "chaos").glob("test_*.py")):
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE):
            assert f"`tests/chaos/{path.name}::{name}`" in PAGE, name


def test_every_limit_equals_the_code() -> None:
    listed = re.findall(r"([\d,]+d?)(?: (KiB|MiB|GiB|ms))? \(`([^`]+)`\)", LIMITS)
    assert len(listed) > 35
    for number, unit, name in listed:
        value = value_of(name)
        expected = number if number.endswith("d") else int(number.replace(",", "")) * UNITS.get(unit, 1)
        assert value == expected, f"{name} is {value}, the page says {number} {unit}"


def test_every_counter_exists_in_the_code() -> None:
    sources = "".join(
        path.read_text() for part in ("ingest", "analytics") for path in (ROOT / part).rglob("*.py")
    )
    rows = [row.strip("|").split("|") for row in LIMITS.splitlines() if row.startswith("| ")][1:]
    counters = [name for row in rows for name in re.findall(r"`([^`]+)`", row[-1])]
    assert len(counters) > 20
    for name in counters:
        parts = {
            name,
            name.removeprefix("log_"),
            name.removesuffix("_rows"),
            name.removeprefix("expired_").removesuffix("_rows"),
        }
        assert any(re.search(rf"\b{re.escape(part)}\b", sources) for part in parts), name

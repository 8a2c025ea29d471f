"""docs/reliability.md names a test for each promise: the tests must be there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "reliability.md").read_text())
    assert len(named) > 15
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"^(def|class|async def) {name}\b", (ROOT / path).read_text(), re.MULTILINE)
    ]
    assert missing == []

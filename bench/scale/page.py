"""Write the results of this bench to docs/explanation/performance.md, between the markers of each part."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.tap.page import machine

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "performance.md"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table of numbers."""
    return [f"| {' | '.join(row)} |" for row in (head, ["--:"] * len(head), *rows)]


def write(part: str, lines: Sequence[str]) -> None:
    """Replace a part of the page by these lines, the date and the machine."""
    before, begin, rest = PAGE.read_text().partition(f"<!-- bench scale, {part}: begin -->")
    _, end, after = rest.partition(f"<!-- bench scale, {part}: end -->")
    assert end, f"{PAGE} has no markers of {part}"
    at = f"{datetime.now(UTC):%Y-%m-%d}, {machine()}."
    PAGE.write_text("\n".join([before + begin, "", *lines, "", at, "", end + after]))

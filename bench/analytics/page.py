"""The figures of the analytics' bench: kept in results.json, written into docs/performance.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.tap.page import machine

RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
BEGIN, END = "<!-- bench analytics: begin -->", "<!-- bench analytics: end -->"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table, its first column words, the others numbers."""
    return [
        "| " + " | ".join(head) + " |",
        "|---" + "|--:" * (len(head) - 1) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def keep(part: str, lines: list[str]) -> None:
    """Keep a part's lines, with when and where they were measured."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    at = datetime.now(UTC).strftime("%Y-%m-%d")
    known[part] = {"lines": lines, "machine": machine(), "at": at}
    RESULTS.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")


def write(order: Sequence[str]) -> None:
    """Write the section between the marks, of all parts that were ever kept."""
    known = json.loads(RESULTS.read_text())
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    parts = []
    for name in order:
        if name in known:
            kept = known[name]
            note = f"`python -m bench analytics {name}`, {kept['at']}, {kept['machine']}."
            parts.append("\n".join([*kept["lines"], "", note, ""]))
    PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(parts) + f"\n{END}{after}")

"""Save benchmark results in results.json and write them to docs/explanation/performance.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench.tap.page import machine

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "performance.md"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table with text in the first column and numbers in the others."""
    return [
        "| " + " | ".join(head) + " |",
        "|---" + "|--:" * (len(head) - 1) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def write_section(name: str, text: str, page: Path = PAGE) -> bool:
    """Replace what is between `<!-- bench NAME: begin -->` and `<!-- bench NAME: end -->`. False if the page has no such section."""
    begin, end = (f"<!-- bench {name}: {which} -->" for which in ("begin", "end"))
    before, begun, rest = page.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    if begun and ended:
        page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}")
    return bool(begun and ended)


@dataclass(frozen=True)
class Section:
    """The section of one bench."""

    name: str
    results: Path
    page: Path = PAGE

    def keep(self, part: str, lines: Sequence[str], arguments: str = "", **values: object) -> None:
        """Save a part's lines with command, date, machine and optional raw values."""
        known = json.loads(self.results.read_text()) if self.results.exists() else {}
        known[part] = {
            "lines": [*lines],
            "command": " ".join(f"python -m bench {self.name} {part} {arguments}".split()),
            "machine": machine(),
            "at": datetime.now(UTC).strftime("%Y-%m-%d"),
            **values,
        }
        self.results.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")

    def write(self, order: Sequence[str]) -> bool:
        """Write all saved parts to the section. False if the page has no such section."""
        known = json.loads(self.results.read_text())
        parts = []
        for name in order:
            if name in known:
                kept = known[name]
                command = kept.get("command", f"python -m bench {self.name} {name}")
                note = f"`{command}`, {kept['at']}, {kept['machine']}."
                parts.append("\n".join([*kept["lines"], "", note, ""]))
        return write_section(self.name, "\n".join(parts), self.page)

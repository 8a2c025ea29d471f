"""The reference table of docs/reference/telemetry.md is what the catalogue says. A failure prints the rows as they ought to be."""

from __future__ import annotations

from pathlib import Path

from analytics.telemetry.catalogue import catalogue
from analytics.telemetry.prometheus import prometheus_name
from analytics.telemetry.semconv import PROFILES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "telemetry.md"
BEGIN, END = "<!-- metrics -->", "<!-- end of metrics -->"
ENDS = {"counter": "_total", "total": "_total"}


def table() -> list[str]:
    """Lines of Markdown."""
    lines = ["| metric | profile | kind | unit | for Prometheus | what |", "|---|---|---|---|---|---|"]
    known = {profile: catalogue(names) for profile, names in PROFILES.items()}
    for profile, instruments in known.items():
        for i in instruments:
            both = all(any(o.name == i.name for o in other) for other in known.values())
            if both and profile != "1.41":
                continue
            kind = "counter" if i.kind == "total" else i.kind
            name = prometheus_name(i.name, i.unit) + ENDS.get(i.kind, "")
            lines.append(
                f"| `{i.name}` | {'both' if both else profile} | {kind} | {i.unit} | `{name}` | {i.description} |"
            )
    return lines


def test_the_reference_has_every_metric_as_the_code_has_it() -> None:
    text = PAGE.read_text()
    found = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip().splitlines()
    assert found == table(), "\n".join(table())

"""The committed figures: their key, the comparison with new ones, and their table in docs/explanation/performance.md."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from bench.analytics.page import table, write_section
from bench.instructions.in_memory import DECODE, MEASURE
from bench.instructions.live import LIVE, OF_LOOP
from streamgauge.ingest.tap import is_compiled

RESULTS = Path(__file__).with_name("results.json")
EXTRAS = ("analytics", "dashboard")
GATE, LIVE_GATE = 0.02, 0.05
LIVE_NOISE = 2000
"""A smaller difference of a live figure is noise: a chunk of a busy stream costs the loop thread nearly nothing."""


def key() -> dict[str, str]:
    """What the figures depend on, apart from the code: Python and its build, compiler, libraries, valgrind, and the CPU, for which
    libraries choose their code."""
    options = re.findall(r"--(?:enable|with)[\w-]+", sysconfig.get_config_var("CONFIG_ARGS") or "")
    built = " ".join([platform.python_version(), platform.python_compiler(), *options])
    return {
        "Python": built,
        "compiler": _first_line("cc", "--version") if is_compiled() else "none",
        "glibc": platform.libc_ver()[1],
        "valgrind": _first_line("valgrind", "--version"),
        "CPU": _cpu(),
        **{name: metadata.version(name) for name in _libraries()},
    }


def _cpu() -> str:
    """Its name and the extensions for which libraries choose their code."""
    found = dict(re.findall(r"(?m)^(\S.*?)\s*: (.*)$", Path("/proc/cpuinfo").read_text()))
    flags = re.findall(r"\b(?:avx|bmi|erms|fsrm|sse4)\w*", found.get("flags", ""))
    return " ".join([found.get("model name", platform.machine()), *sorted(flags)])


def _libraries() -> list[str]:
    """The packages that the base install and the extras name, and Cython."""
    wanted = [f"extra == '{extra}'" for extra in EXTRAS]
    required = [line.partition(";")[::2] for line in metadata.requires("streamgauge") or ()]
    names = {re.split(r"[<>=~! \[]", name)[0] for name, of in required if not of or of.strip() in wanted}
    return sorted({*names, "cython"} - {"streamgauge"})


def _first_line(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[0]


@dataclass
class Committed:
    """`results.json`. Figures are instructions per unit, by case."""

    key: dict[str, str]
    figures: dict[str, float]
    components: dict[str, float]
    """Of the loop thread in a short request."""
    reason: str
    """Why the latest figures differ from those before."""
    at: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d"))

    def other_key(self) -> list[str]:
        """A line for each part of the key that is different here."""
        here = key()
        names = sorted({*here, *self.key})
        return [
            f"{name}: {self.key.get(name, 'none')} when committed, {here.get(name, 'none')} here"
            for name in names
            if here.get(name) != self.key.get(name)
        ]


def committed() -> Committed | None:
    return Committed(**json.loads(RESULTS.read_text())) if RESULTS.exists() else None


def changes(before: Mapping[str, float], now: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """A line for each figure, and the names of those that differ by more than the gate. A case without a figure is new."""
    lines, changed = [], []
    for name, value in now.items():
        is_live = name.removesuffix(OF_LOOP) in LIVE
        gate = LIVE_GATE if is_live else GATE
        known = before.get(name)
        line = f"{name}: {known or 0:,.0f} → {value:,.0f}" + (f", {value / known - 1:+.2%}" if known else "")
        if known is None or abs(value - known) > max(abs(known) * gate, LIVE_NOISE * is_live):
            changed.append(name)
            line += f": above the gate of {gate:.0%}"
        lines.append(line)
    return lines, changed


def save(found: Committed) -> None:
    """Write the figures and the page."""
    RESULTS.write_text(json.dumps(asdict(found), indent=1, ensure_ascii=False) + "\n")
    write_section("instructions", section(found))


def section(found: Committed) -> str:
    """The tables of the page."""
    figures = dict(found.figures)
    live = [(name, figures.pop(name + OF_LOOP), figures.pop(name)) for name in LIVE if name in figures]
    decoded = [name.removeprefix(DECODE) for name in figures if name.startswith(DECODE)]
    dialects = [(name, figures.pop(DECODE + name), figures.pop(MEASURE + name)) for name in decoded]
    total = sum(found.components.values())
    components = [(f"{name}, {value / total:.0%}", value) for name, value in found.components.items()]
    tables = [
        (["live", "loop thread", "all threads"], live),
        (["loop thread of a short request", "instructions"], components),
        (["an event of", "decode", "decode and measure"], dialects),
        (["in memory", "instructions"], figures.items()),
    ]
    known = ", ".join(f"{name} {value}" for name, value in found.key.items())
    note = f"`python -m bench instructions`, {found.at}. Latest change: {found.reason}. {known}."
    lines: list[str] = []
    for head, rows in tables:
        lines += [*table(head, [(row[0], *(f"{value:,.0f}" for value in row[1:])) for row in rows]), ""]
    return "\n".join([*lines, note, ""])

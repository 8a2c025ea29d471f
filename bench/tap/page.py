"""The figures of the tap's bench: kept in results.json, shown as tables, written into docs/performance.md."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
BEGIN, END = "<!-- bench tap: begin -->", "<!-- bench tap: end -->"

SHOW: dict[str, tuple[str, Callable[[float], str]]] = {
    "p50_ns": ("p50 µs", lambda v: f"{v / 1e3:,.0f}"),
    "p99_ns": ("p99 µs", lambda v: f"{v / 1e3:,.0f}"),
    "per_s": ("per s", lambda v: f"{v:,.0f}"),
    "cpu_s_per_million": ("CPU s per million", lambda v: f"{v:.2f}"),
    "cpu_share": ("of its core", lambda v: f"{v:.0%}"),
    "bytes_per_stream": ("KiB per stream", lambda v: f"{v / 1024:.1f}"),
    "shed_bytes": ("bytes shed", lambda v: f"{v:,.0f}"),
    "shed_share": ("shed", lambda v: f"{v:.0%}"),
    "log_append_errors": ("appends that failed", lambda v: f"{v:.0f}"),
    "errors": ("errors", lambda v: f"{v:.0f}"),
}
_RATIO = frozenset({"p50_ns", "p99_ns", "per_s", "cpu_s_per_million"})


_WORST = frozenset({"errors", "shed_bytes", "shed_share", "log_append_errors"})


@dataclasses.dataclass(frozen=True)
class Result:
    """What was measured in one part: the runs of each target, in the order of the rounds."""

    what: str
    shown: tuple[str, ...]
    base: str
    """The target that ratios are to."""
    runs: dict[str, list[dict[str, float]]]

    def value(self, target: str, key: str) -> float:
        """The median over the rounds; of errors and losses the worst."""
        of_rounds = self._of_rounds(target, key)
        return max(of_rounds) if key in _WORST else statistics.median(of_rounds)

    def ratio(self, target: str, key: str) -> float | None:
        """To the base, the median of the ratios within the rounds; None where there is nothing to compare."""
        if self.base not in self.runs:
            return None
        pairs = zip(self._of_rounds(target, key), self._of_rounds(self.base, key), strict=True)
        found = [value / base for value, base in pairs if value and base]
        return statistics.median(found) if found else None

    def _of_rounds(self, target: str, key: str) -> list[float]:
        if key == "shed_share":
            return [run["shed_bytes"] / max(1.0, run["forwarded_bytes"]) for run in self.runs[target]]
        return [run[key] for run in self.runs[target]]


def machine() -> str:
    """What it was measured on."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores of {cpu}, {gib:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}"


def keep(name: str, result: Result) -> None:
    """Keep the figures of a part, with when and where."""
    _keep(name, dataclasses.asdict(result))


def keep_profile(text: str) -> None:
    """Keep the tables of the profile."""
    _keep("profile", {"text": text})


def _keep(name: str, values: dict[str, object]) -> None:
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[name] = {**values, "machine": machine(), "at": datetime.now(UTC).strftime("%Y-%m-%d")}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


def table(result: Result) -> str:
    """A Markdown table, with ratios to the base."""
    head = [result.what]
    for key in result.shown:
        head += [SHOW[key][0], f"× {result.base}"] if key in _RATIO else [SHOW[key][0]]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    for target in result.runs:
        row = [target]
        for key in result.shown:
            row.append(SHOW[key][1](result.value(target, key)))
            if key in _RATIO:
                ratio = result.ratio(target, key)
                row.append("–" if ratio is None else f"{ratio:.2f}")
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def write(order: list[str]) -> None:
    """Write the section between the marks."""
    known = json.loads(RESULTS.read_text())
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    parts = []
    for name in order:
        if name not in known:
            continue
        kept = known[name]
        when = f"{kept['at']}, {kept['machine']}."
        if "text" in kept:
            parts.append(f"{kept['text']}\n`python -m bench tap {name}`, {when}\n")
            continue
        result = Result(kept["what"], tuple(kept["shown"]), kept["base"], kept["runs"])
        rounds = len(next(iter(result.runs.values())))
        how = f"medians (of errors and losses the worst) of {rounds} rounds"
        parts.append(f"{table(result)}\n`python -m bench tap {name}`, {how}, {when}\n")
    PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(parts) + f"\n{END}{after}")

"""Results of the tap's benchmark: store them in results.json, make tables, write docs/explanation/performance.md."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import random
import statistics
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "performance.md"
BEGIN, END = "<!-- bench tap: begin -->", "<!-- bench tap: end -->"

SHOW: dict[str, tuple[str, Callable[[float], str]]] = {
    "p50_ns": ("p50 µs", lambda v: f"{v / 1e3:,.0f}"),
    "p99_ns": ("p99 µs", lambda v: f"{v / 1e3:,.0f}"),
    "per_s": ("per s", lambda v: f"{v:,.0f}"),
    "cpu_s_per_million": ("CPU s per million", lambda v: f"{v:.2f}"),
    "cpu_share": ("proxy core", lambda v: f"{v:.0%}"),
    "load_share": ("load core", lambda v: f"{v:.0%}"),
    "bytes_per_stream": ("KiB per stream", lambda v: f"{v / 1024:.1f}"),
    "shed_bytes": ("bytes dropped", lambda v: f"{v:,.0f}"),
    "shed_share": ("dropped", lambda v: f"{v:.1%}"),
    "unaccounted_bytes": ("unaccounted bytes", lambda v: f"{v:,.0f}"),
    "log_append_errors": ("failed appends", lambda v: f"{v:.0f}"),
    "errors": ("errors", lambda v: f"{v:.0f}"),
}
_RATIO = frozenset({"p50_ns", "p99_ns", "per_s", "cpu_s_per_million"})
_WORST = frozenset({"errors", "shed_bytes", "shed_share", "unaccounted_bytes", "log_append_errors"})
_NOISE_DRAWS, _NOISE_OUTSIDE = 4_000, 0.01
"""Share of the drawn medians that counts as extreme. By simulation, the remaining range contains 96 of 100 identical targets
for 11 rounds (not 99, because there are few rounds to draw from)."""


@dataclasses.dataclass(frozen=True)
class Result:
    """Measurements of one part: the runs of each target, by round."""

    what: str
    shown: tuple[str, ...]
    base: str
    """The target that ratios refer to."""
    runs: dict[str, list[dict[str, float]]]
    twin: str | None = None
    """A second target identical to the base: their difference is noise."""
    took_s: float = 0.0

    def value(self, target: str, key: str) -> float:
        """The median over the rounds; the maximum for errors and losses."""
        values = self._round_values(target, key)
        return max(values, key=abs) if key in _WORST else statistics.median(values)

    def ratio(self, target: str, key: str) -> float | None:
        """The median of the ratios to the base within the rounds; None without values."""
        found = self._ratios(target, key)
        return statistics.median(found) if found else None

    def noise(self, key: str) -> tuple[float, float] | None:
        """The range of the median ratio to the base for 96 of 100 identical targets.

        Bootstrap over the rounds of base and twin, with the roles of the two drawn at random.
        """
        logs = [math.log(ratio) for ratio in self._ratios(self.twin, key)] if self.twin else []
        if not logs:
            return None
        draw = random.Random(0)
        medians = sorted(
            statistics.median(draw.choice((-1, 1)) * draw.choice(logs) for _ in logs)
            for _ in range(_NOISE_DRAWS)
        )
        beyond = int(_NOISE_DRAWS * _NOISE_OUTSIDE / 2)
        return math.exp(medians[beyond]), math.exp(medians[-1 - beyond])

    def _ratios(self, target: str, key: str) -> list[float]:
        if self.base not in self.runs:
            return []
        pairs = zip(self._round_values(target, key), self._round_values(self.base, key), strict=True)
        return [value / base for value, base in pairs if value and base]

    def _round_values(self, target: str, key: str) -> list[float]:
        if key == "shed_share":
            return [run["shed_bytes"] / max(1.0, run["forwarded_bytes"]) for run in self.runs[target]]
        return [run.get(key, 0.0) for run in self.runs[target]]


def machine() -> str:
    """CPU, memory, kernel and Python version of this machine."""
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
    """Store the results of a part with date and machine."""
    _keep(name, dataclasses.asdict(result))


def keep_profile(text: str) -> None:
    """Store the tables of the profile."""
    _keep("profile", {"text": text})


def _keep(name: str, values: dict[str, object]) -> None:
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    stored[name] = {**values, "machine": machine(), "at": datetime.now(UTC).strftime("%Y-%m-%d")}
    (temporary := RESULTS.with_suffix(".new")).write_text(json.dumps(stored, indent=1) + "\n")
    temporary.replace(RESULTS)


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
    failed = {name: result.value(name, "errors") for name in result.runs}
    lines += [
        f"\nErrors of {name}: {count:.0f}."
        for name, count in failed.items()
        if count and "errors" not in result.shown
    ]
    return "\n".join(lines) + "\n" + verdict(result)


def verdict(result: Result) -> str:
    """For each ratio: the noise and the targets within, below and above it. "" without a twin."""
    lines = []
    for key in result.shown:
        if key not in _RATIO or (band := result.noise(key)) is None:
            continue
        groups: dict[str, list[str]] = {"within": [], "below": [], "above": []}
        for name in result.runs:
            ratio = result.ratio(name, key)
            if name not in (result.base, result.twin) and ratio is not None:
                where = "below" if ratio < band[0] else "above" if ratio > band[1] else "within"
                groups[where].append(f"{name} ({ratio:.2f})")
        summary = "; ".join(f"{where}: {', '.join(names)}" for where, names in groups.items() if names)
        lines.append(
            f"- {SHOW[key][0].split()[0]}: noise {band[0]:.2f} … {band[1]:.2f}. {summary[:1].upper()}{summary[1:]}."
        )
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def write(order: list[str]) -> None:
    """Regenerate the section between the marks."""
    stored = json.loads(RESULTS.read_text())
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    parts = []
    for name in order:
        if name not in stored:
            continue
        part = stored[name]
        when = f"{part['at']}, {part['machine']}."
        if "text" in part:
            parts.append(f"{part['text']}\n`python -m bench tap {name}`, {when}\n")
            continue
        given = {field.name: part[field.name] for field in dataclasses.fields(Result) if field.name in part}
        result = Result(**{**given, "shown": tuple(part["shown"])})
        runs = next(iter(result.runs.values()))
        how = f"medians (maxima of errors and losses) of {len(runs)} rounds of {runs[0]['seconds']:.0f} s"
        parts.append(f"{table(result)}\n`python -m bench tap {name}`, {how}, {when}\n")
    PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(parts) + f"\n{END}{after}")

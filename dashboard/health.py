"""Is it healthy? Each objective held against what was measured. Pure.

An objective is judged where its measure is known; nothing known is no judgement, not health. Latencies are judged at the 95th
percentile of the streams, errors by their rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from dashboard import formatting

State = Literal["met", "broken", "unknown"]


@dataclass(frozen=True)
class Slos:
    """The objectives, as configured: seconds, and a share of streams."""

    ttft_s: float = 2.0
    itl_s: float = 0.1
    error_rate: float = 0.05


@dataclass(frozen=True)
class Check:
    """One objective and what was measured."""

    name: str
    measured: float | None
    limit: float
    form: Callable[[float | None], str]

    @property
    def state(self) -> State:
        if self.measured is None or not formatting.known(self.measured):
            return "unknown"
        return "met" if self.measured <= self.limit else "broken"

    def __str__(self) -> str:
        if self.state == "unknown":
            return f"{self.name} unknown (objective: ≤ {self.form(self.limit)})"
        sign = "≤" if self.state == "met" else ">"
        return f"{self.name} {self.form(self.measured)} {sign} {self.form(self.limit)}"


def checks(summary: Mapping[str, float | None], slos: Slos) -> list[Check]:
    """The objectives against the numbers of `queries.overview.SUMMARY`."""
    return [
        Check("Error rate", summary.get("error_rate"), slos.error_rate, formatting.share),
        Check("TTFT p95", summary.get("ttft_p95_ns"), slos.ttft_s * 1e9, formatting.duration),
        Check("ITL p95", summary.get("itl_p95_ns"), slos.itl_s * 1e9, formatting.duration),
    ]


def verdict(found: list[Check]) -> State:
    """Broken when any objective is; met when at least one is and none is broken."""
    states = {check.state for check in found}
    return "broken" if "broken" in states else "met" if "met" in states else "unknown"


def headline(found: list[Check]) -> str:
    """The verdict in a few words."""
    broken = [check.name for check in found if check.state == "broken"]
    if broken:
        return f"Not healthy: {' and '.join(broken)} above the objective"
    return "Healthy: every objective is met" if verdict(found) == "met" else "Nothing can be judged yet"

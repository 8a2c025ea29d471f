"""Judge the measured error rate and latencies against the objectives (SLOs). Pure.

Latencies are judged at the 95th percentile over streams. Unknown measurements are not judged: they count neither as met nor as
missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from streamgauge.analytics.reports import formatting

State = Literal["met", "missed", "unknown"]


@dataclass(frozen=True)
class Slos:
    """The objectives: latencies in seconds, the error rate as a share of streams."""

    ttft_s: float
    itl_s: float
    error_rate: float


@dataclass(frozen=True)
class Check:
    """One objective and the measured value, both in the unit of `to_text`."""

    name: str
    measured: float | None
    limit: float
    to_text: Callable[[float | None], str]

    @property
    def state(self) -> State:
        if not formatting.known(self.measured):
            return "unknown"
        return "met" if self.measured <= self.limit else "missed"

    def __str__(self) -> str:
        if self.state == "unknown":
            return f"{self.name} unknown (objective: ≤ {self.to_text(self.limit)})"
        sign = "≤" if self.state == "met" else ">"
        return f"{self.name} {self.to_text(self.measured)} {sign} {self.to_text(self.limit)}"


def checks(summary: Mapping[str, float | None], slos: Slos) -> list[Check]:
    """The objectives and the measured values of `reports.overview.SUMMARY`."""
    return [
        Check("Error rate", summary.get("error_rate"), slos.error_rate, formatting.share),
        Check("TTFT p95", summary.get("ttft_p95_ns"), slos.ttft_s * 1e9, formatting.duration),
        Check("ITL p95", summary.get("itl_p95_ns"), slos.itl_s * 1e9, formatting.duration),
    ]

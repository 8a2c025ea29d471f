"""Compare two groups of streams, A and B: failures, and durations of `ok` streams. Pure.

Each row has the 95 % interval of its difference. A difference counts as clear if its p-value, adjusted by Holm's method over all
rows of the page, is below 5 %. So all rows together report a difference of equal groups in at most 5 % of comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from streamgauge.dashboard import formatting
from streamgauge.dashboard.confidence_intervals import (
    LEVEL,
    Difference,
    Rate,
    holm,
    quantile_difference,
    rate_difference,
)

State = Literal["worse", "better", "unclear", "few", "unknown"]
MAX_CAUSES = 6


@dataclass(frozen=True)
class Row:
    """One metric of the comparison. `is_rate`: its effect is a difference in points, else the ratio B / A."""

    label: str
    is_rate: bool
    less_is_better: bool
    to_text: Callable[[float | None], str]
    found: Difference | None
    adjusted_p: float | None = None

    @property
    def state(self) -> State:
        if self.found is None:
            return "unknown"
        if not self.found.enough:
            return "few"
        if self.adjusted_p is None or self.adjusted_p >= 1 - LEVEL:
            return "unclear"
        return "better" if (self.found.difference < 0) == self.less_is_better else "worse"

    @property
    def result(self) -> str:
        """The state as text."""
        texts: dict[State, str] = {
            "unknown": "unknown on one side",
            "unclear": "no clear difference",
            "better": "B is better",
            "worse": "B is worse",
        }
        if self.found is not None and self.state == "few":
            return f"too few streams ({self.found.a_count} and {self.found.b_count})"
        return texts[self.state]

    @property
    def effect(self) -> tuple[float, float, float] | None:
        """(effect, low, high): points of a rate, or the ratio B / A. None if unknown."""
        if self.found is None:
            return None
        if self.is_rate:
            return self.found.difference * 100, self.found.low * 100, self.found.high * 100
        ratio, low, high = self.found.ratio, self.found.ratio_low, self.found.ratio_high
        if ratio is None or low is None or high is None or low <= 0:
            return None
        return ratio, low, high

    def signed(self, value: float) -> str:
        """A difference with its sign. Differences of shares are in percentage points."""
        text = self.to_text(abs(value)).replace(" %", " points")
        return ("+" if value > 0 else "−" if value < 0 else "±") + text


def failure_rows(
    a: Mapping[str, int], b: Mapping[str, int], a_causes: Mapping[str, int], b_causes: Mapping[str, int]
) -> list[Row]:
    """Rates of failures: all, the most frequent causes, client aborts and stalled streams.

    `a` and `b` are counts (`queries.compare.counts`).
    """

    def rate(label: str, cases: tuple[int, int], of: str) -> Row:
        found = rate_difference(Rate(cases[0], a[of]), Rate(cases[1], b[of]))
        return Row(label, True, True, formatting.share, found)

    def both(name: str) -> tuple[int, int]:
        return a[name], b[name]

    names = sorted(
        {*a_causes, *b_causes},
        key=lambda name: (
            -max(
                a_causes.get(name, 0) / max(a["counted"], 1),
                b_causes.get(name, 0) / max(b["counted"], 1),
            ),
            name,
        ),
    )
    return [
        rate("Error rate", both("errors"), "counted"),
        *(
            rate(name, (a_causes.get(name, 0), b_causes.get(name, 0)), "counted")
            for name in names[:MAX_CAUSES]
        ),
        rate("Client aborts", both("aborts"), "requests"),
        rate("Streams with a stall", both("stalled"), "stall_known"),
    ]


def duration_rows(a: pl.DataFrame, b: pl.DataFrame) -> list[Row]:
    """Quantiles of the durations of `ok` streams (`queries.compare.ok_sample`)."""

    def quantile(
        label: str, column: str, q: float, to_text: Callable[[float | None], str], less_is_better: bool = True
    ) -> Row:
        samples = [f[column].drop_nulls().cast(pl.Float64).to_numpy() for f in (a, b)]
        return Row(label, False, less_is_better, to_text, quantile_difference(samples[0], samples[1], q))

    return [
        quantile("TTFT p50", "ttft_ns", 0.5, formatting.duration),
        quantile("TTFT p95", "ttft_ns", 0.95, formatting.duration),
        quantile("ITL p50", "itl_ns", 0.5, formatting.duration),
        quantile("ITL p95", "itl_ns", 0.95, formatting.duration),
        quantile("Tokens per second p50", "tps_user", 0.5, formatting.rate, less_is_better=False),
        quantile("Duration p50", "end_ns", 0.5, formatting.duration),
        quantile("Duration p95", "end_ns", 0.95, formatting.duration),
    ]


def adjusted(rows: Sequence[Row]) -> list[Row]:
    """The rows with their adjusted p-values. Rows with too few streams are no tests."""
    tested = [row.found for row in rows if row.found is not None and row.found.enough]
    p_values = iter(holm([found.p_value for found in tested]))
    return [
        replace(row, adjusted_p=next(p_values)) if row.found is not None and row.found.enough else row
        for row in rows
    ]


def summary(rows: Sequence[Row]) -> str:
    """What differs, in one sentence."""
    worse, better = ([row.label for row in rows if row.state == state] for state in ("worse", "better"))
    parts = [
        f"B is {word}: {', '.join(names)}" for word, names in (("worse", worse), ("better", better)) if names
    ]
    if parts:
        return ". ".join(parts) + "."
    if any(row.state == "unclear" for row in rows):
        return "No clear difference."
    return "Too few streams for a comparison."

"""Compare two groups of streams, A and B: failures, and durations of `ok` streams.

- Each row has the 95 % interval of its difference: a percentile bootstrap with 10,000 resamples of both samples. The resampled
  statistics are drawn from their exact distribution instead of from resamples: order statistics of draws with replacement are beta
  distributed, and the rate of a resample is binomial. The same samples give the same interval.
- The p-value of a difference is twice the smaller share of resamples on either side of zero: at least 0.0002.
- A difference counts as clear if its p-value, adjusted by Holm's method over all rows of the page, is below 5 %. So all rows
  together report a difference of equal groups in at most 5 % of comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from streamgauge.analytics.reports import Query, formatting
from streamgauge.analytics.reports.errors import CAUSE_AND_TYPE
from streamgauge.analytics.reports.overview import COUNTS
from streamgauge.analytics.reports.selection import FURTHER_DIMENSIONS, Selection
from streamgauge.analytics.schema.outcomes import IS_COUNTED, IS_ERROR, IS_REQUEST, OK

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

    `a` and `b` are counts (`reports.comparison.counts`).
    """

    def rate(label: str, cases: tuple[int, int], of: str) -> Row:
        found = rate_difference(cases, both(of))
        return Row(label, True, True, formatting.share, found)

    def both(name: str) -> tuple[int, int]:
        return a[name], b[name]

    cases = {name: (a_causes.get(name, 0), b_causes.get(name, 0)) for name in sorted({*a_causes, *b_causes})}
    counted = [max(side["counted"], 1) for side in (a, b)]
    names = sorted(cases, key=lambda name: -max(n / of for n, of in zip(cases[name], counted, strict=True)))
    return [
        rate("Error rate", both("errors"), "counted"),
        *(rate(name, cases[name], "counted") for name in names[:MAX_CAUSES]),
        rate("Client aborts", both("aborts"), "requests"),
        rate("Streams with a stall", both("stalled"), "stall_known"),
    ]


def duration_rows(a: pl.DataFrame, b: pl.DataFrame) -> list[Row]:
    """Quantiles of the durations of `ok` streams (`reports.comparison.ok_sample`)."""

    rows = []
    for name, column, quantiles in (
        ("TTFT", "ttft_ns", (0.5, 0.95)),
        ("ITL", "itl_ns", (0.5, 0.95)),
        ("Tokens per second", "tps_user", (0.5,)),
        ("Duration", "end_ns", (0.5, 0.95)),
    ):
        samples = [side[column].drop_nulls().cast(pl.Float64).to_numpy() for side in (a, b)]
        is_duration = column.endswith("_ns")
        to_text = formatting.duration if is_duration else formatting.rate
        for q in quantiles:
            found = quantile_difference(samples[0], samples[1], q)
            rows.append(Row(f"{name} p{100 * q:.0f}", False, is_duration, to_text, found))
    return rows


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


# Counts and samples of one side

SAMPLE_STREAMS = 4000
"""Maximum streams of a sample. Streams are sampled by a hash of their id, so the same streams give the same sample."""


def ok_sample(query: Query, selection: Selection) -> pl.DataFrame:
    """`ttft_ns, itl_ns, tps_user, end_ns` of at most SAMPLE_STREAMS streams that ended `ok`.

    A failed stream is shorter than a complete one, so mixing both would hide slower answers behind more failures.
    """
    return query(f"""
        SELECT ttft_ns, itl_ns, tps_user, end_ns FROM streams WHERE {selection.where()} AND outcome = '{OK}'
        ORDER BY hash(stream_id) LIMIT {SAMPLE_STREAMS:d}""")


def counts(query: Query, selection: Selection) -> dict[str, Any]:
    """The columns of `overview.COUNTS`, `ok`, `counted` (of the error rate), `stall_known` and `stalled`.

    `stall_known` and `stalled` are `ok` streams with a known number of stalls, and with at least one.
    """
    return query(f"""
        SELECT {COUNTS}, count(*) FILTER (outcome = '{OK}') AS ok, count(*) FILTER ({IS_COUNTED}) AS counted,
            count(stall_count) FILTER (outcome = '{OK}') AS stall_known,
            count(*) FILTER (outcome = '{OK}' AND stall_count > 0) AS stalled
        FROM streams WHERE {selection.where()}""").to_dicts()[0]


def causes(query: Query, selection: Selection, *, most: int = 20) -> dict[str, int]:
    """Cause of failure → number of streams, most frequent first."""
    frame = query(f"""
        SELECT {CAUSE_AND_TYPE} AS cause, count(*) AS n FROM streams WHERE {selection.where()} AND {IS_ERROR}
        GROUP BY ALL ORDER BY n DESC, cause LIMIT {most:d}""")
    return dict(frame.select("cause", "n").iter_rows())


def values(query: Query, selection: Selection, dimension: str, *, most: int = 200) -> list[str]:
    """The values of a further dimension, most frequent first."""
    frame = query(f"""
        SELECT {FURTHER_DIMENSIONS[dimension]} AS name FROM streams WHERE {selection.where()} AND {IS_REQUEST}
        GROUP BY ALL ORDER BY count(*) DESC, name LIMIT {most:d}""")
    found: list[str] = frame["name"].to_list()
    return found


# Differences of two samples. Pure.

RESAMPLES = 10_000
LEVEL = 0.95
MIN_N = 30
"""Smallest sample for which a difference is judged."""
MIN_TAIL_N = 10
"""Smallest number of values beyond a quantile for which its difference is judged."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """The difference B − A of one statistic and its confidence interval."""

    a: float
    b: float
    low: float
    high: float
    a_count: int
    b_count: int
    enough: bool
    p_value: float
    ratio_low: float | None
    ratio_high: float | None
    """The interval of B / A. None if a resample of A, or B itself, is not positive."""

    @property
    def difference(self) -> float:
        return self.b - self.a

    @property
    def ratio(self) -> float | None:
        """B / A, or None without an interval."""
        return self.b / self.a if self.ratio_low is not None else None


def quantile_difference(a: Values, b: Values, quantile: float, *, seed: int = 7) -> Difference | None:
    """The difference of a quantile (`np.quantile`, linear). None if a sample is empty."""
    if not len(a) or not len(b):
        return None
    rng = np.random.default_rng(seed)
    needed = max(MIN_N, int(np.ceil(MIN_TAIL_N / min(quantile, 1 - quantile))))
    a, b = np.sort(a), np.sort(b)
    return _difference(
        (float(np.quantile(a, quantile)), float(np.quantile(b, quantile))),
        (_quantiles(a, quantile, rng), _quantiles(b, quantile, rng)),
        (len(a), len(b)),
        needed,
    )


def rate_difference(cases: tuple[int, int], of: tuple[int, int], *, seed: int = 7) -> Difference | None:
    """The difference of two rates, cases / of. None if one is of nothing."""
    if not all(of):
        return None
    rng = np.random.default_rng(seed)
    values = cases[0] / of[0], cases[1] / of[1]
    resampled = [rng.binomial(n, value, RESAMPLES) / n for n, value in zip(of, values, strict=True)]
    return _difference(values, (resampled[0], resampled[1]), of, MIN_N)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values adjusted by Holm's method, in the same order.

    If all null hypotheses hold, the probability that any adjusted value is below a level is at most that level.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def _quantiles(ordered: Values, quantile: float, rng: np.random.Generator) -> Values:
    """The quantile of RESAMPLES resamples of sorted values.

    A resample draws n uniform positions. The k-th smallest is the k-th order statistic: beta(k, n − k + 1). The next one is
    the minimum of the remaining n − k draws on the rest of the interval.
    """
    n = len(ordered)
    position = quantile * (n - 1)
    k = int(position)
    lower = rng.beta(k + 1, n - k, RESAMPLES)
    found: Values = ordered[np.minimum((lower * n).astype(int), n - 1)]
    if position == k:
        return found
    upper = lower + (1 - lower) * rng.beta(1, n - k - 1, RESAMPLES)
    upper_values = ordered[np.minimum((upper * n).astype(int), n - 1)]
    result: Values = found + (upper_values - found) * (position - k)
    return result


def _difference(
    values: tuple[float, float], resampled: tuple[Values, Values], counts: tuple[int, int], needed: int
) -> Difference:
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    differences = resampled[1] - resampled[0]
    low, high = np.quantile(differences, ends)
    beyond = min(np.count_nonzero(differences <= 0), np.count_nonzero(differences >= 0))
    has_ratio = resampled[0].min() > 0 and values[0] > 0 and values[1] > 0
    ratio_low, ratio_high = np.quantile(resampled[1] / resampled[0], ends) if has_ratio else (None, None)
    return Difference(
        *values,
        float(low),
        float(high),
        *counts,
        enough=min(counts) >= needed,
        p_value=min(1.0, 2 * (int(beyond) + 1) / (RESAMPLES + 1)),
        ratio_low=None if ratio_low is None else float(ratio_low),
        ratio_high=None if ratio_high is None else float(ratio_high),
    )

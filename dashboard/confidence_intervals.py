"""Bootstrap confidence intervals of the difference between two samples, and Holm's correction for several tests. Pure.

Percentile bootstrap with 10,000 resamples of both samples, at 95 %. The resampled statistics are drawn from their exact
distribution instead of from resamples: order statistics of draws with replacement are beta distributed, and the rate of a
resample is binomial. Results are deterministic: the same samples give the same interval.

The p-value of a difference is twice the smaller share of resamples on either side of zero. With 10,000 resamples, it is at
least 0.0002.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
LEVEL = 0.95
MIN_N = 30
"""Smallest sample for which a difference is judged."""
MIN_TAIL_N = 10
"""Smallest number of values beyond a quantile for which its difference is judged."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rate:
    """A number of cases among `of` cases."""

    cases: int
    of: int

    @property
    def value(self) -> float:
        return self.cases / self.of if self.of else float("nan")


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

    @property
    def clear(self) -> bool:
        """Whether the samples are large enough and the interval excludes zero."""
        return self.enough and (self.low > 0 or self.high < 0)


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


def rate_difference(a: Rate, b: Rate, *, seed: int = 7) -> Difference | None:
    """The difference of two rates. None if one has no cases."""
    if not a.of or not b.of:
        return None
    rng = np.random.default_rng(seed)
    resampled = [rng.binomial(rate.of, rate.value, RESAMPLES) / rate.of for rate in (a, b)]
    return _difference((a.value, b.value), (resampled[0], resampled[1]), (a.of, b.of), MIN_N)


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

"""Bootstrap confidence intervals of the difference between two samples. Pure.

Percentile bootstrap with 10,000 resamples of both samples, at 95 %. The resampled statistics are drawn from their exact
distribution instead of from resamples: order statistics of draws with replacement are beta distributed, and the rate of a
resample is binomial. Results are deterministic: the same samples give the same interval.
"""

from __future__ import annotations

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
class Difference:
    """The difference B − A of one statistic and its confidence interval."""

    a: float
    b: float
    low: float
    high: float
    a_count: int
    b_count: int
    enough: bool

    @property
    def difference(self) -> float:
        return self.b - self.a

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
    differences = _quantiles(b, quantile, rng) - _quantiles(a, quantile, rng)
    return _difference(
        float(np.quantile(a, quantile)), float(np.quantile(b, quantile)), differences, len(a), len(b), needed
    )


def rate_difference(a: Values, b: Values, *, seed: int = 7) -> Difference | None:
    """The difference of two rates. Samples contain zeros and ones. None if a sample is empty."""
    if not len(a) or not len(b):
        return None
    rng = np.random.default_rng(seed)
    differences = rng.binomial(len(b), b.mean(), RESAMPLES) / len(b) - rng.binomial(
        len(a), a.mean(), RESAMPLES
    ) / len(a)
    return _difference(float(a.mean()), float(b.mean()), differences, len(a), len(b), MIN_N)


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
    a: float, b: float, differences: Values, a_count: int, b_count: int, needed: int
) -> Difference:
    low, high = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(a, b, float(low), float(high), a_count, b_count, min(a_count, b_count) >= needed)

"""Confidence intervals of differences by the bootstrap, and an honest word about small samples. Pure.

Percentile bootstrap, 10,000 resamples of both sides, 95 %. No resample is ever made: what a resample's quantile lies between
are two order statistics of draws with replacement, whose joint distribution is known (beta), and a resample's rate is
binomial. So the result is that of the bootstrap, for the price of some random numbers. Deterministic: the same samples give the
same interval, so that a refresh does not make numbers dance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
LEVEL = 0.95
ENOUGH = 30
"""Below this on either side an interval says little, and the page says so."""
TAIL_ENOUGH = 10
"""A quantile wants this many values beyond it."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """B − A of one statistic, with its interval."""

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
        """Whether the interval leaves zero out, on samples that bear it."""
        return self.enough and (self.low > 0 or self.high < 0)


def quantile_difference(a: Values, b: Values, quantile: float, *, seed: int = 7) -> Difference | None:
    """B − A of a quantile (`np.quantile`, linear). None when a side is empty."""
    if not len(a) or not len(b):
        return None
    dice = np.random.default_rng(seed)
    needed = max(ENOUGH, int(np.ceil(TAIL_ENOUGH / min(quantile, 1 - quantile))))
    a, b = np.sort(a), np.sort(b)
    spread = _quantiles(b, quantile, dice) - _quantiles(a, quantile, dice)
    return _difference(
        float(np.quantile(a, quantile)), float(np.quantile(b, quantile)), spread, len(a), len(b), needed
    )


def rate_difference(a: Values, b: Values, *, seed: int = 7) -> Difference | None:
    """B − A of the share of ones among zeros and ones. None when a side is empty."""
    if not len(a) or not len(b):
        return None
    dice = np.random.default_rng(seed)
    spread = dice.binomial(len(b), b.mean(), RESAMPLES) / len(b) - dice.binomial(
        len(a), a.mean(), RESAMPLES
    ) / len(a)
    return _difference(float(a.mean()), float(b.mean()), spread, len(a), len(b), ENOUGH)


def _quantiles(ordered: Values, quantile: float, dice: np.random.Generator) -> Values:
    """The quantile of each resample of these sorted values.

    A resample draws n places at random. The place of its k-th smallest value is the k-th order statistic of n uniform draws:
    beta(k, n − k + 1); the next one lies in the rest of the way as the smallest of the n − k draws that are left.
    """
    n = len(ordered)
    position = quantile * (n - 1)
    k = int(position)
    lower = dice.beta(k + 1, n - k, RESAMPLES)
    found: Values = ordered[np.minimum((lower * n).astype(int), n - 1)]
    if position == k:
        return found
    upper = lower + (1 - lower) * dice.beta(1, n - k - 1, RESAMPLES)
    beyond = ordered[np.minimum((upper * n).astype(int), n - 1)]
    result: Values = found + (beyond - found) * (position - k)
    return result


def _difference(a: float, b: float, spread: Values, a_count: int, b_count: int, needed: int) -> Difference:
    low, high = np.quantile(spread, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(
        a=a,
        b=b,
        low=float(low),
        high=float(high),
        a_count=a_count,
        b_count=b_count,
        enough=min(a_count, b_count) >= needed,
    )

"""Confidence intervals of differences by the bootstrap, and an honest word about small samples. Pure.

Percentile bootstrap, 1,000 resamples of both sides, 95 %. Deterministic: the same samples give the same interval, so that
a refresh does not make numbers dance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

RESAMPLES = 1000
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
    """B − A of a quantile. None when a side is empty."""
    needed = max(ENOUGH, int(np.ceil(TAIL_ENOUGH / min(quantile, 1 - quantile))))
    return _difference(a, b, lambda drawn: np.quantile(drawn, quantile, axis=-1), needed, seed)


def mean_difference(a: Values, b: Values, *, seed: int = 7) -> Difference | None:
    """B − A of a mean, which is a rate when the values are 0 and 1. None when a side is empty."""
    return _difference(a, b, lambda drawn: drawn.mean(axis=-1), ENOUGH, seed)


def _difference(
    a: Values, b: Values, statistic: Callable[[Values], Any], needed: int, seed: int
) -> Difference | None:
    if not len(a) or not len(b):
        return None
    dice = np.random.default_rng(seed)
    spread = _resampled(b, statistic, dice) - _resampled(a, statistic, dice)
    low, high = np.quantile(spread, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(
        a=float(statistic(a)),
        b=float(statistic(b)),
        low=float(low),
        high=float(high),
        a_count=len(a),
        b_count=len(b),
        enough=min(len(a), len(b)) >= needed,
    )


def _resampled(values: Values, statistic: Callable[[Values], Any], dice: np.random.Generator) -> Values:
    """The statistic of each resample; in parts, so that memory stays at some MB whatever the sample."""
    size = max(1, 500_000 // len(values))
    parts = [
        statistic(values[dice.integers(0, len(values), (min(size, RESAMPLES - done), len(values)))])
        for done in range(0, RESAMPLES, size)
    ]
    return np.concatenate(parts)

"""Confidence intervals contain the true difference. Small samples are not judged."""

from __future__ import annotations

import numpy as np
import pytest

from dashboard.confidence_intervals import _quantiles, quantile_difference, rate_difference


def normal_sample(count: int, mean: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 1.0, count)


def test_interval_contains_a_real_difference() -> None:
    found = quantile_difference(normal_sample(800, 10, 1), normal_sample(800, 11, 2), 0.5)
    assert found is not None
    assert found.clear
    assert found.low < 1.0 < found.high
    assert found.difference == pytest.approx(found.b - found.a)


def test_equal_samples_are_rarely_clear() -> None:
    clear = [
        found.clear
        for seed in range(40)
        if (
            found := quantile_difference(normal_sample(200, 5, seed), normal_sample(200, 5, 1000 + seed), 0.5)
        )
    ]
    assert len(clear) == 40
    assert (
        sum(clear) <= 7
    )  # 5 % are expected. More than 7 of 40 has a probability of 1/700, and the seeds are fixed.


def test_small_sample_is_never_clear() -> None:
    found = quantile_difference(normal_sample(29, 0, 1), normal_sample(500, 100, 2), 0.5)
    assert found is not None
    assert not found.enough
    assert not found.clear


def test_tail_quantile_needs_more_values_than_median() -> None:
    a, b = normal_sample(150, 0, 1), normal_sample(150, 0, 2)
    middle, tail = quantile_difference(a, b, 0.5), quantile_difference(a, b, 0.95)
    assert middle is not None
    assert tail is not None
    assert (middle.enough, tail.enough) == (True, False)


def test_empty_sample_has_no_difference() -> None:
    assert quantile_difference(np.array([]), normal_sample(10, 0, 1), 0.5) is None
    assert rate_difference(normal_sample(10, 0, 1), np.array([])) is None


def test_rate_is_the_mean_of_zeros_and_ones() -> None:
    found = rate_difference(np.array([0.0] * 95 + [1.0] * 5), np.array([0.0] * 70 + [1.0] * 30))
    assert found is not None
    assert found.difference == pytest.approx(0.25)
    assert found.clear


def test_same_samples_give_same_interval() -> None:
    a, b = normal_sample(100, 0, 1), normal_sample(100, 1, 2)
    assert quantile_difference(a, b, 0.5) == quantile_difference(a, b, 0.5)


@pytest.mark.parametrize(
    ("count", "quantile"), [(1, 0.5), (2, 0.5), (31, 0.5), (40, 0.95), (200, 0.95), (101, 0.99)]
)
def test_quantile_distribution_equals_that_of_real_resamples(count: int, quantile: float) -> None:
    values = np.sort(np.random.default_rng(3).lognormal(0, 1, count))
    positions = np.random.default_rng(4).integers(0, count, (20_000, count))
    wanted = np.quantile(values[positions], quantile, axis=1)
    found = _quantiles(values, quantile, np.random.default_rng(5))
    for value in np.unique(wanted):
        assert abs((found <= value).mean() - (wanted <= value).mean()) < 0.025
    assert (
        set(np.round(found, 9)) <= set(np.round(np.append(wanted, values), 9)) or quantile * (count - 1) % 1
    )

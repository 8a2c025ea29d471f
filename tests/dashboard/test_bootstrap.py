"""Intervals that hold, and no verdict on small samples."""

from __future__ import annotations

import numpy as np
import pytest

from dashboard.bootstrap import _quantiles, quantile_difference, rate_difference


def drawn(count: int, middle: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(middle, 1.0, count)


def test_a_real_difference_is_found_and_its_interval_holds_it() -> None:
    found = quantile_difference(drawn(800, 10, 1), drawn(800, 11, 2), 0.5)
    assert found is not None
    assert found.clear
    assert found.low < 1.0 < found.high
    assert found.difference == pytest.approx(found.b - found.a)


def test_equal_things_are_mostly_told_equal() -> None:
    clear = [
        found.clear
        for seed in range(40)
        if (found := quantile_difference(drawn(200, 5, seed), drawn(200, 5, 1000 + seed), 0.5))
    ]
    assert len(clear) == 40
    assert (
        sum(clear) <= 7
    )  # 5 % are expected; more than seven of forty comes once in 700 tries, and the seeds are fixed


def test_a_small_sample_is_never_clear() -> None:
    found = quantile_difference(drawn(29, 0, 1), drawn(500, 100, 2), 0.5)
    assert found is not None
    assert not found.enough
    assert not found.clear


def test_a_tail_wants_more_than_the_middle() -> None:
    a, b = drawn(150, 0, 1), drawn(150, 0, 2)
    middle, tail = quantile_difference(a, b, 0.5), quantile_difference(a, b, 0.95)
    assert middle is not None
    assert tail is not None
    assert (middle.enough, tail.enough) == (True, False)


def test_nothing_is_compared_with_nothing() -> None:
    assert quantile_difference(np.array([]), drawn(10, 0, 1), 0.5) is None
    assert rate_difference(drawn(10, 0, 1), np.array([])) is None


def test_a_rate_is_a_mean_of_zeros_and_ones() -> None:
    found = rate_difference(np.array([0.0] * 95 + [1.0] * 5), np.array([0.0] * 70 + [1.0] * 30))
    assert found is not None
    assert found.difference == pytest.approx(0.25)
    assert found.clear


def test_the_same_samples_give_the_same_interval() -> None:
    a, b = drawn(100, 0, 1), drawn(100, 1, 2)
    assert quantile_difference(a, b, 0.5) == quantile_difference(a, b, 0.5)


@pytest.mark.parametrize(
    ("count", "quantile"), [(1, 0.5), (2, 0.5), (31, 0.5), (40, 0.95), (200, 0.95), (101, 0.99)]
)
def test_no_resample_is_made_and_the_result_is_that_of_resampling(count: int, quantile: float) -> None:
    values = np.sort(np.random.default_rng(3).lognormal(0, 1, count))
    drawn_places = np.random.default_rng(4).integers(0, count, (20_000, count))
    wanted = np.quantile(values[drawn_places], quantile, axis=1)
    found = _quantiles(values, quantile, np.random.default_rng(5))
    for value in np.unique(wanted):
        assert abs((found <= value).mean() - (wanted <= value).mean()) < 0.025
    assert (
        set(np.round(found, 9)) <= set(np.round(np.append(wanted, values), 9)) or quantile * (count - 1) % 1
    )

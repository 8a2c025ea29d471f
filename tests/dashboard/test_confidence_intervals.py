"""Confidence intervals contain the true difference. Small samples are not judged."""

from __future__ import annotations

import numpy as np
import pytest

from streamgauge.analytics.reports.comparison import (
    Difference,
    _quantiles,
    holm,
    quantile_difference,
    rate_difference,
)


def is_clear(found: Difference) -> bool:
    """Whether the samples are large enough and the interval excludes zero."""
    return found.enough and (found.low > 0 or found.high < 0)


def normal_sample(count: int, mean: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 1.0, count)


def test_interval_contains_a_real_difference() -> None:
    found = quantile_difference(normal_sample(800, 10, 1), normal_sample(800, 11, 2), 0.5)
    assert found is not None
    assert is_clear(found)
    assert found.low < 1.0 < found.high
    assert found.difference == pytest.approx(found.b - found.a)


def test_equal_samples_are_rarely_clear() -> None:
    clear = [
        is_clear(found)
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
    assert not is_clear(found)


def test_tail_quantile_needs_more_values_than_median() -> None:
    a, b = normal_sample(150, 0, 1), normal_sample(150, 0, 2)
    middle, tail = quantile_difference(a, b, 0.5), quantile_difference(a, b, 0.95)
    assert middle is not None
    assert tail is not None
    assert (middle.enough, tail.enough) == (True, False)


def test_empty_sample_has_no_difference() -> None:
    assert quantile_difference(np.array([]), normal_sample(10, 0, 1), 0.5) is None
    assert rate_difference((0, 0), (10, 0)) is None


def test_rates_differ() -> None:
    found = rate_difference((5, 30), (100, 100))
    assert found is not None
    assert found.difference == pytest.approx(0.25)
    assert is_clear(found)


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


def test_ratio_has_an_interval_only_if_positive() -> None:
    a, b = normal_sample(400, 10, 1), normal_sample(400, 20, 2)
    found = quantile_difference(a, b, 0.5)
    assert found is not None
    assert found.ratio_low is not None
    assert found.ratio_high is not None
    assert found.ratio_low < 2.0 < found.ratio_high
    of_zero = quantile_difference(np.zeros(400), b, 0.5)
    assert of_zero is not None
    assert (of_zero.ratio, of_zero.ratio_low) == (None, None)


def test_p_value_is_small_for_a_difference_and_large_without_one() -> None:
    differing, equal = (rate_difference((5, n), (100, 100)) for n in (30, 5))
    assert differing is not None
    assert equal is not None
    assert differing.p_value < 0.001
    assert equal.p_value > 0.5


def test_holm_adjusts_in_the_order_of_the_p_values() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []

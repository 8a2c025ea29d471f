"""Onsets of steps and drifts in series with known ones."""

import numpy as np
import pytest

from streamgauge.analytics.diagnosis import incidents

POINTS = 240


def failures(rng: np.random.Generator, rates: np.ndarray, per_point: float = 5.0) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    n = rng.poisson(per_point, len(rates))
    return n.astype(float), rng.binomial(n, rates).astype(float)


@pytest.mark.parametrize("at", [1, 60, 200])
def test_step_of_a_share_is_found_at_its_point(at: int) -> None:
    rng = np.random.default_rng(at)
    n, x = failures(rng, np.where(np.arange(POINTS) >= at, 0.6, 0.02))
    found = incidents.step(n, x, 0.02, 0.6, None)
    assert abs(found.point - at) <= 1
    assert found.earliest <= at <= found.latest + 1


def test_step_of_few_streams_begins_with_the_first_affected_one() -> None:
    n, x = np.zeros(POINTS), np.zeros(POINTS)
    n[[10, 40, 70, 100, 140, 142, 145, 150, 160]] = 1
    x[[140, 142, 145, 150, 160]] = 1
    found = incidents.step(n, x, 0.02, 0.9, None)
    assert (found.point, found.earliest) == (140, 101)


@pytest.mark.parametrize(("usual", "point"), [(incidents.USUAL, 150), (1 / 3000, 100)])
def test_early_failure_is_the_onset_if_there_was_none_before(usual: float, point: int) -> None:
    n, x = np.ones(POINTS), np.zeros(POINTS)
    x[[100, 150, 160, 180, 190, 210]] = 1
    assert incidents.step(n, x, 1e-5, 0.06, None, usual).point == point


def test_interval_of_an_onset_is_wider_with_fewer_streams() -> None:
    rates = np.where(np.arange(POINTS) >= 100, 0.4, 0.02)
    many, few = (
        incidents.step(*failures(np.random.default_rng(3), rates, k), 0.02, 0.4, None) for k in (20, 0.3)
    )
    assert few.latest - few.earliest > many.latest - many.earliest
    assert few.earliest <= 100 <= few.latest + 1


def test_step_of_a_mean_is_found_when_its_size_is_underestimated() -> None:
    rng = np.random.default_rng(5)
    n = np.full(POINTS, 3.0)
    x = n * np.where(np.arange(POINTS) >= 150, 1.0, 0.0) + rng.normal(0, 0.5, POINTS)
    assert abs(incidents.step(n, x, 0.0, 0.6, 0.2).point - 150) <= 1


def test_drift_is_a_ramp_with_its_begin() -> None:
    rng = np.random.default_rng(7)
    n = np.full(POINTS, 10.0)
    factor = 1 + np.clip((np.arange(POINTS) - 100) / 140, 0, 1)
    x = n * np.log(factor) + rng.normal(0, 0.2 * np.sqrt(n), POINTS)
    found = incidents.ramp(n, x, 0.04, is_log=True, point_s=10.0)
    assert found is not None
    assert abs(found.point - 100) <= 8
    assert found.earliest <= 100 <= found.latest
    assert found.rise == pytest.approx(1.0, abs=0.15)


def test_interval_of_a_drift_has_its_begin_although_load_wanders() -> None:
    rng, within = np.random.default_rng(11), 0
    n = np.full(POINTS, 50.0)
    for _ in range(20):
        load = np.zeros(POINTS)
        for i in range(1, POINTS):
            load[i] = 0.98 * load[i - 1] + rng.normal(0, 0.01)
        factor = 1 + 0.6 * np.clip((np.arange(POINTS) - 80) / 160, 0, 1)
        x = n * (np.log(factor) + load) + rng.normal(0, 0.2 * np.sqrt(n), POINTS)
        found = incidents.ramp(n, x, 0.04, is_log=True, point_s=15.0)
        within += found is not None and found.earliest <= 80 <= found.latest
    assert within >= 15


@pytest.mark.parametrize("rise", [0.0, 0.7])
def test_noise_and_a_step_are_no_drift(rise: float) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        n = np.full(POINTS, 10.0)
        x = n * rise * (np.arange(POINTS) >= 120) + rng.normal(0, 0.2 * np.sqrt(n), POINTS)
        assert incidents.ramp(n, x, 0.04, is_log=True, point_s=10.0) is None


def test_empty_series_has_no_drift() -> None:
    assert incidents.ramp(np.zeros(POINTS), np.zeros(POINTS), 0.1, is_log=True, point_s=10.0) is None


def test_drift_in_data_that_began_inside_the_series_begins_at_its_point() -> None:
    rng = np.random.default_rng(7)
    points = np.arange(POINTS)
    n = np.where(points >= 60, 10.0, 0.0)
    x = n * np.log(1 + np.clip((points - 120) / 120, 0, 1)) + rng.normal(0, 0.2 * np.sqrt(n))
    found = incidents.ramp(n, x, 0.04, is_log=True, point_s=10.0)
    assert found is not None
    assert abs(found.point - 120) <= 8

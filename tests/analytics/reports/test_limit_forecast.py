"""Forecasts of the 429 over staged traffic in virtual time: within a third of the true time, and none when traffic falls."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from streamgauge.analytics.reports.limit_forecast import AHEAD, RECENT_S, STALE_S, Sample, seconds_left

START = 1_780_000_000.0
Demand = Callable[[float], float]
"""Seconds since the start → use per second."""


@dataclass(frozen=True, kw_only=True)
class Staged:
    """Traffic at a limit. A `window_s` is fixed; without one, a bucket refills all of it in `full_s`."""

    limit: float
    demand: Demand
    full_s: float = 60.0
    window_s: float | None = None
    per_s: float = 5.0
    rounded: float = 1.0
    reset_rounded_s: float = 0.001
    has_reset: bool = True
    size: Callable[[random.Random], float] = lambda rng: rng.expovariate(1)
    length_s: float = 4000.0

    def run(self, seed: int) -> tuple[list[Sample], float]:
        """What responses report, and the time of the first 429 after the start, infinite without one."""
        rng, at_s, left, samples = random.Random(seed), 0.0, self.limit, list[Sample]()
        ends_s = self.window_s or math.inf
        while at_s < self.length_s:
            waited_s = rng.expovariate(self.per_s)
            at_s += waited_s
            if self.window_s is None:
                left = min(self.limit, left + self.limit / self.full_s * waited_s)
            while at_s >= ends_s:
                left, ends_s = self.limit, ends_s + (self.window_s or 0)
            used = self.demand(at_s) / self.per_s * self.size(rng)
            if used > left:
                return samples, at_s
            left -= used
            reset_s = (
                at_s + (self.limit - left) / self.limit * self.full_s if self.window_s is None else ends_s
            )
            reset_s = math.ceil(reset_s / self.reset_rounded_s) * self.reset_rounded_s
            reported = math.floor(left / self.rounded) * self.rounded
            samples.append(Sample(START + at_s, reported, START + reset_s if self.has_reset else None))
        return samples, math.inf


def forecast(staged: Staged, samples: list[Sample], at_s: float) -> float | None:
    """The forecast at a time after the start, from what is read: the last value of each 5 s, of 30 s before the last 10 minutes."""
    read = {
        (one.at_s // (5 if one.at_s > START + at_s - RECENT_S else 30)): one
        for one in samples
        if at_s - 3600 <= one.at_s - START <= at_s
    }
    return seconds_left([*read.values()], staged.limit, START + at_s)


OPENAI = Staged(limit=2e6, full_s=600, demand=lambda t: 2e6 / 600 + 2000)
MINUTE = Staged(limit=4e6, demand=lambda t: 3e4 if t < 900 else 4e6 / 60 + 6000, per_s=100)
CASES: dict[str, tuple[Staged, tuple[float, ...]]] = {
    "a bucket of tokens under constant overload": (OPENAI, (480, 300, 120)),
    "a batch that begins beside calm traffic": (MINUTE, (300, 150)),
    "requests whose bucket refills in a day": (
        Staged(limit=14400, full_s=86400, demand=lambda t: 3.0, per_s=3, size=lambda rng: 1.0, length_s=6000),
        (1500, 480, 60),
    ),
    "requests per minute": (
        Staged(limit=6000, demand=lambda t: 110.0, per_s=110, size=lambda rng: 1.0),
        (300, 120),
    ),
    "instants in whole seconds and thousands of tokens": (
        Staged(limit=4e6, full_s=300, demand=lambda t: 4e6 / 300 + 5000, per_s=20, rounded=1000, reset_rounded_s=1.0),
        (480, 240),
    ),
    "answers of very different sizes": (
        Staged(limit=4e6, full_s=600, demand=lambda t: 4e6 / 600 + 4000, per_s=20,
               size=lambda rng: min(8.0, rng.lognormvariate(-0.5, 1))),
        (480, 240),
    ),
    "a fixed window of an hour": (Staged(limit=1e6, window_s=3600, demand=lambda t: 400.0), (1500, 480, 120)),
    "a quota of five hours in whole percents": (
        Staged(limit=1.0, window_s=18000, demand=lambda t: 1 / 9000, per_s=0.1, rounded=0.01, length_s=18000,
               size=lambda rng: rng.uniform(0.5, 1.5)),
        (3600, 1800),
    ),
    "a window of a day, with a batch after half an hour": (
        Staged(limit=1e6, window_s=86400, demand=lambda t: 50.0 if t < 1800 else 800.0, length_s=6000),
        (720, 480, 120),
    ),
    "a window without a reset": (
        Staged(limit=1e6, window_s=86400, demand=lambda t: 500.0, has_reset=False), (1200, 480, 120),
    ),
    "traffic that grows steadily": (
        Staged(limit=2e6, full_s=600, demand=lambda t: 2e6 / 600 * 0.8 + 5 * t, per_s=200), (300, 120),
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_forecast_is_within_a_third_of_the_true_time(name: str, seed: int) -> None:
    staged, before = CASES[name]
    samples, failed_s = staged.run(seed)
    assert failed_s < math.inf
    for left_s in before:
        found = forecast(staged, samples, failed_s - left_s)
        assert found is not None, left_s
        assert found == pytest.approx(left_s, rel=1 / 3), left_s


FALLING: dict[str, tuple[Staged, float]] = {
    "halves every three minutes": (
        Staged(limit=2e6, full_s=600, demand=lambda t: 6000 * 0.5 ** (max(t - 300, 0) / 180), per_s=20), 420,
    ),
    "falls below the refill at once": (
        Staged(limit=2e6, full_s=600, demand=lambda t: 6000 if t < 300 else 2000), 390,
    ),
    "stops": (Staged(limit=2e6, full_s=600, demand=lambda t: 6000 if t < 300 else 1), 390),
    "falls steadily": (Staged(limit=4e6, full_s=600, demand=lambda t: max(0.0, 12000 - 12 * t), per_s=20), 420),
    "falls in a fixed window": (
        Staged(limit=1e6, window_s=3600, demand=lambda t: 700 * math.exp(-t / 900), per_s=20), 420,
    ),
}  # fmt: skip
CALM: dict[str, Staged] = {
    "steady below the refill": Staged(limit=2e6, full_s=600, demand=lambda t: 3000),
    "few large answers": Staged(limit=2e6, demand=lambda t: 9000, per_s=0.5),
    "windows of a minute with enough": Staged(limit=6000, window_s=60, demand=lambda t: 70.0, per_s=2),
    "windows of a minute that report no reset": Staged(limit=6000, window_s=60, demand=lambda t: 70.0, per_s=2, has_reset=False),
    "a window of an hour with enough": Staged(limit=1e6, window_s=3600, demand=lambda t: 200.0),
}  # fmt: skip


@pytest.mark.parametrize("name", [*FALLING, *CALM])
def test_there_is_no_forecast_when_traffic_falls_or_the_limit_suffices(name: str) -> None:
    staged, since_s = FALLING[name] if name in FALLING else (CALM[name], 0.0)
    samples, failed_s = replace(staged, length_s=2400).run(0)
    assert failed_s == math.inf
    found = {at: forecast(staged, samples, at) for at in range(int(since_s), 2400, 30)}
    assert [at for at, seconds in found.items() if seconds is not None] == []


def falling(n: int = 60, *, reset_s: float | None = None) -> list[Sample]:
    """Ten less each 5 s, from 1000."""
    at = [START + 5 * i for i in range(n)]
    return [Sample(t, 1000 - 10 * i, None if reset_s is None else START + reset_s) for i, t in enumerate(at)]


def test_a_steady_series_is_exact() -> None:
    samples = falling()
    assert seconds_left(samples, 1000, samples[-1].at_s) == pytest.approx(205)
    assert seconds_left(samples, 1000, samples[-1].at_s + 20) == pytest.approx(185)


def test_a_fixed_window_that_resets_first_is_no_forecast() -> None:
    samples = falling(reset_s=400.0)
    assert seconds_left(samples, 1000, samples[-1].at_s) is None
    samples = falling(reset_s=600.0)
    assert seconds_left(samples, 1000, samples[-1].at_s) == pytest.approx(205)


def test_an_empty_limit_counts_until_its_reset() -> None:
    samples = [Sample(START, 5, START + 60), Sample(START + 10, 0, START + 60)]
    assert seconds_left(samples, 1000, START + 11) == 0
    assert seconds_left(samples, 1000, START + 61) is None
    assert seconds_left([Sample(START, -0.04, None)], 1, START) == 0


def test_old_short_and_far_series_have_no_forecast() -> None:
    samples = falling()
    assert seconds_left([], 1000, START) is None
    assert seconds_left(samples, 1000, samples[-1].at_s + STALE_S + 1) is None
    assert seconds_left(samples[-3:], 1000, samples[-1].at_s) is None
    far = [Sample(one.at_s, one.remaining + 10_000, START + 86400) for one in samples]
    length_s = samples[-1].at_s - START
    assert AHEAD * length_s < 10_410 / 2
    assert seconds_left(far, 20_000, samples[-1].at_s) is None


def test_rounded_resets_of_one_window_are_no_resets_of_it() -> None:
    """Responses of several clients within a second report resets that differ by a second."""
    for seed in range(15):
        rng, now_s, samples = random.Random(seed), 1_700_000_000.0 + seed, []
        times = sorted(now_s - 600 + 5 * i + rng.random() * 5 for i in range(119) for _ in range(4))
        end_s, left, before_s = now_s + 1500, 850.0, times[0]
        for at_s in times:
            left -= 0.1 * (at_s - before_s) * rng.uniform(0.6, 1.4)
            before_s = at_s
            samples.append(Sample(at_s, left, at_s + round(end_s - at_s)))
        assert seconds_left(samples, 1000.0, now_s) is None

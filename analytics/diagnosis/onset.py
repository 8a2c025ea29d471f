"""When a change began: a step, or a slow drift. Pure.

Input is a series of one place: streams `n` and affected streams (or sums of differences) `x` at equidistant points.

- Step: the point from which on the affected rate is likelier than the expected one (a CUSUM of log-likelihood ratios).
- Drift: a line that rises from one point to another fits the series clearly better than a step does.
- The confidence interval has all points whose likelihood is within a factor of e² of the best.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamgauge.analytics.diagnosis.cube import Array

Indexes = npt.NDArray[np.int64]

LOG_LIKELIHOOD_DROP = 2.0
USUAL = 0.02
"""Least share of affected streams before an onset."""
REFINEMENTS = 3
RAMP_POINTS = 60
LEAST_RAMP_POINTS = 20
LEAST_RAMP = 0.12
"""Share of the series that a drift takes at least. A shorter one is a step."""
RAMP_GAIN = 8.0
"""By how much a ramp must fit better than a step, in units of the noise."""


@dataclass(frozen=True)
class Onset:
    """Points of the series. `earliest` and `latest` bound the confidence interval."""

    point: int
    earliest: int
    latest: int


@dataclass(frozen=True)
class Ramp(Onset):
    rise: float
    """From before the onset to the end of the drift."""


def _log_ratios(n: Array, x: Array, expected: float, value: float, variance: float | None) -> Array:
    if variance is None:
        p1 = min(value, 1 - 1e-4)
        # One usual failure shortly before the onset must not move it, however rare it is.
        p0 = max(expected, min(USUAL, p1 / 10))
        found: Array = x * np.log(p1 / p0) + (n - x) * np.log((1 - p1) / (1 - p0))
        return found
    d = value - expected
    mean: Array = (d * (x - n * expected) - n * d**2 / 2) / variance
    return mean


def step(n: Array, x: Array, expected: float, value: float, variance: float | None) -> Onset:
    """The onset of a step that lasts until the end of the series. `variance` of single streams if `x` are sums, else None."""
    k, sums = 0, np.zeros(len(n))
    for _ in range(REFINEMENTS):
        ratios = _log_ratios(n, x, expected, value, variance)
        sums = np.cumsum(ratios[::-1])[::-1]
        k = (
            len(sums) - 1 - int(sums[::-1].argmax())
        )  # the first affected stream, not the time without streams before it
        after = n[k:].sum()
        refined = float(x[k:].sum() / after) if after else value
        # A wide bucket that is affected in part dilutes the given value, so the real one can only be farther away.
        if abs(refined - expected) > abs(value - expected):
            value = refined
    near = np.flatnonzero(sums >= sums[k] - LOG_LIKELIHOOD_DROP)
    return Onset(k, int(near.min()), int(near.max()))


def ramp(n: Array, x: Array, variance: float, *, is_log: bool) -> Ramp | None:
    """A drift in the series, None if a step fits about as well. `variance` is that of single streams.

    `is_log`: `x` are sums of logarithms. Then the factor rises linearly, and so is `Ramp.rise` a difference of factors.
    """
    # Before the first streams there is no level from which a drift could rise.
    first_point = int((n > 0).argmax())
    n, x = n[first_point:], x[first_point:]
    width = max(1, len(n) // RAMP_POINTS)
    count = len(n) // width
    if count < LEAST_RAMP_POINTS:
        return None
    n, x = n[: count * width], x[: count * width]
    wide_n, wide_x = (a.reshape(-1, width).sum(1) for a in (n, x))
    begins, lengths = (a.ravel() for a in np.meshgrid(np.arange(1, count - 2), np.arange(count), indexing="ij"))  # fmt: skip
    inside = begins + lengths < count + 1
    begins, lengths = begins[inside], lengths[inside]
    misfit, rise = _fit(wide_n, wide_x, begins, lengths, variance, is_log=is_log)
    if not np.isfinite(misfit).all():
        return None
    noise = max(1.0, float(misfit.min()) / max(int((wide_n > 0).sum()) - 4, 1))
    is_ramp = lengths >= LEAST_RAMP * count
    if misfit[lengths == 0].min() - misfit[is_ramp].min() < RAMP_GAIN * noise:
        return None
    k = np.flatnonzero(is_ramp)[misfit[is_ramp].argmin()]
    near = is_ramp & (misfit <= misfit[k] + 2 * LOG_LIKELIHOOD_DROP * noise)
    earliest, latest = int(begins[near].min()) * width, int(begins[near].max() + 1) * width
    # Around the best fit, by the single points of the series.
    offsets = np.arange(-2 * width, 2 * width + 1)
    first, last = (
        a.ravel()
        for a in np.meshgrid(begins[k] * width + offsets, (begins[k] + lengths[k]) * width + offsets)
    )
    misfit, rise = _fit(n, x, first, np.maximum(last - first, 1), variance, is_log=is_log)
    k = misfit.argmin()
    point = first_point + int(first[k])
    return Ramp(point, min(first_point + earliest, point), max(first_point + latest, point), float(rise[k]))


def _fit(n: Array, x: Array, begins: Indexes, lengths: Indexes, variance: float, *, is_log: bool) -> tuple[Array, Array]:  # fmt: skip
    """Weighted squares of the misfit and the rise of each line: level until `begins`, rising for `lengths`, then level."""
    weight, y = n / variance, x / np.maximum(n, 1)
    if is_log:
        y = np.exp(y)
        weight = weight / np.maximum(y, 1e-3) ** 2
    middles = np.arange(len(n)) + 0.5
    f = np.clip((middles - begins[:, None]) / np.maximum(lengths, 1e-3)[:, None], 0, 1)
    total = weight.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_f, mean_y = f @ weight / total, (weight @ y) / total
        cov = f @ (weight * y) - total * mean_f * mean_y
        var = np.maximum((f**2) @ weight - total * mean_f**2, 1e-12)
        misfit = weight @ (y - mean_y) ** 2 - np.where(cov > 0, cov**2 / var, 0)
    return misfit, cov / var

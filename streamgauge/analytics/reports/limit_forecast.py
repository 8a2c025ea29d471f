"""When a rate limit is used up at the current rate, from what responses reported as remaining. Pure.

Rules
1. A limit refills in one of two ways. In a fixed window, the instant of the reset stays the same until the window ends; then everything
   is there again. A bucket that refills all the time reports when it would be full, which moves on while it is used.
2. The remaining amount of a bucket is its net rate. In a fixed window, the rate is what is used, over all windows of the series, and
   only a window that is empty before its reset is a forecast.
3. The rate is that since it last changed: while the part of the series after a change differs from the part before it by more than
   chance, only the later part counts. If a parabola describes the change better, traffic grows steadily, and its rate is the parabola's.
4. There is none while traffic falls: the parabola flattens, or the rate fell more recently than the limit would last. There is none
   further ahead than `AHEAD` times the length of the series that it is based on, and none if the rate may be chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

LEAST = 6
"""Values of a series."""
SIGMAS = 6.0
CHANGE = 4.0
DOUBT, FALL = 1.5, 0.1
AHEAD = 3.0
STALE_S, LONG_STALE_S = 120.0, 900.0
"""Age of the newest value, and of one of a window longer than `LONG_S`, from which on nothing is known."""
LONG_S = 3600.0
RECENT_S = 600.0
"""What is read of the series of shorter windows."""
ROUNDED_S = 1.5
"""Resets of one window differ by at most this, because many are rounded."""
_JUMP = 0.2
"""Rise, as a share of the limit, that is a reset if no reset is reported."""
_PARTS = 12
Floats = npt.NDArray[np.float64]


class Sample(NamedTuple):
    """What a response reported. Times are Unix seconds."""

    at_s: float
    remaining: float
    reset_at_s: float | None


class _Fit(NamedTuple):
    rate: float
    """Of the remaining amount per second at the end: negative while it falls."""
    curve: float
    """Half of the change of the rate per second."""
    error: float
    """Standard error of the rate."""
    began_s: float
    """When the rate began, relative to the end: negative."""
    slowed: bool
    """The rate fell at that time, or falls."""


def seconds_left(samples: Sequence[Sample], limit: float, now_s: float) -> float | None:
    """Seconds from now until nothing remains, 0 if nothing does. None: no forecast. `samples`: in order of time, of one limit."""
    if not samples:
        return None
    last = samples[-1]
    is_long = last.reset_at_s is not None and last.reset_at_s - last.at_s > LONG_S
    if now_s - last.at_s > (LONG_STALE_S if is_long else STALE_S):
        return None
    if last.remaining <= 0:
        return 0.0 if last.reset_at_s is None or last.reset_at_s > now_s else None
    samples = [one for one in samples if is_long or one.at_s >= last.at_s - RECENT_S]
    at = np.array([one.at_s - last.at_s for one in samples])
    left = np.array([one.remaining for one in samples])
    known = [one.reset_at_s for one in samples if one.reset_at_s is not None]
    ends_s = math.inf
    if len(known) == len(samples) > 1:
        steps_s = np.diff(np.array(known))
        moved = steps_s / np.maximum(np.diff(at), 1e-3)
        if float(np.median(moved)) < 0.5:
            # Resets in whole seconds differ by one or two between responses of the same window.
            ends_s, left = known[-1] - now_s, _unwrapped(left, (moved > 0.5) & (steps_s > ROUNDED_S), limit)
    elif at[0] > -STALE_S or float(np.max(np.diff(left))) > _JUMP * limit:
        return None
    fit = _fitted(at, left)
    if fit is None or -fit.rate <= SIGMAS * fit.error:
        return None
    seconds = last.remaining / -fit.rate
    if fit.curve < 0:
        seconds = (math.sqrt(fit.rate**2 - 4 * fit.curve * last.remaining) + fit.rate) / (-2 * fit.curve)
    seconds -= now_s - last.at_s
    most_s = min(-fit.began_s * (1 if fit.slowed else AHEAD), ends_s)
    return max(seconds, 0.0) if seconds <= most_s and not (fit.slowed and fit.curve) else None


def _unwrapped(left: Floats, is_reset: npt.NDArray[np.bool_], limit: float) -> Floats:
    """The remaining amount without its resets: what is used, downwards."""
    return np.concatenate(([0.0], np.cumsum(np.where(is_reset, left[1:] - limit, np.diff(left)))))


def _fitted(at: Floats, left: Floats) -> _Fit | None:
    """The rate at the end of the series. None: it is too short."""
    slowed = False
    while True:
        if len(at) < LEAST or at[0] == at[-1]:
            return None
        steps, widths = np.diff(left), np.maximum(np.diff(at), 1e-3)
        ks = [
            k for k in sorted({len(at) * i // _PARTS for i in range(1, _PARTS)}) if 3 <= k <= len(at) - LEAST
        ]
        bent = [(_squares(at, left, np.maximum(at - at[k], 0.0))[0], k) for k in ks]
        squares, k = min(bent, default=(math.inf, 0))
        before, after = _rate(at[: k + 1], left[: k + 1]), _rate(at[k:], left[k:])
        noise = _noise(steps - np.where(np.arange(len(steps)) < k, before, after) * widths, widths)
        error = noise * math.sqrt(1 / max(float(at[k] - at[0]), 1e-3) + 1 / -float(at[k]))
        if not bent or abs(after - before) <= CHANGE * error:
            return _steady(at, left, slowed)
        curved, (_, slope, curve) = _squares(at, left, at**2)
        if curved < squares:
            noise = _noise(steps - np.diff(slope * at + curve * at**2), widths)
            return _Fit(
                float(slope),
                float(curve),
                2 * noise / math.sqrt(-float(at[0])),
                float(at[0]),
                bool(curve > 0),
            )
        slowed = after > before
        at, left = at[k:], left[k:]


def _steady(at: Floats, left: Floats, slowed: bool) -> _Fit:
    """The rate of a series without a change. A slower second half is not enough for one, but for a doubt."""
    rate, middle = _rate(at, left), len(at) // 2
    noise, length = _noise(np.diff(left) - rate * np.diff(at), np.diff(at)), -float(at[0])
    first, second = _rate(at[: middle + 1], left[: middle + 1]), _rate(at[middle:], left[middle:])
    fell = second - first > max(DOUBT * noise * 2 / math.sqrt(length), -FALL * first)
    return _Fit(rate, 0.0, noise / math.sqrt(length), float(at[middle if fell else 0]), slowed or fell)


def _rate(at: Floats, left: Floats) -> float:
    return float(left[-1] - left[0]) / max(float(at[-1] - at[0]), 1e-3)


def _noise(deviations: Floats, widths: Floats) -> float:
    """The deviation of one second's use. That of a rate is this / √seconds: use arrives in requests of different sizes, so what
    remains wanders around its line."""
    return max(math.sqrt(float(np.sum(deviations**2) / np.sum(widths))), 1e-12)


def _squares(at: Floats, left: Floats, bend: Floats) -> tuple[float, Floats]:
    """The sum of squares around a line with a bend, and its coefficients."""
    columns = np.column_stack((np.ones_like(at), at, bend))
    found: Floats = np.linalg.lstsq(columns, left, rcond=None)[0].astype(np.float64)
    return float(np.sum((left - columns @ found) ** 2)), found

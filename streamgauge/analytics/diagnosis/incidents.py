"""What the changes that `search` found mean: which belong together, when they began, and what else changed. Pure.

- Incident: the metrics that got worse at one place and time. It is named by its first metric in the order of `FAMILIES`: a lost
  prompt cache makes TTFT longer, not the reverse.
- Onset: its input is a series of one place: streams `n` and affected streams (or sums of differences) `x` at equidistant points. A step
  is the point from which on the affected rate is likelier than the expected one (a CUSUM of log-likelihood ratios). A drift is a line
  that rises from one point to another and fits clearly better than a step does. The confidence interval has all points whose
  likelihood is within a factor of e² of the best.
- The rest is what the aggregates say about a place: its baseline, its neighbours without the change, and changes of traffic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import numpy.typing as npt

from streamgauge.analytics.diagnosis.cell_tables import Array, CellTable, with_totals
from streamgauge.analytics.diagnosis.comparison import LEAST_BASELINE, LEAST_STREAMS, compare
from streamgauge.analytics.diagnosis.diagnosis import PLACE_DIMENSIONS, Cause, Effect
from streamgauge.analytics.diagnosis.metrics import (
    ALL_BUCKETS,
    CUBE,
    CUT_AT_AGE,
    EARLIER_BUCKETS,
    FAMILIES,
    Metric,
)
from streamgauge.analytics.diagnosis.search import LEAST_SCORE, MAX_CAUSES, Found
from streamgauge.analytics.schema.dimensions import LABEL

AMOUNTS = ("prompts", "reasoning", "cost")
"""Families that have no effects on others, because durations are compared among prompts of the same length."""
BUCKETS_BEFORE, BUCKETS_AFTER = 2, 5
"""Buckets before and after the first bucket of a change in which its onset is looked for."""
SAME_TIME_BUCKETS = 2.0
"""Begins of one incident differ by at most so many buckets of the range."""


@dataclass(frozen=True)
class Incident:
    main: Found
    effects: tuple[Found, ...] = ()


def combine(found: Sequence[Found], edges: Sequence[datetime]) -> list[Incident]:
    """At most `MAX_CAUSES` incidents: those that last first, then by score."""
    incidents: list[Incident] = []
    ordered = sorted(found, key=lambda f: (FAMILIES.index(f.metric.family), _is_part(f, found), -f.score))
    for change in ordered:
        if any(i.main.metric == change.metric and i.main.where == change.where for i in incidents):
            continue
        for i, incident in enumerate(incidents):
            if _belongs(change, incident, edges):
                known = {f.metric.name for f in (incident.main, *incident.effects)}
                if change.metric.name in known:
                    break
                incidents[i] = replace(incident, effects=(*incident.effects, change))
                break
        else:
            incidents.append(Incident(change))
    incidents.sort(key=lambda i: (i.main.end < ALL_BUCKETS, -i.main.score))
    return incidents[:MAX_CAUSES]


def _is_part(change: Found, found: Sequence[Found]) -> bool:
    """Whether another metric of the family names the change. Not if the failures at one age are at a larger place."""
    others = (f for f in found if f.metric.family == change.metric.family and f.metric != change.metric)
    is_wider = any(change.where.items() < f.where.items() and _overlap(change, f) for f in others)
    return change.metric.is_slow and not (change.metric.name == CUT_AT_AGE and is_wider)


def _belongs(change: Found, incident: Incident, edges: Sequence[datetime]) -> bool:
    main = incident.main
    if change.metric.is_slow:
        same = [f for f in (main, *incident.effects) if f.metric.family == change.metric.family]
        if any(_overlap(change, f) and _may_be_same(change, f) for f in same):
            return True
    if main.metric.family in AMOUNTS and change.metric.family not in AMOUNTS:
        return False
    bucket = edges[-1] - edges[-2]
    # Failures with a tool call are some of the failures, so they may be clear at another time.
    same_streams = change.metric.family == "tool_failure" and main.metric.family == "failure"
    same_time = abs(edges[change.begin] - edges[main.begin]) <= SAME_TIME_BUCKETS * bucket
    is_inside = main.where.items() <= change.where.items()
    same_streams |= main.metric.name == CUT_AT_AGE and change.metric.family == "failure"
    return is_inside and _overlap(change, main) and (same_streams or same_time)


def _overlap(a: Found, b: Found) -> bool:
    return a.begin < b.end and b.begin < a.end


def _may_be_same(a: Found, b: Found) -> bool:
    """Whether no dimension has different values in both places."""
    return all(a.where[d] == b.where[d] for d in a.where.keys() & b.where.keys())


# Onsets

Indexes = npt.NDArray[np.int64]

LOG_LIKELIHOOD_DROP = 2.0
USUAL = 0.005
"""Least share of affected streams before an onset, if such streams are usual."""
REFINEMENTS = 3
RAMP_POINTS = 60
LEAST_RAMP_POINTS = 20
LEAST_RAMP = 0.12
"""Share of the series that a drift takes at least. A shorter one is a step."""
LOAD, LOAD_S = 0.04, 600.0
"""Usual relative deviation of a duration's level by load, and the time in which it changes."""
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


def usual_share(found: Found) -> float:
    """Least share of affected streams before an onset: `USUAL`, or less if the place had no affected stream."""
    earlier = slice(0, max(found.begin - BUCKETS_BEFORE, 0))
    n, x = (
        with_totals(found.table.whole(f"{c}_{found.metric.name}"))[found.place][earlier].sum() for c in "nx"
    )
    return USUAL if x else min(USUAL, 1 / max(float(n), 1))


def _log_ratios(
    n: Array, x: Array, expected: float, value: float, variance: float | None, usual: float
) -> Array:
    if variance is None:
        p1 = min(value, 1 - 1e-4)
        # One usual failure shortly before the onset must not move it, however rare it is.
        p0 = max(expected, min(usual, p1 / 10))
        found: Array = x * np.log(p1 / p0) + (n - x) * np.log((1 - p1) / (1 - p0))
        return found
    d = value - expected
    mean: Array = (d * (x - n * expected) - n * d**2 / 2) / variance
    return mean


def step(
    n: Array, x: Array, expected: float, value: float, variance: float | None, usual: float = USUAL
) -> Onset:
    """The onset of a step that lasts until the end of the series. `variance` of single streams if `x` are sums, else None. `usual`: the
    least share of affected streams before the onset."""
    k = 0
    sums: Array = np.zeros(len(n))
    for _ in range(REFINEMENTS):
        ratios = _log_ratios(n, x, expected, value, variance, usual)
        sums = np.cumsum(ratios[::-1])[::-1]
        # The first affected stream, not the time without streams before it.
        k = len(sums) - 1 - int(sums[::-1].argmax())
        after = n[k:].sum()
        refined = float(x[k:].sum() / after) if after else value
        # A wide bucket that is affected in part dilutes the given value, so the real one can only be farther away.
        if abs(refined - expected) > abs(value - expected) and (refined > expected) == (value > expected):
            value = refined
    near = np.flatnonzero(sums >= sums[k] - LOG_LIKELIHOOD_DROP)
    return Onset(k, int(near.min()), int(near.max()))


def ramp(n: Array, x: Array, variance: float, *, is_log: bool, point_s: float) -> Ramp | None:
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
    if not wide_n.any():
        return None
    misfit, rise = _fit(wide_n, wide_x, begins, lengths, variance, width * point_s, is_log=is_log)
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
    misfit, rise = _fit(n, x, first, np.maximum(last - first, 1), variance, point_s, is_log=is_log)
    k = misfit.argmin()
    point = first_point + int(first[k])
    return Ramp(point, min(first_point + earliest, point), max(first_point + latest, point), float(rise[k]))


def _fit(
    n: Array, x: Array, begins: Indexes, lengths: Indexes, variance: float, point_s: float, *, is_log: bool
) -> tuple[Array, Array]:  # fmt: skip
    """Squares of the misfit and the rise of each line: level until `begins`, rising for `lengths`, then level.

    Generalized least squares: load changes the level of durations, so near points deviate together.
    """
    used = n > 0
    n, x, middles = n[used], x[used], np.flatnonzero(used) + 0.5
    y = np.exp(x / n) if is_log else x / n
    covariance = np.diag(variance / n)
    if is_log:
        covariance += LOAD**2 * np.exp(-np.abs(middles[:, None] - middles) * point_s / LOAD_S)
        covariance *= np.outer(np.maximum(y, 1e-3), np.maximum(y, 1e-3))
    weight = np.linalg.inv(covariance)
    f = np.clip((middles - begins[:, None]) / np.maximum(lengths, 1e-3)[:, None], 0, 1)
    of_point, total = weight.sum(0), weight.sum()
    mean_f, mean_y = f @ of_point / total, float(of_point @ y / total)
    weighted, y = f @ weight, y - mean_y
    cov = weighted @ y
    var = np.maximum((weighted * f).sum(1) - total * mean_f**2, 1e-12)
    misfit = float(y @ weight @ y) - np.where(cov > 0, cov**2 / var, 0)
    return misfit, cov / var


# Places

SURGE = 3.0
"""Least ratio of request rates that is reported."""
SURGE_SHARE = 0.15
"""Least share of the requests at the place."""
LONGER_PROMPTS = 1.5
CLEAR_RISE = 3.0
"""In standard errors of independent streams."""
MISSED_SHARE = 0.05
"""Above it, the 95th percentile is above the objective."""


def levels(found: Found) -> dict[tuple[str, str, int], float]:
    """(model, gateway, stratum) → mean of the metric outside the interval, at the place. The stratum is 0 without `Metric.by_input`."""
    table, name = found.table, found.metric.name
    inside, others = _inside(found), found.place[2:]
    n, x = (with_totals(table.columns[f"{c}_{name}"])[..., ~inside].sum(-1) for c in ("n", "x"))
    n, x = (a[(..., *others)] if others else a for a in (n, x))
    n, x = (
        a[:-1] if table.has_strata(f"n_{name}") else a[None] for a in (n, x)
    )  # without the total of strata
    return {
        (model, gateway, k): float(x[k, m, g] / n[k, m, g])
        for k in range(len(n))
        for m, model in enumerate(table.values[0])
        for g, gateway in enumerate(table.values[1])
        if n[k, m, g] >= LEAST_BASELINE and found.where.get("model", model) == model and found.where.get("gateway", gateway) == gateway
    }  # fmt: skip


def unaffected(alone: CellTable, found: Found, variance: float) -> tuple[str | None, tuple[str, ...]]:
    """A dimension and its values that have enough streams next to the place and are not worse there."""
    for dimension in PLACE_DIMENSIONS:
        if dimension not in found.where:
            continue
        value = found.where[dimension]
        if dimension in CUBE:
            table, axis, prefix = found.table, found.table.dimensions.index(dimension), ""
        else:
            table, axis = alone, 0
            prefix = f"{dimension}=" + (value.partition("=")[0] + "=" if dimension == LABEL else "")
        if f"n_{found.metric.name}" not in table.columns:
            continue
        interval = (np.array([found.begin]), np.array([found.end]))
        compared, good = compare(table, found.metric, interval, variance), []
        for i, name in enumerate(table.values[axis]):
            place = (
                (*(i if a == axis else p for a, p in enumerate(found.place)), 0)
                if table is found.table
                else (i, 0)
            )
            quiet = compared.excess[place] < 0.25 * abs(found.value - found.expected)
            is_other = (
                name.startswith(prefix) and name.removeprefix(f"{dimension}=" if prefix else "") != value
            )
            if is_other and compared.n[place] >= LEAST_STREAMS and quiet:
                good.append((-float(compared.n[place]), name.removeprefix(f"{dimension}=" if prefix else "")))
        if good:
            return dimension, tuple(name for _, name in sorted(good))
    return None, ()


def cube_place(cube: CellTable, found: Found) -> tuple[int, ...] | None:
    """The indexes of the place in the cube. None if the place is not in the cube."""
    if not found.where.keys() <= set(cube.dimensions):
        return None
    axes = zip(cube.dimensions, cube.values, strict=True)
    return tuple(v.index(found.where[d]) if d in found.where else len(v) + 1 for d, v in axes)


def surges(table: CellTable, found: Found, place: tuple[int, ...], seconds: Array) -> list[tuple[str, float]]:
    """(client, ratio of its request rates) of clients that send many more requests to the model and gateway of the place.

    Rates count from the first bucket with requests: there is no rate before the data began.
    """
    inside = _inside(found)
    requests = with_totals(table.columns["requests"])[place[:2]]
    has_data = np.maximum.accumulate(table.columns["requests"].sum((0, 1, 2)) > 0)
    outside = ~inside & has_data
    now, before = requests[:, inside].sum(-1), requests[:, outside].sum(-1)
    ratio = (now / seconds[inside].sum()) / np.maximum(before / max(seconds[outside].sum(), 1), 1e-9)
    everyone = len(table.values[2]) + 1
    many = (now >= LEAST_STREAMS) & (before > 0) & (ratio >= SURGE) & (now >= SURGE_SHARE * now[everyone])
    return [(client, float(ratio[c])) for c, client in enumerate(table.values[2]) if many[c]]


def means(table: CellTable, found: Found, place: tuple[int, ...], name: str) -> tuple[float, float] | None:
    """The geometric means of a value at the place, inside and outside the interval. None if there are few streams."""
    inside = _inside(found)
    x, n = (with_totals(table.whole(f"{c}_{name}"))[place] for c in ("x", "n"))
    if min(n[inside].sum(), n[~inside].sum()) < LEAST_STREAMS:
        return None
    now, before = (math.exp(x[part].sum() / n[part].sum()) for part in (inside, ~inside))
    return now, before


def _inside(found: Found) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    inside = np.zeros(ALL_BUCKETS, dtype=bool)
    inside[found.begin : found.end] = True
    return inside


def constant(table: CellTable, metric: Metric, names: Iterable[str]) -> Cause | None:
    """The place that differs most from all other streams during the whole range. `names`: columns of `x`, which are added."""
    n_all = table.whole(f"n_{metric.name}")[..., EARLIER_BUCKETS:].sum(-1, keepdims=True)
    x_all = sum(table.whole(name)[..., EARLIER_BUCKETS:].sum(-1, keepdims=True) for name in names)
    n, x = with_totals(n_all)[..., 0], with_totals(np.asarray(x_all))[..., 0]
    everything = (-1,) * n.ndim
    rest = (x[everything] - x + 0.5) / (n[everything] - n + 10)
    share = x / np.maximum(n, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        score = x * np.log(np.maximum(share, 1e-9) / rest) + (n - x) * np.log(
            np.maximum(1 - share, 1e-9) / (1 - rest)
        )
    excess = x - n * rest
    least: Array | float = metric.least_change
    if metric.least_change_of_stream:
        sums = table.columns[f"l_{metric.family}"][..., EARLIER_BUCKETS:].sum(-1, keepdims=True)
        least = with_totals(sums)[..., 0] / np.maximum(n, 1)
    fits = (
        (n >= LEAST_STREAMS) & (share >= 2 * rest) & (share - rest >= least) & (excess >= x[everything] / 3)
    )
    for axis, values in enumerate(table.values):  # unnamed values
        fits[(*(slice(None),) * axis, len(values))] = False
    fits[everything] = False
    score = np.where(fits, score, 0)
    place = tuple(int(i) for i in np.unravel_index(int(score.argmax()), score.shape))
    if score[place] < LEAST_SCORE:
        return None
    where = {d: v[i] for d, v, i in zip(table.dimensions, table.values, place, strict=True) if i < len(v)}
    main = Effect(metric=metric.name, value=float(share[place]), before=None, unit="share")
    return Cause(
        kind="constant", where=where, main=main, streams=int(n[place]), affected=int(x[place]), score=float(score[place])
    )  # fmt: skip


def longer_prompts(ratio: float) -> str:
    """The evidence of longer prompts."""
    return f"prompts {ratio:.1f} times longer"


def traffic_mix(table: CellTable, metric: Metric) -> Cause | None:
    """More streams above the objective than before, because more requests are of a slow model, gateway or client, or are longer.

    The part of the rise that other shares of requests explain has to be half of it. Without that part, the objective would be met or
    half as many streams would be slow.
    """
    n, x = (table.columns[f"{c}_{metric.name}"] for c in ("n", "x"))
    now, before = slice(EARLIER_BUCKETS, None), slice(0, EARLIER_BUCKETS)
    totals = [float(a[..., part].sum()) for part in (now, before) for a in (n, x)]
    if min(totals[0], totals[2]) < 2 * LEAST_STREAMS:
        return None
    share, share_before = totals[1] / totals[0], totals[3] / totals[2]
    rise, noise = share - share_before, math.sqrt(share * (1 - share) * (1 / totals[0] + 1 / totals[2]))
    best = max(rise / 2, share - max(MISSED_SHARE, share / metric.least_ratio))
    if rise < CLEAR_RISE * noise:
        return None
    main = Effect(metric=metric.name, value=share, before=share_before, unit="share")
    mix = Cause(kind="traffic", where={}, main=main, streams=int(totals[0]))
    found = None
    first_axis = n.ndim - 1 - len(table.dimensions)
    for axis in range(n.ndim - 1):
        others = tuple(a for a in range(n.ndim - 1) if a != axis)
        n_, x_ = n.sum(others), x.sum(others)
        grown = n_[:, now].sum(-1) / totals[0] - n_[:, before].sum(-1) / totals[2]
        parts = grown * (x_.sum(-1) / np.maximum(n_.sum(-1), 1) - share_before)
        if axis < first_axis:  # the strata
            x_input, n_input = (table.columns[f"{c}_input"].sum((0, 1, 2)) for c in ("x", "n"))
            lengths = [x_input[part].sum() / max(n_input[part].sum(), 1) for part in (now, before)]
            longer = math.exp(lengths[0] - lengths[1])
            if parts.sum() > best and longer > 1.05:
                best, found = float(parts.sum()), replace(mix, evidence=(longer_prompts(longer),))
            continue
        dimension, names = table.dimensions[axis - first_axis], table.values[axis - first_axis]
        for i, name in enumerate(names):
            if grown[i] > 0 and parts[i] > best:
                share_of_requests = float(n_[i, now].sum()) / totals[0]
                evidence = f"{100 * share_of_requests:.0f} % of the requests, before {100 * (share_of_requests - grown[i]):.0f} %"
                best, found = float(parts[i]), replace(mix, where={dimension: name}, evidence=(evidence,))
    return found

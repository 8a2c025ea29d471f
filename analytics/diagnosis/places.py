"""What else the aggregates say about a place: its baseline, its neighbours without the change, and changes of traffic. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from streamgauge.analytics.diagnosis.cube import ALL_BUCKETS, Array, Table, with_totals
from streamgauge.analytics.diagnosis.diagnosis import Cause, Effect
from streamgauge.analytics.diagnosis.metrics import Metric
from streamgauge.analytics.diagnosis.scope import EARLIER_BUCKETS
from streamgauge.analytics.diagnosis.search import LEAST_SCORE, Found
from streamgauge.analytics.diagnosis.statistics import LEAST_BASELINE, LEAST_STREAMS, compare

MAX_UNAFFECTED = 3
SURGE = 3.0
"""Least ratio of request rates that is reported."""
SURGE_SHARE = 0.15
"""Least share of the requests at the place."""
LONGER_PROMPTS = 1.5


def levels(table: Table, found: Found) -> dict[tuple[str, str], float]:
    """(model, gateway) → mean of the metric outside the interval, at the place."""
    inside = _inside(found)
    client = found.place[2] if found.part == "cube" else -1
    n, x = (
        with_totals(table.columns[f"{c}_{found.metric.name}"])[..., ~inside].sum(-1)[..., client]
        for c in ("n", "x")
    )
    return {
        (model, gateway): float(x[m, g] / n[m, g])
        for m, model in enumerate(table.values[0])
        for g, gateway in enumerate(table.values[1])
        if n[m, g] >= LEAST_BASELINE and found.where.get("model", model) == model and found.where.get("gateway", gateway) == gateway
    }  # fmt: skip


def unaffected(table: Table, found: Found, variance: float) -> tuple[str | None, tuple[str, ...]]:
    """A dimension and its values that have enough streams next to the place and are not worse there."""
    interval = (np.array([found.begin]), np.array([found.end]))
    compared = compare(table, found.metric, interval, variance)
    by_name = dict(zip(table.dimensions, range(len(table.dimensions)), strict=True))
    for dimension in ("gateway", "model", "client", "tap", "server"):
        if dimension not in found.where:
            continue
        axis, good = by_name[dimension], []
        for i, name in enumerate(table.values[axis]):
            place = (*(i if a == axis else p for a, p in enumerate(found.place)), 0)
            quiet = compared.excess[place] < 0.25 * abs(found.value - found.expected)
            if i != found.place[axis] and compared.n[place] >= LEAST_STREAMS and quiet:
                good.append((-float(compared.n[place]), name))
        if good:
            return dimension, tuple(name for _, name in sorted(good)[:MAX_UNAFFECTED])
    return None, ()


def surges(table: Table, found: Found, seconds: Array) -> list[tuple[str, float]]:
    """(client, ratio of its request rates) of clients that send many more requests to the model and gateway of the place.

    Rates count from the first bucket with requests: there is no rate before the data began.
    """
    inside = _inside(found)
    requests = with_totals(table.columns["requests"])[found.place[:2]]
    has_data = np.maximum.accumulate(table.columns["requests"].sum((0, 1, 2)) > 0)
    outside = ~inside & has_data
    now, before = requests[:, inside].sum(-1), requests[:, outside].sum(-1)
    ratio = (now / seconds[inside].sum()) / np.maximum(before / max(seconds[outside].sum(), 1), 1e-9)
    everyone = len(table.values[2]) + 1
    many = (now >= LEAST_STREAMS) & (before > 0) & (ratio >= SURGE) & (now >= SURGE_SHARE * now[everyone])
    return [(client, float(ratio[c])) for c, client in enumerate(table.values[2]) if many[c]]


def longer_prompts(table: Table, found: Found) -> float | None:
    """The ratio of prompt lengths inside and outside the interval, None if it is small or unknown."""
    inside = _inside(found)
    lengths, n = (with_totals(table.columns[c])[found.place] for c in ("x_input", "n_input"))
    if min(n[inside].sum(), n[~inside].sum()) < LEAST_STREAMS:
        return None
    ratio = math.exp(lengths[inside].sum() / n[inside].sum() - lengths[~inside].sum() / n[~inside].sum())
    return ratio if ratio >= LONGER_PROMPTS else None


def _inside(found: Found) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    inside = np.zeros(ALL_BUCKETS, dtype=bool)
    inside[found.begin : found.end] = True
    return inside


def constant(table: Table, metric: Metric, names: Mapping[str, float]) -> Cause | None:
    """The place that differs most from all other streams during the whole range. `names`: columns of `x` → weight."""
    n_all = table.columns[f"n_{metric.name}"][..., EARLIER_BUCKETS:].sum(-1, keepdims=True)
    x_all = sum(
        weight * table.columns[name][..., EARLIER_BUCKETS:].sum(-1, keepdims=True)
        for name, weight in names.items()
    )
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


def traffic_mix(table: Table, metric: Metric) -> Cause | None:
    """A rise of a mean that comes from more requests of a slow model, gateway or client."""
    n, x = table.columns[f"n_{metric.name}"], table.columns[f"x_{metric.name}"]
    now, before = slice(EARLIER_BUCKETS, None), slice(0, EARLIER_BUCKETS)
    totals = [float(a[..., part].sum()) for part in (now, before) for a in (n, x)]
    if min(totals[0], totals[2]) < 2 * LEAST_STREAMS:
        return None
    mean, mean_before = totals[1] / totals[0], totals[3] / totals[2]
    best, found = 0.5 * (mean - mean_before), None
    if mean - mean_before < metric.least_change:
        return None
    for axis, (dimension, names) in enumerate(zip(table.dimensions, table.values, strict=True)):
        others = tuple(a for a in range(n.ndim) if a != axis)
        n_, x_ = n.sum(others[:-1]), x.sum(others[:-1])
        for i, name in enumerate(names):
            count = n_[i].sum()
            if count < LEAST_STREAMS:
                continue
            grown = n_[i][now].sum() / totals[0] - n_[i][before].sum() / totals[2]
            part = grown * (x_[i].sum() / count - mean_before)
            if grown > 0 and part > best:
                best, found = part, (dimension, name, n_[i][now].sum(), grown)
    if found is None:
        return None
    dimension, name, streams, grown = found
    main = Effect(metric=metric.name, value=math.exp(mean), before=math.exp(mean_before), unit=metric.unit)
    share = streams / totals[0]
    evidence = (f"{100 * share:.0f} % of the requests, before {100 * (share - grown):.0f} %",)
    return Cause(kind="traffic", where={dimension: name}, main=main, evidence=evidence, streams=int(streams))

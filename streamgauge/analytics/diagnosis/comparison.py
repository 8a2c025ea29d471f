"""Compare places between an interval and its baseline. Pure.

Statistics
1. A cell is one value of each dimension. Each cell is compared with its own baseline, the buckets outside the interval. So a place
   does not look worse because more of its requests are of a slow model.
2. The baseline of a cell with few streams is shrunk towards that of its model and gateway (or of its client if clients differ
   more), and that towards all streams. The means of a value alone are differences from the levels of the models and gateways.
3. `score` is the log-likelihood ratio of the place's own rate (or mean) against the expected one. It decides which place explains a
   change best.
4. `evidence` is the log-likelihood ratio of two samples, the interval and the baseline, against one. It decides whether there is a
   change, also with a small baseline. It is divided by `overdispersion`, the noise relative to independent streams.
5. Load varies, so only the change beyond half the least change, or beyond 1.2 times a share and an eighth of its least change, is
   evidence. The variance of a mean includes that within the interval, so a few outliers are no evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from streamgauge.analytics.diagnosis.cell_tables import Array, CellTable, with_totals
from streamgauge.analytics.diagnosis.metrics import Metric

LEAST_STREAMS = 10
LEAST_AFFECTED = 5
LEAST_WITHOUT_USUAL = 3
"""As `LEAST_AFFECTED`, if fewer than `NEARLY_NONE` are expected. If the share `MOST_OF_FEW` is affected, a place may have fewer than
`LEAST_STREAMS`."""
NEARLY_NONE = 0.1
MOST_OF_FEW = 0.5
PRIOR_STREAMS = 10.0
"""Weight of the less specific baseline in a cell's baseline."""
LEAST_OF_ALL = 0.25
"""Minimum share in the baseline of a cell, relative to the share of all streams."""
LEAST_BASELINE = 5
"""Streams in the baseline of a cell, if streams without baseline are not compared."""
USUAL_RATIO = 1.2
"""Factor by which a share of failures varies without a cause."""
LEAST_VARIANCE = 0.01
FIRST_FAILED = 0.1
"""Failed streams among the `PRIOR_STREAMS` that are added to the baseline of all streams."""
USUAL_STREAMS = 100.0
"""Additional streams in the baseline of failures, at the rate that is usual elsewhere: their rates hardly differ between places."""

Intervals = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]
"""First buckets, and the buckets after the last ones."""


@dataclass(frozen=True)
class Comparison:
    """Of each place (the cells and their totals) and interval. Places are the axes, intervals the last one."""

    n: Array
    """Streams in the interval that are compared."""
    value: Array
    """Share or mean in the interval."""
    expected: Array
    """Expected share or mean: that of the baselines of the cells."""
    excess: Array
    """(value − expected) × direction."""
    least: Array | float
    """Minimum excess of a change."""
    score: Array
    evidence: Array


def compare(table: CellTable, metric: Metric, intervals: Intervals, variance: float) -> Comparison:
    """Compare all places in all intervals. `variance`: of the values of single streams, if the kind is `mean`.

    `score` and `evidence` are 0 where the change is too small to matter (`matters`), which saves most of the work.
    """
    n_all, x_all = table.columns[f"n_{metric.name}"], table.columns[f"x_{metric.name}"]
    n, x = _inside(n_all, intervals), _inside(x_all, intervals)
    base_n, base_x = n_all.sum(-1, keepdims=True) - n, x_all.sum(-1, keepdims=True) - x
    has_strata = table.has_strata(f"n_{metric.name}")
    level = _level(table, base_n, base_x, metric)
    known = np.isfinite(level)
    if not metric.new_is_bad:
        known &= base_n >= LEAST_BASELINE
    level = np.where(known, level, 0)
    cells = [np.where(known, n, 0), np.where(known, x, 0), n * level, base_n]
    if metric.kind == "mean" and f"xx_{metric.name}" in table.columns:
        squares = _inside(table.columns[f"xx_{metric.name}"], intervals)
        cells.append(np.where(known, squares - 2 * level * x + n * level**2, 0))
    if has_strata:
        cells = [a.sum(0) for a in cells]
    n, x, expected, base_n, *squared = (with_totals(a) for a in cells)
    counted = np.maximum(n, 1e-9)
    value, expected = x / counted, expected / counted
    least: Array | float = metric.least_change
    if metric.least_change_of_stream:
        least = (
            with_totals(np.where(known, _inside(table.columns[f"l_{metric.family}"], intervals), 0)) / counted
        )
    excess_of_all = (value - expected) * metric.direction
    found = Comparison(n, value, expected, excess_of_all, least, np.zeros_like(n), np.zeros_like(n))
    at = np.nonzero(matters(found, metric))
    n, value, expected, excess = n[at], value[at], expected[at], found.excess[at]
    base = base_n[at] + (USUAL_STREAMS if metric.new_is_bad else 0)
    if metric.kind == "share":
        least_at = np.broadcast_to(found.least, found.n.shape)[at]
        usual = np.minimum(np.maximum(expected * USUAL_RATIO, least_at / 8), value)
        pooled = (n * value + base * usual) / (base + n)
        found.score[at] = n * _divergence(value, expected)
        found.evidence[at] = n * _divergence(value, pooled) + base * _divergence(usual, pooled)
    else:
        inside = squared[0][at] / n - excess**2 if squared else variance
        beyond = np.maximum(excess - metric.least_change / 2, 0)
        found.score[at] = n * excess**2 / (2 * variance)
        found.evidence[at] = n * beyond**2 / (2 * np.maximum(variance, inside)) * base / (base + n)
    return found


def matters(compared: Comparison, metric: Metric) -> npt.NDArray[np.bool_]:
    """Where the change is for the worse, large enough to matter, and of enough streams."""
    enough: npt.NDArray[np.bool_] = compared.excess >= compared.least
    affected = compared.excess * compared.n
    if metric.kind == "share":
        # If failures are unusual, a few of few streams count.
        few = (compared.expected * compared.n < NEARLY_NONE) & metric.new_is_bad
        enough &= affected >= np.where(few, LEAST_WITHOUT_USUAL, LEAST_AFFECTED)
        enough &= (compared.n >= LEAST_STREAMS) | (few & (compared.value >= MOST_OF_FEW))
        return enough & (compared.value >= metric.least_ratio * compared.expected)
    return enough & (compared.n >= LEAST_STREAMS)


def _inside(cells: Array, intervals: Intervals) -> Array:
    """The sums of each interval, on the last axis."""
    buckets = np.arange(cells.shape[-1])[:, None]
    found: Array = cells @ ((buckets >= intervals[0]) & (buckets < intervals[1])).astype(cells.dtype)
    return found


def _level(table: CellTable, n: Array, x: Array, metric: Metric) -> Array:
    """The rate or mean of each cell (statistics 2), in each stratum. NaN if it is unknown."""
    axes = range(len(table.dimensions))
    general = ("client",) if metric.of_client and "client" in table.dimensions else ("model", "gateway")
    others = tuple(a for a in axes if table.dimensions[a] not in general) if len(axes) > 1 else ()
    baseline = partial(_baseline, is_mean=metric.kind == "mean", others=others)
    has_strata = table.has_strata(f"n_{metric.name}")
    return np.stack([baseline(*s) for s in zip(n, x, strict=True)]) if has_strata else baseline(n, x)


def _baseline(n: Array, x: Array, *, is_mean: bool, others: tuple[int, ...]) -> Array:
    """`others`: the axes that the less specific baseline does not have."""
    places = tuple(range(n.ndim - 1))
    all_n, all_x = n.sum(places, keepdims=True), x.sum(places, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        # Means differ between models, so only shares are shrunk towards all streams.
        level = (
            all_x / all_n * (np.nan if is_mean else 1)
            if is_mean
            else (all_x + FIRST_FAILED) / (all_n + PRIOR_STREAMS)
        )
        if others:
            n_, x_ = n.sum(others, keepdims=True), x.sum(others, keepdims=True)
            own = x_ / n_
            level = (
                np.where(n_ >= LEAST_BASELINE, own, np.nan)
                if is_mean
                else (x_ + PRIOR_STREAMS * level) / (n_ + PRIOR_STREAMS)
            )
        pulled = (x + PRIOR_STREAMS * level) / (n + PRIOR_STREAMS)
        if not is_mean:  # A cell without a failure still has a failure rate above 0.
            pulled = np.maximum(pulled, LEAST_OF_ALL * (all_x + FIRST_FAILED) / (all_n + PRIOR_STREAMS))
        else:
            pulled = np.where(np.isfinite(level), pulled, np.where(n >= LEAST_BASELINE, x / n, np.nan))
    found: Array = np.broadcast_to(pulled, n.shape)
    return found


def _divergence(p: Array, q: Array) -> Array:
    """Kullback-Leibler divergence of shares, in nats."""
    q = np.clip(q, 1e-6, 1 - 1e-6)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Array = np.where(p > 0, p * np.log(p / q), 0) + np.where(
            p < 1, (1 - p) * np.log((1 - p) / (1 - q)), 0
        )
    return found


def variance_of(table: CellTable, metric: Metric) -> float:
    """Variance of single streams within cells and buckets, which no change between buckets affects. 0 if the kind is `share`."""
    if metric.kind == "share":
        return 0.0
    n, x, xx = (table.columns[f"{c}_{metric.name}"] for c in ("n", "x", "xx"))
    several = n >= 2
    if not several.any():
        return 1.0
    squares = (xx - x**2 / np.maximum(n, 1))[several].sum()
    return max(LEAST_VARIANCE, float(squares / (n[several] - 1).sum()))


def overdispersion(
    table: CellTable, metric: Metric, place: tuple[int, ...], interval: tuple[int, int], variance: float
) -> float:
    """Variation between the buckets outside the interval, relative to independent streams: at least 1.

    It uses an upper quantile in place of the mean, so another incident in some of the buckets does not hide this one.
    """
    n_all, x_all = table.columns[f"n_{metric.name}"], table.columns[f"x_{metric.name}"]
    outside = np.ones(n_all.shape[-1], dtype=bool)
    outside[interval[0] : interval[1]] = False
    n, x = n_all[..., outside], x_all[..., outside]
    has_strata = table.has_strata(f"n_{metric.name}")
    level = _level(table, n.sum(-1, keepdims=True), x.sum(-1, keepdims=True), metric)
    known = np.isfinite(level)
    cells = [np.where(known, a, 0) for a in (n, x, n * np.where(known, level, 0))]
    n, x, expected = (with_totals(a.sum(0) if has_strata else a)[place] for a in cells)
    used = n > 0
    if used.sum() < 4:
        return 1.0
    if metric.kind == "share":
        spread = np.maximum(expected[used] * (1 - np.minimum(expected[used] / n[used], 1)), 0.25)
    else:
        spread = n[used] * variance
    z2 = (x[used] - expected[used]) ** 2 / spread
    return max(1.0, float(np.quantile(z2, 0.7)) / 1.074)

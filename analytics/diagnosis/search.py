"""Search the places and intervals in which a metric got worse. Pure.

Rules
1. A place is a value of some dimensions; the others are free. The place with the highest score explains the change best: a smaller
   one misses affected streams, and a larger one dilutes them. Naming a value costs the logarithm of the values to choose from, so of
   equal places the one with fewer dimensions is found.
2. A change counts if its evidence is above that of chance in all combinations that were looked at, if it is large enough to matter
   (`Metric.least_change`, `least_ratio`), and with at least `LEAST_STREAMS` streams.
3. A tap or server instance is named instead if it explains the change of a place clearly better (`NARROWER`). Alone it is not searched,
   except for lost records: the mix of its requests changes more often than it fails.
4. The streams of a found place are removed, and the search is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from streamgauge.analytics.diagnosis.cube import ALL_BUCKETS, Array, Table, with_totals
from streamgauge.analytics.diagnosis.metrics import Metric
from streamgauge.analytics.diagnosis.queries import SINGLE
from streamgauge.analytics.diagnosis.scope import EARLIER_BUCKETS
from streamgauge.analytics.diagnosis.statistics import (
    LEAST_AFFECTED,
    LEAST_STREAMS,
    Comparison,
    Intervals,
    compare,
    overdispersion,
    variance_of,
)

MAX_PER_METRIC = 3
MAX_CAUSES = 5
CHANCE = 1e-3
"""Probability that a healthy range has a change that counts."""
NARROWER = 1.25
"""Least ratio of the score of a tap or server instance to that of the place."""
METRICS_COMPARED = 13
CANDIDATES = 30
LENGTHS = (1, 2, 3, 4, 6, 8, 16)
INTERVALS_AT_ONCE = 48
"""Intervals that are compared together. The arrays of more do not fit into the caches."""


def _intervals() -> Intervals:
    """Intervals that reach into the range: of some lengths, and all that last until its end."""
    found = {
        (i, j)
        for i in range(1, ALL_BUCKETS)
        for j in (*(i + length for length in LENGTHS), ALL_BUCKETS)
        if EARLIER_BUCKETS < j <= ALL_BUCKETS
    }
    begins, ends = zip(*sorted(found), strict=True)
    return np.array(begins, dtype=np.intp), np.array(ends, dtype=np.intp)


INTERVALS = _intervals()
LEAST_SCORE = math.log(METRICS_COMPARED * len(INTERVALS[0]) / CHANCE)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A place, an interval of buckets and a metric that is worse in it than outside."""

    metric: Metric
    part: str
    """The table: cube, tap or server."""
    where: Mapping[str, str]
    place: tuple[int, ...]
    """Indexes into the table with totals."""
    begin: int
    end: int
    """The bucket after the last. `ALL_BUCKETS`: it lasts."""
    streams: int
    affected: int | None
    value: float
    """Share, or mean of the value (of its logarithm if `Metric.is_log`)."""
    expected: float
    score: float

    @property
    def excess_streams(self) -> float:
        """Streams that are affected beyond the expected ones. All streams if the metric is a mean."""
        return self.streams * (self.value - self.expected if self.metric.kind == "share" else 1)


def search(tables: Mapping[str, Table], metrics: Mapping[str, Metric]) -> list[Found]:
    """All changes for the worse, highest score first."""
    found: list[Found] = []
    for metric in metrics.values():
        part = "tap" if metric.family == "loss" else "cube"
        table = tables[part]
        narrower = {
            d: tables[d] for d in SINGLE if d != part and d in tables and len(tables[d].values[0]) > 1
        }
        streams, affected = (table.columns[f"{c}_{metric.name}"].sum() for c in ("n", "x"))
        if streams >= 2 * LEAST_STREAMS and (metric.kind == "mean" or affected >= LEAST_AFFECTED):
            found += _of_metric(part, table, metric, narrower)
    return sorted(found, key=lambda f: -f.score)


def _of_metric(part: str, table: Table, metric: Metric, narrower: Mapping[str, Table]) -> list[Found]:
    variance = _variance(table, metric)
    found: list[Found] = []
    while len(found) < MAX_PER_METRIC:
        best = _best(part, table, metric, variance)
        if best is None:
            break
        found.append(_narrowed(table, metric, best, narrower) if part == "cube" else best)
        table = _without(table, metric, best.place, best.begin, best.end)
        # The tables of taps and servers do not show which streams are those of the place, so an interval is used once.
        narrower = {
            d: _without(single, metric, (len(single.values[0]),), best.begin, best.end)
            for d, single in narrower.items()
        }
    return found


def _variance(table: Table, metric: Metric) -> float:
    return variance_of(table, metric) if metric.kind == "mean" else 0.0


def _narrowed(table: Table, metric: Metric, best: Found, narrower: Mapping[str, Table]) -> Found:
    """The tap or server instance that explains the change of the found place clearly better, else the place."""
    interval = (np.array([best.begin]), np.array([best.end]))
    least, found = (
        NARROWER * float(compare(table, metric, interval, _variance(table, metric)).score[(*best.place, 0)]),
        best,
    )
    for part, single in narrower.items():
        variance = _variance(single, metric)
        compared = compare(single, metric, interval, variance)
        counts = compared.evidence[..., 0] - _cost(single) >= LEAST_SCORE
        scores = np.where(counts, compared.score[..., 0] - _cost(single), -np.inf)[: len(single.values[0])]
        place = (int(scores.argmax()),)
        if scores[place] < least:
            continue
        reduced = float(compared.evidence[(*place, 0)]) / overdispersion(
            single, metric, place, (best.begin, best.end), variance
        )
        if reduced >= LEAST_SCORE + float(_cost(single)[place]):
            least = float(scores[place])
            found = _found(part, single, metric, compared, place, (best.begin, best.end), reduced)
    return found


def _best(part: str, table: Table, metric: Metric, variance: float) -> Found | None:
    cost = _cost(table)
    evidence = _evidence(table, metric, variance, cost)
    for k in evidence.argsort()[::-1][:CANDIDATES]:
        if evidence[k] < LEAST_SCORE:
            break
        compared = compare(table, metric, _part(k, k + 1), variance)
        # The interval is that of the clearest change, the place the one that explains it best.
        counts = compared.evidence[..., 0] - cost >= LEAST_SCORE
        scores = np.where(counts, compared.score[..., 0] - cost, -np.inf)
        place = tuple(int(i) for i in np.unravel_index(int(scores.argmax()), scores.shape))
        interval = int(INTERVALS[0][k]), int(INTERVALS[1][k])
        reduced = float(compared.evidence[(*place, 0)]) / overdispersion(
            table, metric, place, interval, variance
        )
        if reduced >= LEAST_SCORE + float(cost[place]):
            return _found(part, table, metric, compared, place, interval, reduced)
    return None


def _evidence(table: Table, metric: Metric, variance: float, cost: Array) -> Array:
    """The highest evidence of any place, minus its cost, for each interval."""
    found = []
    for begin in range(0, len(INTERVALS[0]), INTERVALS_AT_ONCE):
        compared = compare(table, metric, _part(begin, begin + INTERVALS_AT_ONCE), variance)
        found.append((compared.evidence - cost[..., None]).reshape(-1, compared.n.shape[-1]).max(0))
    return np.concatenate(found)


def _part(begin: int, end: int) -> Intervals:
    return INTERVALS[0][begin:end], INTERVALS[1][begin:end]


def _cost(table: Table) -> Array:
    """Nats to name each place. Infinite for places with unnamed values."""
    cost = np.zeros(())
    for names in table.values:
        # Naming the only value of a dimension is free but not shorter, hence a little above 0.
        of_value = math.log(max(len(names), 1)) + 0.01
        axis = np.array([of_value] * len(names) + [np.inf, 0.0])
        cost = cost[..., None] + axis
    if len(table.values) == 1 and len(table.values[0]) == 1:
        cost = np.array([0.0, np.inf, np.inf])  # the only tap is named
    found: Array = cost
    return found


def _found(
    part: str,
    table: Table,
    metric: Metric,
    compared: Comparison,
    place: tuple[int, ...],
    interval: tuple[int, int],
    score: float,
) -> Found:
    """The place in the only interval of the comparison."""
    at = (*place, 0)
    where = {
        d: names[i]
        for d, names, i in zip(table.dimensions, table.values, place, strict=True)
        if i < len(names)
    }
    n, value = float(compared.n[at]), float(compared.value[at])
    begin, end = interval
    end = _end(table, metric, place, end, value, float(compared.expected[at]))
    return Found(
        metric=metric, part=part, where=where, place=place, begin=begin, end=end, streams=round(n),
        affected=round(n * value) if metric.kind == "share" else None, value=value, expected=float(compared.expected[at]), score=score,
    )  # fmt: skip


def _end(
    table: Table, metric: Metric, place: tuple[int, ...], end: int, value: float, expected: float
) -> int:
    """The end of the change: the end of the range, unless later streams are nearer to the baseline."""
    n, x = (with_totals(table.columns[f"{c}_{metric.name}"])[place][end:].sum() for c in ("n", "x"))
    if n < LEAST_AFFECTED:
        return ALL_BUCKETS
    is_nearer = abs(x / n - expected) < abs(x / n - value)
    return end if is_nearer else ALL_BUCKETS


def _without(table: Table, metric: Metric, place: tuple[int, ...], begin: int, end: int) -> Table:
    """The table without the streams of a place in an interval."""
    columns = dict(table.columns)
    cells = tuple(
        slice(i, i + 1) if i < len(names) else slice(None)
        for i, names in zip(place, table.values, strict=True)
    )
    for column in (f"n_{metric.name}", f"x_{metric.name}", f"xx_{metric.name}", f"l_{metric.family}"):
        if column in columns:
            array = columns[column].copy()
            array[(*cells, slice(begin, end))] = 0
            columns[column] = array
    return Table(table.dimensions, table.values, columns)

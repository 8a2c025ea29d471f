"""Search the places and intervals in which a metric got worse. Pure.

Rules
1. A place is a value of some dimensions; the others are free. The place with the highest score explains the change best: a smaller
   one misses affected streams, and a larger one dilutes them. Naming a value costs the logarithm of the number of values, so of
   equal places the one with fewer dimensions is found.
2. A change counts if its evidence is above that of chance in all compared combinations, if it is large enough
   (`Metric.least_change`, `least_ratio`), and if it has at least `LEAST_STREAMS` streams.
3. First, `promising` compares the combinations of model, gateway and client, and each value of the other dimensions alone. If values
   of those have some evidence (`LIKELY`) and a score near that of the combinations (`NEAR`), their combinations with models and
   gateways are also aggregated (`aggregates.pairs`), and searched instead. So one variance and one baseline decide between all places.
4. If the change is only in some values of one more dimension, the worst of them is named, and the others are further causes (`_worst_of`).
5. The streams of a found place are removed, and the search is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from streamgauge.analytics.diagnosis.aggregates import Pairs
from streamgauge.analytics.diagnosis.cell_tables import ALONE_AXIS, Array, CellTable, with_totals
from streamgauge.analytics.diagnosis.comparison import (
    LEAST_AFFECTED,
    LEAST_STREAMS,
    Comparison,
    Intervals,
    compare,
    overdispersion,
    variance_of,
)
from streamgauge.analytics.diagnosis.diagnosis import FAILURES
from streamgauge.analytics.diagnosis.metrics import (
    ALL_BUCKETS,
    ALONE,
    CUBE,
    CUT_AT_AGE,
    EARLIER_BUCKETS,
    PAIR,
    Metric,
    all_failures,
    cut,
    metrics,
)
from streamgauge.analytics.schema.dimensions import LABEL
from streamgauge.analytics.schema.objectives import Objective

MAX_PER_METRIC = 3
MAX_CAUSES = 5
CHANCE = 1e-3
"""Probability that a healthy range has a change that counts."""
NEAR = 0.25
"""Minimum score of a value alone, relative to that of the best combination, to search its combinations."""
LIKELY = 0.4
"""Minimum evidence of a value alone, relative to `LEAST_SCORE`, to search its combinations."""
MAX_DIMENSIONS = 3
"""Dimensions besides model and gateway whose combinations are searched, at most `MAX_VALUES` values of each."""
MAX_VALUES = 3
LEAST_LIFT = 1.1
"""Minimum excess of a value, relative to that of all values of its dimension."""
MAX_CELLS, MAX_CELLS_OF_PART = 18_000, 8_000
"""Maximum rows of one result of `aggregates.pairs`, and of one of its parts."""
NAMED_COST = 1.0
"""Additional nats to name a value of a dimension that is not in `CUBE`."""
UNAFFECTED = 0.25
"""Largest excess of an unaffected value, relative to that of the place."""
_METRICS_COMPARED = len(metrics([Objective("with all limits", ttft_ns=1, itl_ns=1)]))
CANDIDATES = 30
LENGTHS = (1, 2, 3, 4, 6, 8, 16)
INTERVALS_AT_ONCE = 48
"""Intervals that are compared together. The arrays of more do not fit into the CPU caches."""


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
LEAST_SCORE = NormalDist().inv_cdf(CHANCE / (_METRICS_COMPARED * len(INTERVALS[0]))) ** 2 / 2
"""Twice a log-likelihood ratio is the square of a normal variable, whose tail is thinner than the exponential of the ratio."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A place, an interval of buckets and a metric that is worse in it than outside."""

    metric: Metric
    table: CellTable
    """The table in which it was found."""
    where: Mapping[str, str]
    place: tuple[int, ...]
    """Indexes into the table with totals."""
    begin: int
    end: int
    """The bucket after the last. `ALL_BUCKETS`: the change lasts until the end of the range."""
    streams: int
    affected: int | None
    value: float
    """Share, or mean of the value (of its logarithm if `Metric.is_log`)."""
    expected: float
    score: float


def promising(
    tables: Mapping[str, CellTable], compared: Mapping[str, Metric]
) -> tuple[list[Pairs], dict[str, Found]]:
    """The combinations to aggregate for `search`, and the best combination of model, gateway and client of each metric that got worse."""
    cube, alone = tables["cube"], tables[ALONE_AXIS]
    best, wanted = dict[str, Found](), dict[tuple[tuple[str, str], ...], list[Metric]]()
    failing = _failing_with_a_model(tables["pair"], compared)
    for metric in compared.values():
        if metric.family == "loss" or not _has_enough(cube, metric):
            continue
        variance = variance_of(cube, metric)
        found = _best(cube, metric, variance)
        if found is not None:
            best[metric.name] = found
        if f"n_{metric.name}" in alone.columns:
            values = _worse_alone(alone, metric, variance, found)
            if metric.name in FAILURES:
                values += [value for value in failing if value not in values]
            if values:
                clients = (
                    [("client", found.where["client"])]
                    if found is not None and "client" in found.where
                    else []
                )
                wanted.setdefault((*clients, *values), []).append(metric)
    for age in _ages(tables["age"], cut(compared, 0)):
        wanted.setdefault(tuple(("client", name) for name in cube.values[2]), []).append(cut(compared, age))
    sizes = {d: sum(v.startswith(f"{d}=") for v in alone.values[0]) for d in ALONE}
    sizes |= {d: len(v) for d, v in zip(cube.dimensions, cube.values, strict=True)}
    return _bounded(wanted, sizes), best


def _bounded(
    wanted: Mapping[tuple[tuple[str, str], ...], Sequence[Metric]], sizes: Mapping[str, int]
) -> list[Pairs]:
    """The combinations whose results have at most `MAX_CELLS` rows together."""
    parts, left = list[Pairs](), MAX_CELLS
    for values, of_values in wanted.items():
        used, cells = list[tuple[str, str]](), ALL_BUCKETS * (sizes["model"] + 1) * (sizes["gateway"] + 1)
        for value in values:
            axis = [v for d, v in used if d == value[0]]
            more = cells * (len(axis) + 2) // (len(axis) + 1)
            if more <= min(left, MAX_CELLS_OF_PART):
                used.append(value)
                cells = more
        if used:
            left -= cells
            dimensions = dict.fromkeys(("model", "gateway", *(d for d, _ in used)), 0)
            parts.append(Pairs(metrics=of_values, dimensions={d: sizes[d] for d in dimensions}, values=used))
    return parts


def _failing_with_a_model(table: CellTable, compared: Mapping[str, Metric]) -> list[tuple[str, str]]:
    """The value that may fail with one model more than before, if there is one: in all models it may be too diluted to be clear."""
    if not table.values[0]:
        return []
    metric = replace(all_failures(compared), least_change_of_stream="")
    evidence = compare(table, metric, INTERVALS, 0.0).evidence.max(-1)[:-2] - _cost(table)[:-2]
    if evidence.max() < LIKELY * LEAST_SCORE:
        return []
    dimension, _, value = table.values[0][int(evidence.argmax())].partition(PAIR)[0].partition("=")
    return [(dimension, value)]


def _ages(table: CellTable, metric: Metric) -> list[int]:
    """The class of ages at which more failures end than before, if there is one, as a list."""
    found = _best(table, metric, 0.0)
    return [int(found.where["age"])] if found is not None and found.where else []


def _has_enough(table: CellTable, metric: Metric) -> bool:
    streams, affected = (table.columns[f"{c}_{metric.name}"].sum() for c in ("n", "x"))
    return bool(streams >= 2 * LEAST_STREAMS and (metric.kind == "mean" or affected >= LEAST_AFFECTED))


def _worse_alone(
    alone: CellTable, metric: Metric, variance: float, best: Found | None
) -> list[tuple[str, str]]:
    """(dimension, value) of the values that may be a better place than the best combination, the best ones first.

    At most `MAX_VALUES` values of each of `MAX_DIMENSIONS` dimensions. A dimension needs at least two values. Of labels, one label counts.
    """
    names = alone.values[0]
    compared = compare(alone, metric, INTERVALS, variance)
    cost = math.log(max(len(names), 1)) + NAMED_COST
    at = np.argmax(compared.evidence[: len(names)], axis=1)
    rows = np.arange(len(names))
    evidence, score = compared.evidence[rows, at] - cost, compared.score[rows, at] - cost
    least = NEAR * best.score if best is not None else 0.0
    found = dict[str, list[tuple[str, str]]]()
    for i in np.argsort(-score):
        if evidence[i] < LIKELY * LEAST_SCORE or score[i] < least:
            continue
        dimension, _, value = names[i].partition("=")
        if metric.family not in ALONE[dimension].families or not _is_concentrated(
            compared, names, int(i), int(at[i])
        ):
            continue
        values = found.setdefault(dimension, [])
        group = _dimension_of(names[i])
        same_label = not values or _dimension_of(f"{dimension}={values[0][1]}") == group
        most = 1 if ALONE[dimension].is_ordered else MAX_VALUES
        if len(values) < most and same_label and sum(_dimension_of(n) == group for n in names) > 1:
            interval = int(INTERVALS[0][at[i]]), int(INTERVALS[1][at[i]])
            noise = overdispersion(alone, metric, (int(i),), interval, variance)
            if compared.evidence[i, at[i]] / noise >= LIKELY * LEAST_SCORE + cost:
                values.append((dimension, value))
    dimensions = [values for values in found.values() if values][:MAX_DIMENSIONS]
    return [value for values in dimensions for value in values]


def _dimension_of(name: str) -> str:
    """The dimension, or the label, of a value on the axis of `ALONE_AXIS`."""
    parts = name.split("=", 2)
    return "=".join(parts[:2]) if parts[0] == LABEL else parts[0]


def _is_concentrated(compared: Comparison, names: Sequence[str], i: int, interval: int) -> bool:
    """Whether a value is clearly worse than all values of its dimension together."""
    same = [k for k, name in enumerate(names) if _dimension_of(name) == _dimension_of(names[i])]
    n, excess = compared.n[same, interval], compared.excess[same, interval]
    return bool(compared.excess[i, interval] * n.sum() >= LEAST_LIFT * (n * excess).sum())


def search(
    tables: Mapping[str, CellTable],
    compared: Mapping[str, Metric],
    pairs: Mapping[str, CellTable] | None = None,
    best: Mapping[str, Found] | None = None,
) -> list[Found]:
    """All changes for the worse, highest score first. `pairs`: metric → the table of its combinations. `best`: of `promising`."""
    pairs, found = pairs or {}, list[Found]()
    for metric in compared.values():
        if metric.family == "loss":
            table = _alone(tables[ALONE_AXIS], "tap")
            found += (
                _of_metric(table, metric, variance_of(table, metric)) if _has_enough(table, metric) else []
            )
        elif metric.name in pairs:
            table = pairs[metric.name]
            if metric.name == CUT_AT_AGE:
                table = _without_models(table)
            variance = variance_of(tables["cube"], metric) if metric.kind == "mean" else 0.0
            found += _of_metric(table, metric, variance)
        elif best is None or metric.name in best:
            table = tables["cube"]
            if _has_enough(table, metric):
                found += _of_metric(table, metric, variance_of(table, metric))
    return sorted(found, key=lambda f: -f.score)


def _without_models(table: CellTable) -> CellTable:
    """The table in which no model can be named, because only some models have answers that are long enough to be cut at an age."""
    columns = {name: column.sum(0, keepdims=True) for name, column in table.columns.items()}
    return replace(table, values=((), *table.values[1:]), columns=columns)


def _alone(alone: CellTable, dimension: str) -> CellTable:
    """The table of one dimension."""
    rows = [i for i, name in enumerate(alone.values[0]) if name.startswith(f"{dimension}=")]
    names = tuple(alone.values[0][i].partition("=")[2] for i in rows)
    columns = {name: np.vstack([column[rows], column[-1:]]) for name, column in alone.columns.items()}
    return CellTable((dimension,), (names,), columns)


def _of_metric(table: CellTable, metric: Metric, variance: float) -> list[Found]:
    found, whole = list[Found](), table
    while len(found) < MAX_PER_METRIC:
        best = _best(table, metric, variance)
        if best is None:
            break
        best = _worst_of(table, metric, best, variance)
        found.append(replace(best, table=whole))
        table = _without(table, metric, best.place, best.begin, best.end)
    return found


def _worst_of(table: CellTable, metric: Metric, best: Found, variance: float) -> Found:
    """The worst value of a free dimension, if the place is worse in two of its values and clearly not in the others.

    Two failing gateways of three are two places. Together they explain the change better than all streams.
    """
    interval = best.begin, best.end if best.end < ALL_BUCKETS else ALL_BUCKETS
    compared, cost = compare(table, metric, _arrays(interval), variance), _cost(table)
    at = (*best.place, 0)
    excess, whole = float(compared.excess[at]), float(compared.score[at]) - float(cost[best.place])
    found, most = best, whole + LEAST_SCORE
    for axis, names in enumerate(table.values):
        if best.place[axis] != len(names) + 1 or len(names) < 3:
            continue
        places = [(*best.place[:axis], i, *best.place[axis + 1 :]) for i in range(len(names))]
        many = [p for p in places if compared.n[(*p, 0)] >= LEAST_STREAMS]
        worse = [p for p in many if compared.score[(*p, 0)] > 0 and compared.excess[(*p, 0)] >= excess]
        good = [p for p in many if compared.excess[(*p, 0)] < UNAFFECTED * excess]
        total = sum(float(compared.score[(*p, 0)] - cost[p]) for p in worse)
        if len(worse) >= 2 and len(worse) + len(good) == len(many) and good and total > most:
            place = max(worse, key=lambda p: float(compared.score[(*p, 0)]))
            only = np.where(_is_place(cost.shape, place), 0.0, np.inf)
            clear = _clear_place(table, metric, interval, variance, only)
            if clear is not None:
                found, most = clear, total
    return found


def _is_place(shape: tuple[int, ...], place: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    found = np.zeros(shape, dtype=bool)
    found[place] = True
    return found


def _best(table: CellTable, metric: Metric, variance: float) -> Found | None:
    cost = _cost(table)
    evidence = _evidence(table, metric, variance, cost)
    for k in evidence.argsort()[::-1][:CANDIDATES]:
        if evidence[k] < LEAST_SCORE:
            break
        # The interval is that of the clearest change, the place the one that explains it best.
        interval = int(INTERVALS[0][k]), int(INTERVALS[1][k])
        if (clear := _clear_place(table, metric, interval, variance, cost)) is not None:
            return clear
    return None


def _clear_place(
    table: CellTable, metric: Metric, interval: tuple[int, int], variance: float, cost: Array
) -> Found | None:
    """The place that explains the change in an interval best. None if the change is not above that of chance."""
    compared = compare(table, metric, _arrays(interval), variance)
    counts = compared.evidence[..., 0] - cost >= LEAST_SCORE
    scores = np.where(counts, compared.score[..., 0] - cost, -np.inf)
    place = tuple(int(i) for i in np.unravel_index(int(scores.argmax()), scores.shape))
    at, (begin, end) = (*place, 0), interval
    reduced = float(compared.evidence[at]) / overdispersion(table, metric, place, interval, variance)
    if reduced < LEAST_SCORE + float(cost[place]):
        return None
    values = zip(table.dimensions, table.values, place, strict=True)
    n, value, expected = float(compared.n[at]), float(compared.value[at]), float(compared.expected[at])
    return Found(
        metric=metric, table=table, where={d: names[i] for d, names, i in values if i < len(names)}, place=place, begin=begin,
        end=_end(table, metric, place, end, value, expected), streams=round(n),
        affected=round(n * value) if metric.kind == "share" else None, value=value, expected=expected, score=reduced,
    )  # fmt: skip


def _arrays(interval: tuple[int, int]) -> Intervals:
    return np.array([interval[0]]), np.array([interval[1]])


def _evidence(table: CellTable, metric: Metric, variance: float, cost: Array) -> Array:
    """The highest evidence of any place, minus its cost, for each interval. In single precision, which is twice as fast."""
    columns = {
        name: c.astype(np.float32)
        for name, c in table.columns.items()
        if name.endswith((f"_{metric.name}", f"l_{metric.family}"))
    }
    table, cost = replace(table, columns=columns), cost.astype(np.float32)
    found = []
    for begin in range(0, len(INTERVALS[0]), INTERVALS_AT_ONCE):
        compared = compare(table, metric, _part(begin, begin + INTERVALS_AT_ONCE), variance)
        found.append((compared.evidence - cost[..., None]).reshape(-1, compared.n.shape[-1]).max(0))
    return np.concatenate(found)


def _part(begin: int, end: int) -> Intervals:
    return INTERVALS[0][begin:end], INTERVALS[1][begin:end]


def _cost(table: CellTable) -> Array:
    """Nats to name each place. Infinite for places with unnamed values."""
    cost = np.zeros(())
    choices = table.choices or tuple(map(len, table.values))
    for dimension, names, count in zip(table.dimensions, table.values, choices, strict=True):
        # Naming the only value of a dimension costs almost nothing. Above 0, so that the place with fewer dimensions wins.
        of_value = math.log(max(count, 1)) + (0.01 if dimension in CUBE else NAMED_COST)
        axis = np.array([of_value] * len(names) + [np.inf, 0.0])
        cost = cost[..., None] + axis
    if len(table.values) == 1 and len(table.values[0]) == 1:
        cost = np.array([0.0, np.inf, np.inf])  # the only tap is named
    found: Array = cost
    return found


def _end(
    table: CellTable, metric: Metric, place: tuple[int, ...], end: int, value: float, expected: float
) -> int:
    """The end of the change: the end of the range, unless later streams are nearer to the baseline."""
    n, x = (with_totals(table.whole(f"{c}_{metric.name}"))[place][end:].sum() for c in ("n", "x"))
    if n < LEAST_AFFECTED:
        return ALL_BUCKETS
    is_nearer = abs(x / n - expected) < abs(x / n - value)
    return end if is_nearer else ALL_BUCKETS


def _without(table: CellTable, metric: Metric, place: tuple[int, ...], begin: int, end: int) -> CellTable:
    """The table without the streams of a place in an interval, or all of them if the metric is a mean."""
    columns = dict(table.columns)
    cells = tuple(
        slice(i, i + 1) if i < len(names) else slice(None)
        for i, names in zip(place, table.values, strict=True)
    )
    # The remainder of a drift is not another change.
    buckets = slice(None) if metric.kind == "mean" else slice(begin, end)
    for column in (f"n_{metric.name}", f"x_{metric.name}", f"xx_{metric.name}", f"l_{metric.family}"):
        if column in columns:
            array = columns[column].copy()
            array[(..., *cells, buckets)] = 0
            columns[column] = array
    return CellTable(table.dimensions, table.values, columns)

"""Places and intervals that the search finds in aggregates with known changes."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from streamgauge.analytics.diagnosis.cell_tables import CellTable
from streamgauge.analytics.diagnosis.incidents import combine
from streamgauge.analytics.diagnosis.metrics import ALL_BUCKETS, EARLIER_BUCKETS, Metric, edges, metrics
from streamgauge.analytics.diagnosis.search import Found, search
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.objectives import DEFAULT

MODELS, GATEWAYS, CLIENTS = ("large", "mini", "tiny"), ("eu", "us"), ("a", "b", "c")
METRICS = metrics([DEFAULT])
FAILING: Metric = METRICS["http_error"]
TTFT: Metric = METRICS["ttft"]
BASE = np.log(np.array([600e6, 250e6, 100e6]))[:, None, None, None]
"""Mean logarithm of TTFT by model."""
SIGMA = 0.4
Slices = tuple[slice | int, ...]
EVERY = slice(None)


class Traffic:
    """Random aggregates of all models, gateways and clients, without the values that are not looked at alone."""

    def __init__(self, seed: int, per_bucket: float = 4.0) -> None:
        self.rng = np.random.default_rng(seed)
        shape = (len(MODELS), len(GATEWAYS), len(CLIENTS), ALL_BUCKETS)
        self.expected = np.full(shape, per_bucket)
        self.expected[..., :EARLIER_BUCKETS] *= 5
        self.failing = np.full(shape, 0.01)
        self.ttft = np.broadcast_to(BASE, shape).copy()

    def table(self) -> CellTable:
        n = self.rng.poisson(self.expected).astype(float)
        noise = self.rng.normal(0, 1, n.shape) * SIGMA
        x = n * self.ttft + noise * np.sqrt(n)
        squares = SIGMA**2 * self.rng.chisquare(np.maximum(n - 1, 1e-9)) + x**2 / np.maximum(n, 1)
        columns = {"n_http_error": n, "x_http_error": self.rng.binomial(n.astype(int), self.failing).astype(float),
                   "n_ttft": n, "x_ttft": x, "xx_ttft": squares}  # fmt: skip
        padding = [(0, 1), (0, 1), (0, 1), (0, 0)]
        padded = {name: np.pad(values, padding) for name, values in columns.items()}
        return CellTable(("model", "gateway", "client"), (MODELS, GATEWAYS, CLIENTS), padded)

    def search(self, metric: Metric = FAILING) -> list[Found]:
        return search({"cube": self.table()}, {metric.name: metric})


def from_(bucket: int) -> slice:
    return slice(EARLIER_BUCKETS + bucket, None)


def test_no_change_is_found_in_stationary_traffic() -> None:
    for seed in range(20):
        traffic = Traffic(seed)
        assert traffic.search(FAILING) == []
        assert traffic.search(TTFT) == []


PLACES = {
    "model @ gateway": ((0, 1, EVERY), {"model": "large", "gateway": "us"}),
    "model": ((2, EVERY, EVERY), {"model": "tiny"}),
    "gateway": ((EVERY, 0, EVERY), {"gateway": "eu"}),
    "client": ((EVERY, EVERY, 1), {"client": "b"}),
    "everything": ((EVERY, EVERY, EVERY), {}),
    "all three": ((1, 0, 2), {"model": "mini", "gateway": "eu", "client": "c"}),
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("metric", [FAILING, TTFT], ids=lambda m: m.name)
def test_step_is_found_at_its_smallest_place(name: str, metric: Metric) -> None:
    cells, where = PLACES[name]
    traffic = Traffic(1)
    traffic.failing[(*cells, from_(18))] = 0.5
    traffic.ttft[(*cells, from_(18))] += np.log(2.5)
    found = traffic.search(metric)
    assert [dict(f.where) for f in found] == [where]
    assert found[0].begin == EARLIER_BUCKETS + 18
    assert found[0].end == ALL_BUCKETS


def test_incident_that_is_over_has_an_end() -> None:
    traffic = Traffic(2)
    traffic.failing[:, 0, :, EARLIER_BUCKETS + 10 : EARLIER_BUCKETS + 14] = 0.6
    (found,) = traffic.search()
    assert (found.begin - EARLIER_BUCKETS, found.end - EARLIER_BUCKETS) == (10, 14)


def test_incident_that_began_before_the_range_is_found() -> None:
    traffic = Traffic(2)
    traffic.failing[:, 1, :, EARLIER_BUCKETS - 2 :] = 0.3
    (found,) = traffic.search()
    assert dict(found.where) == {"gateway": "us"}
    assert found.begin == EARLIER_BUCKETS - 2


def test_two_places_that_fail_at_once_are_both_found() -> None:
    traffic = Traffic(3)
    traffic.failing[0, 0, :, from_(20)] = 0.7
    traffic.failing[2, 1, :, from_(12)] = 0.4
    assert {tuple(f.where.values()) for f in traffic.search()} == {("large", "eu"), ("tiny", "us")}


def test_more_requests_of_a_slow_or_failing_model_are_no_change_for_the_worse() -> None:
    for seed in range(5):
        traffic = Traffic(seed)
        traffic.failing[0] = 0.2
        traffic.expected[0, 1, :, from_(15)] *= 8
        assert traffic.search(TTFT) == []
        assert traffic.search(FAILING) == []


def test_streams_are_compared_with_those_of_the_same_stratum() -> None:
    traffic = Traffic(1)
    short, long = traffic.table(), traffic.table()
    for table, more in ((short, slice(EARLIER_BUCKETS + 15)), (long, from_(15))):
        for column in ("n_ttft", "x_ttft", "xx_ttft"):
            table.columns[column][..., more] *= 4
    n, x, xx = (long.columns[f"{c}_ttft"] for c in ("n", "x", "xx"))
    xx += 2 * x + n  # e times slower
    x += n
    columns = {c: np.stack([short.columns[c], long.columns[c]]) for c in ("n_ttft", "x_ttft", "xx_ttft")}
    divided = replace(short, columns=columns)
    assert search({"cube": divided}, {"ttft": TTFT}) == []
    whole = replace(short, columns={c: divided.whole(c) for c in columns})
    assert search({"cube": whole}, {"ttft": TTFT}) != []


def test_new_model_that_fails_is_found_and_a_new_slow_one_is_not() -> None:
    traffic = Traffic(4)
    traffic.expected[2, :, :, : EARLIER_BUCKETS + 20] = 0
    traffic.failing[2] = 0.8
    traffic.ttft[2] += 3
    assert [dict(f.where) for f in traffic.search(FAILING)] == [{"model": "tiny"}]
    assert traffic.search(TTFT) == []


def test_few_streams_and_small_changes_do_not_count() -> None:
    few = Traffic(5, per_bucket=0.02)
    few.failing[0, 0, :, from_(25)] = 0.9
    assert few.search() == []
    small = Traffic(5, per_bucket=500)
    small.failing[..., from_(15)] = 0.02
    small.ttft[..., from_(15)] += np.log(1.1)
    assert small.search(FAILING) == []
    assert small.search(TTFT) == []


def test_drift_is_found_at_its_place() -> None:
    traffic = Traffic(6)
    traffic.ttft[:, 1, :, EARLIER_BUCKETS:] += np.linspace(0, np.log(2.5), ALL_BUCKETS - EARLIER_BUCKETS)
    assert {tuple(f.where.values()) for f in traffic.search(TTFT)} == {("us",)}


def test_share_of_slow_streams_of_a_new_model_is_no_change() -> None:
    traffic = Traffic(4)
    traffic.expected[2, :, :, : EARLIER_BUCKETS + 20] = 0
    traffic.failing[2] = 0.8
    assert traffic.search(replace(FAILING, new_is_bad=False)) == []


def test_few_outliers_are_no_change_of_a_mean() -> None:
    traffic = Traffic(5, per_bucket=2.0)
    table = traffic.table()
    cell = (0, 0, 0, slice(EARLIER_BUCKETS + 20, EARLIER_BUCKETS + 26))
    n, x, xx = (table.columns[f"{c}_ttft"] for c in ("n", "x", "xx"))
    for bucket in range(EARLIER_BUCKETS + 20, EARLIER_BUCKETS + 26, 2):
        outlier = float(BASE[0, 0, 0, 0]) + 4.5
        n[0, 0, 0, bucket] += 1
        x[0, 0, 0, bucket] += outlier
        xx[0, 0, 0, bucket] += outlier**2
    assert n[cell].sum() >= 10
    assert search({"cube": table}, {"ttft": TTFT}) == []


def test_wander_like_that_of_the_baseline_is_no_change() -> None:
    """Independent streams would make it significant; the other buckets show that it is usual."""
    for seed in range(5):
        traffic = Traffic(seed, per_bucket=6)
        traffic.ttft += traffic.rng.normal(0, 0.25, ALL_BUCKETS)
        assert traffic.search(TTFT) == []


EMPTY = CellTable((), (), {})


def change(name: str, begin: int, **where: str) -> Found:
    return Found(
        metric=METRICS[name], table=EMPTY, where=where, place=(), begin=begin, end=ALL_BUCKETS, streams=100, affected=None, value=1.0,
        expected=0.0, score=50.0,
    )  # fmt: skip


def test_changes_at_one_place_and_time_are_one_incident() -> None:
    begins = edges(
        Selection(since=datetime(2026, 6, 1, tzinfo=UTC), until=datetime(2026, 6, 1, 1, tzinfo=UTC))
    )
    longer, slow = change("ttft", 20, gateway="us", model="large"), change("slow_ttft", 26, gateway="us")
    cache, failures = change("cache", 20, gateway="us"), change("http_error", 20, gateway="eu")
    first, second = combine([longer, slow, cache, failures], begins)
    assert [first.main, second.main] == [failures, cache]
    assert {e.metric.name for i in (first, second) for e in i.effects} == {"ttft", "slow_ttft"}
    later = change("ttft", 27, gateway="us")
    assert [i.main for i in combine([cache, later], begins)] == [cache, later]
    assert [len(i.effects) for i in combine([change("ttft", 20, gateway="us"), slow], begins)] == [1]

"""The background job: from the records of both taps to rows of hops."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from streamgauge.analytics.hops.matching import MAX_GROUP
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.generated_ids import random_hex
from tests.analytics.hops.gateway import MS, Exchange, Side, exchange
from tests.analytics.hops.running_job import Analytics
from tests.analytics.stores import ask, new_store
from tests.deadline import DEADLINE_S
from tests.postgres import Postgres

PAIRS = "SELECT outer_stream_id::VARCHAR, inner_stream_id::VARCHAR, matched_by, attempt FROM hops ORDER BY 1, attempt"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = new_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def analytics(store: Store) -> Iterator[Analytics]:
    made = Analytics(store)
    yield made
    made.job.close()


def expected(exchanges: Iterable[Exchange], matched_by: str) -> list[tuple[str, str, str, int]]:
    return sorted(
        (each.outer.stream_id, inner.stream_id, matched_by, n)
        for each in exchanges
        for n, inner in enumerate(each.inners, 1)
    )


@pytest.mark.parametrize(
    ("propagate", "matched_by"),
    [("trace", "span"), ("response_id",) * 2, ("request_id",) * 2, ("", "fingerprint")],
)
def test_streams_of_both_taps_become_hops(analytics: Analytics, propagate: str, matched_by: str) -> None:
    now = time.time_ns()
    sent = [
        exchange(now + n * 7 * MS, propagate=propagate, text=["The ", "river ", "rose ", f"{n} ", "feet."])
        for n in range(5)
    ]
    analytics.store_records(record for each in sent for record in each.records())
    analytics.run(until_hops=5)
    assert ask(analytics.store, PAIRS) == expected(sent, matched_by)
    [measures] = ask(
        analytics.store,
        "SELECT min(gateway_before_ns), max(gateway_before_ns), min(added_event_p50_ns) >= 500000, "
        "max(added_event_max_ns) <= 3000000, max(clock_error_ns), min(aligned_event_count) FROM hops",
    )
    assert measures == (2 * MS, 2 * MS, True, True, 0, 5)
    assert sorted(analytics.reported) == sorted(inner.stream_id for each in sent for inner in each.inners)


def test_failed_attempt_comes_first_and_its_time_is_lost(analytics: Analytics) -> None:
    """Also if weaker evidence, which is used later, matches it."""
    now = time.time_ns()
    sent = exchange(now, before_ns=50 * MS, propagate="trace")
    failed = Side("model-a", sent.outer.clock, now + 3 * MS, status=500, end_ns=now + 40 * MS)
    sent.outer.headers = failed.headers = [("x-request-id", "r-1")]
    sent.inners.insert(0, failed)
    analytics.store_records(sent.records())
    analytics.run(until_hops=2)
    [first, second] = expected([sent], "span")
    assert ask(analytics.store, PAIRS) == [(*first[:2], "request_id", 1), second]
    assert ask(
        analytics.store,
        "SELECT inner_outcome, inner_error_type, lost_ns, gateway_before_ns FROM hops ORDER BY attempt",
    ) == [("http_error", "500", 47 * MS, 3 * MS), ("ok", None, None, 50 * MS)]


def test_inner_stream_that_is_stored_later_is_found(store: Store, closing: ExitStack) -> None:
    analytics = Analytics(store, delays_s=[0.02, 2, 2, 2])
    closing.callback(analytics.job.close)
    sent = exchange(time.time_ns(), propagate="trace")
    other = exchange(time.time_ns(), text=["Another ", "one."], propagate="trace")
    analytics.store_records([*other.records(), *sent.outer.records()])
    analytics.run(until_hops=1)
    analytics.store_records(sent.inners[0].records())
    analytics.run(until_hops=2)
    assert {row[0] for row in ask(analytics.store, PAIRS)} == {sent.outer.stream_id, other.outer.stream_id}


def test_restart_writes_what_is_missing_and_nothing_twice(store: Store) -> None:
    now = time.time_ns()
    sent = [exchange(now + n * MS, propagate="trace") for n in range(6)]
    first = Analytics(store)
    first.store_records(record for each in sent[:3] for record in each.records())
    first.run(until_hops=3)
    first.job.close()
    first.store_records(record for each in sent[3:] for record in each.records())
    for _ in range(2):
        second = Analytics(store, partition="w1")
        second.run(until_hops=6)
        second.run(0.5)
        second.job.close()
        assert ask(store, PAIRS) == expected(sent, "span")


def test_nothing_is_looked_up_with_one_upstream(
    analytics: Analytics, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[object] = []
    monkeypatch.setattr(analytics.job, "_rows_of", looked_up.append)
    now = time.time_ns()
    analytics.store_records(record for n in range(5) for record in exchange(now + n).outer.records())
    analytics.run(0.6)
    assert not looked_up
    assert analytics.job.health()["hops.pending"] == 0


def test_ambiguous_streams_are_counted(analytics: Analytics) -> None:
    """Two outer streams and one inner stream that may belong to either."""
    sent = exchange(time.time_ns(), delay_ns=(MS, MS))
    twin = Side("gateway", sent.outer.clock, sent.outer.began_ns, sent.outer.output)
    analytics.store_records([*twin.records(), *sent.records()])
    assert analytics.counter("hops_ambiguous") == 2
    assert ask(analytics.store, PAIRS) == []


def test_output_of_too_many_streams_matches_none_and_ids_still_do(analytics: Analytics) -> None:
    """All streams have the same output, as with a simulated model."""
    now = time.time_ns()
    with_id = [exchange(now + n * 7 * MS, propagate="response_id") for n in range(MAX_GROUP // 2)]
    without = [exchange(now + n * 9 * MS) for n in range(2)]
    analytics.store_records(record for each in (*with_id, *without) for record in each.records())
    analytics.run(until_hops=len(with_id))
    assert ask(analytics.store, PAIRS) == expected(with_id, "response_id")
    assert analytics.counter("hops_ambiguous") == 4


def test_spans_match_in_a_trace_of_too_many_streams(store: Store, closing: ExitStack) -> None:
    """Also streams that are stored long before the others of their request, without a common output."""
    now, trace_id = time.time_ns(), random_hex(32)
    sent = [exchange(now + n * 7 * MS, propagate="trace") for n in range(2 * MAX_GROUP)]
    for each in sent:
        inner = each.inners[0]
        each.outer.trace_id = inner.trace_id = trace_id
        inner.output = [(at, f"{text}!") for at, text in inner.output]
    analytics = Analytics(store, delays_s=(0.0, 0.0, 0.0, 0.0))
    closing.callback(analytics.close)
    analytics.store_records(record for each in sent for record in each.inners[0].records())
    analytics.run(0.5)
    analytics.store_records(record for each in sent for record in each.outer.records())
    analytics.run(until_hops=len(sent))
    assert ask(analytics.store, PAIRS) == expected(sent, "span")


def test_error_of_the_job_does_not_stop_the_consumer(
    analytics: Analytics, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("streamgauge.analytics.hops.hop_job.match", fail)
    sent = exchange(time.time_ns(), propagate="trace")
    analytics.store_records(sent.records())
    assert analytics.counter("hops_skipped") == 2
    assert analytics.counter("streams_rows") == 2


@pytest.mark.parametrize("stored_before", [False, True])
def test_two_consumers_of_one_store_write_each_hop_once(
    postgres: Postgres, tmp_path: Path, closing: ExitStack, stored_before: bool
) -> None:
    """One stores the outer streams, the other the inner ones; or both find all of them in the store when they start."""
    location = locate(f"postgres:{postgres.new_database()}", tmp_path, str(tmp_path / "lake"))
    stores = [Store(location, instance=name) for name in ("a", "b")]
    for store in stores:
        closing.callback(store.close)
    sent = [exchange(time.time_ns() + n * MS, propagate="trace") for n in range(4)]
    outer = [record for each in sent for record in each.outer.records()]
    inner = [record for each in sent for record in each.inners[0].records()]
    if stored_before:
        left = Analytics(stores[0], delays_s=[60, 60, 60, 60])
        left.store_records([*outer, *inner])
        left.job.close()
    both = [
        Analytics(store, delays_s=[0.3, 1.5, 20, 60], partition=f"p{n}") for n, store in enumerate(stores)
    ]
    for each, records in zip(both, (outer, inner), strict=True):
        closing.callback(each.job.close)
        if not stored_before:
            each.store_records(records)
    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s and len(ask(stores[0], "FROM hops")) < len(sent):
        for each in both:
            each.consumer.step(0.02)
    for each in both:
        each.run(0.5)
    assert ask(stores[0], PAIRS) == expected(sent, "span")


def test_first_inner_stream_of_another_consumer_may_be_stored_after_the_first_attempt(
    postgres: Postgres, tmp_path: Path, closing: ExitStack
) -> None:
    location = locate(f"postgres:{postgres.new_database()}", tmp_path, str(tmp_path / "lake"))
    first, second = stores = [Store(location, instance=name) for name in ("a", "b")]
    sent = exchange(time.time_ns(), propagate="trace")
    of_outer = Analytics(first, delays_s=[0.02, 2, 20, 60])
    attempted = threading.Event()
    look_up = of_outer.job._look_up
    of_outer.job._look_up = lambda due: (look_up(due), attempted.set())  # type: ignore[method-assign, assignment]
    of_inner = Analytics(second, delays_s=[60, 60, 60, 60], partition="w1")
    for part in (of_outer.job, of_inner.job, *stores):
        closing.callback(part.close)
    of_outer.store_records(sent.outer.records())
    assert attempted.wait(DEADLINE_S)
    of_inner.store_records(sent.inners[0].records())
    of_outer.run(until_hops=1)
    assert ask(first, PAIRS) == expected([sent], "span")

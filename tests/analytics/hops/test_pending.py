"""Streams that wait for their next look-up."""

from __future__ import annotations

import pytest

from streamgauge.analytics.hops.candidate import HopCandidate
from streamgauge.analytics.hops.hop_job import Pending
from tests.analytics.hops.gateway import exchange
from tests.analytics.hops.test_matching import START, candidate


def streams(n: int, outcome: str = "ok") -> list[HopCandidate]:
    return [candidate(exchange(START + i).outer, outcome=outcome) for i in range(n)]


@pytest.mark.parametrize(("outcome", "attempts"), [("ok", 3), ("client_abort", 4)])
def test_stream_is_due_after_each_delay_until_its_last_attempt(outcome: str, attempts: int) -> None:
    pending, now_s, seen = Pending([1.0, 4.0, 15.0, 60.0]), 0.0, []
    pending.add(streams(1, outcome), now_s)
    for delay_s in [1.0, 4.0, 15.0, 60.0][:attempts]:
        assert not pending.due(now_s + delay_s - 0.1, 10)
        now_s += delay_s
        [due] = pending.due(now_s, 10)
        seen.append(due.is_last)
        if not due.is_last:
            pending.retry(due, now_s)
    assert seen == [False] * (attempts - 1) + [True]
    assert len(pending) == 0


def test_postponed_stream_keeps_its_attempt() -> None:
    pending = Pending([1.0, 4.0, 15.0, 60.0])
    pending.add(streams(3), 0.0)
    due = pending.due(1.0, 2)
    assert len(due) == 2, "no more than asked for"
    pending.postpone(due, 1.0)
    assert [each.attempt for each in pending.due(2.0, 10)] == [0, 0, 0]


def test_oldest_streams_are_dropped_when_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamgauge.analytics.hops.hop_job.MAX_PENDING", 10)
    pending, many = Pending(), streams(15)
    pending.add(many, 0.0)
    assert (len(pending), pending.dropped) == (10, 5)
    assert [due.stream for due in pending.due(100.0, 20)] == many[5:]

"""Streams that were open at a damaged part of the log: their next record, or long silence, decides whether they are lost."""

from __future__ import annotations

from typing import Any

import pytest

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.ingest.records import AnyRecord, Damaged
from tests.analytics.stream_records import START_NS, alive, rows_of, stream_id, whole_stream

A, B = stream_id(1), stream_id(2)


class Feed:
    """Feeds an assembler with one record per entry."""

    def __init__(self, **options: Any) -> None:
        self.assembler = Assembler(lost_after_ns=10 * 10**9, **options)
        self.offset = 0

    def records(self, *records: AnyRecord) -> None:
        for record in records:
            self.assembler.feed("p", self.offset, [record])
            self.offset += 1

    def damage(self, how: str) -> None:
        if how == "damage in this log":
            self.assembler.suspect_open_streams("p")
        else:
            self.records(Damaged(["i0", "i1"], "log_damaged", START_NS))

    def losses(self) -> list[tuple[str, int, int, str]]:
        return self.assembler.take_losses().select("stream_id", "first_seq", "last_seq", "cause").rows()


@pytest.fixture(params=["damage in this log", "damage reported by ship"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_suspect_stream_without_a_gap_is_measured(how: str) -> None:
    feed, records = Feed(), whole_stream(A)
    feed.records(alive(0), *records[:3])
    feed.damage(how)
    feed.records(records[3], *(alive(second) for second in range(1, 400)), *records[4:])
    assert [row["outcome"] for row in rows_of(feed.assembler)] == ["ok"]
    assert feed.losses() == []


def test_gap_at_the_damage_has_the_cause_log_damaged(how: str) -> None:
    feed, records = Feed(), whole_stream(A)
    feed.records(alive(0), *records[:3])
    feed.damage(how)
    feed.records(*records[5:])
    assert [row["outcome"] for row in rows_of(feed.assembler)] == ["tap_lost"]
    assert feed.losses() == [(A, 3, 4, "log_damaged")]


def test_later_gap_has_the_cause_missing(how: str) -> None:
    feed, records = Feed(), whole_stream(A)
    feed.records(alive(0), *records[:3])
    feed.damage(how)
    feed.records(records[3], *records[5:], *(alive(second) for second in range(1, 13)))
    assert feed.losses() == [(A, 4, 4, "missing")]


def test_suspect_stream_is_lost_after_long_silence(how: str) -> None:
    feed = Feed()
    feed.records(alive(0), *whole_stream(A)[:-1])
    feed.damage(how)
    feed.records(*(alive(second) for second in range(1, 150)))
    assert rows_of(feed.assembler) == []
    feed.records(*(alive(second) for second in range(150, 153)))
    (row,) = rows_of(feed.assembler)
    assert (row["outcome"], row["output_tokens"]) == ("tap_lost", None)
    assert [loss[3] for loss in feed.losses()] == ["log_damaged"]


def test_suspect_stream_is_lost_when_its_tap_stops(how: str) -> None:
    feed = Feed()
    feed.records(alive(0), *whole_stream(A)[:-1])
    feed.damage(how)
    feed.records(alive(1, stopping=True))
    assert [row["outcome"] for row in rows_of(feed.assembler)] == ["tap_lost"]
    assert [loss[3] for loss in feed.losses()] == ["log_damaged"]


def test_streams_of_another_incarnation_are_not_suspect() -> None:
    feed = Feed()
    feed.records(alive(0, incarnation="i9"), *whole_stream(B, incarnation="i9")[:-1])
    feed.damage("damage reported by ship")
    feed.records(*(alive(second, incarnation="i9") for second in range(1, 400)))
    assert rows_of(feed.assembler) == []
    feed.records(whole_stream(B, incarnation="i9")[-1])
    assert [row["outcome"] for row in rows_of(feed.assembler)] == ["ok"]

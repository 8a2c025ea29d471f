"""Streams that were open where the log could not be read: what comes next clears or condemns them, and silence in the end."""

from __future__ import annotations

from typing import Any

import pytest

from analytics.assembly.assembler import Assembler
from ingest.records import AnyRecord, Damaged
from tests.analytics.tape import START_NS, alive, rows_of, stream_id, whole_stream

A, B = stream_id(1), stream_id(2)


class Tape:
    """Feeds an assembler, one record an entry; reads of streams are silence for a second."""

    def __init__(self, **options: Any) -> None:
        self.assembler = Assembler(lost_after_ns=10 * 10**9, **options)
        self.offset = 0

    def feed(self, *records: AnyRecord) -> None:
        for record in records:
            self.assembler.feed("p", self.offset, [record])
            self.offset += 1

    def damage(self, how: str) -> None:
        if how == "met here":
            self.assembler.doubt("p")
        else:
            self.feed(Damaged(["i0", "i1"], "log_damaged", START_NS))

    def losses(self) -> list[tuple[str, int, int, str]]:
        return self.assembler.take_losses().select("stream_id", "first_seq", "last_seq", "cause").rows()


@pytest.fixture(params=["met here", "met by ship"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_one_that_lost_nothing_is_measured(how: str) -> None:
    tape, records = Tape(), whole_stream(A)
    tape.feed(alive(0), *records[:3])
    tape.damage(how)
    tape.feed(records[3], *(alive(second) for second in range(1, 400)), *records[4:])
    assert [row["outcome"] for row in rows_of(tape.assembler)] == ["ok"]
    assert tape.losses() == []


def test_one_with_a_hole_has_it_with_its_cause(how: str) -> None:
    tape, records = Tape(), whole_stream(A)
    tape.feed(alive(0), *records[:3])
    tape.damage(how)
    tape.feed(*records[5:])
    assert [row["outcome"] for row in rows_of(tape.assembler)] == ["tap_lost"]
    assert tape.losses() == [(A, 3, 4, "log_damaged")]


def test_a_later_hole_is_not_laid_to_it(how: str) -> None:
    tape, records = Tape(), whole_stream(A)
    tape.feed(alive(0), *records[:3])
    tape.damage(how)
    tape.feed(records[3], *records[5:])
    assert tape.losses() == [(A, 4, 4, "missing")]


def test_one_whose_end_was_there_ends_after_a_long_silence(how: str) -> None:
    tape = Tape()
    tape.feed(alive(0), *whole_stream(A)[:-1])
    tape.damage(how)
    tape.feed(*(alive(second) for second in range(1, 150)))
    assert rows_of(tape.assembler) == []  # it may only be silent
    tape.feed(*(alive(second) for second in range(150, 153)))
    (row,) = rows_of(tape.assembler)
    assert (row["outcome"], row["output_tokens"]) == ("tap_lost", None)
    assert [loss[3] for loss in tape.losses()] == ["log_damaged"]


def test_one_whose_end_was_there_ends_with_its_tap(how: str) -> None:
    tape = Tape()
    tape.feed(alive(0), *whole_stream(A)[:-1])
    tape.damage(how)
    tape.feed(alive(1, stopping=True))
    assert [row["outcome"] for row in rows_of(tape.assembler)] == ["tap_lost"]
    assert [loss[3] for loss in tape.losses()] == ["log_damaged"]


def test_streams_of_another_tap_or_worker_are_not_in_doubt() -> None:
    tape = Tape()
    tape.feed(alive(0, incarnation="i9"), *whole_stream(B, incarnation="i9")[:-1])
    tape.damage("met by ship")
    tape.feed(*(alive(second, incarnation="i9") for second in range(1, 400)))
    assert rows_of(tape.assembler) == []
    tape.feed(whole_stream(B, incarnation="i9")[-1])
    assert [row["outcome"] for row in rows_of(tape.assembler)] == ["ok"]

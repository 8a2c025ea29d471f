"""The reported ranges of a dropped segment cover exactly its records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamgauge.ingest.record_log.segments import LostRange, add_ranges, lost_entries
from streamgauge.ingest.records import Alive, Closed, Lost
from tests.ingest.record_log.entries import frames, records_of_payloads


def test_a_gap_in_a_stream_stays_a_gap() -> None:
    ranges: dict[str, list[LostRange]] = {}
    assert add_ranges(ranges, [frames("a", seq, 10) for seq in (0, 1, 5, 6)]) == 4
    assert ranges == {"a": [LostRange(0, 1, 20), LostRange(5, 6, 20)]}


def test_an_earlier_loss_is_part_of_the_range() -> None:
    ranges: dict[str, list[LostRange]] = {}
    add_ranges(ranges, [frames("a", 0, 10), Lost("a", 1, 7, "queue_full", 0, 70), frames("a", 8, 10)])
    assert ranges == {"a": [LostRange(0, 8, 90)]}


def test_alive_belongs_to_no_stream() -> None:
    ranges: dict[str, list[LostRange]] = {}
    assert add_ranges(ranges, [Alive("tap", 0, "i", 1, 2, 0)]) == 0
    assert ranges == {}


def test_the_range_keeps_the_end_of_a_stream_when_it_is_reported_again() -> None:
    closed = Closed("a", 2, "complete", None, 9, None, None, 0, 0, 0, None)
    ranges: dict[str, list[LostRange]] = {}
    add_ranges(ranges, [frames("a", 1, 10), frames("b", 0, 10), closed])
    assert ranges == {"a": [LostRange(1, 2, 10, closed=True)], "b": [LostRange(0, 0, 10)]}
    again: dict[str, list[LostRange]] = {}
    add_ranges(again, records_of_payloads(lost_entries(ranges, "log_full", 5)))
    assert again == ranges


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 15)), unique=True))
def test_the_reported_losses_cover_the_records_exactly(records: list[tuple[str, int]]) -> None:
    records.sort(key=lambda one: one[1])  # in order within each stream
    ranges: dict[str, list[LostRange]] = {}
    add_ranges(ranges, [frames(stream, seq) for stream, seq in records])
    reported = records_of_payloads(lost_entries(ranges, "log_full", 5))
    covered = [
        (one.stream, seq)
        for one in reported
        if isinstance(one, Lost)
        for seq in range(one.seq, one.last_seq + 1)
    ]
    assert sorted(covered) == sorted(records)
    assert {one.cause for one in reported if isinstance(one, Lost)} <= {"log_full"}

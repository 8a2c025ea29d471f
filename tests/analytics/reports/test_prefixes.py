"""Tokens of the segments of prompts, and the first parts that earlier prompts had."""

from __future__ import annotations

import pytest

from streamgauge.analytics.reports.prefixes import Prefixes
from streamgauge.ingest.records import Segment, SegmentKind

S = 10**9


def seg(kind: SegmentKind, text: str, size: int, message: int = 0) -> Segment:
    return Segment(kind, None, message, size, text.encode())


HEAD = [seg("model", "m", 900, -1), seg("tool", "t", 300, -1), seg("system", "s", 700, -1)]
ASK, ANSWER, NEXT = seg("text", "u1", 1000), seg("text", "a1", 200, 1), seg("text", "u2", 600, 2)


def test_tokens_are_divided_by_bytes_and_the_last_segment_ends_at_the_reported_number() -> None:
    assert Prefixes().add([*HEAD, ASK], 1000).ends == [0, 150, 500, 1000]


def test_image_counts_less_than_its_bytes() -> None:
    image = seg("image", "i", 100_000)
    assert Prefixes().add([*HEAD, image], 4000).ends == [0, 300, 1000, 4000]


def test_continued_prompt_keeps_the_reported_tokens_of_its_first_part() -> None:
    known = Prefixes()
    known.add([*HEAD, ASK], 1000)
    placed = known.add([*HEAD, ASK, ANSWER, NEXT], 1160)
    assert placed.ends == [0, 150, 500, 1000, 1040, 1160]
    assert (placed.seen, placed.available, placed.at_server) == (1000, 1000, None)


def test_part_beyond_the_reported_tokens_adds_none() -> None:
    known = Prefixes()
    known.add([*HEAD, ASK], 1000)
    assert known.add([*HEAD, ANSWER], 400).ends == [0, 150, 400, 400]
    assert known.add([*HEAD, ANSWER, NEXT], 800).ends == [0, 150, 500, 500, 800]


def test_changed_segment_ends_what_was_seen() -> None:
    known = Prefixes()
    known.add([*HEAD, ASK], 1000)
    changed = [HEAD[0], seg("tool", "other", 300, -1), *HEAD[2:], ASK]
    assert known.add(changed, 1000).seen == 0
    moved = [*HEAD[:2], ASK, HEAD[2]]
    assert known.add(moved, 1000).seen == 150


@pytest.mark.parametrize(
    ("began_s", "seen", "available"), [(1, 0, 0), (2, 1000, 1000), (300, 1000, 1000), (301, 1000, 0)]
)
def test_part_is_available_from_when_the_server_had_read_it_until_it_expires(
    began_s: int, seen: int, available: int
) -> None:
    known = Prefixes()
    known.add([*HEAD, ASK], 1000, began_ns=0, read_ns=2 * S)
    placed = known.add([*HEAD, ASK, NEXT], 1100, began_ns=began_s * S, read_ns=304 * S, kept_ns=300 * S)
    assert (placed.seen, placed.available) == (seen, available)


def test_use_of_a_part_keeps_it_available() -> None:
    known = Prefixes()
    for at_s in (0, 200):
        known.add([*HEAD, ASK], 1000, began_ns=at_s * S, read_ns=at_s * S)
    assert known.add([*HEAD, NEXT], 900, began_ns=400 * S, kept_ns=300 * S).available == 500


def test_only_the_server_that_has_read_a_part_has_it() -> None:
    known = Prefixes()
    known.add([*HEAD, ASK], 1000, server="a")
    known.add([*HEAD, NEXT], 800, server="b")
    placed = known.add([*HEAD, ASK, ANSWER], 1100, server="b")
    assert (placed.available, placed.at_server) == (1000, 500)


def test_other_scope_shares_nothing() -> None:
    known = Prefixes()
    known.add([*HEAD, ASK], 1000, scope="key 1")
    assert known.add([*HEAD, ASK], 1000, scope="key 2").seen == 0


def test_prefixes_that_are_not_used_are_removed_and_others_stay() -> None:
    known = Prefixes(most=40)
    known.add([*HEAD, ASK], 1000)
    known.add([*HEAD, seg("text", "seldom", 500)], 800)
    for n in range(60):
        assert known.add([*HEAD, ASK, seg("text", f"n{n}", 9, 1)], 1010).seen == 1000
    assert known.add([*HEAD, seg("text", "seldom", 500)], 800).seen == 500
    assert len(known._young) + len(known._old) <= 60

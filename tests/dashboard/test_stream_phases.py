"""The waterfall's bars come from the row, and nothing is guessed."""

from __future__ import annotations

from itertools import pairwise

from dashboard.stream_phases import phases

WHOLE = {
    "client_start_ns": -5, "connected_ns": 10, "request_sent_ns": 12, "headers_ns": 80, "ttfb_ns": 81, "ttft_ns": 100,
    "ttfo_ns": 150, "last_output_ns": 300, "end_ns": 310,
}  # fmt: skip


def test_the_phases_follow_each_other_without_a_hole() -> None:
    found = phases(WHOLE)
    assert [p.name for p in found] == [
        "request in", "connect", "send", "wait", "first byte", "first token", "reasoning", "answer", "tail",
    ]  # fmt: skip
    assert found[0].start_ns == -5
    assert found[-1].end_ns == 310
    assert all(a.end_ns == b.start_ns for a, b in pairwise(found))


def test_without_reasoning_the_answer_begins_at_the_first_token() -> None:
    found = {p.name: p for p in phases({**WHOLE, "ttfo_ns": 100})}
    assert "reasoning" not in found
    assert found["answer"].start_ns == 100


def test_an_unknown_end_leaves_its_phases_out() -> None:
    names = [p.name for p in phases({"client_start_ns": -5, "end_ns": 40, "connected_ns": None})]
    assert names == ["request in"]


def test_a_body_without_output_is_one_phase() -> None:
    found = {p.name: p for p in phases({**WHOLE, "ttft_ns": None, "ttfo_ns": None, "last_output_ns": None})}
    assert (found["body"].start_ns, found["body"].end_ns) == (81, 310)

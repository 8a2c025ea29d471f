"""Phases of a stream from its row."""

from __future__ import annotations

from itertools import pairwise

from streamgauge.analytics.reports.one_stream import phases

ROW = {
    "client_start_ns": -5, "connected_ns": 10, "request_sent_ns": 12, "headers_ns": 80, "ttfb_ns": 81, "ttft_ns": 100,
    "ttfo_ns": 150, "last_output_ns": 300, "end_ns": 310,
}  # fmt: skip


def test_phases_are_contiguous() -> None:
    found = phases(ROW)
    assert [p.name for p in found] == [
        "request in", "connect", "send", "wait", "first byte", "first token", "reasoning", "answer", "tail",
    ]  # fmt: skip
    assert found[0].start_ns == -5
    assert found[-1].end_ns == 310
    assert all(a.end_ns == b.start_ns for a, b in pairwise(found))


def test_delivery_to_a_slow_client_follows_the_end() -> None:
    late = phases({**ROW, "delivered_ns": 50_000_310})[-1]
    assert (late.name, late.start_ns, late.end_ns) == ("delivery", 310, 50_000_310)
    assert phases({**ROW, "delivered_ns": 320}) == phases(ROW)


def test_answer_starts_at_first_token_without_reasoning() -> None:
    found = {p.name: p for p in phases({**ROW, "ttfo_ns": 100})}
    assert "reasoning" not in found
    assert found["answer"].start_ns == 100


def test_phase_with_unknown_end_is_left_out() -> None:
    names = [p.name for p in phases({"client_start_ns": -5, "end_ns": 40, "connected_ns": None})]
    assert names == ["request in"]


def test_body_without_output_is_one_phase() -> None:
    found = {p.name: p for p in phases({**ROW, "ttft_ns": None, "ttfo_ns": None, "last_output_ns": None})}
    assert (found["body"].start_ns, found["body"].end_ns) == (81, 310)

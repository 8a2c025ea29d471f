"""Lanes of a trace: parents above children, nobody lost, and what the tap saw of both ends where they told nothing."""

from __future__ import annotations

from typing import Any

from dashboard.trace_spans import nested, service, with_observed


def span(
    span_id: str, parent: str | None = None, offset: int = 0, length: int = 10, **more: Any
) -> dict[str, Any]:
    return {
        "span_id": span_id, "parent_span_id": parent, "offset_ns": offset, "duration_ns": length, "name": span_id,
        "kind": "internal", "attributes": None, "stream_id": None, **more,
    }  # fmt: skip


STREAM = {
    "span_id": "tap", "parent_span_id": "caller", "gateway": "edge", "client_start_ns": -5, "request_sent_ns": 3, "end_ns": 90,
    "client_drain_ns": 95,
}  # fmt: skip
TAP = span("tap", "caller", 0, 90, kind="client", stream_id="s", attributes='{"service.name": "streamgauge"}')


def test_children_come_below_their_parents_in_order() -> None:
    found = nested([span("a"), span("b", "a"), span("c"), span("d", "b"), span("e", "a")])
    assert [(s["span_id"], s["depth"]) for s in found] == [("a", 0), ("b", 1), ("d", 2), ("e", 1), ("c", 0)]


def test_nobody_is_lost_whatever_the_parents_are() -> None:
    odd = [span("own", "own"), span("x", "y"), span("y", "x"), span("far", "nobody")]
    assert sorted(s["span_id"] for s in nested(odd)) == ["far", "own", "x", "y"]


def test_the_tap_tells_of_both_ends_where_they_tell_nothing() -> None:
    rows = with_observed(
        [TAP, span("connect", "tap", 1, stream_id="s", attributes='{"service.name": "streamgauge"}')],
        [STREAM],
    )
    placed = {s["name"]: (s["offset_ns"], s["duration_ns"], s["depth"]) for s in nested(rows)}
    assert placed == {
        "client waits and reads": (0, 100, 0),
        "tap": (5, 90, 1),
        "connect": (6, 10, 2),
        "gateway edge answers": (8, 87, 2),
    }
    assert service(rows[0]) == "client, as the tap saw it"


def test_their_own_spans_win() -> None:
    caller = span("caller", None, -4, 100, attributes='{"service.name": "app"}')
    own = span("server", "tap", 4, 80, attributes='{"service.name": "litellm"}')
    rows = with_observed([caller, TAP, own], [STREAM])
    assert [s["span_id"] for s in rows] == ["caller", "tap", "server"]
    assert [s["offset_ns"] for s in rows] == [0, 4, 8]


def test_a_stream_without_times_has_no_lanes() -> None:
    nothing = dict.fromkeys(STREAM, None) | {"span_id": "tap"}
    assert with_observed([TAP], [nothing]) == [{**TAP}]

"""Order of the spans of a trace, and observed spans for clients and gateways that sent none."""

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


def test_children_follow_their_parents_in_order() -> None:
    found = nested([span("a"), span("b", "a"), span("c"), span("d", "b"), span("e", "a")])
    assert [(s["span_id"], s["depth"]) for s in found] == [("a", 0), ("b", 1), ("d", 2), ("e", 1), ("c", 0)]


def test_spans_with_unknown_or_circular_parents_are_kept() -> None:
    spans = [span("own", "own"), span("x", "y"), span("y", "x"), span("far", "unknown")]
    assert sorted(s["span_id"] for s in nested(spans)) == ["far", "own", "x", "y"]


def test_client_and_gateway_without_spans_get_observed_spans() -> None:
    rows = with_observed(
        [TAP, span("connect", "tap", 1, stream_id="s", attributes='{"service.name": "streamgauge"}')],
        [STREAM],
    )
    placed = {s["name"]: (s["offset_ns"], s["duration_ns"], s["depth"]) for s in nested(rows)}
    assert placed == {
        "client": (0, 100, 0),
        "tap": (5, 90, 1),
        "connect": (6, 10, 2),
        "gateway edge": (8, 87, 2),
    }
    assert service(rows[0]) == "client, observed by the tap"


def test_sent_spans_replace_observed_spans() -> None:
    caller = span("caller", None, -4, 100, attributes='{"service.name": "app"}')
    own = span("server", "tap", 4, 80, attributes='{"service.name": "litellm"}')
    rows = with_observed([caller, TAP, own], [STREAM])
    assert [s["span_id"] for s in rows] == ["caller", "tap", "server"]
    assert [s["offset_ns"] for s in rows] == [0, 4, 8]


def test_stream_without_times_has_no_observed_spans() -> None:
    stream = dict.fromkeys(STREAM, None) | {"span_id": "tap"}
    assert with_observed([TAP], [stream]) == [{**TAP}]

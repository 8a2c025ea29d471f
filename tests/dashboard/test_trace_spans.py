"""Spans of a trace from rows of the store, and spans measured by the tap in place of missing ones."""

from __future__ import annotations

from typing import Any

import pytest

from streamgauge.analytics.reports.trace_tree import MEASURED, Span, from_row, with_measured

ROW = {
    "span_id": "1", "parent_span_id": None, "stream_id": None, "name": "a", "kind": "server", "at_ns": 5, "duration_ns": 7,
    "status": "ERROR", "status_message": "", "attributes": None, "events": None,
}  # fmt: skip
STREAM: dict[str, Any] = {
    "stream_id": "s", "span_id": "tap", "parent_span_id": "caller", "gateway": "edge", "model": "m", "outcome": "ok",
    "error_type": None, "at_ns": 1000, "client_start_ns": -5, "connected_ns": 2, "request_sent_ns": 3, "headers_ns": 20,
    "ttfb_ns": 21, "ttft_ns": 30, "ttfo_ns": 30, "last_output_ns": 80, "end_ns": 90, "client_drain_ns": 92,
    "delivered_ns": 95,
}  # fmt: skip


def span(
    span_id: str, parent: str | None = None, start: int = 1000, length: int | None = 10, **more: Any
) -> Span:
    return Span(
        span_id=span_id, parent_id=parent, name=span_id, start_ns=start, duration_ns=length,
        **{"service": "app", **more},
    )  # fmt: skip


TAP = span("tap", "caller", 1000, 90, kind="client", stream_id="s", service="streamgauge")


@pytest.mark.parametrize(
    ("attributes", "events", "service", "event_names"),
    [
        ('{"service.name": "app"}', '[{"name": "x", "at_ns": 3, "attributes": {"k": 1}}]', "app", ["x"]),
        ("no JSON", "no JSON", "server", ["no JSON"]),
        ("[1]", '[1, {"name": "y", "at_ns": "soon", "attributes": 2}]', "server", ["1", "y"]),
        ("", "{}", "server", []),
        (None, None, "server", []),
    ],
)
def test_attributes_and_events_of_any_form_are_read(
    attributes: str | None, events: str | None, service: str, event_names: list[str]
) -> None:
    found = from_row(ROW | {"attributes": attributes, "events": events})
    assert (found.service, [event.name for event in found.events]) == (service, event_names)
    assert (found.failed, found.message, found.end_ns) == (True, None, 12)


def placed(spans: list[Span]) -> dict[str, tuple[int, int | None, str | None]]:
    return {s.name: (s.start_ns - 1000, s.duration_ns, s.parent_id) for s in spans}


def test_client_gateway_and_missing_phases_are_measured_by_the_tap() -> None:
    own = span("connect", "tap", 1000, 2, stream_id="s", service="streamgauge")
    found = with_measured([TAP, own], [STREAM])
    assert placed(found) == {
        "client": (-5, 100, "caller"),
        "tap": (0, 90, "client:tap"),
        "connect": (0, 2, "tap"),
        "gateway edge": (3, 87, "tap"),
        "receive request": (-5, 5, "tap"),
        "send request": (2, 1, "tap"),
        "end of response": (80, 10, "tap"),
    }
    assert {s.service for s in found if s.measured} == {MEASURED}


def test_stream_without_stored_spans_has_all_phases_and_its_longest_stalls() -> None:
    stalls = [{"stream_id": "s", "at_ns": i, "gap_ns": i + 1, "cause": "client"} for i in range(25)]
    failed = STREAM | {"outcome": "truncated", "error_type": "cut"}
    found = with_measured([], [failed], [*stalls, stalls[0] | {"stream_id": "other"}])
    names = [s.name for s in found if s.cause is None]
    assert names == [
        "stream m", "client", "gateway edge", "receive request", "connect", "send request", "wait for headers",
        "wait for first byte", "wait for first token", "output", "end of response",
    ]  # fmt: skip
    drawn = [s for s in found if s.cause is not None]
    assert [s.start_ns - 1000 for s in drawn] == list(range(5, 25))
    operation = found[0]
    assert (operation.span_id, operation.failed, operation.message) == ("tap", True, "cut")


def test_abort_by_the_client_is_no_error_of_the_stream() -> None:
    found = with_measured([], [STREAM | {"outcome": "client_abort", "error_type": "client_abort"}])
    assert (found[0].failed, found[0].message) == (False, None)


def test_spans_of_other_services_replace_measured_ones() -> None:
    caller, gateway = span("caller", None, 996, 100), span("server", "tap", 1004, 80, service="litellm")
    stall = {"stream_id": "s", "at_ns": 30, "gap_ns": 9, "cause": "client"}
    found = with_measured([caller, TAP, gateway], [STREAM], [stall])
    assert found == [caller, TAP, gateway]


def test_stream_without_times_or_ids_has_one_open_span() -> None:
    found = with_measured(
        [], [dict.fromkeys(STREAM) | {"stream_id": "s", "at_ns": 1000, "outcome": "tap_lost"}]
    )
    assert [(s.span_id, s.duration_ns, s.end_ns) for s in found] == [("stream:s", None, 1000)]

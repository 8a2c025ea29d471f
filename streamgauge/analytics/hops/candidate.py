"""One stored stream as the matcher uses it. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Side = tuple[str | None, str | None]
"""Tap and upstream: where a stream was measured."""


class HopCandidate(NamedTuple):
    """Columns of `streams`, and the time of `started_at` in ns. Other times are in ns since t0."""

    stream_id: str
    wall_ns: int
    tap: str | None
    gateway: str | None
    clock_id: str
    clock_ns: int
    trace_id: str | None
    span_id: str | None
    parent_span_id: str | None
    response_id: str | None
    request_id: str | None
    output_fingerprint: str | None
    tool_fingerprint: str | None
    outcome: str
    client_start_ns: int | None
    request_sent_ns: int | None
    ttfb_ns: int | None
    ttft_ns: int | None
    last_output_ns: int | None
    end_ns: int | None
    connection_id: str | None = None
    """The stream of the WebSocket on which this one is an answer."""

    @property
    def side(self) -> Side:
        return self.tap, self.gateway

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the text, else of the tool calls."""
        return self.output_fingerprint or self.tool_fingerprint


SQL_COLUMNS = tuple(
    {
        "stream_id": "stream_id::VARCHAR AS stream_id",
        "connection_id": "connection_id::VARCHAR AS connection_id",
        "wall_ns": "epoch_us(started_at) * 1000 AS wall_ns",
    }.get(name, name)
    for name in HopCandidate._fields
)
"""The fields as SQL over `streams`. `candidate` requires `clock_id` and `clock_ns`."""


def candidate(row: Mapping[str, Any]) -> HopCandidate:
    """The candidate of a row with at least `SQL_COLUMNS`."""
    return HopCandidate(*(row[name] for name in HopCandidate._fields))


def same_output(outer: HopCandidate, inner: HopCandidate) -> bool:
    """Whether both streams have the same output."""
    return outer.fingerprint is not None and outer.fingerprint == inner.fingerprint


def contradicts(outer: HopCandidate, inner: HopCandidate) -> bool:
    """Whether both streams are complete and have different output."""
    if outer.outcome != "ok" or inner.outcome != "ok":
        return False
    channels = (
        (outer.output_fingerprint, inner.output_fingerprint),
        (outer.tool_fingerprint, inner.tool_fingerprint),
    )
    known = [(a, b) for a, b in channels if a is not None and b is not None]
    return bool(known) and all(a != b for a, b in known)


def output_times(outer: HopCandidate, inner: HopCandidate) -> list[tuple[int, int]]:
    """Times of the output that both streams have."""
    pairs = [(outer.ttft_ns, inner.ttft_ns), (outer.last_output_ns, inner.last_output_ns)]
    if outer.ttft_ns is None and inner.ttft_ns is None:  # not streamed
        pairs = [(outer.ttfb_ns, inner.ttfb_ns)]
    return [(a, b) for a, b in pairs if a is not None and b is not None]

"""One stored stream as the matcher sees it, and whether one stream may lie within another. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from streamgauge.analytics.hop_matching.clock_offsets import ClockOffset

Side = tuple[str | None, str | None]
"""Tap and upstream: where a stream was measured."""


class Candidate(NamedTuple):
    """Columns of `streams`, and the time of `started_at` in ns. Times in ns since t0, if not stated otherwise."""

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

    @property
    def side(self) -> Side:
        return self.tap, self.gateway

    @property
    def fingerprint(self) -> str | None:
        """That of the text, else that of the tool calls."""
        return self.output_fingerprint or self.tool_fingerprint


SQL_COLUMNS = tuple(
    {"stream_id": "stream_id::VARCHAR AS stream_id", "wall_ns": "epoch_us(started_at) * 1000 AS wall_ns"}.get(
        name, name
    )
    for name in Candidate._fields
)
"""The fields as SQL over `streams`. `candidate` requires `clock_id` and `clock_ns`."""


def candidate(row: Mapping[str, Any]) -> Candidate:
    """The candidate of a row with at least `SQL_COLUMNS`."""
    return Candidate(*(row[name] for name in Candidate._fields))


def start_ns(outer: Candidate, inner: Candidate, offset: ClockOffset) -> int:
    """The start of `inner` in ns since that of `outer`."""
    return inner.clock_ns - offset.ns - outer.clock_ns


def starts_within(outer: Candidate, inner: Candidate, offset: ClockOffset) -> bool:
    """Whether `inner` may have started while `outer` was open, at another upstream or tap."""
    if outer.side == inner.side or outer.stream_id == inner.stream_id:
        return False
    start = start_ns(outer, inner, offset)
    return start >= -offset.error_ns and (outer.end_ns is None or start <= outer.end_ns + offset.error_ns)


def same_output(outer: Candidate, inner: Candidate) -> bool:
    """Whether both streams have the same output."""
    return outer.fingerprint is not None and outer.fingerprint == inner.fingerprint


def may_carry(outer: Candidate, inner: Candidate, offset: ClockOffset) -> bool:
    """Whether `outer` may have the output of `inner`: nothing leaves a gateway before it has arrived there."""
    earliest = max(0, start_ns(outer, inner, offset) - offset.error_ns)
    pairs = ((outer.ttft_ns, inner.ttft_ns), (outer.last_output_ns, inner.last_output_ns))
    if outer.ttft_ns is None and inner.ttft_ns is None:  # not streamed
        pairs = ((outer.ttfb_ns, inner.ttfb_ns),) * 2
    return all(a is None or b is None or a >= earliest + b for a, b in pairs)


def contradicts(outer: Candidate, inner: Candidate) -> bool:
    """Whether both streams are complete and have different output."""
    if outer.outcome != "ok" or inner.outcome != "ok":
        return False
    channels = (
        (outer.output_fingerprint, inner.output_fingerprint),
        (outer.tool_fingerprint, inner.tool_fingerprint),
    )
    known = [(a, b) for a, b in channels if a is not None and b is not None]
    return bool(known) and all(a != b for a, b in known)

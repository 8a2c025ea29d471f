"""The columns of table `hops`, declared as those of `streams` are (`streamgauge.analytics.schema.stream_columns`)."""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypedDict

from streamgauge.analytics.schema.stream_columns import Int32, Integer, Number, Text


class HopMatch(TypedDict):
    """The two streams of a hop."""

    outer_stream_id: Annotated[str, "UUID NOT NULL"]
    """Stream between client and gateway."""
    inner_stream_id: Annotated[str, "UUID NOT NULL"]
    """Stream between gateway and model server."""
    outer_started_at: Annotated[int, "TIMESTAMPTZ NOT NULL"]
    """Start of the outer stream."""
    outer_gateway: Text
    """Upstream of the outer stream: the gateway."""
    inner_gateway: Text
    """Upstream of the inner stream: the model server."""
    model: Text
    """Model that the client requested, else the one in the response."""
    matched_by: Annotated[str, "VARCHAR NOT NULL"]
    """Evidence: span, trace, response_id, request_id or fingerprint."""
    attempt: Annotated[int, "INTEGER NOT NULL"]
    """Number of the inner stream among those of the outer one, from 1 by start."""
    inner_outcome: Annotated[str, "VARCHAR NOT NULL"]
    """Outcome of the inner stream."""
    inner_error_type: Text
    """error_type of the inner stream."""
    lost_ns: Integer
    """Time in ns from the start of this attempt to the start of the next one. NULL for the last attempt."""
    gateway_before_ns: Integer
    """ns from the start of the outer stream to the start of this attempt."""


class HopMeasures(NamedTuple):
    """What the gateway added."""

    added_ttft_ns: Integer = None
    """Time to first token of the outer stream minus that of the inner one. NULL for failed attempts."""
    added_tail_ns: Integer = None
    """ns from the end of the inner stream to the end of the outer one. NULL for failed attempts."""
    added_event_p50_ns: Integer = None
    """Median delay of the output events by the gateway in ns, aligned by cumulative characters. NULL if the gateway changed the
    text."""
    added_event_p95_ns: Integer = None
    """95th percentile of the delays in ns."""
    added_event_max_ns: Integer = None
    """Longest delay in ns."""
    aligned_event_count: Integer = None
    """Outer output events with a known delay."""
    merged_event_count: Integer = None
    """Inner output events that share an outer event with an earlier one."""
    split_event_count: Integer = None
    """Outer output events that continue an inner event."""
    buffered_share: Number = None
    """Share of the reads of the inner stream whose output the gateway held until the next one, beyond the shortest delay of the
    stream."""
    gateway_stall_count: Int32 = None
    """Stalls of the outer stream that the gateway caused."""


class HopClocks(TypedDict):
    """One row per pair of an outer stream (client to gateway) and an inner stream (gateway to model) of the same request. An outer
    stream with several inner ones has one row per attempt."""

    clock_offset_ns: Integer
    """Estimated clock of the inner tap minus that of the outer tap in ns. 0 with one clock."""
    clock_error_ns: Integer
    """Bound of the error of clock_offset_ns in ns, and of all columns that compare both clocks. 0 with one clock."""

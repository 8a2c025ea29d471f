"""W3C Trace Context level 1: read the caller's `traceparent`, make the one that goes upstream.

A caller's header that is malformed is treated as absent, as the recommendation asks: the tap then begins a trace. A trace
that the tap begins is marked as sampled.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ingest.ids import new_span_id, new_trace_and_span

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


class TraceContext(NamedTuple):
    """The trace that a request belongs to. `span_id` is the tap's own span, the parent of whatever comes after it."""

    trace_id: str
    span_id: str
    parent_span_id: str | None
    flags: int

    @property
    def header(self) -> bytes:
        """The value of `traceparent` for the upstream."""
        trace_id, span_id, _, flags = self
        return f"00-{trace_id}-{span_id}-{flags:02x}".encode()


def join_trace(traceparent: bytes | None) -> TraceContext:
    """Join the caller's trace, or begin one."""
    if traceparent is not None and (found := _TRACEPARENT.fullmatch(traceparent)):
        version, trace_id, parent = found[1], found[2].decode(), found[3].decode()
        good_version = version != b"ff" and (version != b"00" or found[5] is None)
        if good_version and trace_id.strip("0") and parent.strip("0"):
            # Only the flag that version 00 defines is passed on.
            return TraceContext(trace_id, new_span_id(), parent, int(found[4], 16) & _SAMPLED)
    trace_id, span_id = new_trace_and_span()
    return TraceContext(trace_id, span_id, None, _SAMPLED)

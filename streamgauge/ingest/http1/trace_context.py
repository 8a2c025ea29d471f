"""W3C Trace Context level 1: parse the client's `traceparent` and create the one for the upstream.

Without a valid header the tap starts a new trace, marked as sampled.
"""

from __future__ import annotations

from streamgauge.ingest.generated_ids import random_hex
from streamgauge.ingest.identifiers import SAMPLED, trace_parent


class TraceContext:
    """The trace of a request. `span_id` is the tap's own span, the parent of the upstream's."""

    __slots__ = ("flags", "header", "parent_span_id", "span_id", "trace_id")

    def __init__(self, trace_id: str, span_id: str, parent_span_id: str | None, flags: int) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_span_id = parent_span_id
        self.flags = flags  # `SAMPLED` or 0
        self.header = f"00-{trace_id}-{span_id}-0{flags}"
        """The value of `traceparent` for the upstream."""


def join_trace(traceparent: bytes | None) -> TraceContext:
    """Join the client's trace or start a new one."""
    if traceparent is not None and (found := trace_parent(traceparent.decode("latin-1"))) is not None:
        trace_id, parent, flags = found
        return TraceContext(trace_id, random_hex(16), parent, flags)
    return TraceContext(random_hex(32), random_hex(16), None, SAMPLED)

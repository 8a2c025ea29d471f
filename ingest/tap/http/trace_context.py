"""W3C Trace Context level 1: parse the client's `traceparent` and create the one for the upstream.

A malformed header counts as absent, as the recommendation requires: the tap then starts a new trace, marked as sampled.
"""

from __future__ import annotations

import re

from streamgauge.ingest.generated_ids import new_span_id, random_hex

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


class TraceContext:
    """The trace of a request. `span_id` is the tap's own span, the parent of the upstream's."""

    __slots__ = ("flags", "parent_span_id", "span_id", "trace_id")

    def __init__(self, trace_id: str, span_id: str, parent_span_id: str | None, flags: int) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_span_id = parent_span_id
        self.flags = flags  # `_SAMPLED` or 0

    @property
    def header(self) -> str:
        """The value of `traceparent` for the upstream."""
        return f"00-{self.trace_id}-{self.span_id}-0{self.flags}"


def join_trace(traceparent: bytes | None) -> TraceContext:
    """Join the client's trace or start a new one."""
    if traceparent is not None and (match := _TRACEPARENT.fullmatch(traceparent)):
        version, trace_id, parent = match[1], match[2].decode(), match[3].decode()
        good_version = version != b"ff" and (version != b"00" or match[5] is None)
        if good_version and trace_id.strip("0") and parent.strip("0"):
            # Forward only the flag that version 00 defines.
            return TraceContext(trace_id, new_span_id(), parent, int(match[4], 16) & _SAMPLED)
    digits = random_hex(48)
    return TraceContext(digits[:32], digits[32:], None, _SAMPLED)

"""A finished stream: the raw facts that `streamgauge.analytics.measures` turns into rows. It holds no verdict and no measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamgauge.analytics.decoding.decoded_body import DecodedBody
from streamgauge.analytics.decoding.request_body import RequestParameters
from streamgauge.ingest.records import Closed, Conversation, Opened, ResponseHeaders

MISSING = "missing"
"""Cause of a gap that no record explains."""


@dataclass(frozen=True, slots=True)
class RecordGap:
    """Records [first_seq, last_seq] of a stream that are missing for good. `bytes` is None if unknown."""

    first_seq: int
    last_seq: int
    cause: str
    bytes: int | None
    at_wall_ns: int


@dataclass(slots=True, kw_only=True)
class FinishedStream:
    stream_id: str
    partition: str
    started_wall_ns: int
    complete: bool
    """Every record up to `closed` was read."""
    opened: Opened | None
    """None if that record is missing."""
    request: RequestParameters
    """Stop sequences are removed unless content is captured, because clients choose them."""
    response: ResponseHeaders | None
    closed: Closed | None
    body: DecodedBody | None
    """None if neither a body nor `Opened` was read."""
    conversation: Conversation | None = None
    """None without a request in JSON."""
    record_gaps: Sequence[RecordGap] = ()
    lost_bytes: int | None = None
    """Body bytes in missing records. None: unknown."""
    uncaptured_bytes: int = 0
    """Body bytes that the tap does not record, by rule."""
    capture_content: bool = False
    request_body: bytes | None = None
    """The captured request, if this stream's text is kept and the body was not cut."""

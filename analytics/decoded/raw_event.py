"""One event of a response body, framed but not yet decoded by a dialect."""

from __future__ import annotations

import msgspec


class RawEvent(msgspec.Struct, gc=False):
    """An SSE event, a JSON line or an element of a JSON array."""

    name: str
    """The SSE `event` field; "" when there is none."""
    data: bytes
    at_ns: int
    """Arrival of the read that completed the event, in ns from t0."""
    read_seq: int
    """Number of that read, from 0. Events of one read share a time."""

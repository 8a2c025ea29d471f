"""What a recorder and the relay exchange about a body that the relay forwards."""

from __future__ import annotations

import os
from typing import NamedTuple, Protocol


class RelayedRecords(NamedTuple):
    """What the relay needs to make the records of a stream."""

    head: bytes
    """`records.frames_head`; empty: do not record."""
    seq: int
    t0_ns: int
    capture_bytes: int
    """Payload bytes still to capture."""
    event_stream: bool
    last_output_ns: int
    """Time of the last read that held more than heartbeats; 0: unknown."""


NOT_RECORDED = RelayedRecords(b"", 0, 0, 0, False, 0)


class RelayedEnd(NamedTuple):
    """The end of a relayed body. Times are monotonic, in ns."""

    cause: int
    error: int
    """errno of the failed system call, or 0."""
    last_ns: int
    """Time of the last read."""
    last_output_ns: int
    """Time of the last read that held more than heartbeats."""
    payload_bytes: int
    wire_bytes: int
    """Bytes received for the client, with chunk framing."""
    unsent: bytes
    """The part of `wire_bytes` that the client's socket has not accepted."""
    seq: int
    """Sequence number of the next record."""
    capture_bytes: int
    uncaptured_bytes: int
    """Bytes that no record reports yet."""
    first_uncaptured_ns: int
    """Arrival of the first byte that is counted but not captured; 0: none."""
    dropped_bytes: int
    """Size of the run of dropped frames at the end; -1: none."""

    @property
    def os_error(self) -> OSError | None:
        return OSError(self.error, os.strerror(self.error)) if self.error else None


class RelayedBatch(Protocol):
    """Records that the relay has encoded."""

    count: int
    frames: int
    captured_bytes: int
    size_bytes: int

    def take(self) -> list[bytes]:
        """The records, once. Any thread may call it."""

"""Totals of one tap worker since its start, for /metrics, /ledger and the `Alive` records.

Plain integers that only the event loop changes. The log thread has its own. Totals never decrease; the gauges, which can, are
added by `TapWorker.stats`.
"""

from __future__ import annotations

from typing import get_args

from streamgauge.ingest.records import Cause

CAUSES: tuple[str, ...] = get_args(Cause)


class Counters:
    """Totals of one worker, under the names of /ledger."""

    def __init__(self) -> None:
        self.survives: memoryview | None = None
        """Memory with `streams_opened` that outlives the process (`OpenedInMemory`)."""
        self.streams_opened = 0
        self.streams_closed = 0
        self.streams_relayed = 0  # responses handed to the native relay
        self.closed_by_cause: dict[str, int] = dict.fromkeys(CAUSES, 0)
        self.records = 0  # records handed to the log thread
        self.frames = 0
        self.body_bytes = 0  # response body bytes received from upstreams
        self.captured_bytes = 0  # the part of body_bytes that was handed to the log thread
        self.uncaptured_bytes = 0  # the part of body_bytes that is not recorded by rule (kind, size)
        self.lost_records = 0
        self.lost_bytes = 0  # the part of body_bytes that should have been recorded and was dropped
        self.lost_untold = 0  # losses without a `Lost` record: only this counter reports them
        self.recording_failed = 0  # exceptions in recording; a stream that one ends is stored as `tap_lost`
        self.request_bytes = 0
        self.requests_refused = 0
        self.requests_unrouted = 0
        self.refusals_unrecorded = 0  # the part of both without a stream, see `refusals`
        self.retries = 0
        self.client_connections = 0
        self.upstream_connections = 0
        self.upstream_reuses = 0
        self.bad_upstream_excess_bytes = 0

    def open_stream(self) -> None:
        """Count a stream."""
        self.streams_opened += 1
        if self.survives is not None:
            self.survives[0] = self.streams_opened


_NEW = Counters()
NAMES = tuple(
    sorted(name for name in dir(_NEW) if name[0] != "_" and isinstance(getattr(_NEW, name), int | dict))
)

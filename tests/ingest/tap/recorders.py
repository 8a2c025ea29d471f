"""Recorders of one worker, with a log that accepts records only when the test calls `take`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from streamgauge.ingest.facts import RouteFacts, UpstreamFacts
from streamgauge.ingest.guards import Guards
from streamgauge.ingest.http1.heads import HeadLimits, read_request_head, read_response_head
from streamgauge.ingest.http1.trace_context import join_trace
from streamgauge.ingest.http1.upstreams import parse_upstreams
from streamgauge.ingest.recording.counters import Counters
from streamgauge.ingest.recording.failures import RecordingFailures
from streamgauge.ingest.recording.record_buffer import RecordBuffer
from streamgauge.ingest.recording.recorder import Recorder, Recorders
from streamgauge.ingest.records import AnyRecord, Closed, Frames, Lost, Opened, Request, decode
from streamgauge.ingest.tap.http.routing import Router
from tests.options import tap_options

WALL_NS = 1_700_000_000_000_000_000
"""Unix time of the recorders' time 0."""
UPSTREAMS = parse_upstreams(["a=http://127.0.0.1:1"])
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n%b\r\n"


class WatchedUpstream(NamedTuple):
    """Calls `made` when the `Opened` of a request to it is made."""

    made: Callable[[], None]
    host: str = "a"
    port: int = 80

    @property
    def name(self) -> str:
        self.made()
        return "a"


class StalledSink:
    """A log thread that processes its queue only when `take` is called."""

    def __init__(self) -> None:
        self.done_bytes = 0
        self.failing: str | None = None
        self.batches: list[tuple[list[bytes], int]] = []
        self.records: list[AnyRecord] = []
        self.dropped: list[list[bytes]] = []
        self.handed_over = asyncio.Event()

    def put(self, records: list[bytes], size_bytes: int) -> None:
        self.batches.append((records, size_bytes))
        self.handed_over.set()

    def take_dropped(self) -> list[list[bytes]]:
        dropped, self.dropped = self.dropped, []
        return dropped

    def take(self) -> None:
        for records, size in self.batches:
            self.records += map(decode, records)
            self.done_bytes += size
        self.batches = []

    def drop(self) -> None:
        """Drop all queued batches."""
        for records, size in self.batches:
            self.dropped.append(records)
            self.done_bytes += size
        self.batches = []


class RecorderGroup:
    """Creates recorders and calls them as an exchange does."""

    def __init__(
        self,
        *,
        queue_bytes: int = 2**30,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        **options: Any,
    ) -> None:
        self.sink = StalledSink()
        self.counters = Counters()
        self.buffer = RecordBuffer(
            self.sink, RecordingFailures(self.counters, Guards()), queue_bytes=queue_bytes, clock_ns=clock_ns
        )
        given = tap_options(**{"upstreams": UPSTREAMS, "data": Path("nowhere"), **options})
        self.recorders = Recorders(
            self.buffer, given, incarnation="i", client_key=b"k" * 32, wall_ns=lambda at_ns: WALL_NS + at_ns
        )

    def start(self, *, fields: bytes = b"", upstream: UpstreamFacts | None = None) -> Recorder:
        """`upstream`: instead of the configured one."""
        raw = b"POST /v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n%b\r\n" % fields
        head = read_request_head(raw, HeadLimits())
        route = Router(UPSTREAMS).route(head) if upstream is None else RouteFacts(upstream, head.target)
        assert route is not None
        return self.recorders.new(head, route, join_trace(None), 0, 0)

    def respond(self, recorder: Recorder, *, fields: bytes = b"") -> None:
        recorder.response_head(read_response_head(RESPONSE % fields), 1)

    def started_response(self) -> Recorder:
        """A recorder whose request has no body yet and whose response has begun."""
        recorder = self.start()
        self.respond(recorder)
        return recorder

    def end(self, recorder: Recorder) -> None:
        recorder.record_request(False)
        recorder.ended("complete", None, 2, 0, 0, False, False, [])
        recorder.drained(2)

    def settle(self) -> None:
        """Flush all records, including losses that had no room before, and let the log accept them."""
        for _ in range(100):
            self.buffer.flush_all()
            self.sink.take()
        assert self.buffer.queued_bytes == 0
        assert self.counters.lost_untold == 0

    def records_of(self, recorder: Recorder) -> list[Opened | Request | Frames | Lost | Closed]:
        return [r for r in self.sink.records if getattr(r, "stream", None) == recorder.stream]  # type: ignore[misc]

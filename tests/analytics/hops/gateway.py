"""Requests through a simulated gateway, as both taps record them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from streamgauge.ingest.generated_ids import random_hex, uuid7
from streamgauge.ingest.records import AnyRecord, Closed, Frames, Opened, Request, ResponseHeaders
from tests.analytics.stream_records import chunk

MS = 1_000_000
SECOND = 1000 * MS


@dataclass
class Clock:
    """Clocks of one tap, relative to true time."""

    clock_id: str = "c1"
    offset_ns: int = 5_000 * SECOND
    """Of the monotonic clock."""
    wall_error_ns: int = 0


@dataclass
class Side:
    """One stream. All times are true times in ns."""

    gateway: str
    clock: Clock
    began_ns: int
    output: Sequence[tuple[int, str]] = ()
    """(time, text)."""
    status: int = 200
    response_id: str = ""
    trace_id: str = ""
    parent_span_id: str | None = None
    headers: Sequence[tuple[str, str]] = ()
    cause: Any = "complete"
    end_ns: int = 0
    stream_id: str = ""
    span_id: str = ""

    def __post_init__(self) -> None:
        trace_id, self.span_id = random_hex(32), random_hex(16)
        self.trace_id = self.trace_id or trace_id
        self.stream_id = uuid7(self.began_ns + self.clock.wall_error_ns)
        if not self.end_ns:
            self.end_ns = (self.output[-1][0] if self.output else self.began_ns) + MS

    def records(self) -> list[AnyRecord]:
        t0 = self.began_ns
        opened = Opened(
            stream=self.stream_id, seq=0, tap=f"tap-{self.clock.clock_id}", tap_worker=0, incarnation="i1",
            gateway=self.gateway, server_address="127.0.0.1", server_port=80, method="POST",
            path="/v1/chat/completions", wall_ns=t0 + self.clock.wall_error_ns, mono_ns=t0 % 10**15 + self.clock.offset_ns,
            client_start_ns=-1000, trace_id=self.trace_id, span_id=self.span_id, parent_span_id=self.parent_span_id,
            trace_flags=1, client_id=None, headers=list(self.headers), clock_id=self.clock.clock_id,
        )  # fmt: skip
        frames = [
            (at - t0, chunk(id=self.response_id, choices=[{"index": 0, "delta": {"content": text}}]))
            for at, text in self.output
        ]
        if frames and self.cause == "complete":
            frames.append((self.end_ns - t0, self._finish()))
        size = sum(len(data) for _, data in frames)
        content = "text/event-stream" if self.status == 200 else "application/json"
        head = ResponseHeaders(
            self.status, [("content-type", content)], self.end_ns - t0 if not frames else frames[0][0]
        )
        closed = Closed(
            stream=self.stream_id, seq=3, cause=self.cause, detail=None, end_ns=self.end_ns - t0, connected_ns=100,
            request_sent_ns=1000, request_bytes=20, response_bytes=size, delivered_bytes=size, client_drain_ns=None,
        )  # fmt: skip
        request = Request(self.stream_id, 1, b'{"model":"m","stream":true}', False)
        return [opened, request, Frames(self.stream_id, 2, frames, head), closed]

    def _finish(self) -> bytes:
        finish = {"index": 0, "delta": {}, "finish_reason": "stop"}
        return chunk(id=self.response_id, choices=[finish]) + b"data: [DONE]\n\n"


@dataclass
class Exchange:
    """An outer stream and the inner ones that belong to it."""

    outer: Side
    inners: list[Side] = field(default_factory=list)

    def records(self) -> list[AnyRecord]:
        return [record for side in (*self.inners, self.outer) for record in side.records()]


def exchange(
    began_ns: int,
    *,
    text: Sequence[str] = ("The ", "river ", "runs ", "quietly ", "past ", "the ", "old ", "mill."),
    before_ns: int = 2 * MS,
    gap_ns: int = 20 * MS,
    jitter: float = 0.5,
    delay_ns: tuple[int, int] = (MS // 2, 3 * MS),
    outer_clock: Clock | None = None,
    inner_clock: Clock | None = None,
    propagate: str = "",
    rng: random.Random | None = None,
) -> Exchange:
    """One request. `delay_ns`: least and most delay of an event by the gateway. `propagate`: what the gateway passes on
    (trace, response_id, request_id)."""
    rng = rng or random.Random(began_ns)
    outer_clock, inner_clock = outer_clock or Clock(), inner_clock or outer_clock or Clock()
    inner_began = began_ns + before_ns
    at = inner_began + 3 * gap_ns
    inner_output, outer_output, left = [], [], 0
    for word in text:
        at += int(gap_ns * rng.uniform(1 - jitter, 1 + jitter))
        inner_output.append((at, word))
        left = max(left, at + rng.randint(*delay_ns))
        outer_output.append((left, word))
    outer = Side("gateway", outer_clock, began_ns, outer_output)
    inner = Side("model", inner_clock, inner_began, inner_output)
    if propagate == "trace":
        inner = replace(inner, trace_id=outer.trace_id, parent_span_id=outer.span_id)
    elif propagate == "response_id":
        outer.response_id = inner.response_id = f"chatcmpl-{inner.stream_id}"
    elif propagate == "request_id":
        outer.headers = inner.headers = [("x-request-id", inner.stream_id)]
    return Exchange(outer, [inner])

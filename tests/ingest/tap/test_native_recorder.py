"""The native recorder of short exchanges makes the same records as the Python code."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.ingest.generated_ids import uuid7_wall_ns
from streamgauge.ingest.guards import Guards
from streamgauge.ingest.records import AnyRecord, Closed, Opened
from streamgauge.ingest.tap.counters import NAMES, Counters
from streamgauge.ingest.tap.http.heads import HeadLimits, read_request_head, read_response_head
from streamgauge.ingest.tap.http.routing import Router
from streamgauge.ingest.tap.http.trace_context import TraceContext
from streamgauge.ingest.tap.http.upstreams import parse_upstreams
from streamgauge.ingest.tap.recording.deferred_recorder import (
    MAX_UNCOUNTED_BODY_BYTES,
    DeferredRecorders,
    Recorders,
)
from streamgauge.ingest.tap.recording.failures import RecordingFailures
from streamgauge.ingest.tap.recording.record_buffer import RecordBuffer
from streamgauge.ingest.tap.recording.stream_recorder import RecorderFactory
from streamgauge.ingest.tap.relay import choice as relay_choice
from tests.ingest.tap.recorders import StalledSink
from tests.options import tap_options

pytestmark = pytest.mark.skipif(
    relay_choice.native_relay is None, reason="the native relay is not built: no C compiler"
)
if relay_choice.native_relay is not None:
    from streamgauge.ingest.tap.recording.native_recorder import NativeDeferredRecorders

UPSTREAMS = parse_upstreams(["a=http://127.0.0.1:1", "b=http://[::1]:70"])
T0_NS = 10**15
TRACES = TraceContext("1" * 32, "2" * 16, None, 1), TraceContext("1" * 32, "2" * 16, "3" * 16, 0)

REQUEST_FIELDS = st.lists(
    st.sampled_from(
        ["Authorization: Bearer sk-1", "X-Api-Key: k", "User-Agent: OpenAI/1", "Accept: */*", "Cookie: c=1", "Session-Id: s 1",
         "X-Streamgauge-Capture: none", "X-Streamgauge-Capture: x", "Content-Type: application/json", "X-Request-Id: ü" + "r" * 300]
        + [f"X-Stainless-Lang: {i}" for i in range(18)],
    ),
    max_size=24,
)  # fmt: skip
TARGETS = st.sampled_from(
    ["/a/v1/chat/completions", "/b/v1/models/m:generate?alt=sse&model=m", "/a/v1/" + "x" * 19, "/a/sk-" + "a1" * 20, "/a/", "/b/a%20b",
     "/a" + "/segment" * 40]
)  # fmt: skip
RESPONSES = st.sampled_from(
    [(200, "text/event-stream", ""), (200, "application/json", "Server: s\r\nSet-Cookie: c\r\n"), (500, "text/html", ""),
     (200, "image/png", ""), (429, "", "Retry-After: 2\r\n"), (999, "application/json", "")]
)  # fmt: skip
TIMES = st.integers(-200, 10**12) | st.sampled_from([0, 31, 127, 128, 255, 256, 65_535, 65_536, 2**31, 2**32])
SIZES = st.sampled_from([0, 1, 31, 255, 256, 4000, 9000, MAX_UNCOUNTED_BODY_BYTES, 70_000])
WAITS = st.lists(st.tuples(TIMES, TIMES, st.sampled_from(["client", "tap"])), max_size=3)
CAUSES = st.sampled_from(["complete", "client_left", "upstream_reset", "bad_upstream"])


def request(draw: Callable[[Any], Any], *, has_body: bool) -> bytes:
    length = "Content-Length: 9\r\n" if has_body else ""
    fields = "".join(f"{line}\r\n" for line in draw(REQUEST_FIELDS))
    method = draw(st.sampled_from(["GET", "POST", "M-SEARCH"]))
    return f"{method} {draw(TARGETS)} HTTP/1.1\r\nHost: h\r\n{length}{fields}\r\n".encode("latin-1")


@st.composite
def exchanges(draw: Callable[[Any], Any]) -> list[tuple[str, tuple[Any, ...]]]:
    """Calls in the order of the protocol; any exchange may end early."""
    has_body = draw(st.booleans())
    head = request(draw, has_body=has_body)
    calls: list[tuple[str, tuple[Any, ...]]] = [("new", (head, draw(st.sampled_from(TRACES)), draw(TIMES)))]

    def sometimes(name: str, *arguments: Any) -> None:
        if draw(st.integers(0, 5)):
            calls.append((name, arguments))

    if has_body:
        sometimes("connected", T0_NS + draw(TIMES))
        calls += [("request_data", (b"q" * draw(SIZES),)) for _ in range(draw(st.integers(0, 3)))]
        sometimes("request_sent", T0_NS + draw(TIMES))
        sometimes("record_request", draw(st.booleans()))
    else:
        sometimes("connected", T0_NS + draw(TIMES))
    if draw(st.integers(0, 5)):
        status, content_type, fields = draw(RESPONSES)
        kind = f"Content-Type: {content_type}\r\n" if content_type else ""
        response = f"HTTP/1.1 {status} OK\r\n{kind}{fields}\r\n".encode()
        calls.append(("response_head", (response, T0_NS + draw(TIMES))))
        for _ in range(draw(st.integers(0, 3))):
            calls += [("response_data", (b"r" * max(1, draw(SIZES)), T0_NS + draw(TIMES)))]
    if not draw(st.integers(0, 7)):
        calls.append(("flush", ()))
    if has_body:
        calls.append(("record_request", (draw(st.booleans()),)))
    calls.append(
        ("ended", (draw(CAUSES), draw(st.sampled_from([None, "Error"])), T0_NS + draw(TIMES), draw(SIZES), draw(SIZES),
                   draw(st.booleans()), not draw(st.integers(0, 5)), draw(WAITS)))
    )  # fmt: skip
    calls.append(
        draw(
            st.sampled_from(
                [("drained", (None,)), ("drained", (T0_NS + 5,)), ("client_left", (T0_NS + 9, 7))]
            )
        )
    )
    return calls


class Worker:
    def __init__(self, recorders: type[Recorders], queue_bytes: int, body_limit_bytes: int) -> None:
        self.sink = StalledSink()
        self.counters = Counters()
        self.buffer = RecordBuffer(
            self.sink, RecordingFailures(self.counters, Guards()), queue_bytes=queue_bytes
        )
        options = tap_options(
            upstreams=UPSTREAMS, data=Path("nowhere"), tap_name="tap", request_capture_bytes=body_limit_bytes, clock_id="c"
        )  # fmt: skip
        factory = RecorderFactory(self.buffer, options, incarnation="i", client_key=b"k" * 32)
        self.recorders = self.buffer.recorders = recorders(factory)  # type: ignore[call-arg]

    def run(self, calls: list[tuple[str, tuple[Any, ...]]]) -> None:
        recorder: Any = None
        for name, arguments in calls:
            if name == "new":
                raw, trace, client_ns = arguments
                head = read_request_head(raw, HeadLimits())
                route = Router(UPSTREAMS).route(head)
                assert route is not None
                recorder = self.recorders.new(head, route, trace, T0_NS - client_ns, T0_NS)
            elif name == "flush":
                self.buffer._waiting.pop(recorder)
                recorder.flush()
            elif name == "response_head":
                recorder.response_head(read_response_head(arguments[0]), arguments[1])
            else:
                getattr(recorder, name)(*arguments)

    def records(self) -> list[list[AnyRecord]]:
        """By stream, without what differs: ids and the wall clock."""
        for _ in range(3):
            self.buffer.flush_all()
            self.sink.take()
        assert self.buffer.queued_bytes == 0
        assert self.counters.lost_untold == 0
        streams: dict[str, list[AnyRecord]] = {}
        for record in self.sink.records:
            assert not isinstance(record, Opened) or record.wall_ns > 0
            changed = {"stream": "s", **({"wall_ns": 0} if isinstance(record, Opened) else {})}
            if hasattr(record, "at_wall_ns"):
                changed["at_wall_ns"] = 0
            streams.setdefault(record.stream, []).append(msgspec.structs.replace(record, **changed))  # type: ignore[union-attr]
        return list(streams.values())


@given(
    st.lists(exchanges(), min_size=1, max_size=4), st.sampled_from([2**30, 200_000, 4_000]), st.sampled_from([65_536, 300, 0])
)  # fmt: skip
@settings(max_examples=250, deadline=None)
def test_both_recorders_make_the_same_records(
    calls: list[list[tuple[str, tuple[Any, ...]]]], queue_bytes: int, body_limit_bytes: int
) -> None:
    async def run(recorders: type[Recorders]) -> tuple[list[list[AnyRecord]], dict[str, object]]:
        worker = Worker(recorders, queue_bytes, body_limit_bytes)
        for exchange in calls:
            worker.run(exchange)
            worker.buffer.flush_all()
            worker.sink.take()
        return worker.records(), {name: getattr(worker.counters, name) for name in NAMES}

    python = asyncio.run(run(DeferredRecorders))
    native = asyncio.run(run(NativeDeferredRecorders))
    assert native == python


async def test_native_records_are_encoded_like_msgspec_and_ids_have_the_wall_clock_time() -> None:
    worker = Worker(NativeDeferredRecorders, 2**30, 100)
    head = b"GET /a/x HTTP/1.1\r\nHost: h\r\n\r\n"
    ended = "complete", None, T0_NS + 300, 0, 0, False, False, [(1, 200, "client")]
    worker.run([("new", (head, TRACES[0], 0)), ("ended", ended), ("drained", (None,))])
    worker.buffer.flush_all()
    ((encoded, _),) = worker.sink.batches
    records = [msgspec.msgpack.decode(one, type=Opened | Closed) for one in encoded]
    assert [msgspec.msgpack.encode(record) for record in records] == encoded
    opened = records[0]
    assert isinstance(opened, Opened)
    assert 0 <= opened.wall_ns - uuid7_wall_ns(opened.stream) < 1_000_000
    assert (opened.stream[14], opened.stream[19]) == ("7", "8")


async def test_ids_share_no_random_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each id takes 11 bytes from the random source: here 11 equal ones, so every hex digit of an id has one of two values."""
    monkeypatch.setattr(
        os, "urandom", lambda size: b"".join(bytes([n % 256]) * 11 for n in range(size // 11))
    )
    worker = Worker(NativeDeferredRecorders, 2**30, 100)
    head = b"GET /a/x HTTP/1.1\r\nHost: h\r\n\r\n"
    ended = "complete", None, T0_NS + 300, 0, 0, False, False, []
    count = 1200  # the first ids may still come from real random bytes
    for _ in range(count):
        worker.run([("new", (head, TRACES[0], 0)), ("ended", ended), ("drained", (None,))])
    worker.buffer.flush_all()
    worker.sink.take()
    ids = [record.stream for record in worker.sink.records if isinstance(record, Opened)]
    assert len(ids) == count
    for made in ids[-400:]:
        low, high = made[15], made[21]
        assert made[15:18] == low * 3
        assert (made[20:23] + made[24:]) == (low + high) * 7 + low

"""Random exchanges: their records do not depend on when they are made, and a full queue leaves no gap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.ingest.generated_ids import uuid7_wall_ns
from streamgauge.ingest.http1.heads import HeadLimits, read_request_head, read_response_head
from streamgauge.ingest.http1.trace_context import TraceContext
from streamgauge.ingest.http1.upstreams import parse_upstreams
from streamgauge.ingest.identifiers import name, path, query_model
from streamgauge.ingest.recording.counters import NAMES
from streamgauge.ingest.records import AnyRecord, Closed, Frames, Lost, Opened, Request
from streamgauge.ingest.tap.http.routing import Router
from tests.ingest.tap.recorders import WALL_NS, RecorderGroup

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
SIZES = st.sampled_from([0, 1, 31, 255, 256, 4000, 9000, 16_384, 70_000])
WAITS = st.lists(st.tuples(TIMES, TIMES, st.sampled_from(["client", "tap"])), max_size=3)
CAUSES = st.sampled_from(["complete", "client_left", "upstream_reset", "bad_upstream"])
Call = tuple[str, tuple[Any, ...]]


def request(draw: Callable[[Any], Any], *, has_body: bool) -> bytes:
    length = "Content-Length: 9\r\n" if has_body else ""
    fields = "".join(f"{line}\r\n" for line in draw(REQUEST_FIELDS))
    method = draw(st.sampled_from(["GET", "POST", "M-SEARCH"]))
    return f"{method} {draw(TARGETS)} HTTP/1.1\r\nHost: h\r\n{length}{fields}\r\n".encode("latin-1")


@st.composite
def exchanges(draw: Callable[[Any], Any]) -> list[Call]:
    """Calls in the order of the protocol; any exchange may end early."""
    has_body = draw(st.booleans())
    head = request(draw, has_body=has_body)
    calls: list[Call] = [("new", (head, draw(st.sampled_from(TRACES)), draw(TIMES)))]

    def sometimes(name: str, *arguments: Any) -> None:
        if draw(st.integers(0, 5)):
            calls.append((name, arguments))

    sometimes("connected", T0_NS + draw(TIMES))
    if has_body:
        calls += [("request_data", (b"q" * draw(SIZES),)) for _ in range(draw(st.integers(0, 3)))]
    sometimes("request_sent", T0_NS + draw(TIMES))
    if has_body:
        sometimes("record_request", draw(st.booleans()))
    if draw(st.integers(0, 5)):
        status, content_type, fields = draw(RESPONSES)
        kind = f"Content-Type: {content_type}\r\n" if content_type else ""
        response = f"HTTP/1.1 {status} OK\r\n{kind}{fields}\r\n".encode()
        calls.append(("response_head", (response, T0_NS + draw(TIMES))))
        for _ in range(draw(st.integers(0, 3))):
            calls += [("response_data", (b"x" * max(1, draw(SIZES)), T0_NS + draw(TIMES)))]
    if has_body:
        calls.append(("record_request", (draw(st.booleans()),)))
    calls.append(
        ("ended", (draw(CAUSES), draw(st.sampled_from([None, "Error"])), T0_NS + draw(TIMES), draw(SIZES), draw(SIZES),
                   draw(st.booleans()), not draw(st.integers(0, 5)), draw(WAITS)))
    )  # fmt: skip
    calls.append(
        draw(
            st.sampled_from(
                [("drained", (None,)), ("drained", (T0_NS + 5,)), ("drained", (None, None, T0_NS + 9, 7))]
            )
        )
    )
    return calls


async def record(calls: list[Call], *, flush: bool, **how: Any) -> tuple[list[AnyRecord], dict[str, object]]:
    """The records of one exchange, and the counters. `flush`: after each call; else they are made in one batch at the end."""
    group = RecorderGroup(upstreams=UPSTREAMS, clock_id="c", **how)
    recorder: Any = None
    for method, arguments in calls:
        if method == "new":
            raw, trace, client_ns = arguments
            head = read_request_head(raw, HeadLimits())
            route = Router(UPSTREAMS).route(head)
            assert route is not None
            recorder = group.recorders.new(head, route, trace, T0_NS - client_ns, T0_NS)
        elif method == "response_head":
            recorder.response_head(read_response_head(arguments[0]), arguments[1])
        else:
            getattr(recorder, method)(*arguments)
        if flush:
            group.buffer.flush_all()
    group.settle()
    return group.sink.records, {name: getattr(group.counters, name) for name in NAMES if name != "records"}


def merged(records: list[AnyRecord]) -> list[AnyRecord]:
    """Without the id, the numbers, and the division into `Frames`."""
    frames = [r for r in records if isinstance(r, Frames)]
    found: list[AnyRecord] = [
        msgspec.structs.replace(r, stream="", seq=0)
        for r in records
        if isinstance(r, Opened | Request | Closed)
    ]
    if frames:
        assert all(r.response is None for r in frames[1:])
        bodies = [frame for r in frames for frame in r.frames]
        found.append(Frames("", 0, bodies, frames[0].response, sum(r.uncaptured_bytes for r in frames)))
    return found


@given(exchanges(), st.sampled_from([65_536, 300, 0]))
@settings(max_examples=150, deadline=None)
def test_records_do_not_depend_on_when_they_are_made(calls: list[Call], request_capture_bytes: int) -> None:
    limit = {"request_capture_bytes": request_capture_bytes}
    at_the_end, counted = asyncio.run(record(calls, flush=False, **limit))
    one_by_one, counted_one_by_one = asyncio.run(record(calls, flush=True, **limit))
    assert merged(one_by_one) == merged(at_the_end)
    assert counted == counted_one_by_one
    assert [r.seq for r in at_the_end] == list(range(len(at_the_end)))  # type: ignore[union-attr]
    opened, closed = at_the_end[0], at_the_end[-1]
    assert isinstance(opened, Opened)
    assert isinstance(closed, Closed)
    (method, target, _), trace = calls[0][1][0].decode("latin-1").split("\r\n")[0].split(" "), calls[0][1][1]
    target = target[2:]  # without the name of the upstream
    assert (opened.method, opened.path, opened.query_model) == (
        name(method),
        path(target),
        query_model(target),
    )
    assert (opened.trace_id, opened.span_id) == (trace.trace_id, trace.span_id)
    assert (opened.parent_span_id, opened.trace_flags) == (trace.parent_span_id, trace.flags)
    assert (opened.mono_ns, opened.wall_ns) == (T0_NS, WALL_NS + T0_NS)
    assert 0 <= opened.wall_ns - uuid7_wall_ns(opened.stream) < 1_000_000
    requests = [(r.body, r.truncated) for r in at_the_end if isinstance(r, Request)]
    assert requests == captured_request(calls, request_capture_bytes)
    times = [arguments[1] - T0_NS for method, arguments in calls if method == "response_data"]
    assert closed.first_byte_ns == (times[0] if counted["uncaptured_bytes"] else None)


def captured_request(calls: list[Call], limit_bytes: int) -> list[tuple[bytes, bool]]:
    """The captured bytes of the request's body and whether they are not all, until the limit or the call that ends them."""
    body = b""
    for method, arguments in calls:
        if method == "request_data":
            body = (body + arguments[0])[:limit_bytes]
            if body and len(body) == limit_bytes:
                return [(body, True)]
        elif method == "record_request" and body:
            return [(body, not arguments[0])]
    return []


@given(exchanges(), st.sampled_from([4_000, 30_000, 200_000]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_full_queue_leaves_no_gap(calls: list[Call], queue_bytes: int, flush: bool) -> None:
    records, counted = asyncio.run(record(calls, flush=flush, queue_bytes=queue_bytes))
    expected = 0
    for r in records:
        assert isinstance(r, Opened | Request | Frames | Closed | Lost)
        assert r.seq == expected
        expected = (r.last_seq if isinstance(r, Lost) else r.seq) + 1
    last = records[-1]
    assert isinstance(last, Closed) or (isinstance(last, Lost) and last.last)
    assert sum(r.bytes for r in records if isinstance(r, Lost)) == counted["lost_bytes"]
    sent = sum(len(arguments[0]) for method, arguments in calls if method == "response_data")
    assert sum(counted[name] for name in ("captured_bytes", "uncaptured_bytes", "lost_bytes")) == sent  # type: ignore[misc]

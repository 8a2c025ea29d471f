"""Plain facts and times make the records that a running tap makes: of an event stream and of a WebSocket.

The source here stands for a packet capture or an Envoy filter. It knows name and value of each field, bytes and times, and uses
nothing of HTTP/1.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from streamgauge.ingest.facts import FieldFacts, RequestFacts, ResponseFacts, RouteFacts
from streamgauge.ingest.guards import Guards
from streamgauge.ingest.header_fields import request_field, response_field
from streamgauge.ingest.http1.trace_context import TraceContext
from streamgauge.ingest.recording.counters import Counters
from streamgauge.ingest.recording.failures import RecordingFailures
from streamgauge.ingest.recording.record_buffer import RecordBuffer
from streamgauge.ingest.recording.recorder import Recorders
from streamgauge.ingest.records import AnyRecord, Closed, Frames, Opened, Request
from tests.ingest.running_tap import END, RunningTap, assert_complete, chunk, read_request, running_tap
from tests.ingest.tap.recorders import StalledSink

Pairs = list[tuple[str, str]]
REQUEST: Pairs = [
    ("host", "gateway"), ("user-agent", "OpenAI/1"), ("authorization", "Bearer sk-1"), ("cookie", "c=1"), ("session-id", "s 1"),
    ("content-type", "application/json"), ("x-streamgauge-capture", "none"), ("content-length", "30"),
]  # fmt: skip
RESPONSE: Pairs = [
    ("content-type", "text/event-stream"),
    ("server", "vllm"),
    ("transfer-encoding", "chunked"),
]
UPGRADE: Pairs = [("host", "gateway"), ("connection", "Upgrade"), ("upgrade", "websocket")]
SWITCH: Pairs = [("connection", "Upgrade"), ("upgrade", "websocket")]
BODY = b'{"model": "m", "stream": true}'
PARTS = [b"data: %d\n\n" % n for n in range(4)]
CLOSE_FRAME = b"\x88\x00"


class SeenUpstream(NamedTuple):
    name: str
    host: str
    port: int


def fields(pairs: Pairs, recorded: Callable[[bytes, bytes], tuple[str, str] | None]) -> list[FieldFacts]:
    encoded = [(name.encode(), value.encode()) for name, value in pairs]
    return [FieldFacts(name, value, recorded(name, value)) for name, value in encoded]


def sent(start: str, pairs: Pairs) -> bytes:
    return "\r\n".join([start, *(f"{name}: {value}" for name, value in pairs), "", ""]).encode()


def merged(records: Sequence[AnyRecord]) -> list[AnyRecord]:
    """The records of a stream with all frames in one, without its id."""
    assert_complete(records)
    frames = [r for r in records if isinstance(r, Frames)]
    from_client: list[int] = []
    read: list[tuple[int, bytes]] = []
    for record in frames:
        from_client += [len(read) + index for index in record.from_client or ()]
        read += record.frames
    is_websocket = any(r.from_client is not None for r in frames)
    whole = Frames(
        "",
        0,
        read,
        frames[0].response,
        sum(r.uncaptured_bytes for r in frames),
        from_client=from_client if is_websocket else None,
    )
    others = [
        msgspec.structs.replace(r, stream="", seq=0)
        for r in records
        if isinstance(r, Opened | Request | Closed)
    ]
    return [*others[:-1], whole, others[-1]]


def records_of_facts(
    tap: RunningTap, expected: list[AnyRecord], request: RequestFacts, target: str, response: ResponseFacts
) -> list[AnyRecord]:
    """What the source's records are, with the times that the tap has measured."""
    opened, frames, closed = expected[0], expected[-2], expected[-1]
    assert isinstance(opened, Opened)
    assert isinstance(frames, Frames)
    assert isinstance(closed, Closed)
    assert frames.response is not None
    sink = StalledSink()
    buffer = RecordBuffer(sink, RecordingFailures(Counters(), Guards()), queue_bytes=2**20)
    recorders = Recorders(
        buffer, tap.worker.options, incarnation=tap.worker.recording.incarnation, client_key=b"k" * 32, wall_ns=lambda at_ns: opened.wall_ns
    )  # fmt: skip
    t0_ns = opened.mono_ns
    trace = TraceContext(opened.trace_id, opened.span_id, opened.parent_span_id, opened.trace_flags)
    route = RouteFacts(SeenUpstream(opened.gateway, opened.server_address, opened.server_port), target)
    recorder = recorders.new(request, route, trace, t0_ns + opened.client_start_ns, t0_ns)
    recorder.connected(t0_ns + (closed.connected_ns or 0))
    if closed.request_bytes and not closed.tunnel:
        recorder.request_data(BODY)
    recorder.request_sent(t0_ns + (closed.request_sent_ns or 0))
    recorder.record_request(True)
    recorder.response_head(response, t0_ns + frames.response.headers_ns)
    for index, (at_ns, body) in enumerate(frames.frames):
        if frames.from_client is None:
            recorder.response_data(body, t0_ns + at_ns)
        else:
            recorder.websocket_data(body, t0_ns + at_ns, index in frames.from_client)
    if closed.first_byte_ns is not None:
        recorder.first_byte_ns = t0_ns + closed.first_byte_ns
    recorder.ended(
        "complete", None, t0_ns + closed.end_ns, closed.request_bytes, closed.response_bytes, closed.reused_connection, closed.tunnel,
        closed.waits,
    )  # fmt: skip
    recorder.drained(
        *(None if at_ns is None else t0_ns + at_ns for at_ns in (closed.client_drain_ns, closed.delivered_ns))
    )
    buffer.flush_all()
    sink.take()
    return merged(sink.records)


async def test_facts_of_an_event_stream_make_the_records_of_the_tap():
    next_part = asyncio.Event()

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(sent("HTTP/1.1 200 OK", RESPONSE))
        for part in PARTS:
            writer.write(chunk(part))
            await next_part.wait()
            next_part.clear()
        writer.write(END)

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(sent("POST /v1/chat?model=m&key=k HTTP/1.1", REQUEST) + BODY)
        await client.read_until(b"\r\n\r\n")
        for part in PARTS:
            assert await client.read(len(chunk(part))) == chunk(part)
            next_part.set()
        await client.read(len(END))
        [records] = await tap.records()
        expected = merged(records)
        known = {
            b"authorization": b"Bearer sk-1",
            b"content-type": b"application/json",
            b"x-streamgauge-capture": b"none",
        }
        request = RequestFacts("POST", fields(REQUEST, request_field), known, 300)
        response = ResponseFacts(200, fields(RESPONSE, response_field), b"text/event-stream", 300)
        assert records_of_facts(tap, expected, request, "/v1/chat?model=m&key=k", response) == expected
        opened, recorded_request, frames, closed = expected
        assert isinstance(opened, Opened)
        assert (opened.path, opened.query_model, opened.capture_content) == ("/v1/chat", "m", False)
        assert isinstance(recorded_request, Request)
        assert (recorded_request.body, recorded_request.truncated) == (BODY, False)
        assert isinstance(frames, Frames)
        assert b"".join(body for _, body in frames.frames) == b"".join(PARTS)
        assert isinstance(closed, Closed)
        assert closed.request_bytes == len(BODY)


async def test_facts_of_a_websocket_make_the_records_of_the_tap():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent("HTTP/1.1 101 Switching Protocols", SWITCH) + CLOSE_FRAME)
        await reader.read()

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(sent("GET /v1/realtime HTTP/1.1", UPGRADE))
        await client.read_until(b"\r\n\r\n")
        assert await client.read(len(CLOSE_FRAME)) == CLOSE_FRAME
        await client.send(CLOSE_FRAME)
        client.writer.write_eof()
        assert await client.read_to_end() == b""
        [records] = await tap.records()
        expected = merged(records)
        request = RequestFacts("GET", fields(UPGRADE, request_field), {}, 300)
        response = ResponseFacts(101, fields(SWITCH, response_field), b"", 300)
        assert records_of_facts(tap, expected, request, "/v1/realtime", response) == expected
        closed = expected[-1]
        assert isinstance(closed, Closed)
        assert (closed.tunnel, closed.request_bytes, closed.response_bytes) == (True, 2, 2)
        frames = expected[-2]
        assert isinstance(frames, Frames)
        assert ([body for _, body in frames.frames], frames.from_client) == ([CLOSE_FRAME] * 2, [1])

"""The tap forwards the bytes that were sent, for every framing and split."""

from __future__ import annotations

import asyncio
import socket

import pytest

from streamgauge.ingest.records import Closed, Frames, Opened
from tests.ingest.running_tap import (
    END,
    SSE_HEAD,
    assert_complete,
    body_of,
    chunk,
    read_request,
    request_of,
    respond_with,
    running_tap,
)

GET = b"GET /v1/models HTTP/1.1\r\nHost: tap\r\n\r\n"
POST = b"POST /v1/chat HTTP/1.1\r\nHost: tap\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def fields(head: bytes) -> list[bytes]:
    return head.split(b"\r\n")[1:-2]


async def test_stream_is_forwarded_and_recorded():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD)
        for i in range(3):
            writer.write(chunk(b"data: %d\n\n" % i))
            await request_received.wait()
            request_received.clear()
        writer.write(END)

    request_received = asyncio.Event()
    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(POST)
        assert await client.read_until(b"\r\n\r\n") == SSE_HEAD
        for i in range(3):
            assert await client.read(14) == b"9\r\ndata: %d\n\n\r\n" % i
            request_received.set()
        assert await client.read(5) == END
        [records] = await tap.records()
        assert_complete(records)
        assert body_of(records) == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
        opened, closed = records[0], records[-1]
        assert isinstance(opened, Opened)
        assert isinstance(closed, Closed)
        assert (opened.method, opened.path, opened.server_port) == ("POST", "/v1/chat", tap.upstream_port)
        assert opened.client_start_ns <= 0
        request = request_of(records)
        assert request is not None
        assert (request.body, request.truncated) == (b"{}", False)
        assert (closed.cause, closed.request_bytes, closed.response_bytes) == ("complete", 2, 27)
        assert closed.delivered_bytes == 27
        frames = [f for r in records if isinstance(r, Frames) for f in r.frames]
        assert [data for _, data in frames] == [b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n"]
        times = [at for at, _ in frames]
        assert times == sorted(times)
        assert 0 <= (closed.connected_ns or 0) <= (closed.request_sent_ns or 0) <= times[0]
        assert times[-1] <= closed.end_ns <= (closed.client_drain_ns or 0)


async def test_heads_keep_order_case_and_values_without_hop_by_hop_fields():
    answer = (
        b"HTTP/1.1 299 Very  Fine\r\nX-b: 1\r\nSet-Cookie: a=b\r\nset-cookie: c=d\r\nConnection: x-hop, keep-alive\r\n"
        b"X-Hop: gone\r\nKeep-Alive: timeout=5\r\nx-B: \xff\r\nContent-Length: 0\r\n\r\n"
    )
    seen: list[bytes] = []

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await read_request(reader))[0])
        writer.write(answer)
        await reader.read()

    async with running_tap(upstream) as tap:
        head, _ = await tap.request(
            b"GET /a%2Fb?key=1&x=%zz HTTP/1.1\r\nAccept: */*\r\nHOST: tap:1\r\nx-ZED: 1\r\nConnection: x-drop\r\n"
            b"X-Drop: gone\r\nX-Zed: 2\r\nx-streamgauge-capture: none\r\nTE: trailers\r\n\r\n"
        )
        assert head == (
            b"HTTP/1.1 299 Very  Fine\r\nX-b: 1\r\nSet-Cookie: a=b\r\nset-cookie: c=d\r\nx-B: \xff\r\n"
            b"Content-Length: 0\r\n\r\n"
        )
        [got] = seen
        assert got.startswith(b"GET /a%2Fb?key=1&x=%zz HTTP/1.1\r\n")
        host = b"Host: 127.0.0.1:%d" % tap.upstream_port
        assert fields(got)[:4] == [b"Accept: */*", host, b"x-ZED: 1", b"X-Zed: 2"]
        added = dict(f.split(b": ", 1) for f in fields(got)[4:])
        assert added.pop(b"traceparent").startswith(b"00-")
        assert added == {
            b"X-Forwarded-For": b"127.0.0.1",
            b"X-Forwarded-Proto": b"http",
            b"X-Forwarded-Host": b"tap:1",
            b"TE": b"trailers",
            b"Connection": b"TE",
        }
        [records] = await tap.records()
        assert isinstance(records[0], Opened)
        assert records[0].capture_content is False
        assert records[0].path == "/a%2Fb"


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n", True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n", True),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;ext=1\r\nhello\r\n0\r\nX-Trailer: 1\r\n\r\n",
            True,
        ),
        (b"HTTP/1.1 503 Busy\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\nno", True),
    ],
)
async def test_response_is_forwarded_unchanged_and_both_connections_are_kept(answer: bytes, kept: bool):
    async with running_tap(respond_with(answer, answer)) as tap:
        client = await tap.client()
        for _ in range(2):
            await client.send(GET)
            head, body = await client.response()
            assert head + body == answer
        for records in await tap.records(2):
            assert_complete(records)
        assert len(tap.upstream_connections) == 1
        assert tap.worker.recording.counters.upstream_reuses == 1


async def test_body_that_ends_with_the_connection_is_complete():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nhello")

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(GET)
        assert (
            await client.read_to_end()
            == b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nhello"
        )
        [records] = await tap.records()
        assert records[-1].cause == "complete"
        assert body_of(records) == b"hello"


async def test_head_requests_get_no_body():
    async with running_tap(respond_with(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", GET)) as tap:
        client = await tap.client()
        await client.send(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
        head, body = await client.response(head_only=True)
        assert (head, body) == (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b"")
        [records] = await tap.records()
        assert_complete(records)
        frames = [r for r in records if isinstance(r, Frames)]
        assert [f.frames for f in frames] == [[]]
        assert frames[0].response.status == 200


async def test_pipelined_requests_are_answered_in_order():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, body = await read_request(reader)
            path = head.split(b" ")[1]
            text = path + body
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(
            b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\n"
            b"POST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
            b"POST /3 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n0\r\n\r\n"
            b"GET /4 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        )
        for expected in (b"/1", b"/2abc", b"/33\r\nxyz\r\n0\r\n\r\n"):
            assert (await client.response())[1] == expected
        head, body = await client.response()
        assert body == b"/4"
        assert b"Connection: close" in head
        assert await client.read_to_end() == b""
        for records in await tap.records(4):
            assert_complete(records)


async def test_informational_responses_and_expect_continue_are_forwarded():
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    final = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Expect: 100-continue" in head
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.write(early)
        assert await reader.readexactly(4) == b"body"
        writer.write(final)
        await reader.read()

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert await client.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert await client.read_until(b"\r\n\r\n") == early
        await client.send(b"body")
        assert await client.read(len(final)) == final
        [records] = await tap.records()
        assert [r.response.status for r in records if isinstance(r, Frames)] == [200]


async def test_http_1_0_client_gets_no_chunks_and_no_informational_responses():
    answer = b"HTTP/1.1 100 Continue\r\n\r\n" + SSE_HEAD + chunk(b"data: 1\n\n") + chunk(b"data: 2\n\n") + END
    async with running_tap(respond_with(answer)) as tap:
        client = await tap.client()
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        assert await client.read_to_end() == (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\ndata: 1\n\ndata: 2\n\n"
        )
        [records] = await tap.records()
        assert records[-1].cause == "complete"


async def test_keep_alive_of_http_1_0_is_honoured():
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"
    async with running_tap(respond_with(answer, answer)) as tap:
        client = await tap.client()
        for _ in range(2):
            await client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            head, body = await client.response()
            assert b"Connection: keep-alive" in head
            assert body == b"x"


async def test_excess_bytes_after_a_response_are_not_forwarded():
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    fine = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with running_tap(respond_with(answer)) as tap:
        client = await tap.client()
        await client.send(GET + GET)
        head, body = await client.response()
        assert head + body == fine
        head, body = await client.response()
        assert head + body == fine
        assert len(tap.upstream_connections) == 2


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab", b"cd"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", b"2\r\ncd\r\n0\r\n\r\n"),
    ],
)
async def test_excess_bytes_in_a_later_read_are_not_forwarded(begin: bytes, end: bytes):
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(begin)
        await go.wait()
        writer.write(end + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await reader.read()

    go = asyncio.Event()

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        await client.read_until(b"ab")
        go.set()
        assert (await client.read_to_end()).endswith(end)
        assert tap.worker.recording.counters.bad_upstream_excess_bytes > 0


async def test_large_upload_is_streamed_not_buffered():
    size = 64 * 2**20  # more than the kernel's buffers hold
    held = asyncio.Event()

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await held.wait()
        seen = 0
        while seen < size:
            seen += len(await reader.read(65_536))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    async with running_tap(upstream) as tap:
        client = await tap.client()
        client.writer.write(
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % size
        )
        sender = asyncio.create_task(client.send(b"x" * size))
        await tap.wait_until(lambda: any(c.read_paused for c in tap.worker.context.clients))
        [exchange] = tap.worker.context.exchanges
        assert exchange.request_bytes < size
        held.set()
        await sender
        await client.response()
        [records] = await tap.records()
        assert_complete(records)
        assert records[-1].request_bytes == size
        assert request_of(records).truncated
        assert len(request_of(records).body) == 65_536


async def test_slow_client_pauses_the_upstream_within_bounds():
    total = 32 * 2**20

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n" % total
        )
        for _ in range(total // 65_536):
            writer.write(b"y" * 65_536)
            await writer.drain()
            sent.append(65_536)
        await reader.read()

    sent: list[int] = []

    async with running_tap(upstream) as tap:
        client = await tap.client(limit=4096)
        await client.send(GET)
        await tap.wait_for_stuck_client()
        [connection] = tap.worker.context.clients
        assert connection.transport.get_write_buffer_size() < 2**20
        await client.read_until(b"\r\n\r\n")
        got = 0
        while got < total:
            got += len(await client.reader.read(2**20))
        assert sum(sent) == total
        [records] = await tap.records()
        assert_complete(records)
        closed = records[-1]
        assert (closed.cause, closed.response_bytes, closed.delivered_bytes) == ("complete", total, total)
        assert sum(r.uncaptured_bytes for r in records if isinstance(r, Frames)) == total


async def test_absolute_target_goes_to_the_configured_upstream_only():
    seen: list[bytes] = []

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await read_request(reader))[0])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    async with running_tap(upstream) as tap:
        await tap.request(b"GET http://elsewhere.example:81/v1/models?a=b HTTP/1.1\r\nHost: h\r\n\r\n")
        assert seen[0].startswith(
            b"GET /v1/models?a=b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % tap.upstream_port
        )
        assert b"\r\nX-Forwarded-Host: elsewhere.example:81\r\n" in seen[0]


async def test_small_writes_are_not_delayed_on_either_side():
    async with running_tap(respond_with(SSE_HEAD)) as tap:
        client = await tap.client()
        await client.send(GET)
        await client.read_until(b"\r\n\r\n")
        [ours] = tap.worker.context.clients
        [exchange] = tap.worker.context.exchanges
        for transport in (ours.transport, exchange._upstream.transport):
            sock = transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_ipv6_upstream_with_a_base_path():
    seen: list[bytes] = []

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await read_request(reader))[0])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    async with running_tap(upstream, host="::1", upstreams=["http://[::1]:{port}/base/"]) as tap:
        await tap.request(GET)
        assert seen[0].startswith(b"GET /base/v1/models HTTP/1.1\r\n")
        assert b"Host: [::1]:%d\r\n" % tap.upstream_port in seen[0]
        assert b"X-Forwarded-For: ::1\r\n" in seen[0]

"""One side disconnects early: the tap closes the other side at once and records the cause."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from streamgauge.ingest.records import Closed, Frames
from tests.deadline import DEADLINE_S
from tests.ingest.running_tap import (
    END,
    SSE_HEAD,
    RunningTap,
    assert_complete,
    body_of,
    chunk,
    read_request,
    request_of,
    respond_with,
    running_tap,
)

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def linger_reset(writer: asyncio.StreamWriter) -> None:
    """Close with a RST."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def closed(tap: RunningTap) -> Closed:
    [records] = await tap.records()
    assert_complete(records)
    last = records[-1]
    assert isinstance(last, Closed)
    return last


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_client_that_leaves_mid_stream_ends_the_upstream_at_once(how: str):
    disconnected = asyncio.Event()

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        try:
            assert await reader.read() == b""
        finally:
            disconnected.set()

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(POST)
        await client.read_until(b"data: 1\n\n\r\n")
        if how == "close":
            client.close()
        else:
            linger_reset(client.writer)
        async with asyncio.timeout(DEADLINE_S):
            await disconnected.wait()
        last = await closed(tap)
        assert last.cause == "client_left"
        assert last.client_left_ns == last.end_ns
        assert last.client_drain_ns is None
        assert last.response_bytes == 9


async def test_client_that_leaves_before_the_response_ends_the_upstream():
    disconnected = asyncio.Event()

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        request_received.set()
        await reader.read()
        disconnected.set()

    request_received = asyncio.Event()
    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(GET)
        await request_received.wait()
        client.close()
        async with asyncio.timeout(DEADLINE_S):
            await disconnected.wait()
        assert (await closed(tap)).cause == "client_left"


async def test_client_that_leaves_within_its_request_ends_the_upstream():
    async with running_tap(respond_with(b"")) as tap:
        client = await tap.client()
        await client.send(
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 10\r\n\r\nabc"
        )
        await tap.wait_until(lambda: any(e.request_bytes == 3 for e in tap.worker.context.exchanges))
        client.close()
        [records] = await tap.records()
        assert_complete(records)
        assert records[-1].cause == "client_left"
        assert records[-1].request_bytes == 3
        assert records[-1].request_sent_ns is None
        assert (request_of(records).body, request_of(records).truncated) == (b"abc", True)


async def test_bytes_that_a_slow_client_never_read_are_not_delivered():
    total = 16 * 2**20

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total + b"y" * total)
        await writer.drain()

    async with running_tap(upstream) as tap:
        client = await tap.client(limit=4096)
        await client.send(GET)
        await tap.wait_for_stuck_client()
        linger_reset(client.writer)
        last = await closed(tap)
        assert last.cause == "client_left"
        assert last.delivered_bytes < last.response_bytes < total


async def test_truncated_upstream_ends_the_client_without_the_last_chunk():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n") + b"ff\r\ndata: half")

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(POST)
        assert await client.read_to_end() == SSE_HEAD + chunk(b"data: 1\n\n") + b"ff\r\ndata: half"
        [records] = await tap.records()
        assert_complete(records)
        assert (records[-1].cause, records[-1].detail) == ("upstream_reset", None)
        assert body_of(records) == b"data: 1\n\ndata: half"


async def test_upstream_reset_mid_stream_ends_the_client():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await go.wait()
        linger_reset(writer)

    go = asyncio.Event()

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(POST)
        await client.read_until(b"data: 1\n\n\r\n")
        go.set()
        assert await client.read_to_end() == b""
        last = await closed(tap)
        assert (last.cause, last.detail) == ("upstream_reset", "ConnectionResetError")


async def test_reset_of_a_close_delimited_body_reaches_the_client_as_a_reset():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhalf")
        await go.wait()
        linger_reset(writer)

    go = asyncio.Event()

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(GET)
        await client.read_until(b"half")
        go.set()
        with pytest.raises(ConnectionResetError):
            await client.read_to_end()
        assert (await closed(tap)).cause == "upstream_reset"


@pytest.mark.parametrize("partial", [b"", b"HTTP/1.1 200 OK\r\nContent-"])
async def test_upstream_that_closes_before_its_response_is_a_502(partial: bytes):
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(partial)

    async with running_tap(upstream) as tap:
        head, body = await tap.request(POST)
        assert head.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
        assert b"x-streamgauge-error: upstream_reset" in head
        assert b'"code": "upstream_reset"' in body
        [records] = await tap.records()
        assert_complete(records)
        assert records[-1].cause == "upstream_reset"
        assert not [r for r in records if isinstance(r, Frames)]


async def test_refused_upstream_connection_is_a_502_with_the_reason():
    async with running_tap(None) as tap:
        head, body = await tap.request(POST)
        assert head.startswith(b"HTTP/1.1 502 ")
        assert b"nothing listens on 127.0.0.1:%d. Start the upstream," % tap.upstream_port in body
        last = await closed(tap)
        assert (last.cause, last.detail) == ("connect_error", "ConnectionRefusedError")
        assert (last.connected_ns, last.request_sent_ns) == (None, None)


async def test_unresolvable_upstream_name_is_a_502():
    async with running_tap(respond_with(), upstreams=["http://nowhere.invalid:80"]) as tap:
        head, body = await tap.request(GET)
        assert head.startswith(b"HTTP/1.1 502 ")
        assert b"cannot be reached: the host name nowhere.invalid cannot be resolved (" in body
        last = await closed(tap)
        assert (last.cause, last.detail) == ("connect_error", "gaierror")


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 101 X\r\n\r\n",
    ],
)
async def test_invalid_http_response_is_a_502(answer: bytes):
    async with running_tap(respond_with(answer)) as tap:
        head, _ = await tap.request(GET)
        assert head.startswith(b"HTTP/1.1 502 ")
        assert (await closed(tap)).cause == "bad_upstream"


async def test_malformed_chunk_mid_stream_ends_the_client():
    async with running_tap(respond_with(SSE_HEAD + chunk(b"a"), b"")) as tap:
        client = await tap.client()
        await client.send(GET)
        await client.read_until(b"a\r\n")
        tap.upstream_connections[0].write(b"zz\r\nHTTP/1.1 200 OK\r\n\r\n")
        assert await client.read_to_end() == b""
        assert (await closed(tap)).cause == "bad_upstream"


async def test_request_without_body_is_retried_if_the_pooled_connection_just_closed():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.readuntil(b"\r\n\r\n")  # the second request arrives, and this connection dies

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(GET)
        await client.response()
        await client.send(GET)
        _, body = await client.response()
        assert body == b"ok"
        assert tap.worker.recording.counters.retries == 1
        for records in await tap.records(2):
            assert_complete(records)
            assert records[-1].cause == "complete"


async def test_request_with_a_body_is_never_retried():
    requests: list[bytes] = []

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await read_request(reader))[0])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        requests.append((await read_request(reader))[0])

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(POST)
        await client.response()
        await client.send(POST)
        head, _ = await client.response()
        assert head.startswith(b"HTTP/1.1 502 ")
        assert len(requests) == 2


async def test_pooled_connection_that_the_server_closed_is_not_used():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with running_tap(upstream) as tap:
        for _ in range(5):
            _, body = await tap.request(POST)
            assert body == b"ok"
        assert tap.worker.recording.counters.retries == 0


async def test_early_response_to_an_upload_reaches_the_client():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        )
        await reader.read()

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000)
        head, body = await client.response()
        assert (head[:12], body) == (b"HTTP/1.1 401", b"{}")
        client.close()
        assert (await closed(tap)).cause == "complete"


async def test_complete_stream_stays_complete_if_the_client_then_closes():
    async with running_tap(respond_with(SSE_HEAD + chunk(b"data: 1\n\n") + END)) as tap:
        client = await tap.client()
        await client.send(POST)
        await client.read_until(END)
        linger_reset(client.writer)
        assert (await closed(tap)).cause == "complete"


async def test_client_that_leaves_while_its_upload_is_paused_is_detected():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await stop.wait()  # and reads nothing more

    stop = asyncio.Event()

    # Without time limits there is no timer: only the kernel reports that the client has closed.
    never = {"head_timeout_s": 0, "body_timeout_s": 0, "keep_alive_timeout_s": 0}
    async with running_tap(upstream, **never) as tap:
        client = await tap.client()
        client.writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n")
        sender = asyncio.create_task(client.send(b"x" * 50_000_000))
        await tap.wait_until(lambda: any(c.read_paused for c in tap.worker.context.clients))
        sender.cancel()
        linger_reset(client.writer)
        assert (await closed(tap)).cause == "client_left"
        stop.set()

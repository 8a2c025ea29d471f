"""Short exchanges: the whole request in one read and the whole response in another, and what differs from that a little."""

from __future__ import annotations

import asyncio
import socket

import pytest

from streamgauge.ingest.tap.connections.upstream_connection import UpstreamConnection
from tests.ingest.running_tap import (
    Client,
    Script,
    assert_complete,
    body_of,
    read_request,
    request_of,
    respond_with,
)
from tests.ingest.running_tap import running_tap as run

GET = b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b'POST /v1/embeddings HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
HEAD_REQUEST = b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


async def second_response(first: Client, request: bytes, **how: bool) -> tuple[bytes, bytes]:
    await first.send(GET)
    await first.response()
    await first.send(request)
    return await first.response(**how)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("request_", "response", "cause"),
    [
        (GET, HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "complete"),
        (GET, HEAD + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}", "complete"),
        (GET, HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", "complete"),
        (GET, b"HTTP/1.1 100 Continue\r\n\r\n" + OK, "complete"),
        (GET, b"HTTP/1.1 204 No Content\r\n\r\n", "complete"),
        (GET, OK + b"HTTP/1.1 200 excess", "complete"),
        (HEAD_REQUEST, HEAD + b"Content-Length: 2\r\n\r\n", "complete"),
        (GET, b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", "bad_upstream"),
        (GET, b"HTTP/2 what\r\n\r\n", "bad_upstream"),
    ],
)
async def test_unusual_response_is_forwarded(request_: bytes, response: bytes, cause: str):
    async with run(respond_with(OK, response)) as tap:
        client = await tap.client()
        head, _ = await second_response(client, request_, head_only=request_.startswith(b"HEAD"))
        assert head.startswith(b"HTTP/1.1 502" if cause == "bad_upstream" else response[:12])
        [_, records] = await tap.records(2)
    assert_complete(records)
    assert records[-1].cause == cause


async def respond_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The second response comes in two parts, the first after the records were flushed."""
    await read_request(reader)
    writer.write(OK)
    await read_request(reader)
    await asyncio.sleep(0.15)
    writer.write(OK[:-1])
    await asyncio.sleep(0.02)
    writer.write(OK[-1:])
    await reader.read()


async def test_late_response_in_two_parts_is_forwarded():
    async with run(respond_slowly) as tap:
        _, body = await second_response(await tap.client(), POST)
        [_, records] = await tap.records(2)
    assert body == b"{}"
    assert_complete(records)
    assert body_of(records) == b"{}"
    assert request_of(records) is not None
    assert records[-1].request_bytes == 13


async def test_head_response_with_a_body_is_forwarded_without_it():
    async with run(respond_with(OK, OK)) as tap:
        await second_response(await tap.client(), HEAD_REQUEST, head_only=True)
        [_, records] = await tap.records(2)
        assert tap.worker.recording.counters.bad_upstream_excess_bytes == 2
    assert records[-1].response_bytes == 0


@pytest.mark.interpreted
@pytest.mark.parametrize("request_", [GET, POST])
async def test_connection_that_is_not_quiet_is_not_used(request_: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(UpstreamConnection, "is_quiet", lambda _: False)
    async with run(respond_with(OK, OK)) as tap:
        await second_response(await tap.client(), request_)
        assert tap.worker.recording.counters.upstream_connections == 2


async def never_respond_again(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(OK)
    await reader.read()


@pytest.mark.parametrize("event", ["client leaves", "client pipelines", "tap stops"])
async def test_event_before_the_response_is_forwarded(event: str):
    async with run(never_respond_again) as tap:
        client = await tap.client()
        await client.send(GET)
        await client.response()
        await client.send(POST)
        await tap.wait_until(lambda: tap.worker.recording.counters.upstream_reuses == 1)
        if event == "client pipelines":
            await client.send(GET)
            await tap.wait_until(lambda: bool(tap.worker.context.exchanges))
        if event == "tap stops":
            await tap.stop()
        else:
            client.reset()
        [_, records] = await tap.records(2)
    assert_complete(records)
    assert records[-1].cause == ("tap_stopped" if event == "tap stops" else "client_left")


def close_on_second(script: Script) -> Script:
    """The first connection closes at its second request, all later ones run `script`."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections > 1:
            await script(reader, writer)
        else:
            await read_request(reader)
            writer.write(OK)
            await read_request(reader)
            writer.close()

    return serve


@pytest.mark.parametrize(("request_", "status"), [(GET, b"200"), (POST, b"502")])
async def test_only_a_safe_request_is_repeated_after_the_upstream_closed(request_: bytes, status: bytes):
    async with run(close_on_second(respond_with(OK))) as tap:
        head, _ = await second_response(await tap.client(), request_)
        assert head.split(b" ")[1] == status
        assert tap.worker.recording.counters.retries == (status == b"200")
        [_, records] = await tap.records(2)
    assert_complete(records)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_unusual_request_is_forwarded(request_: bytes):
    async with run(respond_with(OK, OK)) as tap:
        _, body = await second_response(await tap.client(), request_)
        assert body == b"{}"
        [_, records] = await tap.records(2)
    assert_complete(records)
    assert records[-1].cause == "complete"


async def test_body_above_the_limit_is_refused():
    async with run(respond_with(OK, OK), max_request_bytes=12) as tap:
        head, _ = await second_response(await tap.client(), POST)
        assert head.startswith(b"HTTP/1.1 413")


def fill_at_once(transport: asyncio.Transport) -> None:
    """Make the kernel's send buffer so small that it accepts only a part of a write."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


@pytest.mark.parametrize("slow", ["client", "upstream"])
async def test_full_write_buffer_pauses_the_other_side(slow: str):
    """A request or response that the kernel accepts only in part."""
    big = b"Content-Length: 60000\r\n\r\n" + b"x" * 60_000
    request, answer = GET, HEAD + big
    if slow == "upstream":
        request, answer = POST.split(b"Content-Length")[0] + big, OK
    async with run(respond_with(OK, answer, answer), write_buffer_bytes=16_384) as tap:
        client = await tap.client()
        await client.send(GET)
        await client.response()
        [pool] = tap.worker._pools
        [accepted] = tap.worker.context.clients
        fill_at_once(accepted.transport if slow == "client" else pool._idle[0].transport)
        for _ in range(2):
            await client.send(request)
            assert (await client.response())[1] == answer.partition(b"\r\n\r\n")[2]
        await tap.wait_until(lambda: not tap.worker.context.exchanges)
        streams = await tap.records(3)
    for records in streams:
        assert_complete(records)
        assert records[-1].cause == "complete"
        assert records[-1].request_sent_ns is not None
        assert (records[-1].client_drain_ns or 0) >= records[-1].end_ns
    sent_later = any(records[-1].request_sent_ns > records[-1].connected_ns for records in streams)
    assert sent_later == (slow == "upstream")

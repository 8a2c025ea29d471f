"""Upgraded connections are opaque tunnels in both directions, with half-closes and without frames."""

from __future__ import annotations

import asyncio

import websockets.asyncio.client
import websockets.asyncio.server

from ingest.records import Closed, Frames
from tests.ingest.running_tap import assert_complete, respond_with, running_tap

UPGRADE = b"GET /ws HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo\r\n\r\n"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"


async def test_tunnel_forwards_both_directions_until_both_have_ended():
    heads: list[bytes] = []

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(SWITCH + b"first")
        assert await reader.read() == b"early late"
        writer.write(b"last")

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(UPGRADE + b"early")
        assert await client.read(len(SWITCH) + 5) == SWITCH + b"first"
        await client.send(b" late")
        client.writer.write_eof()
        assert await client.read_to_end() == b"last"
        [records] = await tap.records()
        assert_complete(records)
        closed = records[-1]
        assert isinstance(closed, Closed)
        assert (closed.cause, closed.tunnel) == ("complete", True)
        assert (closed.request_bytes, closed.response_bytes) == (10, 9)
        [frames] = [r for r in records if isinstance(r, Frames)]
        assert (frames.frames, frames.response.status) == ([], 101)
    assert b"Connection: Upgrade\r\nUpgrade: echo\r\n\r\n" in heads[0]


async def test_declined_upgrade_is_an_ordinary_exchange():
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno"
    async with running_tap(respond_with(answer, answer)) as tap:
        client = await tap.client()
        for _ in range(2):
            await client.send(UPGRADE)
            head, body = await client.response()
            assert head + body == answer


async def test_h2c_upgrade_is_not_forwarded():
    heads: list[bytes] = []

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    async with running_tap(upstream) as tap:
        await tap.request(
            b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
            b"HTTP2-Settings: AAA\r\n\r\n"
        )
    assert b"pgrade" not in heads[0]
    assert b"HTTP2" not in heads[0]


async def test_websocket_works_through_the_tap():
    async def echo(socket: websockets.asyncio.server.ServerConnection) -> None:
        async for message in socket:
            await socket.send(message)

    async with websockets.asyncio.server.serve(echo, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with running_tap(None, upstreams=[f"http://127.0.0.1:{port}"]) as tap:
            host, tap_port = tap.worker.address
            async with websockets.asyncio.client.connect(f"ws://{host}:{tap_port}/chat", proxy=None) as ws:
                for size in (1, 1000, 300_000):
                    await ws.send("x" * size)
                    assert len(await ws.recv()) == size
            [records] = await tap.records()
            assert_complete(records)
            assert records[-1].cause == "complete"

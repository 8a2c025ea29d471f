"""Upgraded connections are tunnels in both directions, with half-closes and without frames. The end of a WebSocket shows whether
it was closed or broke."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import websockets.asyncio.client
import websockets.asyncio.server

from streamgauge.ingest.records import Closed, Frames, Opened
from streamgauge.ingest.tap.sockets import reset_on_close
from tests.ingest.running_tap import RunningTap, assert_complete, respond_with, running_tap

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


Server = websockets.asyncio.server.ServerConnection
Socket = websockets.asyncio.connection.Connection


@contextlib.asynccontextmanager
async def websocket(
    server_ends: Callable[[Server], None] | None,
    *,
    server_tls: ssl.SSLContext | None = None,
    client_tls: ssl.SSLContext | None = None,
    **options: Any,
) -> AsyncIterator[tuple[RunningTap, Socket]]:
    """A real client and server with the tap between them. The server echoes one message, then ends or waits."""

    async def serve(socket: Server) -> None:
        await socket.send(await socket.recv())
        if server_ends is None:
            await socket.wait_closed()
        elif server_ends is not close:
            server_ends(socket)

    async with websockets.asyncio.server.serve(
        serve, "127.0.0.1", 0, ping_interval=None, ssl=server_tls
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        scheme, tap_scheme = "https" if server_tls else "http", "wss" if client_tls else "ws"
        async with running_tap(None, upstreams=[f"{scheme}://127.0.0.1:{port}"], **options) as tap:
            host, tap_port = tap.worker.address
            url = f"{tap_scheme}://{host}:{tap_port}/v1/realtime?model=gpt-realtime&api_key=sk-1"
            client = await websockets.asyncio.client.connect(
                url, proxy=None, ping_interval=None, ssl=client_tls
            )
            await client.send("x" * 1000)
            await client.recv()
            yield tap, client
            client.transport.abort()


def close(socket: Socket) -> None:
    """The closing handshake."""


def end(socket: Socket) -> None:
    """What the kernel does for a killed process."""
    socket.transport.abort()


def reset(socket: Socket) -> None:
    reset_on_close(socket.transport.get_extra_info("socket"))
    socket.transport.abort()


async def end_client(client: Socket, client_ends: Callable[[Socket], None] | None) -> None:
    """End the client. None: wait until the server has ended."""
    if client_ends is close:
        await client.close()
    elif client_ends is not None:
        client_ends(client)
    else:
        async with asyncio.timeout(5):  # below the 10 s after which the client stops waiting for the server
            await client.wait_closed()


@pytest.mark.parametrize(
    ("server_ends", "client_ends", "cause"),
    [
        (close, None, "complete"),
        (None, close, "complete"),
        (end, None, "upstream_reset"),
        (reset, None, "upstream_reset"),
        (None, end, "client_left"),
        (None, reset, "client_left"),
    ],
)
async def test_end_of_a_websocket_without_a_close_frame_is_the_fault_of_the_side_that_ended(
    server_ends: Callable[[Server], None] | None, client_ends: Callable[[Socket], None] | None, cause: str
):
    async with websocket(server_ends) as (tap, client):
        await end_client(client, client_ends)
        [records] = await tap.records()
        assert_complete(records)
        opened, closed = records[0], records[-1]
        assert isinstance(opened, Opened)
        assert isinstance(closed, Closed)
        assert closed.cause == cause
        assert closed.tunnel
        assert 0 < (closed.first_byte_ns or 0) <= closed.end_ns
        assert (opened.path, opened.query_model) == ("/v1/realtime", "gpt-realtime")
        assert "sk-1" not in repr(records)


async def test_close_frame_after_the_other_side_died_does_not_make_the_end_clean():
    upgrade = UPGRADE.replace(b"echo", b"websocket")

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH.replace(b"echo", b"websocket"))

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(upgrade)
        await client.read_to_end()
        await client.send(b"\x88\x80\0\0\0\0")
        client.writer.write_eof()
        [records] = await tap.records()
        assert records[-1].cause == "upstream_reset"

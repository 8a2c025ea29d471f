"""The router sends requests on with the begin of the path, and passes the body as it arrives."""

from __future__ import annotations

import asyncio

from streamgauge.simulator.router import DECISION_S, port_of, start_router
from tests.deadline import DEADLINE_S

BODY = b'{"model": "m"}'
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
)


async def test_request_goes_on_after_the_decision_and_the_answer_comes_back_as_it_arrives() -> None:
    received: asyncio.Queue[bytes] = asyncio.Queue()
    may_end = asyncio.Event()

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.put_nowait(await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(len(BODY)))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nfirst")
        await may_end.wait()
        writer.write(b"last")
        writer.close()

    async with asyncio.timeout(DEADLINE_S), await asyncio.start_server(upstream, "127.0.0.1", 0) as server:
        router = await start_router(lambda: f"http://127.0.0.1:{port_of(server)}/sim")
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(router))
        sent_s = asyncio.get_running_loop().time()
        writer.write(REQUEST)
        head = await received.get()
        assert asyncio.get_running_loop().time() - sent_s >= DECISION_S
        assert head.startswith(
            b"POST /sim/v1/chat/completions HTTP/1.1\r\nconnection: close\r\nhost: router\r\n"
        )
        assert head.endswith(BODY)
        assert await reader.readuntil(b"first") == b"HTTP/1.1 200 OK\r\n\r\nfirst"
        may_end.set()
        assert await reader.read() == b"last"
        writer.close()
        router.close()


async def test_request_to_nothing_ends_the_connection() -> None:
    async with asyncio.timeout(DEADLINE_S):
        router = await start_router(lambda: "http://127.0.0.1:1")
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(router))
        writer.write(REQUEST)
        assert await reader.read() == b""
        writer.close()
        router.close()

"""A simulated router: a gateway that delays each request by the time of a decision and forwards it. Between two taps, it is a hop.

HTTP/1.1 with a content length, one request per connection. Response bodies are forwarded as they arrive.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

DECISION_S = 0.025
"""Delay of each request."""
_LENGTH = re.compile(rb"(?im)^content-length: *(\d+)")


async def start_router(target: Callable[[], str], port: int = 0) -> asyncio.Server:
    """Listen on a port of 127.0.0.1; 0: any free one. `target` returns the base URL of the requests."""
    open_now: set[asyncio.Task[None] | None] = set()  # asyncio itself keeps only weak references

    async def serve(client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        open_now.add(asyncio.current_task())
        request: asyncio.StreamWriter | None = None
        with suppress(OSError, EOFError):
            head = await client.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = await client.readexactly(int(length[1]) if length else 0)
            await asyncio.sleep(DECISION_S)
            url = urlsplit(target())
            upstream, request = await asyncio.open_connection(url.hostname, url.port)
            head = head.replace(b" /", f" {url.path}/".encode(), 1)
            request.write(head.replace(b"\r\n", b"\r\nconnection: close\r\n", 1) + body)
            while data := await upstream.read(2**16):
                answer.write(data)
                await answer.drain()
        for side in (answer, request):
            if side is not None:
                side.close()
        open_now.discard(asyncio.current_task())

    return await asyncio.start_server(serve, "127.0.0.1", port)


def port_of(router: asyncio.Server) -> int:
    """The port on which it listens."""
    return int(router.sockets[0].getsockname()[1])

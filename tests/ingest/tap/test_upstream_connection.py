"""Connections to an upstream: which are reused, and how an exchange ends whose connection cannot be opened."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest

from streamgauge.ingest.tap.connections.upstream_connection import UpstreamConnection
from tests.ingest.running_tap import read_request, running_tap

REQUESTS = {
    "GET": b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    "POST": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}",
}


def answer(text: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)


@pytest.mark.parametrize("first", REQUESTS)
@pytest.mark.parametrize("second", REQUESTS)
async def test_unsolicited_response_is_never_the_response_to_another_request(first: str, second: str):
    connections = 0

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        number = connections
        while True:
            await read_request(reader)
            writer.write(answer(b"of connection %d" % number))

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(REQUESTS[first])
        assert (await client.response())[1] == b"of connection 1"
        # The bytes are in the kernel, and the next request arrives before the loop reads them.
        os.write(tap.upstream_connections[0].get_extra_info("socket").fileno(), answer(b"unsolicited"))
        [connection] = tap.worker.context.clients
        connection.data_received(REQUESTS[second])  # type: ignore[attr-defined]
        assert (await client.response())[1] == b"of connection 2"


@pytest.mark.parametrize("error", [UnicodeError("label empty or too long"), RuntimeError("a bug")])
@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
async def test_any_exception_while_connecting_ends_the_exchange(
    request_: bytes, error: Exception, monkeypatch: pytest.MonkeyPatch
):
    async def fail(*_: Any, **__: Any) -> None:
        raise error

    async with running_tap(None) as tap:
        # The loop's own method is native and cannot be replaced.
        monkeypatch.setattr(tap.worker.context, "loop", Loop(tap.worker.loop, fail))
        head, body = await tap.request(request_)
        assert head.startswith(b"HTTP/1.1 502 ")
        assert json.loads(body)["error"]["code"] == "connect_error"
        [records] = await tap.records()
        assert (records[-1].cause, records[-1].detail) == ("connect_error", type(error).__name__)


class Loop:
    """An event loop with another `create_connection`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, create_connection: Any) -> None:
        self._loop = loop
        self.create_connection = create_connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


@pytest.mark.interpreted
async def test_connection_that_is_lost_before_it_has_an_exchange_ends_the_exchange(
    monkeypatch: pytest.MonkeyPatch,
):
    """For example because the server sends bytes and resets before the request was written."""
    made = UpstreamConnection.connection_made

    def lose(self: UpstreamConnection, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        self.connection_lost(None)

    monkeypatch.setattr(UpstreamConnection, "connection_made", lose)
    async with running_tap(lambda *_: asyncio.sleep(0)) as tap:
        head, _ = await tap.request(REQUESTS["POST"])
        assert head.startswith(b"HTTP/1.1 502 ")
        [records] = await tap.records()
        assert records[-1].cause == "connect_error"

"""Deadlines and shares of an HTTP receiver: slow, idle and many connections do not delay an honest client."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn

from streamgauge.analytics.intake import connection_limits
from streamgauge.analytics.intake.connection_limits import AddressSlots, ReceiverLimits

REQUEST = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Listening:
    """A receiver that answers with the size of each body."""

    def __init__(self, **limits: int) -> None:
        self.sizes: asyncio.Queue[int] = asyncio.Queue()
        """Received bytes of a body, after each part."""
        self.limits = ReceiverLimits(**{"max_connections": 8, "max_bytes": 1000, **limits})

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        config = uvicorn.Config(
            self._app, host="127.0.0.1", port=0, log_config=None, lifespan="off", ws="none", access_log=False, interface="asgi3",
            http=self.limits.connection,  # type: ignore[arg-type]
        )  # fmt: skip
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup()
        self.port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.should_exit = True
            await server.shutdown()
            gc.collect()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size += len(message["body"])
            self.sizes.put_nowait(size)
            more = message["more_body"]
        body = b"%d" % size
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", b"%d" % len(body))],
            }
        )
        await send({"type": "http.response.body", "body": body})

    async def connect(self, sent: bytes = b"", address: str = "127.0.0.1") -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        writer.write(sent)
        return Client(reader, writer)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def rest(self) -> bytes:
        with contextlib.suppress(ConnectionResetError):
            return await self.reader.read()
        return b"reset"

    async def answer(self) -> bytes:
        """Status and body of the next response."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        return head[9:12] + b" " + await self.reader.readexactly(size)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"POST /x HTTP/1.1\r\nHost:", b"HTTP/1.1 408 Request Timeout"),
        (REQUEST % 10 + b"12345", b"HTTP/1.1 408 Request Timeout"),
    ],
)
async def test_connection_without_a_whole_request_is_closed_at_its_deadline(
    sent: bytes, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "HEADERS_WITHIN_S", 0.2)
    monkeypatch.setattr(connection_limits, "BODY_WITHIN_S", 0.2)
    receiver = Listening()
    async with receiver.run():
        client = await receiver.connect(sent)
        assert (await client.rest()).partition(b"\r\n")[0] == answer
        assert receiver.limits.too_late == 1


async def test_single_bytes_do_not_extend_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "HEADERS_WITHIN_S", 0.3)
    receiver = Listening()
    async with receiver.run():
        client = await receiver.connect()

        async def trickle() -> None:
            while True:
                client.writer.write(b"\r\n")  # before a request, uvicorn takes them for activity
                await asyncio.sleep(0.01)

        sending = asyncio.create_task(trickle())
        try:
            await client.rest()
        finally:
            sending.cancel()
        assert receiver.limits.too_late == 1


async def test_whole_requests_on_one_connection_meet_the_deadlines() -> None:
    receiver = Listening()
    async with receiver.run():
        client = await receiver.connect()
        for size in (0, 5, 500):
            client.writer.write(REQUEST % size + b"x" * size)
            assert await client.answer() == b"200 %d" % size
        assert receiver.limits.too_late == receiver.limits.turned_away == 0


async def test_a_client_with_many_idle_connections_closes_its_own() -> None:
    receiver = Listening(max_connections=8)
    async with receiver.run():
        honest = await receiver.connect(REQUEST % 5, "127.0.0.2")
        idle = [await receiver.connect() for _ in range(30)]
        for client in idle[:20]:
            assert await client.rest() in (b"", b"reset")
        honest.writer.write(b"12345")
        assert await honest.answer() == b"200 5"
        new = await receiver.connect(REQUEST % 3 + b"123", "127.0.0.3")
        assert await new.answer() == b"200 3"
        assert receiver.limits.turned_away >= 22


async def test_an_address_holds_at_most_as_many_bytes_as_are_free_for_others() -> None:
    receiver = Listening(max_bytes=1000)
    async with receiver.run():
        greedy = await receiver.connect(REQUEST % 900 + b"x" * 600)
        assert (await greedy.rest()).startswith(
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1"
        )
        holding = await receiver.connect(REQUEST % 500 + b"x" * 499)
        while await receiver.sizes.get() != 499:
            pass
        other = await receiver.connect(REQUEST % 200 + b"x" * 200, "127.0.0.2")
        assert await other.answer() == b"200 200"
        holding.writer.write(b"x")
        assert await holding.answer() == b"200 500"
        assert not receiver.limits._bytes_of


async def test_other_addresses_find_slots_however_many_requests_of_one_wait() -> None:
    slots, done = AddressSlots(4), asyncio.Event()
    held: list[str] = []
    b_holds = asyncio.Event()

    async def hold(address: str) -> None:
        async with slots.slot(address):
            held.append(address)
            if address == "b":
                b_holds.set()
            await done.wait()

    tasks = [asyncio.create_task(hold("a")) for _ in range(10)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(hold("b")))
    await b_holds.wait()
    assert held == ["a", "a", "b"]
    done.set()
    await asyncio.gather(*tasks)
    assert len(held) == 11
    assert not slots._of

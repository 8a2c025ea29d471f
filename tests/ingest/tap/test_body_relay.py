"""Which bodies the native relay forwards, and what happens when it cannot."""

from __future__ import annotations

import asyncio
import os

import pytest

from ingest.tap import relay_choice
from ingest.tap.body_relay import BodyRelay
from tests.ingest.running_tap import RunningTap, assert_complete, body_of, chunk, read_request
from tests.ingest.running_tap import running_tap as run

pytestmark = pytest.mark.skipif(relay_choice.native_relay is None, reason="the native relay is not built")
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
PART = b"data: %b\n\n" % (b"x" * 1000)


class Upstream:
    """Sends the head, then a part at each `step`."""

    def __init__(self, head: bytes, part: bytes) -> None:
        self._head, self._part = head, part
        self.step = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(self._head)
        while True:
            await self.step.wait()
            self.step.clear()
            writer.write(self._part)


def relayed(tap: RunningTap) -> int:
    return tap.worker.counters.streams_relayed


@pytest.mark.parametrize(
    ("head", "part", "native"),
    [
        (b"Transfer-Encoding: chunked\r\n\r\n", chunk(PART), True),
        (b"Connection: close\r\n\r\n", PART, True),
        (b"Content-Length: 1000000\r\n\r\n", PART, True),
        (b"Content-Length: 100000\r\n\r\n", PART, False),
    ],
)
async def test_long_bodies_are_relayed_from_their_second_read_on(head: bytes, part: bytes, native: bool):
    upstream = Upstream(SSE + head, part)
    async with run(upstream.serve, relay="native") as tap:
        client = await tap.client()
        await client.send(GET)
        await client.read_until(b"\r\n\r\n")
        assert relayed(tap) == 0
        for _ in range(3):
            upstream.step.set()
            assert await client.read(len(part)) == part
        assert relayed(tap) == native
        client.reset()
        [records] = await tap.records()
        assert_complete(records)
        assert body_of(records) == PART * 3
        assert records[-1].cause == "client_left"


async def test_body_that_cannot_be_handed_over_stays_with_the_event_loop(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> int:
        raise OSError(28, "no space left for watches")

    monkeypatch.setattr(BodyRelay, "add", fail)
    upstream = Upstream(SSE + b"Transfer-Encoding: chunked\r\n\r\n", chunk(PART))
    async with run(upstream.serve, relay="native") as tap:
        client = await tap.client()
        await client.send(GET)
        await client.read_until(b"\r\n\r\n")
        for _ in range(3):
            upstream.step.set()
            assert await client.read(len(chunk(PART))) == chunk(PART)
        client.reset()
        [records] = await tap.records()
        assert body_of(records) == PART * 3


async def test_a_delay_of_the_thread_is_the_taps():
    """A stopped process cannot read: the time in which data waited for it is recorded as the tap's delay."""
    upstream = Upstream(SSE + b"Transfer-Encoding: chunked\r\n\r\n", chunk(PART))
    async with run(upstream.serve, relay="native") as tap:
        client = await tap.client()
        await client.send(GET)
        await client.read_until(b"\r\n\r\n")
        for _ in range(2):
            upstream.step.set()
            await client.read(len(chunk(PART)))
        assert relayed(tap) == 1
        stop = asyncio.create_subprocess_exec(
            "sh", "-c", f"kill -STOP {os.getpid()}; sleep 0.4; kill -CONT {os.getpid()}"
        )
        process = await stop
        await process.wait()
        upstream.step.set()
        await client.read(len(chunk(PART)))
        client.reset()
        [records] = await tap.records()
        waits = records[-1].waits
        assert waits is not None
        assert sum(until - start for start, until, who in waits if who == "tap") > 200_000_000, waits


def test_demanded_relay_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(relay_choice, "native_relay", None)
    with pytest.raises(ValueError, match="make setup"):
        relay_choice.is_native("native")
    assert not relay_choice.is_native("auto")

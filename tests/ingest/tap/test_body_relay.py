"""Which bodies the native relay forwards, and what happens when it cannot."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from typing import Any

import pytest

from streamgauge.ingest.tap.process import worker
from streamgauge.ingest.tap.relay import choice as relay_choice
from streamgauge.ingest.tap.relay.body_relay import BodyRelay
from tests.ingest.running_tap import Client, RunningTap, assert_complete, body_of, chunk, read_request
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
    return tap.worker.recording.counters.streams_relayed


async def client_with_parts(tap: RunningTap, upstream: Upstream, count: int) -> Client:
    """A client that has read the head and so many chunked parts. The relay takes a body at its second read."""
    client = await tap.client()
    await client.send(GET)
    await client.read_until(b"\r\n\r\n")
    for _ in range(count):
        upstream.step.set()
        assert await client.read(len(chunk(PART))) == chunk(PART)
    return client


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


@pytest.mark.parametrize("failing", ["add to the relay", "watch the client"])
async def test_body_that_cannot_be_handed_over_stays_with_the_event_loop(
    failing: str, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> int:
        raise OSError(28, "no space left for watches")

    upstream = Upstream(SSE + b"Transfer-Encoding: chunked\r\n\r\n", chunk(PART))
    async with run(upstream.serve, relay="native") as tap:
        if failing == "add to the relay":
            monkeypatch.setattr(BodyRelay, "add", fail)
        else:
            monkeypatch.setattr(tap.worker.hangups, "watch", fail)
        client = await client_with_parts(tap, upstream, 3)
        assert relayed(tap) == 0
        client.reset()
        [records] = await tap.records()
        assert body_of(records) == PART * 3
        assert records[-1].cause == "client_left"


async def test_delay_of_the_relay_thread_is_recorded_as_tap_delay():
    """A stopped process cannot read. Data that arrives meanwhile waits for it."""
    stop = """if True:
        import os, signal, sys, time
        tap, connection = map(int, sys.argv[1:])
        os.kill(tap, signal.SIGSTOP)
        time.sleep(0.2)
        os.write(connection, b"5\\r\\n: hi\\n\\r\\n")
        time.sleep(0.2)
        os.kill(tap, signal.SIGCONT)
    """
    upstream = Upstream(SSE + b"Transfer-Encoding: chunked\r\n\r\n", chunk(PART))
    async with run(upstream.serve, relay="native") as tap:
        client = await client_with_parts(tap, upstream, 2)
        assert relayed(tap) == 1
        connection = tap.upstream_connections[0].get_extra_info("socket").fileno()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", stop, str(os.getpid()), str(connection), pass_fds=[connection]
        )
        await client.read_until(b": hi\n\r\n")
        await process.wait()
        client.reset()
        [records] = await tap.records()
        waits = records[-1].waits
        assert waits is not None
        assert sum(until - start for start, until, who in waits if who == "tap") > 200_000_000, waits


async def test_waits_of_slow_streams_are_not_recorded_as_tap_delay():
    """Ten streams share the thread, so it wakes up at any time between its checks for blocks."""
    streams, reads = 10, 15

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE + b"Transfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(random.random() / 10)
        for _ in range(reads):
            writer.write(chunk(PART))
            await asyncio.sleep(0.1)
        writer.write(b"0\r\n\r\n")

    async with run(serve, relay="native") as tap:
        await asyncio.gather(*(tap.request(GET) for _ in range(streams)))
        assert relayed(tap) == streams
        delays = [
            wait
            for records in await tap.records(streams)
            for wait in records[-1].waits or []
            if wait[2] == "tap"
        ]
    assert len(delays) < streams * reads / 4, delays  # a loaded machine has some real ones


async def test_without_a_thread_auto_uses_python_and_native_fails(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise OSError(11, "cannot start the native relay's thread")

    monkeypatch.setattr(worker, "BodyRelay", fail)
    upstream = Upstream(SSE + b"Transfer-Encoding: chunked\r\n\r\n", chunk(PART))
    async with run(upstream.serve, relay="auto") as tap:
        assert tap.worker.recording.stats()["native_relays_now"] == 0
    with pytest.raises(OSError, match="cannot start"):
        async with run(upstream.serve, relay="native"):
            pass


async def test_frames_that_arrive_while_an_end_is_processed_are_recorded(monkeypatch: pytest.MonkeyPatch):
    upstream = Upstream(SSE + b"Transfer-Encoding: chunked\r\n\r\n", chunk(PART))
    async with run(upstream.serve, relay="native") as tap:
        clients = [await client_with_parts(tap, upstream, 2) for _ in range(2)]
        assert relayed(tap) == 2
        report, late = BodyRelay._report, chunk(b"late")
        sent = os.dup(tap.upstream_connections[1].get_extra_info("socket").fileno())

        def report_slowly(relay: BodyRelay, *event: Any) -> None:
            if event[0] == relay_choice.native_relay.END and relay.active == 2:
                os.write(sent, late)
                time.sleep(0.1)  # the relay's thread reads meanwhile
            report(relay, *event)

        monkeypatch.setattr(BodyRelay, "_report", report_slowly)
        tap.upstream_connections[0].write(b"0\r\n\r\n")
        assert await clients[1].read(len(late)) == late
        clients[1].reset()
        for records in await tap.records(2):
            assert_complete(records)
        assert body_of(tap.log.records).count(b"late") == 1
        assert tap.worker.recording.counters.lost_bytes == 0
        os.close(sent)


def test_relay_native_without_native_code_raises_value_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(relay_choice, "native_relay", None)
    with pytest.raises(ValueError, match="make setup"):
        relay_choice.uses_native_code("native")
    assert not relay_choice.uses_native_code("auto")

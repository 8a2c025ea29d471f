"""A stopping tap: open streams may finish within the drain time, and the log records the stop."""

from __future__ import annotations

import asyncio

from streamgauge.ingest.records import Alive, Closed
from tests.deadline import DEADLINE_S
from tests.ingest.running_tap import (
    END,
    SSE_HEAD,
    RunningTap,
    assert_complete,
    chunk,
    read_request,
    running_tap,
)

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


def last_alive(tap: RunningTap) -> Alive:
    last = tap.log.records[-1]
    assert isinstance(last, Alive)
    return last


async def test_stop_lets_open_streams_finish_and_refuses_new_connections():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await go.wait()
        writer.write(chunk(b"data: 2\n\n") + END)
        await reader.read()

    go = asyncio.Event()

    async with running_tap(upstream, drain_timeout_s=10.0) as tap:
        idle = await tap.client()
        client = await tap.client()
        await client.send(GET)
        await client.read_until(b"data: 1\n\n\r\n")
        tap.worker.stop()
        assert await idle.read_to_end() == b""
        refused = False
        try:
            await (await tap.client()).read_to_end()
        except ConnectionError:
            refused = True
        assert refused
        assert not tap.serving.done()
        go.set()
        assert await client.read_to_end() == chunk(b"data: 2\n\n") + END
        await tap.serving
        [records] = await tap.records()
        assert_complete(records)
        assert records[-1].cause == "complete"
        alive = last_alive(tap)
        assert alive.stopping
        assert alive.counters["streams_opened"] == alive.counters["streams_closed"] == 1


async def test_stream_is_ended_after_the_drain_time():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await reader.read()

    async with running_tap(upstream, drain_timeout_s=0.05) as tap:
        client = await tap.client()
        await client.send(GET)
        await client.read_until(b"data: 1\n\n\r\n")
        await tap.stop()
        assert await client.read_to_end() == b""
        [records] = await tap.records()
        assert_complete(records)
        assert isinstance(records[-1], Closed)
        assert records[-1].cause == "tap_stopped"
        assert last_alive(tap).stopping


async def test_second_stop_skips_the_drain_time():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD)
        await reader.read()

    async with running_tap(upstream, drain_timeout_s=1000.0) as tap:
        client = await tap.client()
        await client.send(GET)
        await client.read_until(b"\r\n\r\n")
        tap.worker.stop()
        tap.worker.stop()
        await asyncio.wait_for(tap.serving, DEADLINE_S)
        [records] = await tap.records()
        assert records[-1].cause == "tap_stopped"


async def test_request_without_response_gets_an_error_when_the_tap_stops():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(GET)
        await tap.wait_until(lambda: bool(tap.upstream_connections))
        await tap.stop()
        assert (await client.read_to_end()).startswith(b"HTTP/1.1 502 ")
        [records] = await tap.records()
        assert records[-1].cause == "tap_stopped"


async def test_stop_closes_a_busy_connection_after_its_response():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        request_received.set()
        await go.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.read()

    go, request_received = asyncio.Event(), asyncio.Event()

    async with running_tap(upstream, drain_timeout_s=10.0) as tap:
        client = await tap.client()
        await client.send(GET)
        await request_received.wait()
        tap.worker.stop()
        await tap.wait_until(lambda: tap.worker.context.stopping)
        go.set()
        answer = await client.read_to_end()
        assert b"Connection: close\r\n" in answer
        assert answer.endswith(b"ok")


async def test_a_replaced_tap_keeps_a_connection_whose_response_announced_no_close():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await read_request(reader)
            writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
            await go.wait()
            writer.write(chunk(b"data: 2\n\n") + END)
        await reader.read()

    go = asyncio.Event()

    async with running_tap(upstream, drain_timeout_s=DEADLINE_S) as tap:
        client = await tap.client()
        await client.send(GET)
        assert b"close" not in await client.read_until(b"data: 1\n\n\r\n")
        tap.worker.hand_over()
        await tap.wait_until(lambda: tap.worker.context.stopping)
        go.set()
        await client.read_until(END)
        await client.send(GET)
        answer = await client.read_to_end()
        assert b"Connection: close\r\n" in answer
        assert answer.endswith(END)
        await tap.serving
        assert len(await tap.records()) == 2


async def test_alive_records_are_written_periodically():
    async with running_tap(None, alive_s=0.02) as tap:
        await tap.wait_until(lambda: sum(isinstance(r, Alive) for r in tap.log.records) >= 3)
        first, second = [r for r in tap.log.records if isinstance(r, Alive)][:2]
        assert first.incarnation == second.incarnation == tap.worker.recording.incarnation
        assert first.mono_ns < second.mono_ns
        assert not first.stopping

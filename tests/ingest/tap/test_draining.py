"""Stopping: open streams may finish, then they are ended; whatever happens, the log says that the tap stopped."""

from __future__ import annotations

import asyncio

from ingest.records import Alive, Closed
from tests.ingest.rig import END, SSE_HEAD, Rig, chunk, complete, read_request, rig

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


def last_alive(it: Rig) -> Alive:
    last = it.log.records[-1]
    assert isinstance(last, Alive)
    return last


async def test_an_open_stream_finishes_and_new_connections_are_not_taken():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await go.wait()
        writer.write(chunk(b"data: 2\n\n") + END)
        await reader.read()

    go = asyncio.Event()

    async with rig(upstream, drain_timeout_s=10.0) as it:
        idle = await it.client()
        client = await it.client()
        await client.send(GET)
        await client.until(b"data: 1\n\n\r\n")
        it.worker.stop()
        assert await idle.rest() == b""
        refused = False
        try:
            await (await it.client()).rest()
        except ConnectionError:
            refused = True
        assert refused
        assert not it.serving.done()
        go.set()
        assert await client.rest() == chunk(b"data: 2\n\n") + END
        await it.serving
        [records] = await it.records()
        complete(records)
        assert records[-1].cause == "complete"
        alive = last_alive(it)
        assert alive.stopping
        assert alive.counters["streams_opened"] == alive.counters["streams_closed"] == 1


async def test_a_stream_that_outlasts_the_drain_time_is_ended():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await reader.read()

    async with rig(upstream, drain_timeout_s=0.05) as it:
        client = await it.client()
        await client.send(GET)
        await client.until(b"data: 1\n\n\r\n")
        await it.stop()
        assert await client.rest() == b""
        [records] = await it.records()
        complete(records)
        assert isinstance(records[-1], Closed)
        assert records[-1].cause == "tap_stopped"
        assert last_alive(it).stopping


async def test_asked_twice_it_does_not_wait():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD)
        await reader.read()

    async with rig(upstream, drain_timeout_s=1000.0) as it:
        client = await it.client()
        await client.send(GET)
        await client.until(b"\r\n\r\n")
        it.worker.stop()
        it.worker.stop()
        await asyncio.wait_for(it.serving, 5)
        [records] = await it.records()
        assert records[-1].cause == "tap_stopped"


async def test_a_request_without_answer_yet_is_told_when_the_tap_stops():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with rig(upstream) as it:
        client = await it.client()
        await client.send(GET)
        await it.until(lambda: bool(it.upstream_connections))
        await it.stop()
        assert (await client.rest()).startswith(b"HTTP/1.1 502 ")
        [records] = await it.records()
        assert records[-1].cause == "tap_stopped"


async def test_a_busy_keep_alive_connection_is_closed_after_its_answer():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        asked.set()
        await go.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.read()

    go, asked = asyncio.Event(), asyncio.Event()

    async with rig(upstream, drain_timeout_s=10.0) as it:
        client = await it.client()
        await client.send(GET)
        await asked.wait()
        it.worker.stop()
        await it.until(lambda: it.worker.stopping)
        go.set()
        answer = await client.rest()
        assert b"Connection: close\r\n" in answer
        assert answer.endswith(b"ok")


async def test_alive_records_come_by_themselves():
    async with rig(None, alive_s=0.02) as it:
        await it.until(lambda: sum(isinstance(r, Alive) for r in it.log.records) >= 3)
        first, second = [r for r in it.log.records if isinstance(r, Alive)][:2]
        assert first.incarnation == second.incarnation == it.worker.incarnation
        assert first.mono_ns < second.mono_ns
        assert not first.stopping

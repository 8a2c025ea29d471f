"""A real tap under load: what it loses has the cause that it reported."""

from __future__ import annotations

import asyncio
import contextlib
import random

import polars as pl
import websockets.asyncio.client
import websockets.asyncio.server

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.ingest.identifiers import is_answer
from tests.analytics.sockets import create, events
from tests.analytics.stream_records import rows_of
from tests.ingest.running_tap import body_of, running_tap


async def test_losses_under_load_have_the_causes_that_the_tap_reported() -> None:
    """In some rounds the queue is full. In others a batch with the rest of each answer is dropped, which the tap reports after later
    records."""
    turns, sockets, rng = 7, 12, random.Random(1)
    continued = asyncio.Event()
    """Servers send the first three events of an answer, and the others after this."""
    answer = [event.decode() for event in events("r", [rng.randbytes(4000).hex() for _ in range(20)])]

    async def serve(socket: websockets.asyncio.server.ServerConnection) -> None:
        async for _ in socket:
            for number, event in enumerate(answer):
                if number == 3:
                    await continued.wait()
                await socket.send(event)

    async def ask(socket: websockets.asyncio.client.ClientConnection) -> None:
        await socket.send(create().decode())
        for _ in answer:
            await socket.recv()

    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(websockets.asyncio.server.serve(serve, "127.0.0.1", 0))
        port = next(iter(server.sockets)).getsockname()[1]
        tap = await stack.enter_async_context(
            running_tap(None, upstreams=[f"http://127.0.0.1:{port}"], queue_bytes=2**19)
        )
        buffer = tap.worker.recording.buffer
        assert buffer is not None
        url = "ws://{}:{}/v1/responses".format(*tap.worker.address)
        clients = [
            await stack.enter_async_context(websockets.asyncio.client.connect(url, proxy=None))
            for _ in range(sockets)
        ]
        for number in range(turns):
            await tap.wait_until(lambda: not buffer.queued_bytes)
            failed = tap.log.failed
            begun = {stream: len(body_of(tap.log.records_of(stream))) for stream in tap.log.streams}
            continued.clear()
            if number % 3 == 1:
                tap.log.gate.clear()
                continued.set()
            asked = asyncio.gather(*map(ask, clients))
            if number % 3 == 2:
                await tap.wait_until(
                    lambda begun=begun: all(
                        len(body_of(tap.log.records_of(stream))) >= size + 4000
                        for stream, size in begun.items()
                    )
                )
                tap.log.broken = ValueError()
                continued.set()
                await tap.wait_until(lambda failed=failed: tap.log.failed > failed)
                tap.log.broken = None
            continued.set()
            await asked
            tap.log.gate.set()
        for client in clients:
            await client.close()
        await tap.records(sockets)
        records = list(tap.log.records)
    assembler = Assembler()
    for offset, record in enumerate(records):
        assembler.feed("w0", offset, [record])
    found, losses = rows_of(assembler), assembler.take_losses()
    assert assembler.open_count == 0
    assert {row["stream_id"] for row in found if row["outcome"] == "tap_lost"} == set(losses["stream_id"])
    assert len([row for row in found if row["connection_id"] is None]) == sockets
    of_answers = losses.filter(pl.col("stream_id").map_elements(is_answer, return_dtype=pl.Boolean))
    assert of_answers.height > 0
    assert set(losses["cause"]) == {"queue_full", "log_error"}

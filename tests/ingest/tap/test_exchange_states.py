"""The transitions that an exchange may make."""

from __future__ import annotations

import asyncio

import pytest

from streamgauge.ingest.tap.exchanges.states import (
    CONNECTING,
    ENDED,
    RESPONDING,
    TRANSITIONS,
    TUNNELING,
    WAITING,
    IllegalTransition,
    transition,
)
from tests.ingest.running_tap import SSE_HEAD, chunk, read_request, running_tap


def test_every_state_can_end_and_the_end_is_final():
    assert TRANSITIONS[ENDED] == ()
    assert all(ENDED in TRANSITIONS[state] for state in (CONNECTING, WAITING, RESPONDING, TUNNELING))


async def test_an_exchange_passes_through_its_states_and_refuses_an_illegal_one():
    request_received, respond = asyncio.Event(), asyncio.Event()

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        request_received.set()
        await respond.wait()
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await reader.read()

    async with running_tap(upstream) as tap:
        client = await tap.client()
        await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await request_received.wait()
        [exchange] = tap.worker.context.exchanges
        assert exchange.state == WAITING
        with pytest.raises(IllegalTransition, match="from 'waiting' to 'waiting'"):
            transition(exchange.state, WAITING)
        respond.set()
        await client.read_until(b"data: 1\n\n")
        assert exchange.state == RESPONDING
        with pytest.raises(IllegalTransition):
            transition(exchange.state, CONNECTING)
        client.reset()
        await tap.wait_until(lambda: exchange.state == ENDED)
        with pytest.raises(IllegalTransition):
            transition(exchange.state, RESPONDING)

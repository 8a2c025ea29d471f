"""Each state of an exchange and of a connection has a deadline: a peer that does nothing more is disconnected.

`states` has the states of an exchange. The limits that its client connection checks pass in memory; the others need sockets.
`test_limits` has more about the silence of an upstream.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from streamgauge.ingest.tap.exchanges.states import CONNECTING, DEADLINES, DRAINING, RECEIVED, TUNNELING
from tests.ingest.running_tap import SSE_HEAD, RunningTap, chunk, read_request, respond_with, running_tap
from tests.ingest.tap.test_states import name, reach
from tests.ingest.tap.test_tls import pki as pki

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
UPGRADE = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n"
BIG = b"x" * 20_000_000  # more than the kernel's buffers take
OFF = {"head_timeout_s": 0, "body_timeout_s": 0, "keep_alive_timeout_s": 0}


async def cause(tap: RunningTap) -> str:
    [records] = await tap.records()
    return str(records[-1].cause)


@pytest.mark.parametrize("response", ["stream", "tunnel"])
async def test_client_that_reads_nothing_is_disconnected(response: str):
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        tunnel = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n"
        writer.write(tunnel + BIG if response == "tunnel" else SSE_HEAD + chunk(BIG))
        await reader.read()

    async with running_tap(upstream, peer_timeout_s=0.2, **OFF) as tap:
        client = await tap.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(UPGRADE if response == "tunnel" else GET)
        assert await cause(tap) == "client_left"
        await tap.wait_until(lambda: not tap.worker.context.clients)


@pytest.mark.parametrize("connection", [b"keep-alive", b"close"])
async def test_client_that_does_not_read_the_end_of_its_response_is_disconnected(connection: bytes):
    """The exchange has ended; the tap and the kernel hold the rest of its response."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BIG), BIG)
    options = {"peer_timeout_s": 0.2, "write_buffer_bytes": 2 * len(BIG), **OFF}
    async with running_tap(respond_with(answer), relay="python", **options) as tap:
        client = await tap.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: %s\r\n\r\n" % connection)
        await tap.wait_until(lambda: tap.worker.recording.counters.closed_by_cause.get("complete") == 1)
        await tap.wait_until(lambda: not tap.worker.context.clients)


async def test_upstream_that_reads_nothing_is_disconnected():
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    async with running_tap(upstream, peer_timeout_s=0.2, **OFF) as tap:
        client = await tap.client()
        client.writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(BIG) + BIG)
        head, _ = await client.response()
        assert head.startswith(b"HTTP/1.1 502 ")
        assert await cause(tap) == "upstream_reset"


async def test_upstream_that_never_ends_its_tls_handshake_is_a_connect_timeout():
    async with running_tap(
        lambda reader, _: reader.read(), upstreams=["https://127.0.0.1:{port}"], connect_timeout_s=0.1
    ) as tap:
        head, _ = await tap.request(GET)
        assert head.startswith(b"HTTP/1.1 504 ")
        assert await cause(tap) == "connect_timeout"


async def test_client_that_never_ends_its_tls_handshake_is_disconnected(pki: Path):
    options: dict[str, Any] = {"tls_cert": pki / "cert.pem", "tls_key": pki / "key.pem"}
    async with running_tap(None, head_timeout_s=0.1, **options) as tap:
        client = await tap.client()
        assert await client.read_to_end() == b""


ON_SOCKETS = {
    CONNECTING: test_upstream_that_never_ends_its_tls_handshake_is_a_connect_timeout,
    TUNNELING: test_client_that_reads_nothing_is_disconnected,
    DRAINING: test_client_that_does_not_read_the_end_of_its_response_is_disconnected,
}
CAUSES = {
    "headers_timeout_s": "headers_timeout",
    "idle_timeout_s": "idle_bytes",
    "idle_output_timeout_s": "idle_output",
}
IN_MEMORY = [
    (state, option)
    for state, options in enumerate(DEADLINES)
    for option in options
    if state not in ON_SOCKETS
]


def test_each_deadline_of_a_state_passes_in_a_test():
    on_sockets = [DEADLINES[state] for state in ON_SOCKETS]
    assert on_sockets == [("connect_timeout_s",), ("peer_timeout_s",), ("peer_timeout_s",)]
    assert {option for _, option in IN_MEMORY} == CAUSES.keys()


@pytest.mark.parametrize(("state", "option"), IN_MEMORY)
async def test_exchange_ends_when_the_deadline_of_its_state_passes(state: int, option: str):
    tap = reach((RECEIVED, state), **OFF, **{option: 1.0})
    tap.loop.advance(0.9)
    assert tap.states == (RECEIVED, state), name(tap.states)
    tap.loop.advance(0.6)
    tap.end()
    assert [record.cause for record in tap.closed()] == [CAUSES[option]]

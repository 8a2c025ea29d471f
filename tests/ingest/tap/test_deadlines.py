"""Each state of an exchange and of a connection has a deadline: a peer that does nothing more is disconnected.

`states` has the states. The limits on silence of the upstream, which are off by default, are tested in `test_limits`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.ingest.running_tap import SSE_HEAD, RunningTap, chunk, read_request, respond_with, running_tap
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
        await tap.wait_until(lambda: tap.worker.counters.closed_by_cause.get("complete") == 1)
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

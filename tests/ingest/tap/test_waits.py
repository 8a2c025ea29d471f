"""The waits of an exchange: disjoint, bounded, and with exact sums; recorded by a tap on real sockets."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import uvloop

from streamgauge.ingest.recording.waits import MAX_WAITS, Waits, merge_closest
from streamgauge.ingest.records import Closed, Opened, Wait
from tests.ingest.running_tap import END, SSE_HEAD, chunk, read_request, respond_with, running_tap

MS = 1_000_000
T0 = 10**12
REQUEST = b"GET /v1/x HTTP/1.1\r\nHost: h\r\n\r\n"
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Blocks:
    """A loop monitor whose latest block the test sets."""

    def __init__(self) -> None:
        self.block: tuple[int, int] | None = None

    def block_before(self, _: int) -> tuple[int, int] | None:
        return self.block


def waits_with(blocks: Blocks) -> Waits:
    return Waits(blocks, T0)  # type: ignore[arg-type]


def sums(waits: list[Wait]) -> dict[str, int]:
    found = {"client": 0, "tap": 0}
    for from_ns, until_ns, waited_for in waits:
        found[waited_for] += until_ns - from_ns
    return found


def test_a_wait_for_the_client_has_one_begin_and_one_end():
    waits = waits_with(Blocks())
    waits.end(T0 + 1)
    waits.begin(T0 + 2)
    waits.begin(T0 + 5)
    waits.end(T0 + 9)
    waits.end(T0 + 12)
    assert waits.found == [(2, 9, "client")]


def test_the_taps_delay_takes_precedence_over_the_client():
    blocks = Blocks()
    waits = waits_with(blocks)
    waits.begin(T0)
    blocks.block = (T0 + 40 * MS, T0 + 90 * MS)
    waits.silence_ended(T0, T0 + 91 * MS)
    waits.end(T0 + 100 * MS)
    assert waits.found == [
        (0, 40 * MS, "client"), (40 * MS, 90 * MS, "tap"), (90 * MS, 100 * MS, "client"),
    ]  # fmt: skip


def test_a_block_before_the_silence_is_no_delay():
    blocks = Blocks()
    waits = waits_with(blocks)
    blocks.block = (T0 + 10, T0 + 20)
    waits.silence_ended(T0 + 20, T0 + 80 * MS)
    assert waits.found == []
    waits.silence_ended(T0 + 15, T0 + 80 * MS)
    waits.silence_ended(T0 + 15, T0 + 80 * MS)
    assert waits.found == [(15, 20, "tap")]


@pytest.mark.parametrize("seed", range(5))
def test_random_schedules_stay_disjoint_bounded_and_exact(seed: int) -> None:
    rng = random.Random(seed)
    blocks = Blocks()
    waits = waits_with(blocks)
    now_ns = T0
    for _ in range(3000):
        before_ns, now_ns = now_ns, now_ns + rng.choice([1, MS, 60 * MS, 700 * MS])
        blocks.block = rng.choice([None, (now_ns - rng.randrange(1, 10**9), now_ns - rng.randrange(10 * MS))])
        if blocks.block is not None and blocks.block[0] >= blocks.block[1]:
            blocks.block = None
        rng.choice([waits.begin, waits.end, lambda at, since=before_ns: waits.silence_ended(since, at)])(
            now_ns
        )
    found = waits.found
    assert len(found) <= MAX_WAITS
    assert all(0 <= a < b <= now_ns - T0 for a, b, _ in found)
    assert all(one[1] <= other[0] for one, other in pairwise(found))


@pytest.mark.parametrize("seed", range(5))
def test_merging_keeps_the_sums_and_merges_the_closest(seed: int) -> None:
    rng = random.Random(seed)
    waits: list[Wait] = []
    at = 0
    for _ in range(100):
        begin = at + rng.randrange(10 * MS)
        at = begin + 1 + rng.randrange(10 * MS)
        waits.append((begin, at, rng.choice(["client", "tap"])))
    close: list[Wait] = [(at + 10**9, at + 10**9 + 5, "client"), (at + 10**9 + 6, at + 10**9 + 8, "client")]
    waits += [*close, (at + 2 * 10**9, at + 2 * 10**9 + 3, "tap")]
    before = sums(waits)
    while len(waits) > 3:
        size = len(waits)
        merge_closest(waits)
        assert len(waits) < size
        assert sums(waits) == before
        assert all(one[1] <= other[0] for one, other in pairwise(waits))


# -- a tap on real sockets -------------------------------------------------------------------------------------------


async def closed_of(tap: Any) -> Closed:
    [records] = await tap.records()
    closed = records[-1]
    assert isinstance(closed, Closed)
    return closed


def longest(closed: Closed, waited_for: str) -> int:
    assert closed.waits is not None
    return max((b - a for a, b, by in closed.waits if by == waited_for), default=0)


async def test_a_request_without_a_body_waits_for_nobody():
    async with running_tap(respond_with(RESPONSE)) as tap:
        await tap.request(REQUEST)
        assert longest(await closed_of(tap), "client") == 0


async def test_a_slow_request_body_is_a_wait_for_the_client():
    async with running_tap(respond_with(RESPONSE)) as tap:
        client = await tap.client()
        await client.send(b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nab")
        await tap.wait_until(lambda: bool(tap.worker.context.exchanges))
        await asyncio.sleep(0.12)
        sent_ns = time.monotonic_ns()
        await client.send(b"cd")
        await client.response()
        [[opened, *_]] = await tap.records()
        closed = await closed_of(tap)
    assert isinstance(opened, Opened)
    assert closed.waits is not None
    # On a busy machine a part of it is a delay of the tap, which takes precedence.
    assert longest(closed, "client") > 0
    assert sum(sums(closed.waits).values()) > 100 * MS
    assert opened.mono_ns + closed.waits[0][0] < sent_ns - 100 * MS
    assert closed.request_sent_ns is not None
    assert closed.waits[-1][1] <= closed.request_sent_ns + MS


async def test_an_upload_that_the_upstream_does_not_read_is_no_wait_for_the_client():
    size = 8 * 2**20

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.3)
        await reader.readexactly(size)
        writer.write(RESPONSE)
        await reader.read()

    async with running_tap(slow) as tap:
        client = await tap.client()
        client.writer.write(b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size)
        client.writer.write(bytes(size))
        await client.response()
        closed = await closed_of(tap)
    assert sums(closed.waits or [])["client"] < closed.end_ns - 250 * MS  # a busy machine's client is slow


async def test_an_early_response_ends_the_wait_for_the_request():
    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await asyncio.sleep(0.12)
        writer.write(END)
        await reader.read()

    async with running_tap(early) as tap:
        client = await tap.client()
        await client.send(b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nab")
        await client.response()
        closed = await closed_of(tap)
    assert longest(closed, "client") < 100 * MS


async def test_a_slow_reader_is_a_wait_for_the_client():
    size = 16 * 2**20

    async def fast(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        writer.write(bytes(size))
        await reader.read()

    async with running_tap(fast) as tap:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, tap.worker.address)
        await loop.sock_sendall(sock, REQUEST)
        await asyncio.sleep(0.3)
        received = 0
        while received < size:
            received += len(await loop.sock_recv(sock, 2**20))
        sock.close()
        closed = await closed_of(tap)
    assert longest(closed, "client") > 200 * MS
    assert len(closed.waits or []) <= MAX_WAITS


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_blocked_event_loop_is_a_delay_by_the_tap(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    def upstream(listener: socket.socket) -> None:
        with listener.accept()[0] as sock:
            sock.recv(2**16)
            sock.sendall(SSE_HEAD + chunk(b"data: 1\n\n"))
            time.sleep(0.2)
            sock.sendall(chunk(b"data: 2\n\n") + END)
            sock.recv(1)

    async def run(listener: socket.socket) -> Closed:
        async with running_tap(None, upstreams=[f"http://127.0.0.1:{listener.getsockname()[1]}"]) as tap:
            client = await tap.client()
            await client.send(REQUEST)
            await client.read_until(b"data: 1")
            time.sleep(0.5)  # noqa: ASYNC251 - blocks the loop on purpose
            await client.read_until(END)
            return await closed_of(tap)

    with socket.create_server(("127.0.0.1", 0)) as listener, asyncio.Runner(loop_factory=factory) as runner:
        thread = threading.Thread(target=upstream, args=(listener,))
        thread.start()
        closed = runner.run(run(listener))
        thread.join()
    assert closed.end_ns > 450 * MS
    assert longest(closed, "tap") > 400 * MS


async def test_a_pipelined_request_waits_while_its_client_does_not_read_the_response_before():
    first, second = 2**20, 16 * 2**20

    async def fast(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for size in (first, second):
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            writer.write(bytes(size))
        await reader.read()

    async with running_tap(fast) as tap:
        tap.worker._server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await loop.sock_connect(sock, tap.worker.address)
            await loop.sock_sendall(sock, REQUEST + REQUEST)
            received = held = 0
            while received < first + second:
                received += len(await loop.sock_recv(sock, 2**20))
                [client] = tap.worker.context.clients
                held = max(held, client.transport.get_write_buffer_size())
        await tap.records(2)
    assert held < 2**20

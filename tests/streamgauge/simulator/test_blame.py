"""The cause of stalls: slow readers, a stalling upstream and a blocked tap, with the simulator behind a real tap.

The slow test measures the share of right causes in some hundreds of streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

import polars as pl
import pytest

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.minute_rows import rollups
from streamgauge.analytics.schema.stall_limit import StallLimit
from streamgauge.simulator.server import Simulator, SimulatorOptions
from tests.ingest.running_tap import RunningTap, running_tap
from tests.streamgauge.simulator.simulator_thread import simulator_thread

LIMIT = StallLimit(floor_ns=250_000_000, factor=5.0)
CHUNKS, GAP_S, CHUNK_TOKENS = 70, 0.01, 100
AT_ONCE = 30
BUFFER_BYTES = 4096
SEGMENT_BYTES = 536
"""Smaller than the buffers: the loopback's 64 KiB segments would wait for the timers of TCP."""


@dataclass(frozen=True)
class Kind:
    """What happens in a stream, and the causes of its stalls in order."""

    causes: tuple[str, ...]
    stall_after: int = 0
    """Chunks before the upstream stalls for `stall_s`; 0: it does not stall."""
    stall_s: float = 0.5
    pause_after: int = 0
    """Chunks before the client pauses for `pause_s`; 0: it does not pause."""
    pause_s: float = 0.9


KINDS = {
    "steady": Kind(()),
    "upstream stalls": Kind(("upstream",), stall_after=20),
    "client pauses": Kind(("client",), pause_after=20),
    "first upstream, then client": Kind(("upstream", "client"), stall_after=10, pause_after=25),
    "client pauses while the upstream is silent anyway": Kind(("upstream",), stall_after=20, pause_after=20, pause_s=0.4),
    "the client's pause covers the upstream's stall": Kind(("client",), stall_after=50, pause_after=20, pause_s=1.2),
}  # fmt: skip


@contextlib.asynccontextmanager
async def tap_before(simulator_url: str, relay: str = "auto") -> AsyncIterator[RunningTap]:
    """A tap whose sockets to clients buffer little."""
    async with running_tap(None, upstreams=[simulator_url], write_buffer_bytes=2048, relay=relay) as tap:
        tap.worker._server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        yield tap


async def read_stream(tap: RunningTap, number: int, kind: Kind) -> None:
    """One request. Its client pauses after `kind.pause_after` chunks."""
    forced = {
        "tokens": CHUNKS * CHUNK_TOKENS, "chunk_tokens": CHUNK_TOKENS, "gap_ms": GAP_S * 1000, "ttft_ms": 10, "usage": True,
        "reasoning": "none", "tool_calls": 0, "finish": "stop", "coding": "identity", "fault": "none",
    }  # fmt: skip
    if kind.stall_after:
        forced |= {"fault": "stall", "fault_after": kind.stall_after, "stall_ms": kind.stall_s * 1000}
    body = b'{"model":"gpt-4o","stream":true,"messages":[{"role":"user","content":"x"}]}'
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\nx-simulate: {json.dumps(forced)}\r\n"
        f"traceparent: 00-{number:032x}-{number:016x}-01\r\n"
    )
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        sock.setblocking(False)
        await loop.sock_connect(sock, tap.worker.address)
        await loop.sock_sendall(sock, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        chunks, tail, paused = 0, b"", not kind.pause_after
        while data := await loop.sock_recv(sock, 4096):
            chunks += (tail + data).count(b"data: {")
            tail = data[-6:]
            if not paused and chunks > kind.pause_after:
                paused = True
                await asyncio.sleep(kind.pause_s)
        assert chunks >= CHUNKS


async def causes_of(tap: RunningTap, count: int) -> dict[int, tuple[str, ...]]:
    """The causes of the stalls of each stream, in order. The times of each stream add up."""
    await tap.records(count)
    assembler = Assembler()
    assembler.feed("w0", 0, tap.log.records)
    tables = measure(assembler.take_finished(), LIMIT)
    rows = tables["streams"]
    assert rows["outcome"].unique().to_list() == ["ok"]
    parts = rows.select(pl.sum_horizontal("waited_upstream_ns", "waited_client_ns", "tap_delay_ns"))
    assert parts.to_series().to_list() == rows["end_ns"].to_list()
    numbers = {stream: int(trace, 16) for stream, trace in rows.select("stream_id", "trace_id").iter_rows()}
    found: dict[int, tuple[str, ...]] = dict.fromkeys(numbers.values(), ())
    stalls = rollups(tables, LIMIT).get("output_stalls")
    if stalls is not None:
        for stream, cause in stalls.sort("stream_id", "at_ns").select("stream_id", "cause").iter_rows():
            found[numbers[stream]] += (cause,)
    counted = {numbers[stream]: n for stream, n in rows.select("stream_id", "stall_count").iter_rows()}
    assert counted == {number: causes.count("upstream") for number, causes in found.items()}
    return found


async def causes_by_kind(kinds: list[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Run a stream of each kind. Returns (kind, causes found without the tap).

    The simulator runs in the tap's event loop: when a busy machine blocks it, the cause is the tap, which is right.
    """
    simulator = Simulator(SimulatorOptions(listen="127.0.0.1:0"))
    await simulator.start()
    at_once = asyncio.Semaphore(AT_ONCE)
    async with tap_before(simulator.url) as tap:

        async def run(number: int, kind: Kind) -> None:
            async with at_once:
                await read_stream(tap, number, kind)

        await asyncio.gather(*(run(i, KINDS[kind]) for i, kind in enumerate(kinds, 1)))
        found = await causes_of(tap, len(kinds))
    await simulator.stop()
    return [(kind, tuple(c for c in found[i] if c != "tap")) for i, kind in enumerate(kinds, 1)]


async def test_stalls_have_the_cause_that_was_planned():
    found = await causes_by_kind(list(KINDS) * 10)
    for kind, planned in KINDS.items():  # a busy machine adds stalls to some streams
        counts = Counter(causes for of, causes in found if of == kind)
        assert counts.most_common(1)[0][0] == planned.causes, (kind, counts)


@pytest.mark.slow
async def test_at_least_99_percent_of_stalls_have_the_right_cause():
    rng = random.Random(7)
    found = await causes_by_kind(rng.choices(list(KINDS), k=500))
    stalls = sum(len(KINDS[kind].causes) for kind, _ in found)
    wrong = [(kind, causes) for kind, causes in found if causes != KINDS[kind].causes]
    assert stalls > 300
    assert len(wrong) <= stalls / 100, wrong


async def test_a_blocked_tap_is_the_cause_in_every_stream():
    """With the native relay a blocked event loop delays no stream that has begun."""
    with simulator_thread() as simulator:
        async with tap_before(simulator.url, relay="python") as tap:
            streams = [asyncio.create_task(read_stream(tap, i, KINDS["steady"])) for i in range(1, 13)]
            await asyncio.sleep(0.4)
            time.sleep(0.5)  # noqa: ASYNC251 - blocks the tap on purpose
            await asyncio.gather(*streams)
            found = await causes_of(tap, len(streams))
    assert len(found) == 12
    assert all("tap" in causes for causes in found.values()), found

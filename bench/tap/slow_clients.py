"""Latency of a tap with 100 clients that send or read byte by byte.

- *60 kB of headers*: each client has sent all but the last 6,000 bytes of 60 kB of headers, and sends those one by one. A parser that
  begins again with each read would read 60 kB for each.
- *1-byte chunks*: each client sends a body of 240 kB (24 MB in all) in which each chunk has one byte.

Each client sends at a fixed rate, so the number of reads does not depend on the tap. One process on the load core, with idle
priority, sends for all: the tap is measured, not the sender.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.tap.servers import OTHER_CORES, Target, started, tap

CLIENTS = 100
BASE, HEADS, CHUNKS = "alone", "60 kB of headers", "1-byte chunks"
HEAD_BYTES, BYTE_BY_BYTE = 60_000, 6_000
FIELD = b"X-Padding: " + b"x" * 1_000 + b"\r\n"
TICK_S = 0.05
HEAD_BYTES_PER_TICK, BODY_BYTES_PER_TICK = 1, 1_200
"""Of one client. All together make the tap read 2,000 times per second, and send 2.4 MB/s or 400,000 chunks per second. At ten
times this rate of single bytes, loopback and scheduler delay streams past nginx as well."""


@contextlib.contextmanager
def taps(relay: str, folder: Path, upstream: int) -> Iterator[list[Target]]:
    """One tap under three names, one for what happens beside the load."""
    with tap(BASE, folder / "tap", upstream, relay=relay) as target:
        yield [dataclasses.replace(target, name=name) for name in (BASE, HEADS, CHUNKS)]


@contextlib.contextmanager
def clients(target: Target) -> Iterator[None]:
    """Run the slow clients of a target."""
    if target.name == BASE:
        yield
        return
    command = [sys.executable, "-m", "bench.tap.slow_clients", target.name, str(target.port)]
    with started(command, OTHER_CORES, idle=True):
        yield


async def client(kind: str, port: int, number: int) -> None:
    """One slow client, again and again. The clients send at different times within a tick."""
    await asyncio.sleep(TICK_S * number / CLIENTS)
    while True:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(OSError):
            if kind == HEADS:
                head = b"POST /sink HTTP/1.1\r\nHost: bench\r\n"
                writer.write(head + FIELD * ((HEAD_BYTES - BYTE_BY_BYTE) // len(FIELD)))
                await _at_a_rate(writer, b"X-Padding: " + b"x" * BYTE_BY_BYTE, HEAD_BYTES_PER_TICK)
            else:
                writer.write(b"POST /sink HTTP/1.1\r\nHost: bench\r\nTransfer-Encoding: chunked\r\n\r\n")
                await _at_a_rate(writer, b"1\r\nx\r\n" * 40_000, BODY_BYTES_PER_TICK)
        writer.close()


async def _at_a_rate(writer: asyncio.StreamWriter, data: bytes, bytes_per_tick: int) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for n, at in enumerate(range(0, len(data), bytes_per_tick)):
        writer.write(data[at : at + bytes_per_tick])
        await writer.drain()
        await asyncio.sleep(max(0.0, began_s + (n + 1) * TICK_S - loop.time()))


async def _main(kind: str, port: int) -> None:
    await asyncio.gather(*(client(kind, port, n) for n in range(CLIENTS)))


native, python = functools.partial(taps, "native"), functools.partial(taps, "python")

if __name__ == "__main__":
    import uvloop

    uvloop.run(_main(sys.argv[1], int(sys.argv[2])))

"""A simulated gateway between two taps, on real sockets in one event loop, with the ground truth of what it did.

`clients → tap → gateway → tap → model server`. Both are one tap, or two whose clocks differ. Each request carries the number of
its plan. All responses have the same text.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from streamgauge.analytics.schema.stall_limit import StallLimit
from streamgauge.ingest.records import AnyRecord, Opened, Request
from tests.ingest.running_tap import END, SSE_HEAD, RunningTap, Script, chunk, read_request, running_tap

MS = 1_000_000
WORDS = [f"w{i:03d} " for i in range(40)]
WORD_CHARS = 5
STALL_S = 0.15
STALL_LIMIT = StallLimit(60 * MS, 3.0)
"""Smaller than the default, so that tests are quick."""
OUTER, INNER = "gateway", "model"


@dataclass
class Plan:
    """One request. Positions are indexes of words."""

    number: int
    how: Callable[[Gateway, Plan], Awaitable[None]]
    upstream_stalls: frozenset[int] = frozenset()
    gateway_stalls: frozenset[int] = frozenset()
    rng: random.Random = field(default_factory=random.Random)
    delays_ns: list[int] = field(default_factory=list)
    """What the gateway did: for each output event, its sending minus the receipt of the last word in it."""


def plans(how: Sequence[Callable[[Gateway, Plan], Awaitable[None]]], count: int, seed: int = 1) -> list[Plan]:
    rng = random.Random(seed)
    found = []
    for number in range(count):
        stalls = rng.sample(range(3, len(WORDS) - 2), 2)
        by_gateway = how[number % len(how)] is stall
        found.append(
            Plan(
                number,
                how[number % len(how)],
                frozenset(stalls[:1]) if by_gateway else frozenset(),
                frozenset(stalls[1:]) if by_gateway else frozenset(),
                random.Random(rng.random()),
            )
        )
    return found


# -- the model server --------------------------------------------------------------------------------------------------


def sse(**members: object) -> bytes:
    value = {"id": "c1", "object": "chat.completion.chunk", "model": "m", **members}
    return chunk(b"data: " + json.dumps(value).encode() + b"\n\n")


def words(text: str) -> bytes:
    return sse(choices=[{"index": 0, "delta": {"content": text}}])


ENDING = sse(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]) + chunk(b"data: [DONE]\n\n") + END


def model_server(planned: Sequence[Plan]) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, body = await read_request(reader)
            plan = planned[json.loads(body)["number"]]
            rng = random.Random(plan.number)
            writer.write(SSE_HEAD)
            for i, word in enumerate(WORDS):
                await asyncio.sleep(rng.uniform(0.008, 0.014) + STALL_S * (i in plan.upstream_stalls))
                writer.write(words(word))
            writer.write(ENDING)
            await writer.drain()

    return script


# -- the gateway -------------------------------------------------------------------------------------------------------


class Gateway:
    """One request at the gateway: received words on one side, the response to the client on the other."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.received: asyncio.Queue[tuple[int, str] | None] = asyncio.Queue()
        """(time, word), then None."""
        self._writer = writer

    async def words(self) -> AsyncIterator[tuple[int, str]]:
        while (item := await self.received.get()) is not None:
            yield item

    def send(self, plan: Plan, text: str, received_ns: int) -> None:
        # Before the write: the outer tap may read the bytes while this call is still under way.
        plan.delays_ns.append(time.monotonic_ns() - received_ns)
        self._writer.write(words(text))

    async def read(self, reader: asyncio.StreamReader) -> None:
        await reader.readuntil(b"\r\n\r\n")
        while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
            data = await reader.readexactly(size + 2)
            now_ns = time.monotonic_ns()
            for event in data.split(b"\n\n"):
                if b'"content"' in event:
                    text = json.loads(event.strip()[6:])["choices"][0]["delta"]["content"]
                    self.received.put_nowait((now_ns, text))
        self.received.put_nowait(None)


async def until(at_ns: float) -> None:
    await asyncio.sleep(max(0.0, (at_ns - time.monotonic_ns()) / 1e9))


async def delay(gateway: Gateway, plan: Plan) -> None:
    """Each chunk is sent after a random time."""
    async for at_ns, word in gateway.words():
        await until(at_ns + plan.rng.uniform(0, 6) * MS)
        gateway.send(plan, word, at_ns)


async def merge(gateway: Gateway, plan: Plan) -> None:
    """One to four chunks become one."""
    held, wanted = "", plan.rng.randint(1, 4)
    async for at_ns, word in gateway.words():
        held += word
        if len(held) == WORD_CHARS * wanted or gateway.received.qsize():
            await until(at_ns + plan.rng.uniform(0, 3) * MS)
            gateway.send(plan, held, at_ns)
            held, wanted = "", plan.rng.randint(1, 4)
    if held:
        gateway.send(plan, held, at_ns)


async def split(gateway: Gateway, plan: Plan) -> None:
    """Each chunk becomes two."""
    async for at_ns, word in gateway.words():
        for part in (word[:2], word[2:]):
            await until(time.monotonic_ns() + 2 * MS)
            gateway.send(plan, part, at_ns)


async def buffer(gateway: Gateway, plan: Plan) -> None:
    """Everything is sent at the end."""
    held = [item async for item in gateway.words()]
    for at_ns, word in held:
        gateway.send(plan, word, at_ns)


async def collect(gateway: Gateway, plan: Plan) -> None:
    """Twenty chunks are sent at once, so the client sees stalls."""
    held: list[tuple[int, str]] = []
    async for item in gateway.words():
        held.append(item)
        if len(held) == 20:
            for at_ns, word in held:
                gateway.send(plan, word, at_ns)
            held = []


async def stall(gateway: Gateway, plan: Plan) -> None:
    """Short delays and a stall."""
    i = 0
    async for at_ns, word in gateway.words():
        await until(at_ns + plan.rng.uniform(0, 3) * MS)
        await asyncio.sleep(STALL_S * (i in plan.gateway_stalls))
        gateway.send(plan, word, at_ns)
        i += 1


# -- the whole ---------------------------------------------------------------------------------------------------------


@dataclass
class Rig:
    planned: Sequence[Plan]
    forward_traceparent: bool
    outer: RunningTap = field(init=False)
    inner: RunningTap = field(init=False)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The gateway's side of one connection from the outer tap."""
        try:
            while True:
                head, body = await read_request(reader)
                await self._answer(head, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        plan = self.planned[json.loads(body)["number"]]
        await asyncio.sleep(plan.rng.uniform(0, 0.01))
        upstream = await self.inner.client()
        more = [line for line in head.split(b"\r\n") if line.lower().startswith(b"traceparent")]
        await upstream.send(request(INNER, body, *(more if self.forward_traceparent else ())))
        writer.write(SSE_HEAD)
        gateway = Gateway(writer)
        reading = asyncio.create_task(gateway.read(upstream.reader))
        await plan.how(gateway, plan)
        await reading
        writer.write(ENDING)
        upstream.close()

    async def run(self, at_once: int = 20) -> None:
        """All requests, so many at once. With few, callbacks seldom wait for the event loop, which all processes share here."""
        free = asyncio.Semaphore(at_once)

        async def one(plan: Plan) -> None:
            async with free:
                await self.outer.request(
                    request(OUTER, json.dumps({"number": plan.number, "model": "m"}).encode())
                )

        await asyncio.gather(*map(one, self.planned))
        taps = [self.outer] if self.outer is self.inner else [self.outer, self.inner]
        for tap in taps:
            await tap.records(len(self.planned) * 2 // len(taps))

    def records(self) -> list[list[AnyRecord]]:
        """The records of each tap."""
        if self.outer is self.inner:
            return [self.outer.log.records]
        return [self.outer.log.records, self.inner.log.records]


def request(upstream: str, body: bytes, *headers: bytes) -> bytes:
    lines = [
        b"POST /%s/v1/chat/completions HTTP/1.1" % upstream.encode(),
        b"Host: t",
        b"Content-Length: %d" % len(body),
    ]
    return b"\r\n".join([*lines, *headers, b"", body])


@asynccontextmanager
async def gateway_between_taps(
    planned: Sequence[Plan], *, forward_traceparent: bool = True, clock_offset_ns: int | None = None
) -> AsyncIterator[Rig]:
    """`clock_offset_ns`: the inner tap is another one, whose monotonic clock is ahead by this."""
    rig = Rig(planned, forward_traceparent)
    server = await asyncio.start_server(rig.serve, "127.0.0.1", 0)
    gateway = f"{OUTER}=http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    model = f"{INNER}=http://127.0.0.1:{{port}}"
    script = model_server(planned)
    async with AsyncExitStack() as taps:
        if clock_offset_ns is None:
            rig.inner = rig.outer = await taps.enter_async_context(
                running_tap(script, upstreams=[gateway, model])
            )
        else:
            offset_ns = clock_offset_ns
            rig.outer = await taps.enter_async_context(
                running_tap(None, upstreams=[gateway], tap_name="outer")
            )
            rig.inner = await taps.enter_async_context(
                running_tap(
                    script,
                    upstreams=[model],
                    tap_name="inner",
                    clock_ns=lambda: time.monotonic_ns() + offset_ns,
                )
            )
        yield rig
    server.close()


def numbers(records: Sequence[AnyRecord]) -> dict[str, int]:
    """Number of the plan by stream id."""
    return {r.stream: json.loads(r.body)["number"] for r in records if isinstance(r, Request)}


def with_wall_offset(records: Sequence[AnyRecord], offset_ns: int) -> list[AnyRecord]:
    """The records of a tap whose wall clock is ahead by this."""
    return [
        msgspec.structs.replace(r, wall_ns=r.wall_ns + offset_ns) if isinstance(r, Opened) else r
        for r in records
    ]

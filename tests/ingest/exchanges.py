"""Run random exchanges both directly and through the tap. The client must receive the same bytes.

`python -m tests.ingest.exchanges COUNT [SEED]` runs COUNT exchanges and prints a summary. They vary in size, splits, framing
(length, chunked with extensions and trailers, close), content coding, request body, reused connections and faults (truncated
responses and resets). The seed determines everything.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass

import brotli
import uvloop
import zstandard

from streamgauge.ingest.records import Closed, Frames
from streamgauge.ingest.tap.sockets import queued_bytes, reset_on_close
from tests.deadline import DEADLINE_S
from tests.ingest.running_tap import Client, RunningTap, chunk, read_request, running_tap

AT_ONCE = 16
_LIMIT_S = DEADLINE_S


@dataclass
class Plan:
    """One exchange: the pieces of the request and of the response."""

    request: list[bytes]
    method: bytes
    framing: str
    coding: str
    fault: str
    head: bytes
    body: bytes
    """Response body with its framing, truncated by the fault."""
    response: list[bytes]

    @property
    def last(self) -> bool:
        """The upstream closes the connection after this exchange."""
        return self.fault != "none" or b"\r\nConnection: close\r\n" in self.head


def plan(seed: int, number: int) -> Plan:
    """Make the plan of the exchange with this number."""
    rng = random.Random(f"{seed}/{number}")
    coding = rng.choice(["identity", "identity", "gzip", "br", "zstd"])
    framing = rng.choice(["length", "length", "chunked", "chunked", "close"])
    fault = rng.choice(["none"] * 6 + ["truncated", "reset"])
    method = rng.choice([b"GET", b"POST", b"POST", b"HEAD"])
    status = rng.choice(
        [b"200 OK"] * 8 + [b"404 Not Found", b"500 Oops", b"204 No Content", b"304 Not Modified"]
    )
    bodiless = method == b"HEAD" or status[:3] in (b"204", b"304")
    kind = rng.choice([b"text/event-stream", b"application/json", b"image/png"])
    body = b"" if bodiless else _framed(rng, framing, _coded(coding, _payload(rng)))
    head = b"HTTP/1.1 " + status + b"\r\nContent-Type: " + kind + b"\r\nX-Number: %d\r\n" % number
    if coding != "identity":
        head += b"Content-Encoding: " + coding.encode() + b"\r\n"
    if framing == "length" and status[:3] != b"204":
        head += b"Content-Length: %d\r\n" % len(body)
    elif framing == "chunked" and not bodiless:
        head += b"Transfer-Encoding: chunked\r\n"
    elif framing == "close":
        head += b"Connection: close\r\n"
    head += b"\r\n"
    if bodiless:
        framing = "none"
    if bodiless or not body:
        fault = "none"
    if fault != "none" and (framing != "close" or fault == "reset"):
        body = body[: rng.randint(0, len(body) - 1)]
    elif fault == "truncated":
        fault = "none"  # indistinguishable from a regular end
    return Plan(
        _cut(rng, _request(rng, method, number)),
        method,
        framing,
        coding,
        fault,
        head,
        body,
        _cut(rng, head + body),
    )


def _payload(rng: random.Random) -> bytes:
    size = rng.choice([0, 1, 10, 300, 300, 3000, 3000, 20_000, 100_000])
    if rng.random() < 0.3:
        return rng.randbytes(size)
    return b"".join(b'data: {"n": %d}\n\n' % rng.randrange(10**9) for _ in range(size // 20))


def _coded(coding: str, body: bytes) -> bytes:
    if coding == "gzip":
        return gzip.compress(body, 1, mtime=0)
    if coding == "br":
        return bytes(brotli.compress(body, quality=1))
    return zstandard.compress(body, 1) if coding == "zstd" else body


def _framed(rng: random.Random, framing: str, body: bytes) -> bytes:
    if framing != "chunked":
        return body
    pieces: list[bytes] = []
    while body and len(pieces) < 100:
        size = rng.randint(1, max(1, min(len(body), rng.choice([3, 500, 60_000]))))
        piece = chunk(body[:size])
        pieces.append(piece.replace(b"\r\n", b";a=b\r\n", 1) if rng.random() < 0.05 else piece)
        body = body[size:]
    pieces.append(chunk(body) if body else b"")
    return b"".join(pieces) + b"0\r\n" + (b"X-Trailer: 1\r\n" if rng.random() < 0.1 else b"") + b"\r\n"


def _request(rng: random.Random, method: bytes, number: int) -> bytes:
    head = method + b" /%d HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip, br, zstd\r\n" % number
    if method != b"POST":
        return head + b"\r\n"
    body = rng.randbytes(rng.choice([0, 2, 500, 30_000])).replace(b"0\r\n\r\n", b"")
    if rng.random() < 0.5 or not body:
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    at = rng.randint(1, len(body))
    sent = chunk(body[:at]) + (chunk(body[at:]) if body[at:] else b"")
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + sent + b"0\r\n\r\n"


def _cut(rng: random.Random, raw: bytes) -> list[bytes]:
    cuts = sorted(rng.randint(0, len(raw)) for _ in range(rng.choice([0, 0, 1, 2, 5])))
    return [raw[a:b] for a, b in itertools.pairwise([0, *cuts, len(raw)]) if b > a]


class Upstream:
    """A server that responds according to the plans."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        writer.transport.set_write_buffer_limits(high=2**20)
        while True:
            head, _ = await read_request(reader)
            planned = plan(self._seed, int(head.split(b" ", 2)[1].rpartition(b"/")[2]))
            for piece in planned.response:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if planned.fault == "reset":
                sock = writer.get_extra_info("socket")
                while writer.transport.get_write_buffer_size() or queued_bytes(sock):  # noqa: ASYNC110 - no event exists
                    await asyncio.sleep(0.001)
                reset_on_close(sock)
                writer.transport.abort()
                return
            if planned.last:
                return


@dataclass
class Received:
    """The response as the client received it."""

    head: bytes
    body: bytes
    end: str
    """complete (according to its framing), closed or reset."""


async def request(client: Client, planned: Plan) -> Received:
    """Send the request of a plan and read the response until it is complete or the connection ends."""
    for piece in planned.request:
        client.writer.write(piece)
        await asyncio.sleep(0)
    async with asyncio.timeout(_LIMIT_S):
        try:
            head = await client.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return Received(b"", b"", "no response")
        whole = planned.fault == "none" and planned.framing != "close"
        try:
            if whole:
                return Received(head, await client.reader.readexactly(len(planned.body)), "complete")
            return Received(head, *await _read_to_end(client.reader))
        except asyncio.IncompleteReadError as e:
            return Received(head, e.partial, "closed")


async def _read_to_end(reader: asyncio.StreamReader) -> tuple[bytes, str]:
    body = b""
    try:
        while data := await reader.read(2**18):
            body += data
    except ConnectionError:
        return body, "reset"
    return body, "closed"


def comparable(head: bytes) -> list[bytes]:
    """The lines of a head without the Connection field."""
    return [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]


class Pair:
    """A direct connection and one through the tap, reused while both responses allow it."""

    def __init__(self, tap: RunningTap) -> None:
        self._tap = tap
        self._clients: list[Client] = []

    async def compare(self, planned: Plan) -> None:
        """Do one exchange on both connections and compare."""
        if not self._clients:
            for host, port in (("127.0.0.1", self._tap.upstream_port), self._tap.worker.address):
                self._clients.append(Client(*await asyncio.open_connection(host, port, limit=2**20)))
        direct, through = await asyncio.gather(*(request(client, planned) for client in self._clients))
        assert direct.body == planned.body, planned
        assert through.body == direct.body, planned
        assert comparable(through.head) == comparable(direct.head), (through.head, direct.head)
        if planned.framing == "close" or planned.fault == "none":
            # If the body ends with the connection, a reset must not look like a regular end.
            assert through.end == direct.end, planned
        if planned.last:
            self.close()

    def close(self) -> None:
        """Close both connections."""
        for client in self._clients:
            client.reset()
        self._clients = []


async def compare_many(seed: int, count: int) -> Counter[str]:
    """Do `count` exchanges and count their kinds. Raises AssertionError at the first difference."""
    seen: Counter[str] = Counter()
    rng = random.Random(seed)
    async with running_tap(Upstream(seed).serve, queue_bytes=2**28) as tap:

        async def lane(first: int) -> None:
            pair = Pair(tap)
            for number in range(first, count, AT_ONCE):
                planned = plan(seed, number)
                await pair.compare(planned)
                seen.update(
                    (planned.framing, planned.coding, f"fault {planned.fault}", planned.method.decode())
                )
                seen["body bytes"] += len(planned.body)
                if rng.random() < 0.1:
                    pair.close()
            pair.close()

        await asyncio.gather(*(lane(first) for first in range(min(AT_ONCE, count))))
        counters = tap.worker.recording.counters
        await tap.wait_until(lambda: counters.streams_closed == counters.streams_opened)
        assert counters.lost_bytes == counters.lost_records == counters.bad_upstream_excess_bytes == 0
        assert counters.captured_bytes + counters.uncaptured_bytes == counters.body_bytes
        await tap.wait_until(lambda: sum(isinstance(r, Closed) for r in tap.log.records) >= count)
        frames = (r for r in tap.log.records if isinstance(r, Frames))
        recorded = sum(r.uncaptured_bytes + sum(len(body) for _, body in r.frames) for r in frames)
        assert recorded == counters.body_bytes
        seen["relayed"] = counters.streams_relayed
    return seen


def main() -> int:
    count = int(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    batch = 2000  # a new tap for each batch: its log is kept in memory
    total: Counter[str] = Counter()
    started_s = time.monotonic()
    for first in range(0, count, batch):
        total += uvloop.run(compare_many(seed + first, min(batch, count - first)))
        print(f"{first + batch} of {count}", flush=True)
    print(
        f"{count} exchanges, each identical to the direct one, in {time.monotonic() - started_s:.0f} s: {dict(total)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

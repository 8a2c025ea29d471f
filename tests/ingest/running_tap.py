"""A tap on real sockets between a scripted upstream and a raw client, with its log in memory.

The upstream's script is a coroutine for each connection; the client reads and writes bytes. Everything ends with the
`async with`: nothing outlives a test.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from streamgauge.ingest.http1.upstreams import parse_upstreams
from streamgauge.ingest.listening import bind
from streamgauge.ingest.record_log.interface import LogWriter
from streamgauge.ingest.records import AnyRecord, Closed, Frames, Lost, Opened, Request, unpack
from streamgauge.ingest.tap.process.worker import TapWorker
from tests import reached
from tests.deadline import DEADLINE_S
from tests.options import tap_options

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
LIMIT_S = DEADLINE_S


class MemoryLog:
    """A `LogWriter` that keeps records in memory. `broken`: an error to raise, as with a full disk."""

    def __init__(self) -> None:
        self.records: list[AnyRecord] = []
        self.entries = 0
        self.broken: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.failed = 0

    def append(self, payloads: Sequence[bytes]) -> None:
        self.gate.wait()
        if self.broken is not None:
            self.failed += 1
            raise self.broken
        for payload in payloads:
            records, poison = unpack(payload)
            assert not poison
            self.records += records
            self.entries += 1

    def close(self) -> None:
        pass

    def records_of(self, stream: str) -> list[AnyRecord]:
        return [r for r in self.records if getattr(r, "stream", None) == stream]

    @property
    def streams(self) -> list[str]:
        return [r.stream for r in self.records if isinstance(r, Opened)]


def assert_complete(records: Sequence[AnyRecord], *, with_response: bool = True) -> None:
    """One stream's records are numbered from 0 without a gap, start with `Opened` and end with `Closed`."""
    expected = 0
    for record in records:
        assert getattr(record, "seq", None) == expected, records
        expected = (record.last_seq if isinstance(record, Lost) else expected) + 1
    assert isinstance(records[0], Opened)
    assert isinstance(records[-1], Closed)
    assert [r for r in records if isinstance(r, Closed)] == [records[-1]]
    heads = [r for r in records if isinstance(r, Frames) and r.response is not None]
    frames = [r for r in records if isinstance(r, Frames)]
    assert not (frames and with_response) or [id(r) for r in heads] == [id(frames[0])]


def body_of(records: Sequence[AnyRecord]) -> bytes:
    return b"".join(data for r in records if isinstance(r, Frames) for _, data in r.frames)


def request_of(records: Sequence[AnyRecord]) -> Request | None:
    found = [r for r in records if isinstance(r, Request)]
    assert len(found) <= 1
    return found[0] if found else None


class Client:
    """A client connection with raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.readexactly(size)

    async def read_until(self, mark: bytes) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.readuntil(mark)

    async def read_to_end(self) -> bytes:
        """Read until the connection ends. A reset raises ConnectionError."""
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.read()

    async def response(self, *, head_only: bool = False) -> tuple[bytes, bytes]:
        """Read one response: head and raw body, including chunk framing."""
        head = await self.read_until(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if head_only or status < 200 or status in (204, 304):
            return head, b""
        length = re.search(rb"(?im)^content-length: *(\d+)", head)
        if re.search(rb"(?im)^transfer-encoding: *chunked", head):
            body = b""
            while True:
                line = await self.read_until(b"\r\n")
                body += line
                size = int(line.split(b";")[0], 16)
                if size == 0:
                    while (line := await self.read_until(b"\r\n")) != b"\r\n":
                        body += line
                    return head, body + line
                body += await self.read(size + 2)
        if length:
            return head, await self.read(int(length[1]))
        return head, await self.read_to_end()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


@dataclasses.dataclass
class RunningTap:
    """The tap, its log and its peers."""

    worker: TapWorker
    log: MemoryLog
    upstream_port: int
    clients: list[Client]
    upstream_connections: list[asyncio.StreamWriter]
    serving: asyncio.Task[None]

    async def client(self, *, limit: int = 2**16) -> Client:
        client = Client(*await asyncio.open_connection(*self.worker.address, limit=limit))
        self.clients.append(client)
        return client

    async def request(self, raw: bytes, **how: bool) -> tuple[bytes, bytes]:
        """One request on a new connection."""
        client = await self.client()
        await client.send(raw)
        answer = await client.response(**how)
        client.close()
        return answer

    async def stop(self) -> None:
        self.worker.stop()
        async with asyncio.timeout(LIMIT_S):
            await self.serving

    async def records(self, count: int = 1) -> list[list[AnyRecord]]:
        """Wait until the log has `count` closed streams. Returns the records by stream."""
        await self.wait_until(lambda: sum(isinstance(r, Closed) for r in self.log.records) >= count)
        return [self.log.records_of(stream) for stream in self.log.streams]

    def waits_for_client(self) -> bool:
        """A client does not read, so the tap does not read from its upstream."""
        relay = self.worker.context.relay
        blocked = relay is not None and any(relay.progress(number)[3] for number in relay._exchanges)
        return blocked or any(c.write_paused for c in self.worker.context.clients)

    async def wait_for_stuck_client(self) -> None:
        """Wait until the kernel's buffers are full as well, so that the tap goes on waiting for a client."""
        seen: list[bool] = []

        def stuck() -> bool:
            seen.append(self.waits_for_client())
            return len(seen) >= 20 and all(seen[-20:])

        await self.wait_until(stuck)

    async def wait_until(self, met: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not met():  # noqa: ASYNC110 - the condition has no event
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running_tap(
    script: Script | None,
    *,
    host: str = "127.0.0.1",
    upstreams: Sequence[str] = (),
    tls: Any = None,
    clock_ns: Callable[[], int] = time.monotonic_ns,
    **options: Any,
) -> AsyncIterator[RunningTap]:
    """Run a tap in front of an upstream that runs `script` (None: connections are refused). `upstreams` may contain
    `{port}`."""
    log = MemoryLog()
    scripts: set[asyncio.Task[None]] = set()
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        scripts.add(task)
        connections.append(writer)
        try:
            assert script is not None
            await script(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:
            pass
        finally:
            scripts.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, host, 0, ssl=tls, limit=2**20)
    port = server.sockets[0].getsockname()[1]
    if script is None:
        server.close()
        await server.wait_closed()
    scheme = "https" if tls is not None else "http"
    shown = f"[{host}]" if ":" in host else host
    urls = [u.format(port=port) for u in upstreams] or [f"{scheme}://{shown}:{port}"]
    with tempfile.TemporaryDirectory() as data:
        given: dict[str, Any] = {
            "tap_name": "test-tap",
            "drain_timeout_s": 0.0,
            **options,
        }
        open_log: Callable[[], LogWriter] = given.pop("open_log", lambda: log)
        made = tap_options(upstreams=parse_upstreams(urls), data=Path(data), **given)
        worker = TapWorker(made, client_key=b"k" * 32, open_log=open_log, clock_ns=clock_ns)
        await worker.start(bind(f"{shown}:0", shared=False))
        tap = RunningTap(worker, log, port, [], connections, asyncio.create_task(worker.serve()))
        try:
            yield tap
        finally:
            log.gate.set()
            log.broken = None
            for client in tap.clients:
                client.reset()
            await tap.stop()
            closed = (record for record in log.records if isinstance(record, Closed))
            reached.note(reached.waits(who for record in closed for _, _, who in record.waits or ()))
            for task in list(scripts):
                task.cancel()
            server.close()
            for writer in connections:
                writer.transport.abort()


def respond_with(*responses: bytes) -> Script:
    """An upstream that reads each request and sends the next of `responses`."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for response in responses:
            await read_request(reader)
            writer.write(response)
            await writer.drain()
        await reader.read()

    return script


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read a request: head and raw body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?im)^content-length: *(\d+)", head)
    if length:
        return head, await reader.readexactly(int(length[1]))
    body = b""
    if re.search(rb"(?im)^transfer-encoding: *chunked", head):
        while not body.endswith(b"0\r\n\r\n"):
            body += await reader.readuntil(b"\r\n")
    return head, body


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)

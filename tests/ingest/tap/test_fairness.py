"""A stream at full speed does not starve other streams."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

from streamgauge.ingest.records import Lost
from tests.ingest.running_tap import (
    END,
    SSE_HEAD,
    RunningTap,
    assert_complete,
    body_of,
    chunk,
    read_request,
    running_tap,
)

BODY_BYTES = 24 * 2**20
MAX_ITERATION_BYTES = 2**19
"""Two full reads: one `asyncio.sleep(0)` may span parts of two loop iterations."""
REQUEST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n"


def receive(sock: socket.socket, max_bytes: int) -> bytes:
    """One recv. Raises ConnectionError at the end of the connection: a thread must not wait forever."""
    if data := sock.recv(max_bytes):
        return data
    raise ConnectionError


def read(sock: socket.socket, until: bytes, size_bytes: int) -> None:
    """Read a head and `size_bytes` after it."""
    got = b""
    while until not in got:
        got += receive(sock, 4096)
    remaining = size_bytes - len(got.partition(until)[2])
    while remaining > 0:
        remaining -= len(receive(sock, 2**20))


def exchange(
    listener: socket.socket, to: tuple[str, int], request_bytes: int, response_bytes: int
) -> threading.Thread:
    """Both ends of an exchange in their own threads, always ready to send and receive."""

    def upstream() -> None:
        with listener.accept()[0] as sock:
            read(sock, b"\r\n\r\n", request_bytes)
            sock.sendall(ANSWER % response_bytes + bytes(response_bytes))

    def client() -> None:
        serving = threading.Thread(target=upstream)
        serving.start()
        with socket.create_connection(to) as sock:
            sending = threading.Thread(
                target=sock.sendall, args=(REQUEST % request_bytes + bytes(request_bytes),)
            )
            sending.start()
            read(sock, b"\r\n\r\n", response_bytes)
            sending.join()
            serving.join()

    thread = threading.Thread(target=client)
    thread.start()
    return thread


async def max_iteration_bytes(*, request_bytes: int, response_bytes: int) -> int:
    """The most bytes of one exchange that the tap forwarded in one loop iteration."""

    def forwarded_bytes(tap: RunningTap) -> int:
        return sum(e.request_bytes + e.response_bytes for e in tap.worker.context.exchanges)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with running_tap(None, upstreams=[f"http://127.0.0.1:{listener.getsockname()[1]}"]) as tap:
            thread = exchange(listener, tap.worker.address, request_bytes, response_bytes)
            steps: list[int] = []
            while thread.is_alive():
                before = forwarded_bytes(tap)
                time.sleep(0.02)  # noqa: ASYNC251 - blocks the loop so that the kernel's buffers fill up
                await asyncio.sleep(0)
                steps.append(forwarded_bytes(tap) - before)
            assert tap.worker.recording.counters.streams_opened == 1
            return max(steps)


async def test_large_response_is_limited_per_loop_iteration():
    assert 0 < await max_iteration_bytes(request_bytes=1, response_bytes=BODY_BYTES) <= MAX_ITERATION_BYTES


async def test_large_upload_is_limited_per_loop_iteration():
    assert 0 < await max_iteration_bytes(request_bytes=BODY_BYTES, response_bytes=1) <= MAX_ITERATION_BYTES


async def test_a_response_faster_than_the_log_leaves_room_for_the_records_of_other_streams():
    """The log is stalled. The fast response fills its share of the queue; the others were open before, and go on after it."""
    size_bytes, parts, streams = 8 * 2**20, 24, 10
    part = chunk(b"data: {}\n\n" * 300)
    go_on = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        writer.write(SSE_HEAD)
        if b"/fast " in head:
            for _ in range(size_bytes // 16_384):
                writer.write(chunk(b"f" * 16_384))
                await writer.drain()
        else:
            for number in range(parts):
                if number == 3:
                    await go_on.wait()
                writer.write(part)
                await asyncio.sleep(0.001)  # several reads, so that the relay gets the body
        writer.write(END)

    async with running_tap(serve, queue_bytes=4 * 2**20) as tap:
        tap.log.gate.clear()
        others = [await tap.client() for _ in range(streams)]
        for client in others:
            await client.send(b"GET /other HTTP/1.1\r\nHost: a\r\n\r\n")
        for client in others:
            await client.read_until(b"\r\n\r\n")
            assert await client.read(3 * len(part)) == 3 * part
        assert len((await tap.request(b"GET /fast HTTP/1.1\r\nHost: a\r\n\r\n"))[1]) > size_bytes
        await tap.wait_until(lambda: tap.worker.recording.counters.streams_closed == 1)
        go_on.set()
        for client in others:
            assert await client.read((parts - 3) * len(part)) == (parts - 3) * part
            await client.read_until(END)
        await tap.wait_until(lambda: tap.worker.recording.counters.streams_closed == 1 + streams)
        tap.log.gate.set()
        records = await tap.records(1 + streams)
    lossy = [any(isinstance(r, Lost) for r in stream) for stream in records]
    fast = [len(body_of(stream)) > size_bytes / 16 for stream in records]
    assert lossy == fast, "only the fast stream loses frames"
    assert lossy.count(True) == 1
    for stream in records:
        assert_complete(stream)

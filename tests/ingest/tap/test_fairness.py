"""A stream that comes as fast as it is taken leaves every other stream its turn."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

from tests.ingest.running_tap import RunningTap, running_tap

BODY_BYTES = 24 * 2**20
MOST_A_TURN_BYTES = 2**19
"""Two reads of the loop's buffer: what a turn of `asyncio.sleep` sees may end in the middle of one of the loop's."""
REQUEST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n"


def some(sock: socket.socket, most_bytes: int) -> bytes:
    """What there is. Raises ConnectionError at the end of the connection, so that no thread waits on."""
    if data := sock.recv(most_bytes):
        return data
    raise ConnectionError


def read(sock: socket.socket, until: bytes, size_bytes: int) -> None:
    """A head, and so many bytes after it."""
    got = b""
    while until not in got:
        got += some(sock, 4096)
    left = size_bytes - len(got.partition(until)[2])
    while left > 0:
        left -= len(some(sock, 2**20))


def exchange(
    listener: socket.socket, to: tuple[str, int], request_bytes: int, response_bytes: int
) -> threading.Thread:
    """Both ends of an exchange in threads of their own, ready whenever the tap is."""

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


async def most_in_a_turn(*, request_bytes: int, response_bytes: int) -> int:
    """The most bytes that the tap took of one exchange in a turn of its loop, while both ends had more to give and take."""

    def taken(tap: RunningTap) -> int:
        return sum(e.request_bytes + e.response_bytes for e in tap.worker.context.exchanges)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with running_tap(None, upstreams=[f"http://127.0.0.1:{listener.getsockname()[1]}"]) as tap:
            thread = exchange(listener, tap.worker.address, request_bytes, response_bytes)
            steps: list[int] = []
            while thread.is_alive():
                before = taken(tap)
                time.sleep(0.02)  # noqa: ASYNC251 - the loop stands still: the kernel's buffers fill up behind it
                await asyncio.sleep(0)
                steps.append(taken(tap) - before)
            assert tap.worker.counters.streams_opened == 1
            return max(steps)


async def test_a_fat_response_takes_no_more_than_its_turn():
    assert 0 < await most_in_a_turn(request_bytes=1, response_bytes=BODY_BYTES) <= MOST_A_TURN_BYTES


async def test_a_fat_upload_takes_no_more_than_its_turn():
    assert 0 < await most_in_a_turn(request_bytes=BODY_BYTES, response_bytes=1) <= MOST_A_TURN_BYTES

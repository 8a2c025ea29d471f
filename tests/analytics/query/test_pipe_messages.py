"""Messages between processes over a real pipe."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from streamgauge.analytics.query import pipe_messages
from tests.deadline import DEADLINE_S


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


def test_messages_arrive_in_order_with_their_bodies(pipe: tuple[int, int]) -> None:
    pipe_messages.send(pipe[1], {"a": 1}, b"xyz")
    pipe_messages.send(pipe[1], {"é": "ü"})
    os.close(pipe[1])
    assert pipe_messages.receive(pipe[0], 3) == ({"a": 1}, b"xyz")
    assert pipe_messages.receive(pipe[0]) == ({"é": "ü"}, b"")
    assert pipe_messages.receive(pipe[0]) is None


@pytest.mark.parametrize(
    "sent",
    [
        b"\0\0",
        pipe_messages.encode({"a": 1})[:-1],
        pipe_messages.encode({"a": 1}, 5) + b"1234",
        pipe_messages.encode({}, 6) + b"123456",
        pipe_messages.LENGTHS.pack(2**31, 0),
        pipe_messages.LENGTHS.pack(1, 0) + b"{",
        pipe_messages.LENGTHS.pack(2, 0) + b"[]",
    ],
)
def test_incomplete_oversized_or_malformed_messages_are_errors(pipe: tuple[int, int], sent: bytes) -> None:
    os.write(pipe[1], sent)
    os.close(pipe[1])
    with pytest.raises(pipe_messages.BrokenMessage):
        pipe_messages.receive(pipe[0], 5)


def test_sending_to_a_process_that_does_not_read_stops(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    started_s = time.monotonic()
    assert not pipe_messages.send_while_read(pipe[1], {"sql": "x" * 200_000}, 0.2)
    assert 0.15 < time.monotonic() - started_s < DEADLINE_S


def test_sending_to_a_process_that_reads_slowly_goes_on(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    parts: list[bytes] = []

    def read() -> None:
        while sum(map(len, parts)) < 500_000:
            time.sleep(0.1)
            parts.append(os.read(pipe[0], 50_000))

    reader = threading.Thread(target=read)
    reader.start()
    assert pipe_messages.send_while_read(pipe[1], {}, 0.7, bytes(500_000))
    reader.join()

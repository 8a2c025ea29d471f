"""Frames between processes, over a real pipe."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from analytics.query import frames


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


def test_frames_arrive_in_order_with_their_bodies(pipe: tuple[int, int]) -> None:
    frames.send(pipe[1], {"a": 1}, b"xyz")
    frames.send(pipe[1], {"é": "ü"})
    os.close(pipe[1])
    assert frames.receive(pipe[0], 3) == ({"a": 1}, b"xyz")
    assert frames.receive(pipe[0]) == ({"é": "ü"}, b"")
    assert frames.receive(pipe[0]) is None


@pytest.mark.parametrize(
    "sent",
    [
        b"\0\0",
        frames.encode({"a": 1})[:-1],
        frames.encode({"a": 1}, 5) + b"1234",
        frames.encode({}, 6) + b"123456",
        frames.LENGTHS.pack(2**31, 0),
        frames.LENGTHS.pack(1, 0) + b"{",
        frames.LENGTHS.pack(2, 0) + b"[]",
    ],
)
def test_incomplete_oversized_or_malformed_frames_are_errors(pipe: tuple[int, int], sent: bytes) -> None:
    os.write(pipe[1], sent)
    os.close(pipe[1])
    with pytest.raises(frames.BrokenFrame):
        frames.receive(pipe[0], 5)


def test_a_reader_that_does_not_read_holds_the_sender_until_its_deadline_only(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    started_s = time.monotonic()
    assert not frames.send_before(pipe[1], {"sql": "x" * 200_000}, started_s + 0.2)
    assert 0.15 < time.monotonic() - started_s < 2

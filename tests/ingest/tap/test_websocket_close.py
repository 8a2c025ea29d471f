"""The Close frame of a WebSocket is found wherever reads cut the frames."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from streamgauge.ingest.http1.websocket_close import MAX_FRAMES, CloseFrameFinder

SIZES = (0, 1, 125, 126, 8, 65_535, 65_536)
OTHERS = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT, Opcode.PING, Opcode.PONG)


def frames(sizes: list[int], *, mask: bool) -> bytes:
    """Data frames full of the byte that begins a Close frame. Control frames stay within their limit of 125 bytes."""
    made = []
    for number, size in enumerate(sizes):
        opcode = OTHERS[number % len(OTHERS)]
        size = min(size, 125) if opcode >= Opcode.PING else size
        made.append(Frame(opcode, b"\x88" * size).serialize(mask=mask))
    return b"".join(made)


@given(
    sizes=st.lists(st.sampled_from(SIZES), max_size=8),
    cuts=st.lists(st.integers(0, 140_000)),
    mask=st.booleans(),
)
def test_close_frame_is_found_after_any_frames_and_never_before(
    sizes: list[int], cuts: list[int], mask: bool
):
    data = frames(sizes, mask=mask)
    finder = CloseFrameFinder()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in itertools.pairwise(edges):
        finder.feed(data[start:end])
    assert not finder.found
    finder.feed(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=mask))
    assert finder.found


@pytest.mark.parametrize("mask", [True, False])
def test_frames_are_found_byte_by_byte(mask: bool):
    finder = CloseFrameFinder()
    data = frames([5, 126, 0, 65_536], mask=mask)
    for byte in data:
        finder.feed(bytes([byte]))
    assert not finder.found
    finder.feed(Frame(Opcode.CLOSE, b"").serialize(mask=mask)[:1])
    assert finder.found


@given(st.lists(st.binary(max_size=40)))
def test_arbitrary_bytes_raise_nothing(pieces: list[bytes]):
    finder = CloseFrameFinder()
    for piece in pieces:
        finder.feed(piece)


def test_search_ends_at_a_read_with_too_many_frames():
    finder = CloseFrameFinder()
    finder.feed(b"\x82\x00" * MAX_FRAMES)
    assert not finder.gave_up
    finder.feed(b"\x82\x00" * (MAX_FRAMES + 1))
    assert finder.gave_up
    finder.feed(Frame(Opcode.CLOSE, b"").serialize(mask=False))
    assert not finder.found

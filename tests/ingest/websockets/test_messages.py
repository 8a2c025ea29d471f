"""Messages of one direction: fragments, compression, limits, invalid frames, and the state for a restart."""

from __future__ import annotations

import random
import zlib

import pytest
from wsproto.frame_protocol import FrameProtocol

from streamgauge.ingest.websockets import messages
from streamgauge.ingest.websockets.messages import Compression, MessageDecoder, negotiated
from tests.analytics.sockets import Framer
from tests.ingest.websockets.fuzz import one_connection, run

DEFLATE = "permessage-deflate"


def decoder(*, compressed: bool = False, from_client: bool = False, **more: bool) -> MessageDecoder:
    return MessageDecoder(
        from_client=from_client, compression=Compression(True, True) if compressed else None, **more
    )


def frame(payload: bytes, first: int = 0x81) -> bytes:
    assert len(payload) < 126
    return bytes([first, len(payload)]) + payload


def test_time_of_a_message_is_that_of_its_last_byte_and_its_first_byte_is_known():
    read = decoder()
    assert read.feed(5, frame(b"ab", 0x01)[:3]) == []
    assert read.feed(7, b"b" + frame(b"", 0x89)) == []
    (message,) = read.feed(9, frame(b"c", 0x80) + frame(b"d")[:1])
    assert message == (9, 5, b"abc", 3)
    assert [m.began_ns for m in read.feed(11, frame(b"d")[1:])] == [9]
    read.feed(20, frame(b"", 0x89))
    assert [m.began_ns for m in read.feed(30, frame(b"e"))] == [30]


@pytest.mark.parametrize(
    "data",
    [
        frame(b"a", 0x80),  # nothing to continue
        frame(b"a", 0x01) + frame(b"b", 0x81),  # not continued
        frame(b"a", 0xC1),  # compressed, but that was not agreed
        frame(b"a", 0x83),  # no such opcode
        b"\x81\x81aaaaa",  # a server does not mask
        b"\x81\x7e\x00\x01a",  # a length that is too long
    ],
)
def test_invalid_frame_ends_the_decoding(data: bytes):
    read = decoder()
    assert read.feed(0, data + frame(b"x")) == []
    assert read.fault == "invalid_frames"
    assert read.feed(1, frame(b"x")) == []


def test_message_above_the_limit_ends_the_decoding(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 1000)
    read = decoder()
    read.feed(0, b"".join(frame(b"a" * 100, 0x01 if not i else 0x00) for i in range(11)))
    assert read.fault == "too_large"
    bomb = decoder(compressed=True)
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = deflate.compress(b"a" * 20_000) + deflate.flush(zlib.Z_SYNC_FLUSH)
    assert bomb.feed(0, frame(data[:-4], 0xC1)) == []
    assert bomb.fault == "too_large"


def test_final_block_begins_a_new_window():
    read = decoder(compressed=True)
    for text in (b"hello hello", b"hello again"):
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        data = deflate.compress(text) + deflate.flush(zlib.Z_FINISH) + b"\x00"
        assert [m.payload for m in read.feed(0, frame(data, 0xC1))] == [text]


def test_decoder_continues_from_its_state_at_any_byte():
    rng = random.Random(1)
    framer = Framer("server", DEFLATE, rng)
    words = [rng.randbytes(8).hex().encode() for _ in range(300)]
    payloads = [
        b'{"n": %d, "text": "%s"}' % (n, b" ".join(rng.choices(words, k=rng.randrange(2000))))
        for n in range(40)
    ]
    data = b"".join(part for payload in payloads for part in framer.frames(payload))
    read = decoder(compressed=True, storable=True)
    found: list[bytes] = []
    while data:
        size = rng.choice([1, 100, 1000])
        found += [m.payload for m in read.feed(0, data[:size])]
        data = data[size:]
        if rng.random() < 0.5:
            compression = Compression(True, True)
            read = MessageDecoder(from_client=False, compression=compression, storable=True, state=read.state)
    assert found == payloads


def test_nothing_is_decoded_after_a_close_frame():
    read = decoder()
    assert (
        read.feed(0, frame(b"a") + FrameProtocol(client=False, extensions=[]).close(1000) + frame(b"b"))[
            0
        ].payload
        == b"a"
    )
    assert read.closed
    assert read.feed(0, frame(b"b")) == []


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("permessage-deflate", (True, True)),
        ("x-other, Permessage-Deflate; client_no_context_takeover; server_max_window_bits=10", (False, True)),
        ("x-webkit-deflate-frame", None),
    ],
)
def test_negotiated_compression(value: str, found: tuple[bool, bool] | None):
    assert negotiated([("server", "s"), ("sec-websocket-extensions", value)]) == found


def test_damaged_connections_never_raise():
    found = {one_connection(random.Random(seed)) for seed in range(60)}
    assert "undecodable" in found
    assert len(found) >= 4


@pytest.mark.slow
def test_fuzz_for_ten_minutes():
    assert run(600, random.randrange(2**32)).total() > 10_000

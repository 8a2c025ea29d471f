"""Content codings are undone read by read; invalid bodies and decompression bombs end the decoding."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable

import brotli
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.ingest.content_coding import BodyDecoder

BODY = b"".join(b'data: {"choices":[{"delta":{"content":"token %d"}}]}\n\n' % n for n in range(500))


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


CODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    " Deflate ": raw_deflate,
    "br": brotli.compress,
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
    "identity": lambda data: data,
    "": lambda data: data,
    "gzip, br": lambda data: brotli.compress(gzip.compress(data)),
    "br,zstd": lambda data: zstandard.ZstdCompressor().compress(brotli.compress(data)),
}


def decode(coding: str, pieces: Iterable[bytes], **options: int) -> tuple[bytes, BodyDecoder]:
    decoder = BodyDecoder(coding, **options)
    return b"".join(map(decoder.feed, pieces)), decoder


def cut(data: bytes, step: int) -> list[bytes]:
    return [data[at : at + step] for at in range(0, len(data), step)]


@pytest.mark.parametrize("coding", CODERS)
@pytest.mark.parametrize("step", [1, 3, 1000, 10**6])
def test_body_is_decoded_however_it_is_split(coding: str, step: int) -> None:
    found, decoder = decode(coding, cut(CODERS[coding](BODY), step))
    assert found == BODY
    assert not decoder.broken
    assert not decoder.unfinished


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_flushed_pieces_are_decoded_at_once(coding: str) -> None:
    pieces: list[bytes] = []
    events = cut(BODY, 100)[:20]
    if coding == "br":
        brotli_compressor = brotli.Compressor()
        pieces = [brotli_compressor.process(event) + brotli_compressor.flush() for event in events]
    elif coding == "zstd":
        zstd = zstandard.ZstdCompressor().compressobj()
        pieces = [zstd.compress(event) + zstd.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for event in events]
    else:
        z = zlib.compressobj(wbits=31 if coding == "gzip" else 15)
        pieces = [z.compress(event) + z.flush(zlib.Z_SYNC_FLUSH) for event in events]
    decoder = BodyDecoder(coding)
    assert [decoder.feed(piece) for piece in pieces] == events
    assert decoder.unfinished


def test_several_gzip_members_are_one_body() -> None:
    data = gzip.compress(b"data: a\n\n") + gzip.compress(b"data: b\n\n")
    for step in (1, 1000):
        assert decode("gzip", cut(data, step))[0] == b"data: a\n\ndata: b\n\n"


def test_several_zstd_frames_are_one_body() -> None:
    compress = zstandard.ZstdCompressor().compress
    data = compress(b"data: a\n\n") + compress(b"data: b\n\n")
    for step in (1, 7, 1000):
        assert decode("zstd", cut(data, step))[0] == b"data: a\n\ndata: b\n\n"


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_plain_body_with_a_coding_header_is_not_decoded(coding: str) -> None:
    found, decoder = decode(coding, cut(BODY, 10))
    assert found == BODY
    assert not decoder.broken


@pytest.mark.parametrize(
    ("coding", "keep"),
    [("gzip", 10), ("deflate", 2), ("br", 0), ("zstd", 4)],
    ids=["gzip", "deflate", "br", "zstd"],
)
def test_invalid_bytes_set_broken(coding: str, keep: int) -> None:
    good = zlib.compress(BODY) if coding == "deflate" else CODERS[coding](BODY)
    _, decoder = decode(coding, cut(good[:keep] + b"\xff" * 400, 50))
    assert decoder.broken
    assert decoder.feed(b"more") == b""


def test_wrong_checksum_is_broken() -> None:
    found, decoder = decode("gzip", [gzip.compress(BODY)[:-8] + b"\0" * 8])
    assert decoder.broken
    assert found in (b"", BODY)


def test_truncated_body_is_decoded_and_marked_unfinished() -> None:
    found, decoder = decode("gzip", cut(gzip.compress(BODY)[:-300], 100))
    assert BODY.startswith(found)
    assert found
    assert decoder.unfinished
    assert not decoder.broken


def test_unsupported_coding_is_broken() -> None:
    found, decoder = decode("compress", [b"abc"])
    assert (found, decoder.broken) == (b"", True)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_decompression_bomb_is_stopped_near_the_limit(coding: str) -> None:
    zeros = b"\0" * 40_000_000
    bomb = brotli.compress(zeros, quality=1) if coding == "br" else CODERS[coding](zeros)
    made = 0
    decoder = BodyDecoder(coding, free_bytes=10**6, max_ratio=2)
    for piece in cut(bomb, 4096):
        made += len(decoder.feed(piece))
        if decoder.bomb:
            break
    assert decoder.bomb
    assert made < 25_000_000
    assert decoder.feed(bomb) == b""


@settings(max_examples=150)
@given(
    coding=st.sampled_from(["gzip", "deflate", "br", "zstd", "gzip, br", "x", "identity"]),
    pieces=st.lists(st.binary(max_size=60), max_size=10),
)
def test_any_bytes_never_raise(coding: str, pieces: list[bytes]) -> None:
    decode(coding, pieces)

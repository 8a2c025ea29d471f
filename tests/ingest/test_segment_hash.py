"""The hash of segments: equal in both builds and for all divisions into parts, different for other bytes and keys."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgauge.ingest.segment_hash import SegmentHash, hash_keys, siphash


def digest(*parts: bytes, key: bytes = b"k" * 32) -> bytes:
    one = SegmentHash(hash_keys(key))
    for part in parts:
        one.feed(b"<" + part + b">", 1, len(part) + 1)
    assert one.size == sum(map(len, parts))
    return one.digest()


def test_siphash_is_that_of_the_reference() -> None:
    """The vector for 16 bytes of the reference implementation (`vectors_sip64`)."""
    first, second = struct.unpack("<2Q", bytes(range(16)))
    assert siphash(first, second, first, second).to_bytes(8, "little").hex() == "db9bc2577fcc2a3f"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "218ae1bfd2db2f92"),
        (b"a", "c05e4ba584136f6b"),
        (bytes(range(256)) * 5 + b"end", "3c9d298c1dc5ad4d"),
    ],
)
def test_both_builds_have_the_same_hash(data: bytes, expected: str) -> None:
    assert digest(data).hex() == expected


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_hash_does_not_depend_on_the_parts(parts: list[bytes]) -> None:
    assert digest(*parts) == digest(b"".join(parts))


def test_other_bytes_have_another_hash() -> None:
    rng = random.Random(1)
    data = rng.randbytes(100)
    others = [data[:n] for n in range(100)] + [data + b"\0" * n for n in range(1, 20)]
    others += [data[:n] + bytes([data[n] ^ 1 << bit]) + data[n + 1 :] for n in range(100) for bit in range(8)]
    others += [b"\0" * n for n in range(50)]
    assert (
        len({digest(other) for other in [data, *others]}) == len(others) + 1 - 1
    )  # the empty one occurs twice
    assert digest(data, key=b"j" * 32) != digest(data)


def test_a_copy_goes_on_from_the_same_bytes() -> None:
    one, other = (SegmentHash(hash_keys(b"k")) for _ in range(2))
    one.feed(b"abcdefghijk", 0, 11)
    other.set_to(one)
    for each in (one, other):
        each.feed(b"lm", 0, 2)
    assert one.digest() == other.digest()

"""Decoding of the lenient JSON that servers send."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgauge.analytics.dialects.tolerant_json import (
    compact,
    decode_or_none,
    join_halves,
    json_or_none,
    repair,
    text_of,
)


class Chunk(msgspec.Struct):
    text: str | None = None
    index: int | None = None


DECODER = msgspec.json.Decoder(Chunk)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"text": "a"}', "a"),
        (b'\xef\xbb\xbf{"text": "a"}', "a"),
        (b'{"text": "a", "logprob": -Infinity, "p": NaN}', "a"),
        (b'{"text": "a", "p": [1e400, -1e400]}', "a"),
        (b'{"text": "a", "index": -1' + b"0" * 5000 + b"}", "a"),
        (b'{"text": "a\xff"}', "a\ufffd"),
        (b'{"text": "a\\ud83d"}', "a\U0010f83d"),
        (b'{"text": "\\ude00a \\ud83d\\ud83d"}', "\U0010fe00a ?\U0010f83d"),
        (b'{"text": "\\ud83d\\ude00"}', "\U0001f600"),
        (b'{"text": null}', None),
    ],
)
def test_lenient_json_is_decoded(data: bytes, text: str | None) -> None:
    chunk = decode_or_none(DECODER, data)
    assert chunk is not None
    assert chunk.text == text


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("a", ("a", "")),
        ("", ("", "")),
        ("a\U0010f83d", ("a", "\U0010f83d")),
        ("\U0010f83d\U0010fe00b", ("\U0001f600b", "")),
        ("\U0010f83d\U0010fe00\U0010f83d", ("\U0001f600", "\U0010f83d")),
        ("\U0010fe00a\U0010f83da", ("?a?a", "")),
    ],
)
def test_halves_of_characters_are_joined(text: str, joined: tuple[str, str]) -> None:
    assert join_halves(text) == joined


def test_number_sent_as_a_string_is_accepted() -> None:
    assert decode_or_none(DECODER, b'{"index": "3"}') == Chunk(index=3)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"text": {}}', b'{"text": "a"} x', b"[" * 100_000, b"\x00"]
)
def test_other_shapes_are_none(data: bytes) -> None:
    assert decode_or_none(DECODER, data) is None


@given(st.binary(max_size=80))
def test_any_bytes_never_raise(data: bytes) -> None:
    decode_or_none(DECODER, data)
    json_or_none(data)
    text_of(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8")),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
        max_leaves=10,
    )
)
def test_repair_keeps_valid_json_unchanged(value: Any) -> None:
    data = json.dumps(value).encode()
    repaired = repair(data)
    assert repaired is not None
    assert msgspec.json.decode(repaired) == value == json_or_none(data)


def test_text_and_compact() -> None:
    assert text_of(b"a" * 10_000, limit=5) == "aaaaa"
    assert compact({"a": [1, None]}) == '{"a":[1,null]}'
    assert compact(msgspec.Raw(b'{"a" : 1}')) == '{"a" : 1}'

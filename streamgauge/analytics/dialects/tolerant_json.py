"""Typed JSON decoding that repairs common faults of servers. Never raises on bad data.

The fast path is one msgspec call into a Struct with only the fields that are read. If it fails, the data is repaired and
decoded once more: invalid UTF-8 and lone surrogates are replaced, NaN, infinities and numbers beyond the range of a double become null, and
numbers sent as strings (or the reverse) are accepted. Data that still fails is malformed.

A server may divide a text between the two surrogates of a character. A first half at the end of a string and a second half
at the start of one are kept as code points for private use, which every encoder accepts, until `join_halves` joins them.

Numbers are accepted as servers write them: 12, 12.0, "12". Anything that is not a number is None, never 0.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of msgspec for bad bytes, a wrong shape, or excessive nesting."""

HALF = "\U0010f800"
"""The first code point that stands for a surrogate: U+D800 in the last 2,048 code points for private use."""
_SHIFT = ord(HALF) - 0xD800
_MAX_DIGITS = 309
"""Digits of a number beyond the range of a double."""
_CUT = re.compile('[\ud800-\udbff](?=")|(?<=")[\udc00-\udfff]')
_HALVES = re.compile("[\U0010f800-\U0010fbff][\U0010fc00-\U0010ffff]|[\U0010f800-\U0010ffff]")


def decode_or_none(decoder: msgspec.json.Decoder[T], data: bytes) -> T | None:
    """Decode `data` as the decoder's type; None when it is not JSON of that shape."""
    try:
        return decoder.decode(data)
    except FAULTS:
        repaired = repair(data)
    if repaired is None:
        return None
    try:
        # Lenient only for repaired data: the common event is decoded by a strict decoder that is built once.
        return msgspec.json.Decoder(decoder.type, strict=False).decode(repaired)
    except FAULTS:
        return None


def json_or_none(data: bytes) -> Any:
    """Decode any JSON value; None for `null` and for data that is not JSON."""
    try:
        return msgspec.json.decode(data)
    except FAULTS:
        repaired = repair(data)
        return None if repaired is None else msgspec.json.decode(repaired)


def repair(data: bytes) -> bytes | None:
    """Rewrite lenient JSON as strict JSON; None when it is not JSON at all."""
    try:
        value = json.loads(
            data.decode("utf-8-sig", "replace"),
            parse_constant=lambda _: None,
            parse_float=lambda text: finite_number(float(text)),
            parse_int=lambda text: int(text) if len(text) < _MAX_DIGITS else None,
        )
        marked = _CUT.sub(lambda half: chr(ord(half[0]) + _SHIFT), json.dumps(value, ensure_ascii=False))
        text = marked.encode("utf-8", "replace")
        msgspec.json.decode(text)
    except (ValueError, RecursionError, msgspec.DecodeError):
        return None
    return text


def is_whole(text: str) -> bool:
    """Whether a text has no half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def join_halves(text: str) -> tuple[str, str]:
    """(the text with its halves joined or replaced, the first half of a character at its end)."""
    half = text[-1:] if HALF <= text[-1:] < "\U0010fc00" else ""
    return _HALVES.sub(_character, text[: len(text) - len(half)]), half


def _character(halves: re.Match[str]) -> str:
    if len(halves[0]) == 1:
        return "?"
    first, second = (ord(half) - _SHIFT for half in halves[0])
    return chr(0x10000 + (first - 0xD800) * 0x400 + second - 0xDC00)


def text_of(data: bytes, limit: int = 4096) -> str:
    """Bytes as text, cut to `limit` characters."""
    return data[: limit * 4].decode("utf-8", "replace")[:limit]


def string_of(value: Any) -> str:
    """The value if it is a string, else ""."""
    return value if isinstance(value, str) else ""


def member_of(value: Any, *path: str) -> Any:
    """A member of a JSON object, or of an object in it; None if a value on the path is of another type."""
    for member in path:
        value = value.get(member) if isinstance(value, dict) else None
    return value


def compact(value: Any) -> str:
    """A JSON value as compact text."""
    if isinstance(value, msgspec.Raw):
        return bytes(value).decode("utf-8", "replace")
    return msgspec.json.encode(value).decode()


def arguments_of(value: Any) -> str:
    """The arguments of a tool call as text; servers send them as text, as JSON, or not at all."""
    if isinstance(value, str):
        return value
    return "" if value is None else compact(value)


def whole_number(value: Any) -> int | None:
    """A count such as tokens: whole and not negative."""
    if type(value) is int:
        return value if 0 <= value < 2**53 else None
    if isinstance(value, float):
        return int(value) if value.is_integer() and 0 <= value < 2**53 else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    return None


def finite_number(value: Any) -> float | None:
    """A finite number, also when sent as a string ("0.35"; "350ms" is None)."""
    if isinstance(value, str) and len(value) <= 40:
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -1e300 < value < 1e300 else None

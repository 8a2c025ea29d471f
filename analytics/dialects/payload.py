"""Typed JSON decoding that survives what servers really send. Pure; never raises on bad data.

The fast path is one msgspec call into a Struct that holds only the fields read. What it refuses is tried once more, slowly:
bytes that are not UTF-8 and lone surrogates are replaced, NaN and infinities become null (Python servers print them), and
a number given as a string (or the reverse) is taken. Only what is still unreadable then is malformed.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises on bad bytes, a wrong shape, or nesting without end."""


def decode_or_none(decoder: msgspec.json.Decoder[T], data: bytes) -> T | None:
    """`data` as the decoder's type, or None when it is no JSON of that shape."""
    try:
        return decoder.decode(data)
    except FAULTS:
        return _second_try(decoder, data)


def json_or_none(data: bytes) -> Any:
    """Any JSON value; None when it is none (and for `null`, of which nobody can tell anything either)."""
    try:
        return msgspec.json.decode(data)
    except FAULTS:
        repaired = repair(data)
        return None if repaired is None else msgspec.json.decode(repaired)


def repair(data: bytes) -> bytes | None:
    """The same JSON in strict form, or None when it is not JSON even with goodwill."""
    try:
        value = json.loads(data.decode("utf-8-sig", "replace"), parse_constant=lambda _: None)
        text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        msgspec.json.decode(text)
    except (ValueError, RecursionError, msgspec.DecodeError):
        return None
    return text


def text_of(data: bytes, limit: int = 4096) -> str:
    """Bytes as text for a message, cut to `limit` characters."""
    return data[: limit * 4].decode("utf-8", "replace")[:limit]


def compact(value: Any) -> str:
    """A JSON value as compact text (for arguments that came as an object, and for `raw` columns)."""
    if isinstance(value, msgspec.Raw):
        return bytes(value).decode("utf-8", "replace")
    return msgspec.json.encode(value).decode()


def arguments_of(value: Any) -> str:
    """The text of a tool call's arguments, which came as text, as JSON or not at all."""
    if isinstance(value, str):
        return value
    return "" if value is None else compact(value)


def _second_try(decoder: msgspec.json.Decoder[T], data: bytes) -> T | None:
    repaired = repair(data)
    if repaired is None:
        return None
    try:
        return msgspec.json.Decoder(decoder.type, strict=False).decode(repaired)
    except FAULTS:
        return None

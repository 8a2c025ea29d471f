"""Typed JSON decoding that repairs common faults of servers. Never raises on bad data.

The fast path is one msgspec call into a Struct with only the fields that are read. If it fails, the data is repaired and
decoded once more: invalid UTF-8 and lone surrogates are replaced, NaN and infinities become null, and numbers sent as
strings (or the reverse) are accepted. Data that still fails is malformed.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of msgspec for bad bytes, a wrong shape, or excessive nesting."""


def decode_or_none(decoder: msgspec.json.Decoder[T], data: bytes) -> T | None:
    """Decode `data` as the decoder's type; None when it is not JSON of that shape."""
    try:
        return decoder.decode(data)
    except FAULTS:
        repaired = repair(data)
    if repaired is None:
        return None
    try:
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
        value = json.loads(data.decode("utf-8-sig", "replace"), parse_constant=lambda _: None)
        text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        msgspec.json.decode(text)
    except (ValueError, RecursionError, msgspec.DecodeError):
        return None
    return text


def text_of(data: bytes, limit: int = 4096) -> str:
    """Bytes as text, cut to `limit` characters."""
    return data[: limit * 4].decode("utf-8", "replace")[:limit]


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

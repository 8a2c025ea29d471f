"""Bodies of OTLP/HTTP requests as protobuf messages, and what the parsers of all signals return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from streamgauge.ingest import identifiers

AHEAD_NS = 3600 * 10**9
"""Maximum lead of a sender's clock: retention would never delete a row that is further ahead."""
_FAULTS = (DecodeError, json_format.Error, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Exceptions of the parsers for a body of another shape."""

Row = tuple[Any, ...]
"""A row of the signal's table, in the order of its columns."""
M = TypeVar("M", bound=Message)


class NotOtlp(Exception):
    """The body is not a message of the signal. The message is one line and does not quote the body."""


@dataclass(slots=True)
class Received:
    """The items of one request."""

    rows: list[Row] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    """Rejected items by reason."""
    ignored: int = 0
    """Items without a table: they are accepted, and not stored."""


def parse(body: bytes, kind: type[M], *, is_json: bool) -> M:
    """An uncompressed body. Raises NotOtlp."""
    message: M = kind()
    try:
        if is_json:
            if body.lstrip()[:1] != b"{":
                raise ValueError
            json_format.Parse(body, message, ignore_unknown_fields=True, max_recursion_depth=50)
        else:
            message.ParseFromString(body)
    except _FAULTS:
        raise NotOtlp(f"not an {kind.__name__} in {'JSON' if is_json else 'protobuf'}") from None
    return message


def service(attributes: Sequence[KeyValue]) -> str:
    """The name of the service of a resource."""
    for attribute in attributes:
        if attribute.key == "service.name":
            return identifiers.title(attribute.value.string_value) or "unknown_service"
    return "unknown_service"


def scalar(value: AnyValue) -> str | int | float | bool | None:
    """A text, number or boolean. None for others."""
    kind = value.WhichOneof("value")
    return (
        getattr(value, kind) if kind in ("string_value", "int_value", "double_value", "bool_value") else None
    )

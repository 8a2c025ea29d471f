"""Reports of servers in a response: token usage, errors, and server statistics."""

from __future__ import annotations

from typing import Any

import msgspec


class Usage(msgspec.Struct, gc=False):
    """One usage report, normalised. None = not reported."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_input_tokens: int | None = None
    raw: Any = None
    """The object as reported."""


FAILED_FINISHES = frozenset({"error", "abort", "network_error", "insufficient_system_resource"})
"""Finish reasons that mean failure, in lower case, of all dialects."""


def finish_failed(reason: str | None) -> bool:
    """Whether the model server gave up: the stream is an in-band error of this type."""
    return reason is not None and reason.lower() in FAILED_FINISHES


class ErrorReport(msgspec.Struct, gc=False):
    """An error inside the stream or in an error response."""

    type: str | None
    """The provider's type, else its code."""
    message: str | None = None
    raw: Any = None
    """The error object as sent."""


class ServerStat(msgspec.Struct, gc=False):
    """One statistic that the server reports about its processing."""

    source: str
    name: str
    value: float | None
    """In `unit`."""
    unit: str
    """ns, tok/s, tokens or 1."""
    raw: str

"""Read the answers of OpenAI's client over WebSocket, and audio for its Realtime API."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

ENDS = {"response.completed", "response.incomplete", "response.failed", "response.done", "error"}
LOUD, QUIET = (b64encode(sample * 800).decode() for sample in (b"\x10", b"\xff"))
"""100 ms of G.711."""


def read(connection: Any, ends: set[str] | None = None) -> list[Any]:
    """The events up to the end of an answer."""
    found = []
    while not found or found[-1].type not in (ends or ENDS):
        found.append(connection.parse_event(connection.recv_bytes()))
    return found

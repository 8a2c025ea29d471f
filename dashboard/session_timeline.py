"""The requests and pauses of one session as bars, one row per turn. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

MODEL, TOOL, USER = "model", "tool", "user"


@dataclass(frozen=True)
class Bar:
    """A request or a pause. Times are ns from the start of the session."""

    turn: int
    kind: str
    start_ns: int
    end_ns: int
    request: Mapping[str, Any]
    """The request, or the one after the pause."""


def bars(requests: Sequence[Mapping[str, Any]], *, with_user_waits: bool) -> list[Bar]:
    """The bars of rows of `session_turns`, in order. Without user waits, the time stands still while the user is waited for.

    A request without a known turn is in that of the request before it, or in the next one after a user's pause.
    """
    found: list[Bar] = []
    turn, left_out_ns = 1, 0
    for row in requests:
        waited = row["pause"] == USER
        turn = row["turn"] or turn + (waited and bool(found))
        pause_ns = row["pause_ns"] or 0
        start_ns = _ns(row["started_at"] - requests[0]["started_at"])
        if waited and not with_user_waits:
            left_out_ns += pause_ns
        elif pause_ns:
            kind = USER if waited else TOOL
            found.append(Bar(turn, kind, start_ns - pause_ns - left_out_ns, start_ns - left_out_ns, row))
        start_ns -= left_out_ns
        found.append(Bar(turn, MODEL, start_ns, start_ns + (row["end_ns"] or 0), row))
    return found


def _ns(length: timedelta) -> int:
    return (length.days * 86_400 + length.seconds) * 10**9 + length.microseconds * 1000

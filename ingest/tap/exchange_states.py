"""The states of an exchange and the transitions between them.

Integers instead of an enum: mypyc compiles them to constants, and the check needs no hash of an enum member.
"""

from __future__ import annotations

from typing import Final

CONNECTING: Final = 0
"""No upstream connection yet. The request's body is buffered."""
AWAITING_RESPONSE: Final = 1
"""The request's head has been sent. Informational responses (1xx) do not leave this state."""
RESPONDING: Final = 2
"""The final response head has been forwarded."""
TUNNELING: Final = 3
"""The upstream answered 101: both directions are opaque bytes."""
ENDED: Final = 4
"""The cause is recorded and the upstream connection released."""

TRANSITIONS: Final[tuple[tuple[int, ...], ...]] = (
    (AWAITING_RESPONSE, ENDED),  # CONNECTING
    (CONNECTING, RESPONDING, TUNNELING, ENDED),  # AWAITING_RESPONSE; CONNECTING: a retry on a new connection
    (ENDED,),  # RESPONDING
    (ENDED,),  # TUNNELING
    (),  # ENDED
)
_NAMES = ("connecting", "awaiting response", "responding", "tunneling", "ended")


class IllegalTransition(Exception):
    """A state change that `TRANSITIONS` does not allow: a bug of the tap."""

    def __init__(self, old: int, new: int) -> None:
        super().__init__(f"exchange cannot go from {_NAMES[old]!r} to {_NAMES[new]!r}")

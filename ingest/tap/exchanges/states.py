"""The states of an exchange, the transitions between them, and its effects on the client connection.

Integers instead of an enum, because the check runs several times for each request.
"""

from __future__ import annotations

from typing import Final

CONNECTING: Final = 0  # no upstream connection yet; the request's body is buffered
WAITING: Final = 1  # the request's head has been sent; informational responses (1xx) do not leave this state
RESPONDING: Final = 2  # the final response head has been forwarded
TUNNELING: Final = 3  # the upstream answered 101: both directions are opaque bytes
ENDED: Final = 4  # the cause is recorded and the upstream connection released

TRANSITIONS: Final[tuple[tuple[int, ...], ...]] = (
    (WAITING, ENDED),  # CONNECTING
    (CONNECTING, RESPONDING, TUNNELING, ENDED),  # WAITING; to CONNECTING for a retry on a new connection
    (ENDED,),  # RESPONDING
    (ENDED,),  # TUNNELING
    (),  # ENDED
)
_NAMES = ("connecting", "waiting", "responding", "tunneling", "ended")


# The client connection after an exchange
KEEP_OPEN: Final = 0
CLOSE: Final = 1
LINGER: Final = 2  # close, but read on for a while: the client is still sending
RESET: Final = 3  # a FIN would make a body that was cut short look complete
ABORT: Final = 4


class IllegalTransition(Exception):
    """A transition that is not in `TRANSITIONS`: a bug of the tap."""


def transition(old: int, new: int) -> int:
    """`new`, if it may follow `old`. Raises `IllegalTransition`."""
    if new not in TRANSITIONS[old]:
        raise IllegalTransition(f"exchange cannot go from {_NAMES[old]!r} to {_NAMES[new]!r}")
    return new

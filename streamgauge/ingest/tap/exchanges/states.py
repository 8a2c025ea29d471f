"""The states of an exchange, two coupled tables for its request and its response, and those of a client connection.

Each table has a cell for each event: the next state or a named outcome. `Exchange` and `ClientSide` look up every event that changes
a state or ends it. The code that reports an event decides which one it is, for example whether a lost request is retried.
Integers instead of an enum: the tables are used several times for each request.
"""

from __future__ import annotations

from typing import Final, get_args

from streamgauge.ingest.records import Cause

Cell = int | str

# --- states of the request, from the client to the upstream

# RECEIVING: the client still has to send a part of the body
# RECEIVED: whole
# SWITCHED: the client's direction of a tunnel
RECEIVING, RECEIVED, SWITCHED, REQUEST_OVER = range(4)

# --- states of the response, from the upstream to the client

# CONNECTING: no upstream connection yet; the request's body is buffered
# WAITING: the request's head has been sent; informational responses (1xx) do not leave this state
# RESPONDING: the final response head has been forwarded; the event loop forwards the body
# RELAYED: the relay owns both sockets and forwards the body
# TUNNELING: the upstream answered 101: both directions are opaque bytes
# DRAINING: over, and the upstream connection is released; the client's kernel does not have everything
# OVER: the last record is made
CONNECTING, WAITING, RESPONDING, RELAYED, TUNNELING, DRAINING, OVER = range(7)

REQUEST_STATES: Final = ("receiving", "received", "switched", "over")
RESPONSE_STATES: Final = ("connecting", "waiting", "responding", "relayed", "tunneling", "draining", "over")

# --- events

# CLIENT_END: the client ended its direction (FIN)
# REFUSED: the request's body is not acceptable
# UPSTREAM_END: the upstream ended its direction (FIN)
# HEAD: the final response head
# SWITCH: a 101
# LAST_BYTE: of the response's body
# MALFORMED: the response is not HTTP
# RETRIED: a safe request that an idle connection has lost
# HANDED_OVER: to the relay
# TAKEN_BACK: from the relay
# EXPIRED: a time limit
# OUTPUT_EXPIRED: the one for output: heartbeats do not count
# STOPPED: the tap's drain time is over
# DRAINED: the client's kernel has everything, or its delivery is no longer observed
(
    CLIENT_END, CLIENT_LOST, REQUEST_COMPLETE, REFUSED, CONNECTED, CONNECT_FAILED, UPSTREAM_END,
    UPSTREAM_LOST, HEAD, SWITCH, LAST_BYTE, MALFORMED, RETRIED, HANDED_OVER, TAKEN_BACK, EXPIRED,
    OUTPUT_EXPIRED, STOPPED, DRAINED,
) = range(19)  # fmt: skip

EVENTS: Final = (
    "client end", "client lost", "request complete", "refused", "connected", "connect failed", "upstream end", "upstream lost",
    "head", "switch", "last byte", "malformed", "retried", "handed over", "taken back", "expired", "output expired", "stopped",
    "drained",
)  # fmt: skip

# --- outcomes. All others are causes: the exchange ends with them and is `DRAINING`.

HALF_CLOSED: Final = "half closed"  # the other direction goes on
IGNORED: Final = "ignored"
IMPOSSIBLE: Final = "impossible"
_CAUSES: Final[dict[Cell, Cause]] = {cause: cause for cause in get_args(Cause)}

Table = tuple[tuple[Cell, ...], ...]


def _row(_events: tuple[str, ...] = EVENTS, /, **cells: Cell) -> tuple[Cell, ...]:
    """The cells of one state. Events that are not named do not affect it or cannot happen in it."""
    rest = cells.pop("rest", IMPOSSIBLE)
    named = {name.replace("_", " "): cell for name, cell in cells.items()}
    assert named.keys() <= set(_events)
    return tuple(named.get(event, rest) for event in _events)


# What ends every exchange that is not over.
_CLIENT_ENDS: Final[dict[str, Cell]] = {
    "client_end": "client_left", "client_lost": "client_left", "stopped": "tap_stopped",
}  # fmt: skip
_UPSTREAM_ENDS: Final[dict[str, Cell]] = {
    "upstream_end": "upstream_reset", "upstream_lost": "upstream_reset", "malformed": "bad_upstream", "refused": "bad_request",
    "expired": "idle_bytes",
}  # fmt: skip

REQUEST: Final[Table] = (
    # The upstream may respond, and the exchange end, before the request is complete.
    _row(request_complete=RECEIVED, switch=SWITCHED, drained=REQUEST_OVER, retried=IMPOSSIBLE, handed_over=IMPOSSIBLE,
         taken_back=IMPOSSIBLE, rest=IGNORED),
    _row(switch=SWITCHED, drained=REQUEST_OVER, request_complete=IMPOSSIBLE, refused=IMPOSSIBLE, rest=IGNORED),
    _row(drained=REQUEST_OVER, rest=IGNORED),
    _row(rest=IGNORED),
)  # fmt: skip

RESPONSE: Final[Table] = (
    _row(**_CLIENT_ENDS, request_complete=IGNORED, refused="bad_request", connected=WAITING, connect_failed="connect_error",
         expired="connect_timeout"),
    # The connection also fails if the tap raises an exception while it sends the request.
    _row(**_CLIENT_ENDS, **{**_UPSTREAM_ENDS, "expired": "headers_timeout"}, request_complete=IGNORED,
         connect_failed="connect_error", head=RESPONDING, switch=TUNNELING, retried=CONNECTING),
    _row(**_CLIENT_ENDS, **_UPSTREAM_ENDS, request_complete=IGNORED, last_byte="complete", handed_over=RELAYED,
         output_expired="idle_output"),
    # The relay reports the upstream's end after it has given the sockets back.
    _row(**_CLIENT_ENDS, upstream_end="upstream_reset", upstream_lost="upstream_reset", taken_back=RESPONDING,
         expired="idle_bytes", output_expired="idle_output"),
    # Each direction ends by itself. `Tunnel.cause` determines which side failed.
    _row(**{**_CLIENT_ENDS, "client_end": HALF_CLOSED}, upstream_end=HALF_CLOSED, upstream_lost="upstream_reset", expired=IGNORED),
    _row(drained=OVER, rest=IGNORED),
    _row(rest=IGNORED),
)  # fmt: skip

DEADLINES: Final[tuple[tuple[str, ...], ...]] = (
    ("connect_timeout_s",), ("headers_timeout_s",), ("idle_timeout_s", "idle_output_timeout_s"),
    ("idle_timeout_s", "idle_output_timeout_s"),
    # Silence in a tunnel is normal. The kernel resets connections whose peer acknowledges nothing.
    ("peer_timeout_s",), ("peer_timeout_s",), (),
)  # fmt: skip
"""Options with the limits of each state of the response. The request's is `body_timeout_s` while it is received."""

# --- a client connection: states

# IDLE: no byte of a next request
# EXCHANGING: bytes of next requests are kept
# LINGERING: everything is written; what the client still sends is dropped
# DELIVERING: to be closed once the client's kernel has the last response, or its delivery is no longer observed
# RESETTING: to be reset once the client's kernel has the last response
IDLE, HEAD_PART, EXCHANGING, LINGERING, DELIVERING, RESETTING, CLOSED = range(7)

CLIENT_STATES: Final = ("idle", "head", "exchange", "lingering", "delivering", "resetting", "closed")

# --- its events. The first five are requested by the end of an exchange, an error response, a limit or a stop.

# LINGER: close, but read on for a while: the client is still sending
# RESET: a FIN would make a body that was cut short look complete
# BYTES: an incomplete head is in the buffer
# DELIVERED: or the delivery is no longer observed
KEEP_OPEN, CLOSE, LINGER, RESET, ABORT, BYTES, REQUEST_HEAD, DELIVERED, LOST = range(9)

CLIENT_EVENTS: Final = ("keep open", "close", "linger", "reset", "abort", "bytes", "request head", "delivered", "lost")  # fmt: skip

_BETWEEN: Final[dict[str, Cell]] = {
    "close": DELIVERING, "linger": LINGERING, "bytes": HEAD_PART, "request_head": EXCHANGING, "lost": CLOSED,
}  # fmt: skip

CLIENT: Final[Table] = (
    _row(CLIENT_EVENTS, **_BETWEEN),
    _row(CLIENT_EVENTS, **_BETWEEN),
    _row(CLIENT_EVENTS, keep_open=IDLE, close=DELIVERING, linger=LINGERING, reset=RESETTING, abort=CLOSED, lost=CLOSED),
    _row(CLIENT_EVENTS, close=DELIVERING, abort=CLOSED, lost=CLOSED),
    _row(CLIENT_EVENTS, abort=CLOSED, delivered=CLOSED, lost=CLOSED),
    _row(CLIENT_EVENTS, abort=CLOSED, lost=CLOSED),
    _row(CLIENT_EVENTS, rest=IGNORED),
)  # fmt: skip


class IllegalTransition(Exception):
    """An event that is impossible in this state: a bug of the tap."""


_NAMES: Final = (
    ("request", REQUEST, REQUEST_STATES, EVENTS),
    ("response", RESPONSE, RESPONSE_STATES, EVENTS),
    ("client connection", CLIENT, CLIENT_STATES, CLIENT_EVENTS),
)


def _illegal(table: Table, state: int, event: int) -> IllegalTransition:
    of, names, events = next((of, names, events) for of, rows, names, events in _NAMES if rows is table)
    return IllegalTransition(f"{events[event]!r} is impossible while the {of} is {names[state]!r}")


def after(table: Table, state: int, event: int) -> Cell:
    """The cell for an event. Raises `IllegalTransition`."""
    cell = table[state][event]
    if cell is IMPOSSIBLE:
        raise _illegal(table, state, event)
    return cell


def cause_of_end(response: int, event: int) -> Cause | None:
    """The cause with which an event ends an exchange whose response is in this state. None: it does not."""
    return _CAUSES.get(after(RESPONSE, response, event))

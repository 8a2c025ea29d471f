"""The states of an exchange: two coupled tables, one for its request and one for its response.

Both tables have a cell for each event: the next state or a named outcome. `Exchange` looks up every event that changes a state
or ends it; which event it is, for example whether a lost request is retried, is decided where it is reported.
Integers instead of an enum: the tables are used several times for each request.
"""

from __future__ import annotations

from typing import Final, cast, get_args

from streamgauge.ingest.records import Cause

Cell = int | str

# --- states of the request, from the client to the upstream

RECEIVING: Final = 0  # the client still has to send a part of the body
RECEIVED: Final = 1  # whole
SWITCHED: Final = 2  # the client's direction of a tunnel
REQUEST_OVER: Final = 3

# --- states of the response, from the upstream to the client

CONNECTING: Final = 0  # no upstream connection yet; the request's body is buffered
WAITING: Final = 1  # the request's head has been sent; informational responses (1xx) do not leave this state
RESPONDING: Final = 2  # the final response head has been forwarded; the event loop forwards the body
RELAYED: Final = 3  # the relay owns both sockets and forwards the body
TUNNELING: Final = 4  # the upstream answered 101: both directions are opaque bytes
# over, and the upstream connection is released; the client's kernel does not have everything
DRAINING: Final = 5
OVER: Final = 6  # the last record is made

REQUEST_STATES: Final = ("receiving", "received", "switched", "over")
RESPONSE_STATES: Final = (
    "connecting",
    "waiting",
    "responding",
    "relayed",
    "tunneling",
    "draining",
    "over",
)

# --- events

CLIENT_BYTES: Final = 0
CLIENT_END: Final = 1  # the client ended its direction (FIN)
CLIENT_LOST: Final = 2
REQUEST_COMPLETE: Final = 3
REFUSED: Final = 4  # the request's body is not acceptable
CONNECTED: Final = 5
CONNECT_FAILED: Final = 6
UPSTREAM_BYTES: Final = 7
UPSTREAM_END: Final = 8  # the upstream ended its direction (FIN)
UPSTREAM_LOST: Final = 9
HEAD: Final = 10  # the final response head
SWITCH: Final = 11  # a 101
LAST_BYTE: Final = 12  # of the response's body
MALFORMED: Final = 13  # the response is not HTTP
RETRIED: Final = 14  # a safe request that an idle connection has lost
HANDED_OVER: Final = 15  # to the relay
TAKEN_BACK: Final = 16  # from the relay
EXPIRED: Final = 17  # a time limit
OUTPUT_EXPIRED: Final = 18  # the one for output: heartbeats do not count
STOPPED: Final = 19  # the tap's drain time is over
DRAINED: Final = 20  # the client's kernel has everything, or its delivery is no longer observed

EVENTS: Final = (
    "client bytes", "client end", "client lost", "request complete", "refused", "connected", "connect failed", "upstream bytes",
    "upstream end", "upstream lost", "head", "switch", "last byte", "malformed", "retried", "handed over", "taken back", "expired",
    "output expired", "stopped", "drained",
)  # fmt: skip

# --- outcomes. All others are causes: the exchange ends with them and is `DRAINING`.

FORWARDED: Final = "forwarded"
KEPT: Final = "kept"  # until the upstream is connected, or for the next request on the connection
HALF_CLOSED: Final = "half closed"  # the other direction goes on
IGNORED: Final = "ignored"
IMPOSSIBLE: Final = "impossible"
_CAUSES: Final[frozenset[Cell]] = frozenset(get_args(Cause))

Table = tuple[tuple[Cell, ...], ...]


def _row(**cells: Cell) -> tuple[Cell, ...]:
    """The cells of one state. Events that are not named do not affect it or cannot happen in it."""
    rest = cells.pop("rest", IMPOSSIBLE)
    named = {name.replace("_", " "): cell for name, cell in cells.items()}
    assert named.keys() <= set(EVENTS)
    return tuple(named.get(event, rest) for event in EVENTS)


# What ends every exchange that is not over.
_CLIENT_ENDS: Final = {"client_end": "client_left", "client_lost": "client_left", "stopped": "tap_stopped"}
_UPSTREAM_ENDS: Final = {
    "upstream_end": "upstream_reset", "upstream_lost": "upstream_reset", "malformed": "bad_upstream", "refused": "bad_request",
    "expired": "idle_bytes",
}  # fmt: skip

REQUEST: Final[Table] = (
    # The upstream may respond, and the exchange end, before the request is complete.
    _row(client_bytes=FORWARDED, request_complete=RECEIVED, switch=SWITCHED, drained=REQUEST_OVER, refused="bad_request",
         retried=IMPOSSIBLE, handed_over=IMPOSSIBLE, taken_back=IMPOSSIBLE, rest=IGNORED),
    _row(client_bytes=KEPT, switch=SWITCHED, drained=REQUEST_OVER, request_complete=IMPOSSIBLE, refused=IMPOSSIBLE, rest=IGNORED),
    _row(client_bytes=FORWARDED, client_end=HALF_CLOSED, drained=REQUEST_OVER, rest=IGNORED),
    _row(rest=IGNORED),
)  # fmt: skip

RESPONSE: Final[Table] = (
    _row(**_CLIENT_ENDS, client_bytes=KEPT, request_complete=IGNORED, refused="bad_request", connected=WAITING,
         connect_failed="connect_error", expired="connect_timeout"),
    # The connection also fails if the tap raises an exception while it sends the request.
    _row(**_CLIENT_ENDS, **{**_UPSTREAM_ENDS, "expired": "headers_timeout"}, client_bytes=FORWARDED, request_complete=IGNORED,
         connect_failed="connect_error", upstream_bytes=KEPT, head=RESPONDING, switch=TUNNELING, retried=CONNECTING),
    _row(**_CLIENT_ENDS, **_UPSTREAM_ENDS, client_bytes=FORWARDED, request_complete=IGNORED, upstream_bytes=FORWARDED,
         last_byte="complete", handed_over=RELAYED, output_expired="idle_output"),
    # The relay reports the upstream's end after it has given the sockets back. Bytes: the last ones of a broken connection.
    _row(**_CLIENT_ENDS, client_bytes=KEPT, upstream_bytes=FORWARDED, upstream_end="upstream_reset", upstream_lost="upstream_reset",
         taken_back=RESPONDING, expired="idle_bytes", output_expired="idle_output"),
    # Each direction ends by itself. Which side failed is for `Tunnel.cause` to say.
    _row(**{**_CLIENT_ENDS, "client_end": HALF_CLOSED}, client_bytes=FORWARDED, upstream_bytes=FORWARDED, upstream_end=HALF_CLOSED,
         upstream_lost="upstream_reset", expired=IGNORED),
    _row(drained=OVER, rest=IGNORED),
    _row(rest=IGNORED),
)  # fmt: skip

DEADLINES: Final[tuple[tuple[str, ...], ...]] = (
    ("connect_timeout_s",),
    ("headers_timeout_s",),
    ("idle_timeout_s", "idle_output_timeout_s"),
    ("idle_timeout_s", "idle_output_timeout_s"),
    # The kernel breaks connections whose peer acknowledges nothing: silence in a tunnel is normal.
    ("peer_timeout_s",),
    ("peer_timeout_s",),
    (),
)
"""Options with the limits of each state of the response. The request's is `body_timeout_s` while it is received."""

# --- the client connection after an exchange

KEEP_OPEN: Final = 0
CLOSE: Final = 1
LINGER: Final = 2  # close, but read on for a while: the client is still sending
RESET: Final = 3  # a FIN would make a body that was cut short look complete
ABORT: Final = 4


class IllegalTransition(Exception):
    """An event that is impossible in this state: a bug of the tap."""


def after(table: Table, state: int, event: int) -> Cell:
    """The cell for an event. Raises `IllegalTransition`."""
    cell = table[state][event]
    if cell is IMPOSSIBLE:
        names = REQUEST_STATES if table is REQUEST else RESPONSE_STATES
        raise IllegalTransition(
            f"{EVENTS[event]!r} is impossible while the {'request' if table is REQUEST else 'response'} is {names[state]!r}"
        )
    return cell


def cause_of_end(response: int, event: int) -> Cause | None:
    """The cause with which an event ends an exchange whose response is in this state. None: it does not."""
    cell = after(RESPONSE, response, event)
    return cast(Cause, cell) if cell in _CAUSES else None

"""The tables of an exchange, and that the exchange does in each pair of states what they say about each event."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest

import streamgauge.ingest.tap
from streamgauge.ingest.records import Cause
from streamgauge.ingest.tap.connections.upstream_connection import UpstreamConnection
from streamgauge.ingest.tap.exchanges import states
from streamgauge.ingest.tap.exchanges.states import (
    CONNECTING,
    DRAINING,
    EVENTS,
    HALF_CLOSED,
    IGNORED,
    IMPOSSIBLE,
    OVER,
    RECEIVED,
    RECEIVING,
    RELAYED,
    REQUEST,
    REQUEST_OVER,
    REQUEST_STATES,
    RESPONDING,
    RESPONSE,
    RESPONSE_STATES,
    SWITCHED,
    TUNNELING,
    WAITING,
    IllegalTransition,
    after,
)
from streamgauge.ingest.tap.options import TapOptions
from streamgauge.ingest.tap.relay import body_relay
from tests import reached
from tests.ingest.tap.memory_tap import MemoryTap, MemoryTransport

Pair = tuple[int, int]
"""States of the request and of the response."""
TABLES = [
    (REQUEST, REQUEST_STATES, EVENTS),
    (RESPONSE, RESPONSE_STATES, EVENTS),
    (states.CLIENT, states.CLIENT_STATES, states.CLIENT_EVENTS),
]
ENDS = set(get_args(Cause))
OUTCOMES = {HALF_CLOSED, IGNORED, IMPOSSIBLE}


# --- the tables


@pytest.mark.parametrize(("table", "names", "events"), TABLES, ids=["request", "response", "client"])
def test_each_state_and_event_has_a_transition_or_a_named_outcome(
    table: states.Table, names: Sequence[str], events: Sequence[str]
):
    assert len(table) == len(names)
    for row in table:
        assert len(row) == len(events)
        for cell in row:
            assert cell in OUTCOMES | ENDS if isinstance(cell, str) else 0 <= cell < len(names)


@pytest.mark.parametrize(("table", "names", "events"), TABLES, ids=["request", "response", "client"])
def test_impossible_events_raise_with_the_names_of_state_and_event(
    table: states.Table, names: Sequence[str], events: Sequence[str]
):
    impossible = [(s, e) for s, row in enumerate(table) for e, cell in enumerate(row) if cell is IMPOSSIBLE]
    assert impossible
    for state, event in impossible:
        with pytest.raises(
            IllegalTransition, match=f"'{events[event]}' is impossible .* is '{names[state]}'"
        ):
            after(table, state, event)


@pytest.mark.parametrize(("table", "names", "events"), TABLES, ids=["request", "response", "client"])
def test_only_the_last_state_is_final_and_every_state_leads_to_it(
    table: states.Table, names: Sequence[str], events: Sequence[str]
):
    following = [
        # A cause leads to DRAINING.
        {cell if isinstance(cell, int) else DRAINING for cell in row if isinstance(cell, int) or cell in ENDS}
        if table is RESPONSE
        else {cell for cell in row if isinstance(cell, int)}
        for row in table
    ]
    last = len(table) - 1
    assert [state for state, found in enumerate(following) if not found - {state}] == [last]
    assert set(table[last]) == {IGNORED}
    leading = {last}
    for _ in table:
        leading |= {state for state, found in enumerate(following) if found & leading}
    assert leading == set(range(len(table)))


def test_every_state_of_the_response_but_the_last_has_a_deadline():
    options = {option.name for option in dataclasses.fields(TapOptions)}
    assert len(states.DEADLINES) == len(RESPONSE)
    assert all(states.DEADLINES[:OVER])
    assert not states.DEADLINES[OVER]
    assert options.issuperset(name for names in states.DEADLINES for name in names)


# --- the exchange obeys them

UPGRADE = b"Host: h\r\nConnection: Upgrade\r\nUpgrade: other\r\n"
GET = b"GET / HTTP/1.1\r\n%b\r\n" % UPGRADE
POST = b"POST / HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n" % UPGRADE
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n"
CHUNK = b"8\r\ndata: x\n\r\n"
HEARTBEAT = b"4\r\n: x\n\r\n"
LAST = b"0\r\n\r\n"


def follow(pair: Pair, events: Sequence[int]) -> tuple[Pair, str | None]:
    """The states that the tables name after `events`, and the cause if they end the exchange."""
    request, response = pair
    for event in events:
        cells = after(REQUEST, request, event), after(RESPONSE, response, event)
        causes = {cell for cell in cells if cell in ENDS}
        if causes:
            [cause] = causes
            return (request, DRAINING), str(cause)
        request = cells[0] if isinstance(cells[0], int) else request
        response = cells[1] if isinstance(cells[1], int) else response
    return (request, response), None


def possible(pair: Pair, event: int) -> bool:
    return REQUEST[pair[0]][event] is not IMPOSSIBLE and RESPONSE[pair[1]][event] is not IMPOSSIBLE


def reachable() -> list[Pair]:
    found = [(RECEIVING, CONNECTING), (RECEIVED, CONNECTING)]
    for pair in found:
        for event in range(len(EVENTS)):
            if possible(pair, event):
                following, _ = follow(pair, [event])
                if following not in found:
                    found.append(following)
    return sorted(found)


PAIRS = reachable()


def name(pair: Pair) -> str:
    return f"{REQUEST_STATES[pair[0]]}-{RESPONSE_STATES[pair[1]]}"


def reach(pair: Pair, *, relay: bool = False, reused: bool = False, **options: Any) -> MemoryTap:
    """A tap whose exchange is in these states. `reused`: on a connection that has served another exchange."""
    request, response = pair
    tap = MemoryTap(relay=relay or response == RELAYED, **options)
    if reused:
        tap.request(GET)
        tap.connect()
        tap.upstream.receive(b"HTTP/1.1 204 No Content\r\n\r\n")
        tap.loop.run()
    tap.client.stuck = response == DRAINING
    tap.request(POST if request == RECEIVING else GET)
    if response == CONNECTING:
        return tap
    if not reused:
        tap.connect()
    if response == TUNNELING or request == SWITCHED:
        tap.upstream.receive(SWITCH)
        if response >= DRAINING:
            tap.client.receive_end()
            tap.upstream.receive_end()
    elif response != WAITING:
        tap.upstream.receive(HEAD)
        if response == RELAYED:
            tap.upstream.receive(CHUNK)
            tap.loop.run()
        elif response >= DRAINING:
            tap.upstream.receive(LAST)
    if response >= DRAINING:
        tap.loop.run()
    return tap


@pytest.mark.parametrize("pair", PAIRS, ids=name)
async def test_each_pair_of_states_is_reached_and_printed(pair: Pair):
    tap = reach(pair)
    assert tap.states == pair
    tap.check()
    assert f"request {REQUEST_STATES[pair[0]]} " in repr(tap.exchange)
    assert f"response {RESPONSE_STATES[pair[1]]} " in repr(tap.exchange)


Fire = Callable[[MemoryTap], None]
EventsIn = Callable[[Pair], Sequence[int] | None]
"""The events of the tables that a stimulus is in these states. None: it does not exist there."""


@dataclass
class Stimulus:
    """What a peer, the clock, the relay or the worker does."""

    name: str
    fire: Fire
    events: EventsIn
    sent: bytes = b""
    """Bytes that a peer sends."""
    sender: str = ""
    """Who sends them."""
    tap: dict[str, Any] = field(default_factory=dict)
    """Of `reach`."""


def client_sends(what: str, data: bytes, in_body: Sequence[int]) -> Stimulus:
    """`in_body`: the events while the request's body is received. Elsewhere the bytes have no meaning for the exchange."""

    def fire(tap: MemoryTap) -> None:
        if tap.client.reading:  # else the kernel keeps it
            tap.client.receive(data)

    def events(pair: Pair) -> Sequence[int]:
        return in_body if pair[0] == RECEIVING and pair[1] < DRAINING else []

    return Stimulus(f"client sends {what}", fire, events, data, "client")


def upstream_sends(what: str, data: bytes, waiting: Sequence[int], responding: Sequence[int]) -> Stimulus:
    """The events of bytes before the response's head, and of the same bytes within the body."""

    def fire(tap: MemoryTap) -> None:
        if tap.exchange.response == RELAYED:
            tap.relay.forward(data)
        elif tap.upstream.reading:
            tap.upstream.receive(data)

    def events(pair: Pair) -> Sequence[int] | None:
        if pair[1] == CONNECTING:
            return None
        if pair[1] == RELAYED:
            # The relay reads, and gives the body back before its end is an event.
            return [states.TAKEN_BACK, *responding] if responding else []
        return {WAITING: waiting, RESPONDING: responding}.get(pair[1], [])

    return Stimulus(f"upstream sends {what}", fire, events, data, "upstream")


def fires(
    event: int, fire: Fire, *, when: Callable[[Pair], bool] = lambda pair: True, **tap: Any
) -> Stimulus:
    """One event, in the states that `when` selects."""
    return Stimulus(EVENTS[event], fire, lambda pair: [event] if when(pair) else None, tap=tap)


def _connected(tap: MemoryTap) -> None:
    connection = UpstreamConnection(tap.pool)
    transport = MemoryTransport(tap.loop)
    transport.protocol = connection
    connection.connection_made(transport)
    tap.upstreams.append(transport)
    tap.exchange.on_connected(connection, tap.loop.now_ns)


def _expire(tap: MemoryTap) -> None:
    if tap.exchange.response == CONNECTING:
        tap.exchange.on_connect_failed(TimeoutError())
    tap.loop.advance(2.0)


def _only_heartbeats(tap: MemoryTap) -> None:
    for _ in range(4):
        if tap.exchange.response == RELAYED:
            tap.relay.forward(HEARTBEAT)
        elif tap.exchange.response == RESPONDING:
            tap.upstream.receive(HEARTBEAT)
        tap.loop.advance(0.4)


def _client_ends(tap: MemoryTap) -> None:
    if tap.hangups.watched is not None:
        tap.hangups.watched(False)
    elif tap.client.reading:
        tap.client.receive_end()


def _stop(tap: MemoryTap) -> None:
    for exchange in list(tap.context.exchanges):
        exchange.stop()


def _stop_after_held_end(tap: MemoryTap) -> None:
    tap.relay.held = True
    tap.relay.forward(LAST)
    _stop(tap)


def _drain(tap: MemoryTap) -> None:
    tap.client.stuck = False
    tap.client.take()
    tap.loop.run()


def _hand_over(tap: MemoryTap) -> None:
    tap.upstream.receive(CHUNK)
    tap.loop.run()


def connected(pair: Pair) -> bool:
    return pair[1] != CONNECTING


def attached(pair: Pair) -> bool:
    return CONNECTING < pair[1] < DRAINING


LIMITS = {"head_timeout_s": 0, "keep_alive_timeout_s": 0, "body_timeout_s": 0}
STIMULI = [
    client_sends("a chunk", CHUNK, []),
    client_sends("the last chunk", LAST, [states.REQUEST_COMPLETE]),
    client_sends("a malformed chunk", b"x\r\n", [states.REFUSED]),
    fires(states.CLIENT_END, _client_ends),
    fires(states.CLIENT_LOST, lambda tap: tap.client.lose(ConnectionResetError()), when=lambda pair: pair[1] != DRAINING),
    Stimulus("client lost before it has everything", lambda tap: tap.client.lose(ConnectionResetError()),
             lambda pair: [states.CLIENT_LOST, states.DRAINED] if pair[1] == DRAINING else None),
    Stimulus("client silent in its request", lambda tap: tap.loop.advance(2.0),
             lambda pair: [states.REFUSED] if pair[0] == RECEIVING and pair[1] < DRAINING else None,
             tap={**LIMITS, "body_timeout_s": 1.0}),
    fires(states.CONNECTED, _connected),
    fires(states.CONNECT_FAILED, lambda tap: tap.exchange.on_connect_failed(ConnectionRefusedError())),
    upstream_sends("half a head", HEAD[:40], [], [states.MALFORMED]),
    upstream_sends("an informational response", b"HTTP/1.1 103 Early Hints\r\n\r\n", [], [states.MALFORMED]),
    upstream_sends("a head", HEAD, [states.HEAD], [states.MALFORMED]),
    upstream_sends("a 101", SWITCH, [states.SWITCH], [states.MALFORMED]),
    upstream_sends("a chunk", CHUNK, [states.MALFORMED], []),
    upstream_sends("the last chunk", LAST, [states.MALFORMED], [states.LAST_BYTE]),
    upstream_sends("a whole response", HEAD + LAST, [states.HEAD, states.LAST_BYTE], [states.MALFORMED]),
    upstream_sends("a broken response", b"x\r\n\r\n", [states.MALFORMED], [states.MALFORMED]),
    # What its socket holds when its connection breaks.
    Stimulus("last bytes for the relay", lambda tap: tap.exchange.on_upstream_bytes(CHUNK, tap.loop.now_ns),
             lambda pair: [states.TAKEN_BACK] if pair[1] == RELAYED else None, CHUNK, "upstream"),
    fires(states.UPSTREAM_END, lambda tap: tap.upstream.receive_end(), when=connected),
    fires(states.UPSTREAM_LOST, lambda tap: tap.upstream.lose(ConnectionResetError()), when=connected),
    fires(states.RETRIED, lambda tap: tap.upstream.lose(ConnectionResetError()), reused=True,
          when=lambda pair: pair == (RECEIVED, WAITING)),
    Stimulus("handed over", _hand_over, sent=CHUNK, sender="upstream", tap={"relay": True},
             events=lambda pair: [states.HANDED_OVER] if pair == (RECEIVED, RESPONDING) else None),
    fires(states.TAKEN_BACK, lambda tap: tap.exchange.take_back(), when=lambda pair: pair[1] == RELAYED),
    Stimulus("upstream lost to the relay", lambda tap: tap.relay.end(body_relay.UPSTREAM_LOST, 104),
             lambda pair: [states.TAKEN_BACK, states.UPSTREAM_LOST] if pair[1] == RELAYED else None),
    Stimulus("client lost to the relay", lambda tap: tap.relay.end(body_relay.CLIENT_LOST, 104),
             lambda pair: [states.TAKEN_BACK, states.CLIENT_LOST] if pair[1] == RELAYED else None),
    Stimulus("stopped before the relay has reported the end", _stop_after_held_end,
             lambda pair: [states.TAKEN_BACK, states.LAST_BYTE] if pair[1] == RELAYED else None),
    fires(states.EXPIRED, _expire, headers_timeout_s=1.0, idle_timeout_s=1.0, **LIMITS),
    fires(states.OUTPUT_EXPIRED, _only_heartbeats, idle_timeout_s=0.6, idle_output_timeout_s=1.0, **LIMITS,
          when=lambda pair: pair[1] in (RESPONDING, RELAYED)),
    fires(states.STOPPED, _stop),
    fires(states.DRAINED, _drain, when=lambda pair: pair[1] >= DRAINING),
]  # fmt: skip


def test_the_stimuli_cover_every_event_in_every_pair_of_states():
    for pair in PAIRS:
        fired = {event for stimulus in STIMULI for event in stimulus.events(pair) or ()}
        for event in range(len(EVENTS)):
            # After its end an exchange is not attached to anything that could be the event.
            detached = pair[1] >= DRAINING and RESPONSE[pair[1]][event] == IGNORED
            assert event in fired or not possible(pair, event) or detached, (name(pair), EVENTS[event])


CASES = {
    f"{stimulus.name}-{name(pair)}": (pair, stimulus, events)
    for stimulus in STIMULI
    for pair in PAIRS
    if (events := stimulus.events(pair)) is not None
}


@pytest.mark.parametrize(("pair", "stimulus", "events"), CASES.values(), ids=CASES)
async def test_exchange_does_what_the_tables_say(pair: Pair, stimulus: Stimulus, events: Sequence[int]):
    tap = reach(pair, **stimulus.tap)
    to_upstream, to_client = tap.upstream.written if connected(pair) else bytearray(), tap.client.written
    before = bytes(to_upstream), bytes(to_client)
    if not all(possible(follow(pair, events[:n])[0], event) for n, event in enumerate(events)):
        with pytest.raises(IllegalTransition):
            stimulus.fire(tap)
        assert tap.states == pair
        tap.check()
        return
    expected, cause = follow(pair, events)
    stimulus.fire(tap)
    tap.check()
    for n, event in enumerate(events):
        reached.note(reached.transitions(*follow(pair, events[:n])[0], event))
    if cause is not None:
        assert tap.exchange.response in (DRAINING, OVER)
        tap.end()
        assert tap.states == (REQUEST_OVER, OVER)
        assert [record.cause for record in tap.closed()][-1] == cause
        return
    assert tap.states == expected
    outcomes = {
        table[state][e] for table, state in zip((REQUEST, RESPONSE), pair, strict=True) for e in events
    }
    after_it = bytes(to_upstream), bytes(to_client)
    if pair[1] >= DRAINING:
        assert after_it[0] == before[0]
    elif stimulus.sender == "client":
        forwarded = pair[0] != RECEIVED and pair[1] not in (CONNECTING, RELAYED)  # else kept
        assert after_it == (before[0] + stimulus.sent * forwarded, before[1])
    elif stimulus.sender == "upstream" and pair[1] != WAITING:
        assert after_it == (before[0], before[1] + stimulus.sent)
    elif HALF_CLOSED in outcomes:
        assert (tap.upstream.ended, tap.client.ended) == (
            events == [states.CLIENT_END],
            events != [states.CLIENT_END],
        )


async def test_request_that_is_received_while_the_upstream_connects_is_sent_when_it_has():
    tap = reach((RECEIVING, CONNECTING))
    tap.client.receive(CHUNK)
    tap.client.receive(LAST)
    tap.connect()
    assert tap.states == (RECEIVED, WAITING)
    assert tap.upstream.written.endswith(b"\r\n\r\n1\r\na\r\n" + CHUNK + LAST)


async def test_pipelined_request_of_a_client_that_has_ended_is_not_sent():
    tap = reach((RECEIVED, WAITING))
    tap.client.receive(GET)
    tap.upstream.receive(HEAD + LAST)
    tap.client.receive_end()
    tap.loop.run()
    assert len(tap.started) == 1


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair[1] != RELAYED], ids=name)
async def test_full_side_stops_reading_from_the_other_one(pair: Pair):
    """Neither changes a state."""
    tap = reach(pair)
    sides = [tap.client, tap.upstream] if attached(pair) else []
    for side, other in zip(sides, reversed(sides), strict=True):
        side.protocol.pause_writing()
        assert not other.reading
        assert tap.states == pair
        side.protocol.resume_writing()
        assert other.reading
        assert tap.states == pair
        tap.check()


# --- one writer


def test_only_the_exchange_writes_the_pointers_to_it():
    folder = Path(streamgauge.ingest.tap.__file__).parent
    found = {}
    for path in folder.rglob("*.py"):
        written = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
            and node.attr in ("exchange", "draining")
        ]  # fmt: skip
        if written:
            found[path.relative_to(folder).as_posix()] = len(written)
    assert found.pop("exchanges/sides.py") == found.pop("exchanges/client_side.py") == 1  # None, at the start
    assert found.keys() == {"exchanges/exchange.py", "exchanges/ending.py"}

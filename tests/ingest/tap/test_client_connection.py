"""The states of a client connection. Each test is a playbook. Together they reach each cell of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streamgauge.ingest.tap.connections.client_connection import ClientConnection
from streamgauge.ingest.tap.exchanges import states
from tests.ingest.tap.memory_tap import MemoryTap
from tests.playbook import Playbook, begun_by

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\n\r\n{"
Event = Callable[[MemoryTap], object]
_seen: set[tuple[int, int]] = set()


class Watched(ClientConnection):
    """Notes the cells of the table that are read."""

    def _apply(self, event: int) -> None:
        _seen.add((self.state, event))
        super()._apply(event)


class ConnectionPlaybook(Playbook[MemoryTap]):
    """One client connection, its upstream and the clock."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.driven = MemoryTap(client=Watched, **options)

    def before(self) -> None:
        self.driven.client.commands.clear()

    def after(self) -> None:
        self.driven.loop.run()
        self.driven.check()

    def seen(self) -> str:
        """The state, and the commands to the client's transport."""
        state = states.CLIENT_STATES[self.driven.connection.state]
        assert f": {state}, " in repr(self.driven.connection)
        return " ".join([state, *self.driven.client.commands])


@pytest.fixture
async def play() -> Iterator[Callable[..., ConnectionPlaybook]]:
    with begun_by(ConnectionPlaybook) as begin:
        yield begin


def sends(data: bytes) -> Event:
    return lambda tap: tap.client.receive(data)


def answers(data: bytes, *, stuck: bool = False) -> Event:
    """The upstream connects, if it has not, and answers. `stuck`: the client reads nothing."""

    def event(tap: MemoryTap) -> None:
        tap.client.stuck = stuck
        if tap.pool.connecting:
            tap.connect()
        tap.upstream.receive(data)

    return event


def passes(seconds: float) -> Event:
    return lambda tap: tap.loop.advance(seconds)


def reads(tap: MemoryTap) -> None:
    tap.client.stuck = False
    tap.client.take()


def leaves(tap: MemoryTap) -> None:
    tap.client.lose(ConnectionResetError())


def ends(tap: MemoryTap) -> None:
    tap.client.receive_end()


def upstream_breaks(tap: MemoryTap) -> None:
    tap.upstream.lose(ConnectionResetError())


def stops(tap: MemoryTap) -> None:
    tap.context.stopping = True
    tap.connection.close_if_idle()


def closing(data: bytes) -> bytes:
    return data.replace(b"Host: a\r\n", b"Host: a\r\nConnection: close\r\n")


Play = Callable[..., ConnectionPlaybook]


async def test_requests_follow_each_other(play: Play):
    (
        play()
        >> sends(GET[:5]) << "head"
        >> sends(GET[5:9]) << "head"
        >> sends(GET[9:]) << "exchange"
        >> answers(ANSWER) << "idle 200"
        >> sends(GET) << "exchange"
        >> sends(GET[:5]) << "exchange"
        >> answers(ANSWER) << "head 200"
        >> leaves << "closed"
    )  # fmt: skip


async def test_idle_connection_is_closed_at_its_limit_or_lost(play: Play):
    play(keep_alive_timeout_s=1.0) >> passes(3) << "closed close"
    play() >> leaves << "closed"
    play() >> stops << "closed close"
    play() >> sends(GET[:5]) << "head" >> stops << "closed close"


async def test_refused_request_lingers_until_the_client_has_read_the_response(play: Play):
    play() >> sends(b"GET\r\n\r\n") << "lingering 400 end" >> passes(3) << "closed close"
    play() >> sends(b"GET") << "head" >> sends(b"\r\n\r\n") << "lingering 400 end" >> leaves << "closed"
    body = play(max_request_bytes=3) >> sends(POST) << "exchange" >> sends(b"1234") << "lingering 413 end"
    body >> passes(3) << "closed close"
    too_much = play() >> sends(b"GET\r\n\r\n") << "lingering 400 end"
    too_much >> sends(b"x" * 2**20) << "lingering" >> sends(b"x" * 2**22) << "closed abort"


async def test_connection_that_is_not_kept_is_closed_once_the_response_is_delivered(play: Play):
    play() >> sends(closing(GET)) << "exchange" >> answers(ANSWER) << "closed 200 close"
    slow = play() >> sends(closing(GET)) << "exchange" >> answers(ANSWER, stuck=True) << "delivering 200 end"
    slow >> reads << "closed close"
    stuck = play() >> sends(closing(GET)) << "exchange" >> answers(ANSWER, stuck=True) << "delivering 200 end"
    stuck >> passes(100) << "closed abort"
    lost = play() >> sends(closing(GET)) << "exchange" >> answers(ANSWER, stuck=True) << "delivering 200 end"
    lost >> leaves << "closed"


async def test_body_that_was_cut_ends_with_a_reset(play: Play):
    cut = play() >> sends(GET) << "exchange" >> answers(UNTIL_CLOSE) << "exchange 200"
    cut >> upstream_breaks << "closed abort"
    stuck = play() >> sends(GET) << "exchange" >> answers(UNTIL_CLOSE, stuck=True) << "exchange 200"
    stuck >> upstream_breaks << "resetting" >> leaves << "closed"
    slow = play() >> sends(GET) << "exchange" >> answers(UNTIL_CLOSE, stuck=True) << "exchange 200"
    slow >> upstream_breaks << "resetting" >> reads << "resetting" >> passes(1) << "closed abort"


async def test_client_that_leaves_within_an_exchange_is_aborted(play: Play):
    play() >> sends(GET) << "exchange" >> ends << "closed abort"
    play() >> sends(GET) << "exchange" >> leaves << "closed"


async def test_playbooks_read_each_cell_of_the_table(play: Play):
    _seen.clear()
    for name, playbook in list(globals().items()):
        if name.startswith("test_") and name != "test_playbooks_read_each_cell_of_the_table":
            await playbook(play)
    cells = {
        (state, event)
        for state, row in enumerate(states.CLIENT[: states.CLOSED])
        for event, cell in enumerate(row)
        if cell is not states.IMPOSSIBLE
    }
    missing = {(states.CLIENT_STATES[state], states.CLIENT_EVENTS[event]) for state, event in cells - _seen}
    assert not missing

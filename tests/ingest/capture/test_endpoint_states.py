"""The states of both endpoints of a captured connection. Each test is a playbook of packets and of what its exchanges receive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from streamgauge.ingest.capture import tcp_connections as module
from streamgauge.ingest.capture.exchanges import Exchanges
from streamgauge.ingest.capture.tcp_packets import ACK, SYN
from streamgauge.ingest.capture.tcp_reassembly import STATES
from tests.ingest.capture.packets import RAW_IP, Talk, capturing
from tests.ingest.capture.test_exchanges import GET, PLAIN
from tests.playbook import Playbook, begun_by, playbooks_of

_commands: list[str] = []
_seen: set[tuple[str, str]] = set()
"""Transitions of an endpoint."""


class Watched(Exchanges):
    """Notes the calls that change the exchanges."""

    def client_data(self, data: bytes, now_ns: int) -> None:
        _commands.append(f"client({len(data)})")
        super().client_data(data, now_ns)

    def server_data(self, data: bytes, now_ns: int) -> None:
        _commands.append(f"server({len(data)})")
        super().server_data(data, now_ns)

    def client_gap(self, size_bytes: int) -> None:
        _commands.append(f"client_gap({size_bytes})")
        super().client_gap(size_bytes)

    def server_gap(self, size_bytes: int) -> None:
        _commands.append(f"server_gap({size_bytes})")
        super().server_gap(size_bytes)

    def client_ended(self, now_ns: int) -> None:
        _commands.append("client_ended")
        super().client_ended(now_ns)

    def server_ended(self, now_ns: int) -> None:
        _commands.append("server_ended")
        super().server_ended(now_ns)

    def reset(self, now_ns: int, *, by_client: bool) -> None:
        _commands.append("client_reset" if by_client else "server_reset")
        super().reset(now_ns, by_client=by_client)


class EndpointPlaybook(Playbook[Talk]):
    """One connection. An event appends packets to the talk, which are then captured."""

    def __init__(self, connections: module.Connections) -> None:
        super().__init__()
        self.driven = Talk()
        self._connections = connections

    def _states(self) -> list[str]:
        connections = self._connections._all()
        assert len(connections) <= 1
        return [STATES[side.state] for one in connections for side in (one.client, one.server)]

    def before(self) -> None:
        self.driven.packets.clear()
        _commands.clear()

    def after(self) -> None:
        for packet in self.driven.packets:
            connections, before = self._connections._all(), self._states()
            self._connections.packet(packet.at_ns, RAW_IP, packet.data)
            is_new = self._connections._all() != connections
            before = ["inactive", "inactive"] if is_new else before
            _seen.update(zip(before, self._states(), strict=True))

    def seen(self) -> str:
        """The states of client and server, the history, and the calls of the last step."""
        shown = [" ".join(self._states())]
        for connection in self._connections._all():
            shown.append(connection.history)
            assert f" {connection.history}: client {connection.client}, server {connection.server}>" in repr(
                connection
            )
            assert repr(connection.client).startswith(f"<{STATES[connection.client.state]}, ")
        return " ".join([*shown, *_commands])


@pytest.fixture
async def play(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[], EndpointPlaybook]]:
    monkeypatch.setattr(module, "Exchanges", Watched)
    async with capturing() as (connections, _):

        def create() -> EndpointPlaybook:
            connections.stop()  # those of an earlier playbook
            return EndpointPlaybook(connections)

        with begun_by(create) as begin:
            yield begin


Play = Callable[[], EndpointPlaybook]
Event = Callable[[Talk], object]


def sends(data: bytes, *, size: int = 1400) -> Event:
    return lambda talk: talk.client(data, size=size)


def answers(data: bytes, *, size: int = 1400) -> Event:
    return lambda talk: talk.server(data, size=size)


def ends(*, from_client: bool) -> Event:
    return lambda talk: talk.end(from_client=from_client)


def resets(*, from_client: bool) -> Event:
    return lambda talk: talk.reset(from_client=from_client)


def uncaptured(event: Event) -> Event:
    """The capture misses the packets of an event, except the last one."""

    def missed(talk: Talk) -> None:
        event(talk)
        del talk.packets[:-1]

    return missed


def unseen(event: Event) -> Event:
    """The capture misses all packets of an event."""

    def missed(talk: Talk) -> None:
        event(talk)
        talk.packets.clear()

    return missed


def passes(ms: float) -> Event:
    return lambda talk: talk.wait(ms)


def acknowledges(*, from_client: bool) -> Event:
    return lambda talk: talk.packet(from_client, flags=ACK)


async def test_whole_connection(play: Play):
    (
        play()
        >> Talk.open << "established established ShA"
        >> sends(GET) << f"established established ShADa client({len(GET)})"
        >> answers(PLAIN) << f"established established ShADad server({len(PLAIN)})"
        >> ends(from_client=True) << "closed established ShADadF client_ended client_ended"
        >> ends(from_client=False) << "closed closed ShADadFf client_ended server_ended client_ended server_ended"
    )  # fmt: skip


async def test_reset_ends_both_directions(play: Play):
    begun = (
        play()
        >> Talk.open
        << "established established ShA"
        >> sends(GET)
        << f"established established ShADa client({len(GET)})"
    )
    begun >> resets(from_client=False) << "established reset ShADar server_reset"
    left = (
        play()
        >> Talk.open
        << "established established ShA"
        >> sends(GET)
        << f"established established ShADa client({len(GET)})"
    )
    left >> resets(from_client=True) << "reset established ShADaR client_reset"


async def test_syn_without_an_answer_leaves_the_server_inactive(play: Play):
    alone = play() >> (lambda talk: talk.packet(True, flags=SYN, counts=1)) << "established inactive S"
    alone >> (lambda talk: talk.packet(False, flags=SYN | ACK, counts=1)) << "established established Sh"


async def test_connection_that_began_before_the_capture_is_partial(play: Play):
    begun = play() >> unseen(Talk.open) << ""
    begun >> sends(GET) << f"partial partial Da client({len(GET)})"
    begun >> answers(PLAIN) << f"partial partial DadA server({len(PLAIN)})"
    begun >> ends(from_client=False) << "partial closed DadAf server_ended server_ended"
    (
        begun
        >> ends(from_client=True)
        << "closed closed DadAfF client_ended server_ended client_ended server_ended"
    )


async def test_missing_bytes_are_lost_when_they_are_acknowledged_and_the_time_for_reordering_is_over(
    play: Play,
):
    gap = (
        play()
        >> Talk.open
        << "established established ShA"
        >> sends(GET)
        << f"established established ShADa client({len(GET)})"
    )
    (
        gap
        >> uncaptured(answers(PLAIN))
        << "established established ShADa"
        >> passes(20)
        << "established established ShADa"
    )
    gap >> acknowledges(from_client=True) << f"established established ShADag server_gap({len(PLAIN)})"
    request = (
        play()
        >> Talk.open
        << "established established ShA"
        >> uncaptured(sends(GET))
        << "established established ShAa"
    )
    request >> passes(20) << "established established ShAa"
    request >> answers(PLAIN) << f"established established ShAaGd client_gap({len(GET)}) server({len(PLAIN)})"


async def test_missing_bytes_that_nobody_has_acknowledged_may_still_arrive(play: Play):
    open_ = (
        play()
        >> Talk.open
        << "established established ShA"
        >> sends(GET)
        << f"established established ShADa client({len(GET)})"
    )
    open_ >> unseen(lambda talk: talk.server(PLAIN, ack=False)) << "established established ShADa"
    open_ >> passes(20) << "established established ShADa"
    open_ >> acknowledges(from_client=False) << "established established ShADa"


async def test_end_after_missing_bytes_closes_when_they_are_lost(play: Play):
    cut = (
        play()
        >> Talk.open
        << "established established ShA"
        >> sends(GET)
        << f"established established ShADa client({len(GET)})"
    )
    cut >> unseen(answers(PLAIN)) << "established established ShADa"
    (
        cut
        >> ends(from_client=False)
        << "established established ShADaf"
        >> passes(20)
        << "established established ShADaf"
    )
    (
        cut
        >> acknowledges(from_client=True)
        << (f"established closed ShADafg server_gap({len(PLAIN)}) server_ended")
    )


async def test_next_connection_with_the_same_ports_begins_anew(play: Play):
    old = (
        play()
        >> Talk.open
        << "established established ShA"
        >> sends(GET)
        << f"established established ShADa client({len(GET)})"
    )
    old >> ends(from_client=True) << "closed established ShADaF client_ended client_ended"

    def reopens(talk: Talk) -> None:
        talk._seqs = [70_000, 80_000]
        talk.open()

    old >> reopens << "established established ShA"


async def test_bytes_after_an_end_show_a_connection_whose_beginning_is_missing(play: Play):
    cut = (
        play()
        >> Talk.open
        << "established established ShA"
        >> unseen(sends(GET))
        << "established established ShA"
    )
    cut >> ends(from_client=True) << "established established ShAFa"
    cut >> passes(20) << "established established ShAFa"
    cut >> acknowledges(from_client=False) << f"closed established ShAFaG client_gap({len(GET)}) client_ended"
    cut >> sends(GET) << f"partial established ShAFaGD client({len(GET)})"


async def test_playbooks_reach_each_transition(play: Play):
    _seen.clear()
    for playbook in playbooks_of(globals(), but=test_playbooks_reach_each_transition):
        await playbook(play)
    changes = {(before, after) for before, after in _seen if before != after}
    assert changes == {
        ("inactive", "established"), ("inactive", "partial"), ("established", "closed"), ("partial", "closed"),
        ("established", "reset"), ("closed", "partial"),
    }  # fmt: skip

"""Random walks of an exchange between two peers in memory, torn at every point.

`python -m tests.ingest.tap.exchange_walks SECONDS [SEED]` walks for a time and prints a summary. A walk is a list of random events:
bytes split anywhere, peers that stop reading and read on, time that passes, what the relay forwards. After so many events one side
is torn: it ends or breaks, its connection fails, or the tap stops. Then the walk goes on until all ends. The same walk is torn after
each of its events in turn. The seed determines everything.

What must hold after each event is in `MemoryTap.check` and `Walk.check`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from streamgauge.ingest.records import Closed, Lost, Opened
from streamgauge.ingest.tap.exchanges import states
from streamgauge.ingest.tap.exchanges.exchange import Exchange
from streamgauge.ingest.tap.exchanges.states import DRAINING, IMPOSSIBLE, OVER, REQUEST, RESPONSE
from streamgauge.ingest.tap.relay import body_relay
from tests.ingest.running_tap import assert_complete
from tests.ingest.tap.memory_tap import MemoryTap

EVENTS_PER_WALK = 60
_PIECES = [1, 2, 5, 30, 1000, 65_536, 256_000]
_SIZES = [0, 1, 20, 3000, 100_000, 700_000]
_MOST_WAITING_BYTES = 262_144 + max(_PIECES)
"""Of a request whose upstream is not connected yet: the limit, and the read that exceeds it."""
_MOST_UNSENT_BYTES = 65_536 + 2 * max(_PIECES)
"""Of a side that does not read: the write buffer, and the read that fills it, with its head."""
Pair = tuple[int, int]


@cache
def following(pair: Pair) -> frozenset[Pair]:
    """The pairs of states that any number of events can lead to."""
    found, new = {pair}, [pair]
    for request, response in new:
        for event in range(len(states.EVENTS)):
            cells = REQUEST[request][event], RESPONSE[response][event]
            if IMPOSSIBLE in cells:
                continue
            ends = isinstance(cells[1], str) and states.cause_of_end(response, event) is not None
            to_request = cells[0] if isinstance(cells[0], int) else request
            to_response = DRAINING if ends else cells[1] if isinstance(cells[1], int) else response
            if (to_request, to_response) not in found:
                found.add((to_request, to_response))
                new.append((to_request, to_response))
    return frozenset(found)


@dataclass
class Message:
    """A request or a response. `payload`: `body` without its framing. `rest`: bytes after it, of a tunnel or in excess."""

    head: bytes
    body: bytes
    payload: bytes
    rest: bytes = b""
    before: bytes = b""
    """Informational responses."""
    until_close: bool = False
    malformed: bool = False

    @property
    def raw(self) -> bytes:
        return self.before + self.head + self.body + self.rest


def _body(rng: random.Random, framing: str) -> tuple[bytes, bytes, bytes]:
    """Header lines, body and payload."""
    payload = rng.randbytes(rng.choice(_SIZES[rng.randrange(2) :: 2]))
    if framing == "none":
        return b"", b"", b""
    if framing == "close":
        return b"", payload, payload
    if framing == "length":
        return b"Content-Length: %d\r\n" % len(payload), payload, payload
    size = rng.choice([3, 700, 50_000]) if len(payload) < 5000 else 50_000
    chunks = [payload[at : at + size] for at in range(0, len(payload), size)]
    trailer = rng.choice([b"", b"X-A: b\r\n"])
    raw = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n%b\r\n" % trailer
    return b"Transfer-Encoding: chunked\r\n", raw, payload


def request(rng: random.Random, number: int, *, upgrade: bool) -> Message:
    framing = rng.choice(["none", "none", "length", "chunked"])
    lines, body, payload = _body(rng, framing)
    minor = 1 if framing == "chunked" or upgrade else rng.choice([0, 1, 1, 1])
    method = rng.choice([b"GET", b"HEAD"] if framing == "none" else [b"POST", b"PUT"])
    if upgrade:
        method = b"POST" if framing != "none" else b"GET"
        lines += b"Connection: Upgrade\r\nUpgrade: %b\r\n" % rng.choice([b"websocket", b"other"])
    elif rng.random() < 0.2:
        lines += b"Connection: %b\r\n" % rng.choice([b"close", b"keep-alive"])
    head = b"%b /%d HTTP/1.%d\r\nHost: h\r\n%b\r\n" % (method, number, minor, lines)
    broken = framing == "chunked" and rng.random() < 0.1
    if broken:
        body = body[: rng.randrange(len(body))] + b"\x00" + body
    return Message(
        head, body, payload, rng.randbytes(rng.choice(_SIZES[:4])) if upgrade else b"", malformed=broken
    )


def response(rng: random.Random, number: int, asked: Message) -> Message:
    head_only = asked.head.startswith(b"HEAD")
    before = rng.choice(
        [b"", b"", b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n"]
    )
    if b"Upgrade:" in asked.head and rng.random() < 0.7:
        head = (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\nX-Number: %d\r\n\r\n"
            % number
        )
        return Message(head, b"", b"", rng.randbytes(rng.choice(_SIZES)), before)
    framing = rng.choice(["length", "chunked", "chunked", "close"])
    lines, body, payload = _body(rng, framing)
    if head_only or rng.random() < 0.1:
        body = payload = b""
        framing = "none"
    status = b"204 No Content" if framing == "none" and not head_only else b"200 OK"
    if status.startswith(b"204"):
        lines = b""
    if rng.random() < 0.3:
        lines += b"Content-Type: text/event-stream\r\n"
    head = b"HTTP/1.1 %b\r\nX-Number: %d\r\n%b\r\n" % (status, number, lines)
    rest = rng.randbytes(3) if framing in ("length", "chunked") and rng.random() < 0.1 else b""
    broken = rng.random() < 0.07
    if broken and framing == "chunked":
        body = body[: rng.randrange(len(body))] + b"\x00" + body
    elif broken:
        head = head.replace(b"HTTP/1.1 ", b"HTTP\x001.1 ")
    return Message(head, body, payload, rest, before, framing == "close", broken)


@dataclass
class Talk:
    """One request and what its peers have sent and received. Offsets are positions in what the tap has written."""

    number: int
    asked: Message
    exchange: Exchange
    answer: Message | None = None
    upstream: int = -1
    """Number of its upstream connection."""
    upstream_from: int = 0
    answered: int = 0
    """Bytes of `answer.raw` that the upstream has sent."""
    head_at: int = -1
    """Of the response, as the client receives it."""
    seen: Pair = (0, 0)


class Walk:
    """`torn_after`: number of events before one side is torn."""

    def __init__(self, seed: str, torn_after: int) -> None:
        self.rng = rng = random.Random(seed)
        self.tear_rng = random.Random(f"{seed}/{torn_after}")
        self.seed, self.torn_after = seed, torn_after
        self.written: list[int] = []  # bytes to each upstream, after the last event
        self.events: list[str] = []
        limits = {
            name: rng.choice([0, 2.0, 3.0])
            for name in ("headers_timeout_s", "idle_timeout_s", "idle_output_timeout_s")
        }
        limits |= {
            name: rng.choice([0, 2.5])
            for name in ("head_timeout_s", "body_timeout_s", "keep_alive_timeout_s")
        }
        self.recording = rng.random() < 0.9
        self.tap = MemoryTap(
            relay=rng.random() < 0.5,
            recording=self.recording,
            max_request_bytes=rng.choice([0, 0, 0, 50_000]),
            pool_idle_s=rng.choice([1.0, 100.0]),
            **limits,
        )
        count = rng.choice([1, 1, 2, 3])
        last_upgrades = rng.random() < 0.3
        self.requests = [request(rng, n, upgrade=last_upgrades and n == count - 1) for n in range(count)]
        self.to_send = b"".join(message.raw for message in self.requests)
        self.sent = 0
        self.talks: list[Talk] = []

    # --- events

    def _piece(self, available: int) -> int:
        return min(available, self.rng.choice(_PIECES))

    def client_sends(self) -> None:
        size = self._piece(len(self.to_send) - self.sent)
        if size and self.tap.client.reading:
            self.sent += size
            self.tap.client.receive(self.to_send[self.sent - size : self.sent])

    def upstream_sends(self) -> None:
        talk = self.talks[-1] if self.talks else None
        if talk is None or talk.answer is None:
            return
        transport = self.tap.upstreams[talk.upstream]
        size = self._piece(len(talk.answer.raw) - talk.answered)
        data = talk.answer.raw[talk.answered : talk.answered + size]
        relay = self.tap.relay
        if relay.exchange is talk.exchange:
            if relay.over:
                return
            relay.held = self.rng.random() < 0.5
            talk.answered += size
            if data:
                relay.forward(data)
            elif talk.answer.until_close:
                relay.end(body_relay.COMPLETE)
        elif data and transport.reading:
            talk.answered += size
            transport.receive(data)
        elif not data and talk.answer.until_close and transport.reading:
            transport.receive_end()

    def connects(self) -> None:
        pool = self.tap.pool
        pool.connecting = [c for c in pool.connecting if not c.cancelled]
        if pool.connecting:
            self.tap.connect()

    def iterates(self) -> None:
        self.tap.loop.step()

    def runs(self) -> None:
        self.tap.loop.run()

    def waits(self) -> None:
        self.tap.loop.advance(self.rng.choice([0.001, 0.06, 0.9]))

    def stops_reading(self) -> None:
        for transport in self.tap.transports:
            transport.stuck = self.rng.random() < 0.5

    def reads(self) -> None:
        for transport in self.tap.transports:
            if self.rng.random() < 0.5:
                transport.take(self.rng.choice([None, 1, 30_000]))

    def relay_reports(self) -> None:
        relay = self.tap.relay
        if relay.exchange is not None:
            waits = [lambda: relay.wait("client"), lambda: relay.wait("tap")]
            self.rng.choice([*waits, relay.report, relay.exchange.take_back])()

    # --- tears

    def client_ends(self) -> None:
        if self.tap.hangups.watched is not None:
            self.tap.hangups.watched(False)
        elif self.tap.client.reading:
            self.tap.client.receive_end()

    def client_breaks(self) -> None:
        if self.tap.hangups.watched is not None and self.tear_rng.random() < 0.5:
            self.tap.hangups.watched(True)
        else:
            self.tap.client.lose(self.tear_rng.choice([None, ConnectionResetError(), BrokenPipeError()]))

    def upstream_ends(self) -> None:
        for transport in self.tap.upstreams:
            if transport.reading:
                transport.receive_end()

    def upstream_breaks(self) -> None:
        for transport in self.tap.upstreams:
            transport.lose(self.tear_rng.choice([None, ConnectionResetError()]))

    def connect_fails(self) -> None:
        for connecting in self.tap.pool.connecting:
            if not connecting.cancelled:
                error = self.tear_rng.choice(
                    [TimeoutError(), ConnectionRefusedError(), OSError(113, "no route")]
                )
                connecting.exchange.on_connect_failed(error)
        self.tap.pool.connecting = []

    def tap_stops(self) -> None:
        self.tap.context.stopping = True
        for exchange in list(self.tap.context.exchanges):
            exchange.stop()
        self.tap.connection.close_if_idle()

    def relay_loses(self) -> None:
        if self.tap.relay.exchange is not None and not self.tap.relay.over:
            self.tap.relay.end(self.tear_rng.choice([body_relay.UPSTREAM_LOST, body_relay.CLIENT_LOST]), 104)

    def time_passes(self) -> None:
        self.tap.loop.advance(10)

    # --- the walk

    def run(self) -> bool:
        """False: the walk was over before it was torn."""
        common: list[Callable[[], None]] = [
            self.client_sends, self.client_sends, self.client_sends, self.upstream_sends, self.upstream_sends, self.upstream_sends,
            self.connects, self.iterates, self.runs, self.waits, self.stops_reading, self.reads, self.relay_reports,
        ]  # fmt: skip
        tears: list[Callable[[], None]] = [
            self.client_ends, self.client_breaks, self.upstream_ends, self.upstream_breaks, self.connect_fails, self.tap_stops,
            self.relay_loses, self.time_passes,
        ]  # fmt: skip
        for _ in range(self.torn_after):
            self._do(self.rng.choice(common))
        torn = not self.tap.client.lost
        self._do(self.tear_rng.choice(tears))
        for _ in range(self.tear_rng.randrange(12)):
            self._do(self.tear_rng.choice(common + tears if self.tear_rng.random() < 0.3 else common))
        self._finish()
        return torn

    def _do(self, event: Callable[[], None]) -> None:
        self.events.append(event.__name__)
        event()
        self._note()
        self.check()

    def _note(self) -> None:
        """Find the exchanges that have begun, and the upstream connection of the latest."""
        tap = self.tap
        exchange = tap.connection.exchange
        if exchange is not None and (not self.talks or self.talks[-1].exchange is not exchange):
            number = self._number()
            self.talks.append(Talk(number, self.requests[number], exchange))
        for n, transport in enumerate(tap.upstreams):
            talk = self.talks[-1]
            if transport.protocol.exchange is talk.exchange and n != talk.upstream:
                start = self.written[n] if n < len(self.written) else 0
                at = transport.written.find(b" /%d HTTP/1.1\r\n" % talk.number, start)
                talk.upstream, talk.upstream_from, talk.answered = n, at, 0
                talk.answer = response(
                    random.Random(f"{self.seed}/{talk.number}/{n}"), talk.number, talk.asked
                )
        self.written = [len(transport.written) for transport in tap.upstreams]

    def _number(self) -> int:
        """Of the latest exchange."""
        return int(self.tap.started[-1].target[1:])

    def check(self) -> None:
        tap = self.tap
        tap.check()
        for talk in self.talks:
            exchange = talk.exchange
            now = exchange.request, exchange.response
            assert now in following(talk.seen), (talk.seen, now)
            talk.seen = now
            if exchange is not tap.connection.exchange:
                assert exchange.response == OVER or exchange is tap.connection.draining, exchange
        # Another exchange may have begun and ended within one event.
        if self.talks and self.talks[-1].number == self._number():
            self._check_request(self.talks[-1])
            self._check_response(self.talks[-1])
        for transport in tap.transports:
            assert transport.most_unsent_bytes <= _MOST_UNSENT_BYTES

    def _sent_of(self, talk: Talk) -> bytes:
        """The bytes after the request's head that the client has sent, of this exchange."""
        start = sum(len(message.raw) for message in self.requests[: talk.number]) + len(talk.asked.head)
        end = start + len(talk.asked.body) + len(talk.asked.rest)
        return self.to_send[start : min(end, self.sent)]

    def _check_request(self, talk: Talk) -> None:
        sent = self._sent_of(talk)
        if talk.exchange.response == states.CONNECTING:
            assert len(sent) <= _MOST_WAITING_BYTES or talk.asked.rest
        if talk.upstream < 0:
            return
        written = self.tap.upstreams[talk.upstream].written
        forwarded = bytes(written[written.find(b"\r\n\r\n", talk.upstream_from) + 4 :])
        assert sent.startswith(forwarded)
        attached = self.tap.upstreams[talk.upstream].protocol.exchange is talk.exchange
        if attached and talk.exchange.response != states.TUNNELING:
            assert forwarded == sent[: len(talk.asked.body)]
        elif attached:
            assert forwarded == sent or self.tap.client.lost

    def _check_response(self, talk: Talk) -> None:
        written = self.tap.client.written
        if talk.head_at < 0:
            talk.head_at = written.find(b"X-Number: %d\r\n" % talk.number)
        if talk.head_at < 0 or talk.answer is None:
            return
        forwarded = bytes(written[written.find(b"\r\n\r\n", talk.head_at) + 4 :])
        if talk.exchange is not self.tap.connection.exchange:
            # What follows an upgrade that was not granted is no request.
            forwarded = forwarded.partition(b"HTTP/1.1 4")[0]
        answer = talk.answer
        before = len(answer.before) + len(answer.head)
        received = answer.raw[before : max(before, talk.answered)]
        payload_only = talk.asked.head.find(b" HTTP/1.0\r\n") > 0 and b"chunked" in answer.head
        whole = answer.payload if payload_only else answer.body
        if b" 101 " in answer.head:
            whole = answer.rest
        if answer.malformed:
            return
        assert whole.startswith(forwarded)
        if not payload_only and talk.exchange is self.tap.connection.exchange and not self.tap.client.closing:
            assert forwarded == received[: len(whole)]

    def _finish(self) -> None:
        """Both sides leave. Then everything has ended, once, and is recorded."""
        tap = self.tap
        self._do(self.runs)
        if self.tear_rng.random() < 0.5:
            self._do(self.upstream_breaks)
        tap.relay.report()
        tap.client.lose(self.tear_rng.choice([None, ConnectionResetError()]))
        self._note()
        tap.check()
        tap.end()
        tap.pool.close()
        tap.loop.run()
        tap.check()
        assert not tap.context.exchanges
        assert not tap.context.clients
        assert tap.connection.draining is None
        assert tap.relay.exchange is None
        assert all(talk.exchange.response == OVER for talk in self.talks)
        assert all(connecting.cancelled for connecting in tap.pool.connecting)
        assert all(transport.closing for transport in tap.upstreams)
        tap.records.settle()
        streams: dict[str, list[object]] = {}
        for record in tap.records.sink.records:
            assert not isinstance(record, Lost)
            streams.setdefault(record.stream, []).append(record)  # type: ignore[union-attr]
        for records in streams.values():
            assert_complete(records)  # type: ignore[arg-type]
        opened = sum(isinstance(records[0], Opened) for records in streams.values())
        assert opened == (len(tap.started) if self.recording else 0)

    @property
    def causes(self) -> list[str]:
        return [record.cause for record in self.tap.records.sink.records if isinstance(record, Closed)]


def walk(seed: str, torn_after: int) -> Walk:
    """One walk. Raises AssertionError with what repeats it."""
    done = Walk(seed, torn_after)
    try:
        done.run()
    except Exception as e:
        raise AssertionError(f"walk({seed!r}, {torn_after}): {done.events[-8:]}: {e!r}") from e
    return done


async def walks(seed: str, *, every: int = 1) -> Counter[str]:
    """A walk torn after each of its events, or after each `every`th one. Counts the causes."""
    found = Counter[str]()
    for torn_after in range(0, EVENTS_PER_WALK, every):
        found.update(walk(seed, torn_after).causes)
        found["walks"] += 1
    return found


def main() -> int:
    logging.disable()
    seconds, first = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    until_s, found, number = time.monotonic() + seconds, Counter[str](), first
    while time.monotonic() < until_s:
        found += asyncio.run(walks(str(number)))
        number += 1
    print(f"seeds {first} to {number - 1} in {seconds:.0f} s: {dict(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A client connection and its exchanges over transports in memory. The test is the client, the upstream, the relay and the clock.

Nothing happens between two calls, so each state of an exchange can be reached and stays. The connections, the exchange and the
recorder are those of the tap.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from streamgauge.ingest.http1.heads import BadUpstream, RequestHead
from streamgauge.ingest.recording.recording import Recording
from streamgauge.ingest.recording.relayed import RelayedEnd, RelayedRecords
from streamgauge.ingest.records import Closed, WaitedFor
from streamgauge.ingest.tap.connections.client_connection import ClientConnection
from streamgauge.ingest.tap.connections.upstream_connection import UpstreamConnection, UpstreamPool
from streamgauge.ingest.tap.exchanges import states
from streamgauge.ingest.tap.exchanges.context import TapContext
from streamgauge.ingest.tap.exchanges.exchange import Exchange
from streamgauge.ingest.tap.exchanges.sides import UpstreamSide
from streamgauge.ingest.tap.relay import body_relay
from tests.ingest.tap.recorders import UPSTREAMS, RecorderGroup
from tests.options import tap_options

_OPTIONS = tap_options(upstreams=UPSTREAMS, data=Path("nowhere"))
TAKEN_BACK = 99
"""A cause of an end of the relay that is none of `body_relay`."""


class SteppedLoop:
    """The part of an event loop that the tap uses, with a clock that stands still until `advance`."""

    def __init__(self) -> None:
        self.now_ns = 10**9
        self._ready: list[Callable[[], None]] = []
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self.errors: list[dict[str, Any]] = []

    def clock_ns(self) -> int:
        return self.now_ns

    def time(self) -> float:
        return self.now_ns / 1e9

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self._ready.append(lambda: callback(*arguments))

    def call_later(
        self, delay_s: float, callback: Callable[..., None], *arguments: Any
    ) -> asyncio.TimerHandle:
        at_ns = self.now_ns + int(delay_s * 1e9)
        timer = asyncio.TimerHandle(at_ns / 1e9, callback, arguments, cast(asyncio.AbstractEventLoop, self))
        heapq.heappush(self._timers, (at_ns, next(self._numbers), timer))
        return timer

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None:
        pass

    def step(self) -> None:
        """One iteration: run what was ready before it."""
        ready, self._ready = self._ready, []
        for callback in ready:
            callback()

    def run(self) -> None:
        """Run until nothing is ready."""
        for _ in range(1000):
            if not self._ready:
                return
            self.step()
        raise AssertionError("callbacks without end")

    def advance(self, by_s: float) -> None:
        """Let time pass, with the timers that are due in it."""
        until_ns = self.now_ns + int(by_s * 1e9)
        while self._timers and self._timers[0][0] <= until_ns:
            at_ns, _, timer = heapq.heappop(self._timers)
            self.now_ns = max(self.now_ns, at_ns)
            if not timer.cancelled():
                timer._run()
            self.run()
        self.now_ns = until_ns


class _Socket:
    """The kernel tells nothing about it."""

    def fileno(self) -> int:
        return -1

    def getsockopt(self, *_: Any) -> Any:
        raise OSError

    def setsockopt(self, *_: Any) -> None:
        pass


class MemoryTransport(asyncio.Transport):
    """Keeps what the tap writes. While `stuck`, its peer reads nothing."""

    def __init__(self, loop: SteppedLoop) -> None:
        super().__init__()
        self._loop = loop
        self._socket = _Socket()
        self.protocol: Any = None
        self.written = bytearray()
        self.commands: list[str] = []
        """What the tap has asked for, without the bytes of a response."""
        self.most_unsent_bytes = 0
        self._unsent_bytes = 0
        self._high_bytes = 65_536
        self._write_paused = False
        self.stuck = False
        self.reading = True
        self._received_end = False
        self.ended = False
        """The tap has ended its direction."""
        self.closing = False
        self.aborted = False
        self.lost = False

    # --- called by the tap

    def write(self, data: Any) -> None:
        assert not self.ended, "a write after the end"
        if self.closing:
            return
        self.written += data
        if data.startswith(b"HTTP/1.1 "):
            self.commands.append(data[9:12].decode())
        self._unsent_bytes += len(data)
        if self.stuck:
            self.most_unsent_bytes = max(self.most_unsent_bytes, self._unsent_bytes)
            self._check_full()
        else:
            self._unsent_bytes = 0

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = 65_536 if high is None else high
        self._check_full()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self.closing:
            raise RuntimeError("closing")  # as uvloop
        self.ended = True
        self.commands.append("end")

    def pause_reading(self) -> None:
        self.reading = False
        self.commands.append("pause")

    def resume_reading(self) -> None:
        self.reading = not self.closing and not self._received_end
        self.commands.append("resume")

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.commands.append("close")
        self.closing, self.reading = True, False
        if not self._unsent_bytes:
            self._loop.call_soon(self.lose, None)

    def abort(self) -> None:
        self.commands.append("abort")
        self.closing = self.aborted = True
        self.reading = False
        self._loop.call_soon(self.lose, None)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": self._socket, "peername": ("127.0.0.1", 1)}.get(name, default)

    def _check_full(self) -> None:
        if self._unsent_bytes > self._high_bytes and not self._write_paused:
            self._write_paused = True
            self.protocol.pause_writing()

    # --- called by the test

    def take(self, size: int | None = None) -> None:
        """The peer reads this many bytes, or all."""
        self._unsent_bytes = 0 if size is None else max(0, self._unsent_bytes - size)
        if self._write_paused and self._unsent_bytes <= self._high_bytes // 4:
            self._write_paused = False
            self.protocol.resume_writing()
        if self.closing and not self.aborted and not self._unsent_bytes:
            self._loop.call_soon(self.lose, None)

    def receive(self, data: bytes) -> None:
        assert self.reading
        self.protocol.data_received(data)

    def receive_end(self) -> None:
        self._received_end, self.reading = True, False
        if not self.protocol.eof_received():
            self.close()

    def lose(self, error: Exception | None) -> None:
        """The connection closes (None) or breaks."""
        if not self.lost:
            self.closing = self.lost = True
            self.reading = False
            self.protocol.connection_lost(error)


class _Hangups:
    """Of the client, while its connection is not read."""

    def __init__(self) -> None:
        self.watched: Callable[[bool], None] | None = None

    def watch(self, sock: Any, on_hangup: Callable[[bool], None]) -> int:
        self.watched = on_hangup
        return -1

    def unwatch(self, descriptor: int, on_hangup: Callable[[bool], None]) -> None:
        self.watched = None


class _Connecting:
    """The task that opens a connection."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class MemoryPool(UpstreamPool):
    """Connections are opened by the test."""

    def __init__(self, tap: MemoryTap) -> None:
        super().__init__(tap.context, UPSTREAMS[0], None)
        self.tap = tap
        self.connecting: list[_Connecting] = []

    def acquire(self) -> UpstreamSide | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                connection.reused = True
                return connection
        return None

    def connect(self, exchange: Exchange) -> None:
        self.connecting.append(_Connecting(exchange))
        exchange.connecting = cast(Any, self.connecting[-1])


class MemoryRelay:
    """The relay, one body at a time. The test forwards the bytes."""

    def __init__(self, tap: MemoryTap) -> None:
        self._tap = tap
        self.exchange: Exchange | None = None
        self._reader: Any = None
        self._client: MemoryTransport
        self._records: RelayedRecords
        self._payload_bytes = self._wire_bytes = 0
        self._last_ns = self._last_output_ns = self._ready_ns = 0
        self.blocked = False
        self.held = False
        """Reports wait for `report`, or for the exchange to take its body back."""
        self._held_end: tuple[int, int] | None = None

    def add(
        self,
        exchange: Any,
        upstream: asyncio.Transport,
        client: asyncio.Transport,
        reader: Any,
        now_ns: int,
        records: RelayedRecords,
    ) -> int:
        assert self.exchange is None
        assert isinstance(upstream, MemoryTransport)
        assert isinstance(client, MemoryTransport)
        assert not upstream.reading, "the event loop must not use this socket"
        assert not client.reading
        self.exchange, self._reader, self._client, self._records = exchange, reader, client, records
        self._payload_bytes = self._wire_bytes = 0
        self._last_ns = self._last_output_ns = now_ns
        return 7

    def progress(self, number: int) -> tuple[int, int, int, bool]:
        return self._last_ns, self._last_output_ns, self._ready_ns, self.blocked

    def take_back(self, number: int, now_ns: int) -> None:
        self.held = False
        self.end(TAKEN_BACK)

    # --- called by the test

    @property
    def over(self) -> bool:
        """An end waits to be reported."""
        return self._held_end is not None

    def report(self) -> None:
        self.held = False
        if self._held_end is not None:
            self.end(*self._held_end)

    def wait(self, waited_for: WaitedFor) -> None:
        assert self.exchange is not None
        self.exchange.relay_waited(self._last_ns, self._tap.loop.now_ns, waited_for)

    def forward(self, data: bytes) -> None:
        assert self._held_end is None
        self._last_ns = self._tap.loop.now_ns
        try:
            payload = self._reader.feed(data)
        except BadUpstream:
            self.end(body_relay.MALFORMED)
            return
        if not payload.startswith(b":"):
            self._last_output_ns = self._last_ns
        data = data[: len(data) - self._reader.excess]
        self._payload_bytes += len(payload)
        self._wire_bytes += len(data)
        self._client.written += data
        if self._reader.complete:
            self.end(body_relay.COMPLETE)

    def end(self, cause: int, error: int = 0) -> None:
        if self._held_end is not None:
            (cause, error), self._held_end = self._held_end, None
        if self.held:
            self._held_end = cause, error
            return
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            recorded = bool(self._records.head)
            uncaptured_bytes = self._payload_bytes if recorded else 0
            first_ns = self._last_ns if uncaptured_bytes else 0
            exchange.relay_ended(
                RelayedEnd(
                    cause, error, self._last_ns, self._last_output_ns, self._payload_bytes, self._wire_bytes, b"",
                    self._records.seq, self._records.capture_bytes, uncaptured_bytes, first_ns, -1,
                )
            )  # fmt: skip


class _Recorders:
    """Notes the head of each exchange that starts."""

    def __init__(self, recorders: Any) -> None:
        self._recorders = recorders
        self.heads: list[RequestHead] = []

    def new(self, head: RequestHead, *facts: Any) -> Any:
        self.heads.append(head)
        return None if self._recorders is None else self._recorders.new(head, *facts)


class MemoryTap:
    """One client connection of a tap. `relay`: with a relay for its bodies. Create it inside a running event loop."""

    def __init__(
        self,
        *,
        relay: bool = False,
        recording: bool = True,
        client: type[ClientConnection] = ClientConnection,
        **options: Any,
    ) -> None:
        self.loop = SteppedLoop()
        made = replace(_OPTIONS, **options)
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.context = TapContext(
            made, loop, self.loop.clock_ns, Recording(made, client_key=b"", clock_ns=self.loop.clock_ns)
        )
        self.records = RecorderGroup()
        self._recorders = _Recorders(self.records.recorders if recording else None)
        self.context.recorders = cast(Any, self._recorders)
        self.relay = MemoryRelay(self)
        if relay:
            self.context.relay = cast(Any, self.relay)
        self.pool = MemoryPool(self)
        self.hangups = _Hangups()
        self.connection = client(self.context, [self.pool], cast(Any, self.hangups))
        self.client = self._transport(self.connection)
        self.upstreams: list[MemoryTransport] = []
        self.exchange: Exchange
        """The latest exchange, also after its end."""

    def _transport(self, protocol: Any) -> MemoryTransport:
        transport = MemoryTransport(self.loop)
        transport.protocol = protocol
        protocol.connection_made(transport)
        return transport

    @property
    def upstream(self) -> MemoryTransport:
        """The latest connection to the upstream."""
        return self.upstreams[-1]

    @property
    def started(self) -> list[RequestHead]:
        """The heads of all exchanges."""
        return self._recorders.heads

    @property
    def transports(self) -> list[MemoryTransport]:
        return [self.client, *self.upstreams]

    @property
    def states(self) -> tuple[int, int]:
        """Of the latest exchange."""
        return self.exchange.request, self.exchange.response

    def request(self, raw: bytes) -> None:
        self.client.receive(raw)
        self._note_exchange()

    def _note_exchange(self) -> None:
        if self.connection.exchange is not None:
            self.exchange = self.connection.exchange

    def connect(self) -> None:
        """Open the connection that the exchange waits for."""
        connecting = self.pool.connecting.pop()
        assert not connecting.cancelled
        connection = UpstreamConnection(self.pool)
        self.upstreams.append(self._transport(connection))
        connecting.exchange.on_connected(connection, self.loop.now_ns)

    def end(self) -> None:
        """Let every peer read everything, and every timer of a close run."""
        for transport in self.transports:
            transport.stuck = False
            transport.take()
        self.loop.run()
        self.loop.advance(60)

    def closed(self) -> list[Closed]:
        """The `Closed` records so far."""
        self.records.settle()
        return [record for record in self.records.sink.records if isinstance(record, Closed)]

    def check(self) -> None:
        """What holds between any two events."""
        exchange, draining = self.connection.exchange, self.connection.draining
        assert not self.loop.errors, self.loop.errors
        assert not self.context.guards.failures()["recording"], self.context.guards.failures()
        assert self.context.exchanges == (set() if exchange is None else {exchange})
        if exchange is not None:
            assert exchange.response < states.DRAINING, exchange
        if draining is not None:
            assert draining.response == states.DRAINING, draining
        for transport in self.upstreams:
            attached = transport.protocol.exchange
            assert attached is None or attached is exchange
        upstream = None if exchange is None else exchange._upstream
        assert upstream is None or upstream.exchange is exchange
        if exchange is not None:
            assert (upstream is None) == (exchange.response == states.CONNECTING)
        client = self.connection
        assert (exchange is not None) == (
            client.state == states.EXCHANGING
        ) or client.state == states.CLOSED, client
        assert (client.state == states.HEAD_PART) <= bool(client._buffer), client

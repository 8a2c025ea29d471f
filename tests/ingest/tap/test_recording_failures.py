"""Recording never touches forwarding: an exception in any of its methods loses at most what that method recorded.

One tap serves all rounds. In each round one method raises, once or at every call, while seven kinds of exchanges run side by
side. The methods are those that the classes have, so a new one is covered, and fails here if no traffic of this file calls it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from streamgauge.ingest.recording.log_thread import LogThread
from streamgauge.ingest.recording.record_buffer import RecordBuffer
from streamgauge.ingest.recording.recorder import Recorder, Recorders
from streamgauge.ingest.records import Closed, Frames, Lost, Opened
from streamgauge.ingest.tap.exchanges.refusals import Refusals
from streamgauge.ingest.tap.relay.body_relay import BodyRelay
from streamgauge.ingest.tap.relay.choice import native_relay
from tests.guard_injection import Fault, derived, methods
from tests.ingest.running_tap import END, SSE_HEAD, MemoryLog, RunningTap, chunk, read_request
from tests.ingest.running_tap import running_tap as run

RECORDING = (Recorders, Recorder, RecordBuffer, BodyRelay, Refusals, LogThread, MemoryLog)
NOT_INJECTED = {
    "Recorder.state",  # only the printed recorder has it
    # They contain the exceptions of all others, each in its own few lines.
    "RecordBuffer._on_timer", "RecordBuffer._end_batch", "RecordBuffer.lose_records",
    # They run before the first or after the last exchange.
    "RecordBuffer.__init__", "RecordBuffer.flush_all", "BodyRelay.__init__", "BodyRelay.record_in", "BodyRelay.close",
    "Recorders.__init__", "Refusals.__init__", "LogThread.__init__", "LogThread.start", "LogThread.stop",
    "MemoryLog.__init__", "MemoryLog.close",
    # They only count for /ledger, or for this file.
    "BodyRelay.waits_dropped", "BodyRelay.pending_bytes", "BodyRelay.blocks", "RecordBuffer.queued_bytes", "RecordBuffer.take_done",
    "Recorder.abandoned", "MemoryLog.records_of", "MemoryLog.streams",
}  # fmt: skip
IN_LOG_THREAD = re.compile(r"LogThread\._")  # test_record_log_thread.py has their failures
OF_THE_RELAY = re.compile(
    r"BodyRelay|RecordBuffer\.(grant|append_relayed)|Recorder\.(state_for_relay|relay_)"
)
FIRST_FAULT: dict[str, tuple[type, str]] = {
    "abandon": (Recorder, "record_request"), "_reserved_bytes": (Recorder, "record_request"), "_lose_batch": (MemoryLog, "append"),
}  # fmt: skip
"""Methods that run only after another fault."""
LOSES_A_BATCH = re.compile(r"\.(append_\w+|append|_?put\w*|take|_append)$")
REFUSES = re.compile(
    r"Refusals\.|RecordBuffer\.(has_room|take_done)|Recorders\.new|Recorder\.(__init__|ended|drained)"
)
"""Methods whose failure may cost the record of a refused request, which is no stream yet."""
PARTS = 5
PART = b"data: {}\n\n" * 20
BODY = b'{"model": "m", "stream": true}'
FRAME = b"\x81\x02{}"
STREAMS = 9
"""Exchanges of one round."""


@contextlib.contextmanager
def injected(kind: type, name: str, fault: Fault, tap: RunningTap) -> Iterator[None]:
    context = tap.worker.context
    with pytest.MonkeyPatch.context() as patch:
        # Compiled classes cannot be changed, but derived from, and their objects can be replaced where others hold them.
        if kind is Recorder and is_compiled(kind):
            faulty = type("Faulty", (kind,), {name: derived(kind, name, fault)})
            recorders = Redirect(context.recorders)
            recorders.new = functools.partial(faulty, context.recorders)
            patch.setattr(context, "recorders", recorders)
        elif kind is RecordBuffer and is_compiled(kind):
            buffer = Redirect(tap.worker.recording.buffer)
            setattr(buffer, name, fault.instead_of(getattr(tap.worker.recording.buffer, name)))
            patch.setattr(context.relay, "_buffer", buffer)
        else:
            patch.setattr(kind, name, derived(kind, name, fault))
        yield


class Redirect:
    """An object with the methods of another, unless it has its own."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


class Upstream:
    """Responds by the path. The parts of a stream follow each other as the client receives them."""

    def __init__(self) -> None:
        self.next_part: dict[bytes, asyncio.Event] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await read_request(reader)
            path = head.split(b" ", 2)[1]
            if path.startswith(b"/stream"):
                writer.write(SSE_HEAD)
                for _ in range(PARTS):
                    await self.next_part[path].wait()
                    self.next_part[path].clear()
                    writer.write(chunk(PART))
                writer.write(END)
            elif path == b"/websocket":
                writer.write(
                    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
                )
                writer.write(await reader.readexactly(len(FRAME)))
                writer.close()
                return
            elif path == b"/large":
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 200000\r\n\r\n"
                )
                writer.write(b"x" * 200_000)
            else:
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
                )


async def traffic(
    tap: RunningTap,
    upstream: Upstream,
    number: int,
    squeeze: Callable[[bool], None],
    pause: Callable[[], Awaitable[None]],
) -> None:
    """`STREAMS` exchanges. Fails if a client receives anything but what the upstream has sent."""

    def check_timeouts() -> None:
        for connection in list(tap.worker.context.clients):
            connection.check_timeouts(tap.worker.context.clock_ns())  # type: ignore[attr-defined]

    async def stream(name: str, parts: int) -> None:
        path = f"/stream/{number}/{name}".encode()
        event = upstream.next_part[path] = asyncio.Event()
        client = await tap.client()
        await client.send(
            b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (path, len(BODY), BODY)
        )
        await client.read_until(b"\r\n\r\n")
        for part in range(parts):
            if name == "whole" and part in (2, 4):
                squeeze(part == 2)
                check_timeouts()
                await pause()
            event.set()
            assert await client.read(len(chunk(PART))) == chunk(PART)
        if parts == PARTS:
            assert await client.read(len(END)) == END
        client.reset()

    async def short() -> None:
        client = await tap.client()
        for method in (b"POST", b"POST", b"GET"):
            body = BODY if method == b"POST" else b""
            await client.send(
                b"%b /short HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (method, len(body), body)
                if body
                else b"GET /short HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
            )
            assert (await client.response())[1] == b"{}"
        client.close()

    async def large() -> None:
        head = b"POST /large HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\nConnection: close\r\n\r\n"
        assert (await tap.request(head + b"y" * 100_000))[1] == b"x" * 200_000

    async def websocket() -> None:
        client = await tap.client()
        await client.send(
            b"GET /websocket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
        assert b" 101 " in await client.read_until(b"\r\n\r\n")
        await client.send(FRAME)
        assert await client.read(len(FRAME)) == FRAME
        client.close()

    async def refused() -> None:
        assert b" 400 " in (await tap.request(b"GET / HTTP/1.1\r\nHost : a\r\n\r\n"))[0]

    streams = stream("whole", PARTS), stream("left", 3), stream("other", PARTS)
    await asyncio.gather(*streams, short(), large(), websocket(), refused())


async def ended_streams(
    tap: RunningTap, opened_before: int, log_before: int, uncounted: Callable[[], int], leaks: bool
) -> tuple[int, int]:
    """Wait until all streams have ended and no bytes wait. Returns (streams with all records, others)."""
    worker, log = tap.worker, tap.log
    buffer = worker.recording.buffer
    assert buffer is not None

    def ends() -> int:
        records = log.records[log_before:]
        return len({r.stream for r in records if isinstance(r, Closed) or (isinstance(r, Lost) and r.last)})

    opened = worker.recording.counters.streams_opened - opened_before
    try:
        await tap.wait_until(lambda: ends() + uncounted() >= opened and (buffer.queued_bytes == 0 or leaks))
    except TimeoutError:
        raise AssertionError(
            f"{ends()} of {opened} streams ended, {buffer.queued_bytes} bytes wait"
        ) from None
    kinds: dict[str, Counter[str]] = {}
    for r in log.records[log_before:]:
        if isinstance(r, (Opened, Frames, Closed, Lost)):
            kinds.setdefault(r.stream, Counter())[type(r).__name__] += 1
    whole = sum(k["Opened"] == k["Closed"] == 1 and not k["Lost"] for k in kinds.values())
    return whole, len(kinds) - whole


def all_methods() -> list[tuple[type, str]]:
    """With compiled code: those of the relay and of classes that are not compiled. The interpreted code covers the others."""
    found = [
        (kind, name)
        for kind in RECORDING
        for name in methods(kind)
        if (what := f"{kind.__name__}.{name}") not in NOT_INJECTED
        and not IN_LOG_THREAD.match(what)
        and (native_relay is not None if OF_THE_RELAY.match(what) else not is_compiled(kind))
    ]
    return sorted(found, key=lambda method: method[1] in FIRST_FAULT)


def is_compiled(kind: type) -> bool:
    return str(sys.modules[kind.__module__].__file__).endswith(".so")


class Rounds:
    """Rounds of traffic through one tap, each with a fault in one method."""

    def __init__(self, tap: RunningTap, upstream: Upstream) -> None:
        self.tap = tap
        self.upstream = upstream
        self.number = 0
        buffer = tap.worker.recording.buffer
        assert buffer is not None
        self.buffer = buffer
        self.room_bytes = buffer.limit_bytes

    def squeeze(self, on: bool) -> None:
        """Leave no room for the frames of bodies that are with the relay."""
        self.buffer.limit_bytes = 1000 if on else self.room_bytes
        relay = self.tap.worker.context.relay
        if relay is not None:
            relay._grant(more=True)

    async def run(self, kind: type, name: str, *, always: bool, room: str) -> bool:
        """Whether the method was called."""
        tap, buffer = self.tap, self.buffer
        buffer.flush_all()  # recorders that the last round has abandoned
        counters, guards = tap.worker.recording.counters, tap.worker.context.guards
        opened, in_log, untold = counters.streams_opened, len(tap.log.records), counters.lost_untold
        failures = sum(guards.failures().values())
        self.number += 1
        fault, first = Fault(always=always), FIRST_FAULT.get(name)

        def uncounted() -> int:
            return counters.lost_untold - untold

        async def settle() -> tuple[int, int]:
            return await ended_streams(tap, opened, in_log, uncounted, first is not None)

        async def pause() -> None:
            """Streams that are open for a tick are flushed, and wait again with their next data."""
            if name in ("flush", "_wait"):
                await tap.wait_until(lambda: not (buffer._waiting or buffer._waiting_longer))

        with contextlib.ExitStack() as faults:
            if first is not None:
                faults.enter_context(injected(*first, Fault(always=False), tap))
            faults.enter_context(injected(kind, name, fault, tap))
            buffer.limit_bytes = 1000 if room == "none" else self.room_bytes
            squeeze = self.squeeze if room == "none later" else lambda on: None
            await traffic(tap, self.upstream, self.number, squeeze, pause)
            buffer.limit_bytes = self.room_bytes
            if always:
                await asyncio.sleep(0.1)  # for some ticks
            else:
                whole, others = await settle()
        if always:
            whole, others = await settle()
        if not fault.calls:
            return False
        what = f"{kind.__name__}.{name}, {fault.calls} calls: {whole} whole, {others} other streams, {uncounted()} uncounted"
        assert sum(guards.failures().values()) > failures, what
        assert guards.faults(), what
        assert whole + others + uncounted() >= counters.streams_opened - opened, what
        if not always and first is None:
            if uncounted() == 0:
                assert whole + others == counters.streams_opened - opened, what
            refused = counters.streams_opened - opened == STREAMS - 1 and (
                room == "none" or REFUSES.search(what)
            )
            assert refused or counters.streams_opened - opened == STREAMS, what
            if room == "enough" and not LOSES_A_BATCH.search(f".{name}"):
                assert others <= fault.raised, what
        return True


@pytest.mark.parametrize(
    "always", [pytest.param(False, id="once"), pytest.param(True, id="always", marks=pytest.mark.slow)]
)
async def test_an_exception_in_any_method_of_recording_leaves_traffic_and_other_streams_alone(always: bool):
    upstream, uncalled = Upstream(), []
    async with run(upstream.serve, alive_s=0.05) as tap:
        rounds = Rounds(tap, upstream)
        for kind, name in all_methods():
            # Without room from the second part on, or from the start, if traffic with room does not call the method.
            for room in ("enough", "none later", "none"):
                if await rounds.run(kind, name, always=always, room=room):
                    break
            else:
                uncalled.append(f"{kind.__name__}.{name}")
    assert always or not uncalled, "no traffic of this file calls them: extend `traffic`"

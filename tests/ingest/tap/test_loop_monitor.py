"""Blocks of the event loop are detected by asyncio and uvloop alike, and only just after they ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
import uvloop

from streamgauge.ingest.tap.exchanges.loop_monitor import MIN_BLOCK_NS, PERIOD_NS, LoopMonitor

MS = 1_000_000


class ManualLoop:
    """Runs the monitor's timer when the test says so."""

    def __init__(self) -> None:
        self.now_ns = 10**12
        self.run: Callable[[], None] = lambda: None

    def call_later(self, _: float, callback: Callable[[], None]) -> None:
        self.run = callback

    def timer(self, *, late_ns: int) -> None:
        self.now_ns += PERIOD_NS + late_ns
        self.run()


def started() -> tuple[LoopMonitor, ManualLoop]:
    loop = ManualLoop()
    monitor = LoopMonitor(loop, lambda: loop.now_ns)  # type: ignore[arg-type]
    assert monitor.block_before(loop.now_ns) is None
    monitor.start()
    return monitor, loop


def test_punctual_timers_are_no_block():
    monitor, loop = started()
    for late_ns in (0, MS, MIN_BLOCK_NS - 1):
        loop.timer(late_ns=late_ns)
        assert monitor.block_before(loop.now_ns + PERIOD_NS) is None
    assert (monitor.blocked_ns, monitor.lag_ns, monitor.lag_max_ns) == (0, MIN_BLOCK_NS - 1, MIN_BLOCK_NS - 1)


def test_a_late_timer_is_a_block_until_the_next_timer():
    monitor, loop = started()
    loop.timer(late_ns=300 * MS)
    block = (loop.now_ns - 300 * MS, loop.now_ns)
    assert monitor.block_before(loop.now_ns + 10 * MS) == block
    loop.timer(late_ns=MS)
    assert monitor.block_before(loop.now_ns) is None
    assert (monitor.blocked_ns, monitor.lag_ns, monitor.lag_max_ns) == (300 * MS, MS, 300 * MS)


def test_the_current_iteration_counts_before_its_timer_has_run():
    monitor, loop = started()
    due_ns = loop.now_ns + PERIOD_NS
    assert monitor.block_before(due_ns + 80 * MS) == (due_ns, due_ns + 80 * MS)
    loop.timer(late_ns=80 * MS)
    long_iteration_ns = loop.now_ns + PERIOD_NS + 40 * MS
    assert monitor.block_before(long_iteration_ns) == (due_ns, long_iteration_ns)


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_read_after_a_block_finds_it(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def run() -> tuple[int, int] | None:
        loop = asyncio.get_running_loop()
        monitor = LoopMonitor(loop, time.monotonic_ns)
        monitor.start()
        found: asyncio.Future[tuple[int, int] | None] = loop.create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            found.set_result(monitor.block_before(time.monotonic_ns()))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await asyncio.sleep(0.06)
        writer.write(b"x")
        await asyncio.sleep(0)
        time.sleep(0.2)  # noqa: ASYNC251 - blocks the loop on purpose
        block = await found
        writer.close()
        server.close()
        return block

    with asyncio.Runner(loop_factory=factory) as runner:
        block = runner.run(run())
    assert block is not None
    assert block[1] - block[0] > 150 * MS

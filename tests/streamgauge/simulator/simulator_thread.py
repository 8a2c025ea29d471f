"""Run a simulator in a thread, for tests without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import uvloop

from streamgauge.simulator.server import Simulator, SimulatorOptions
from tests.deadline import DEADLINE_S


@contextlib.contextmanager
def simulator_thread(options: SimulatorOptions | None = None) -> Iterator[Simulator]:
    """Run a simulator until the context ends."""
    simulator = Simulator(options or SimulatorOptions(listen="127.0.0.1:0"))
    ready: threading.Event = threading.Event()
    failed: list[BaseException] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        stop = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stop))
        try:
            await simulator.start()
        except OSError as e:
            failed.append(e)
            return
        finally:
            ready.set()
        await stop.wait()
        await simulator.stop()

    thread = threading.Thread(target=lambda: uvloop.run(serve()), name="simulator", daemon=True)
    thread.start()
    ready.wait()
    try:
        if failed:
            raise failed[0]
        yield simulator
    finally:
        loop, stop = loops[0]
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stop.set)
        thread.join(DEADLINE_S)

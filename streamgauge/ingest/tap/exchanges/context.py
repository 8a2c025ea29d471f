"""The state that one worker shares with its connections and exchanges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from streamgauge.ingest.recording.recorder import Recorders
from streamgauge.ingest.recording.recording import Recording
from streamgauge.ingest.tap.exchanges.loop_monitor import LoopMonitor
from streamgauge.ingest.tap.exchanges.refusals import Refusals
from streamgauge.ingest.tap.exchanges.timeouts import Timeouts
from streamgauge.ingest.tap.http.routing import Router
from streamgauge.ingest.tap.options import TapOptions
from streamgauge.ingest.tap.relay.body_relay import BodyRelay


class OpenClient(Protocol):
    """Interface of a client connection that its worker uses."""

    transport: asyncio.Transport

    def close_if_idle(self) -> None: ...
    def waiting_stream(self, relay_blocks: bool) -> str | None: ...


class OpenExchange(Protocol):
    """Interface of an exchange that a stopping worker uses."""

    def stop(self) -> None: ...


class TapContext:
    """Everything that connections and exchanges need from their worker. `clock_ns` is monotonic."""

    def __init__(
        self,
        options: TapOptions,
        loop: asyncio.AbstractEventLoop,
        clock_ns: Callable[[], int],
        recording: Recording,
    ) -> None:
        self.options = options
        self.head_limits = options.head_limits
        self.x_forwarded = options.x_forwarded
        self.loop = loop
        self.clock_ns = clock_ns
        self.guards = recording.guards
        self.counters = recording.counters
        self.failures = recording.failures
        self.loop_monitor = LoopMonitor(loop, clock_ns)
        self.refusals = Refusals(self.failures)
        self.router = Router(options.upstreams)
        self.timeouts = Timeouts(options)
        self.recorders: Recorders | None = None  # None: do not record
        self.relay: BodyRelay | None = None  # None: exchanges forward all bodies
        self.clients: set[OpenClient] = set()
        self.exchanges: set[OpenExchange] = set()
        self.stopping = False
        self.handed_over = (
            False  # another tap has the listening sockets: this one stops when its clients have left
        )
        self._next_iteration: list[Callable[[], None]] = []

    def call_next_iteration(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the loop's next iteration, after pending writes have gone to the kernel."""
        if not self._next_iteration:
            self.loop.call_soon(self._run_callbacks)
        self._next_iteration.append(callback)

    def _run_callbacks(self) -> None:
        callbacks, self._next_iteration = self._next_iteration, []
        for callback in callbacks:
            try:
                callback()
            except Exception as error:  # a bug; it must not stop the other callbacks
                self.loop.call_exception_handler({"message": "a callback failed", "exception": error})

"""Detects when a worker's event loop could not run its callbacks: a long callback, or a process without CPU.

A timer is due every `PERIOD_NS`. If it runs late, the loop was blocked at least from the due time on. So a block is measured
up to one period too short, and blocks below `MIN_BLOCK_NS` beyond the due time are not detected. All times are monotonic, in ns.

A block delays only the callbacks that were ready when it ended. They run before the next timer, so `block_before` returns a
block only until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PERIOD_NS = 25_000_000
MIN_BLOCK_NS = 5_000_000
"""Above the 1 ms to which event loops round their timers."""
_NEVER_NS = 1 << 62


class LoopMonitor:
    """The latest block of one event loop, and totals for the metrics."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock_ns: Callable[[], int]) -> None:
        self._loop = loop
        self._clock_ns = clock_ns
        self._due_ns = _NEVER_NS
        self._block: tuple[int, int] | None = None
        self.lag_ns = 0
        """Lateness of the latest timer."""
        self.lag_max_ns = 0
        self.blocked_ns = 0
        """Total of all blocks."""

    def start(self) -> None:
        self._schedule(self._clock_ns())

    def block_before(self, now_ns: int) -> tuple[int, int] | None:
        """(start, end) of the block that may have delayed the callback that runs now. None: there was none."""
        block, due_ns = self._block, self._due_ns
        if now_ns - due_ns < MIN_BLOCK_NS:
            return block
        return (due_ns if block is None else block[0], now_ns)

    def _schedule(self, now_ns: int) -> None:
        self._due_ns = now_ns + PERIOD_NS
        self._loop.call_later(PERIOD_NS / 1e9, self._on_timer)

    def _on_timer(self) -> None:
        now_ns, due_ns = self._clock_ns(), self._due_ns
        late_ns = self.lag_ns = max(0, now_ns - due_ns)
        self.lag_max_ns = max(self.lag_max_ns, late_ns)
        if late_ns >= MIN_BLOCK_NS:
            self.blocked_ns += late_ns
            self._block = (due_ns, now_ns)
        else:
            self._block = None
        self._schedule(now_ns)

"""What processes with an event loop share: how they stop, and when they collect garbage."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable

from streamgauge.ingest.listening import REPLACED


def stop_on_signals(stop: Callable[[], None], hand_over: Callable[[], None] | None = None) -> None:
    """Call `stop` at each SIGTERM and SIGINT, and `hand_over` at REPLACED."""
    loop = asyncio.get_running_loop()
    if hand_over is not None:
        loop.add_signal_handler(REPLACED, hand_over)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def reduce_gc() -> None:
    """Exempt imported objects from garbage collection and collect rarely.

    The hot path creates no reference cycles, and a full collection pauses every stream.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)

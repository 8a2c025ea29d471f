"""How long tests wait for an event: only what hangs takes longer, on a busy machine, too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

DEADLINE_S = 150.0

T = TypeVar("T")


def until(question: Callable[[], T | None], what: str, deadline_s: float = DEADLINE_S) -> T:
    """Repeat until the answer is neither None nor False. The error names `what`."""
    end_s = time.monotonic() + deadline_s
    while (asked_s := time.monotonic()) < end_s:
        answer = question()
        if answer is not None and answer is not False:
            return answer
        # A query is repeated less often than a look at a file: the awaited processes need the CPUs.
        time.sleep(max(0.03, 2 * (time.monotonic() - asked_s)))
    raise AssertionError(f"waited {deadline_s:.0f} s for {what}")

"""Guards: each thread, loop and piece of background work of a process has one, so that its faults stay contained and show.

- `attempt` contains an exception: it is counted, logged at most once a minute, and the caller goes on with the next item.
- `beat` is a heartbeat. A guard with `silent_after_s` is silent if none came for that long.
- `failed` counts an exception that was caught elsewhere.
- A guard is at fault while it is silent, while its last attempt failed, and `SHOWN_S` after each `failed`. A successful attempt
  ends the fault; the total `failures` stays.

Methods may be called from any thread and never raise. Texts have only those messages of exceptions that cannot quote traffic.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from streamgauge.ingest.log_lines import error_kind

logger = logging.getLogger("streamgauge.guards")

SHOWN_S = 60.0
"""How long a failure that no attempt can end stays a fault. Also the shortest time between two log lines of one guard."""
MAX_GUARDS = 256
"""Names come from the code and the settings. More than this are counted together under `other`."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0

Clock = Callable[[], float]


def system_error(error: BaseException) -> str | None:
    """The reason and the path of an error of the operating system; None for other exceptions, which are bugs."""
    if not isinstance(error, OSError) or error.errno is None:
        return None
    path = f" ({error.filename})" if error.filename is not None else ""
    return f"{os.strerror(error.errno)}{path}"


Describe = Callable[[BaseException], str | None]


class Guard:
    """One piece of work. Made by `Guards.guard`."""

    def __init__(
        self,
        name: str,
        silent_after_s: float | None = None,
        clock: Clock = time.monotonic,
        describe: Describe = system_error,
    ) -> None:
        self.name = name
        self.silent_after_s = silent_after_s
        self.failures = 0
        """Exceptions since the start of the process."""
        self._clock, self._describe = clock, describe
        self._lock = threading.Lock()
        self._beat_s = clock()
        self._failing = False
        self._failed_s = self._logged_s = float("-inf")
        self._reason = ""

    def beat(self) -> None:
        """Report that the work goes on."""
        self._beat_s = self._clock()

    def attempt(self, step: Callable[..., object], *args: object) -> bool:
        """Call `step(*args)`. False: it raised an exception, which is counted and logged."""
        try:
            step(*args)
        except Exception as e:
            self.failed(e)
            self._failing = True
            return False
        self.worked()
        return True

    def worked(self) -> None:
        """Report a success: the work is not at fault any more."""
        self._beat_s = self._clock()
        self._failing, self._failed_s = False, float("-inf")

    def end(self) -> None:
        """The work has ended as planned: its silence is no fault."""
        self.silent_after_s = None

    def failed(self, error: BaseException) -> None:
        """Count and log an exception that was caught elsewhere."""
        now_s, reason = self._clock(), self._describe(error)
        with self._lock:
            self.failures += 1
            self._failed_s, self._reason = now_s, reason or error_kind(error)
            is_logged = now_s - self._logged_s >= SHOWN_S
            if is_logged:
                self._logged_s = now_s
        if is_logged:
            text = "%s failed, other work continues (%d failures since the start): %s"
            bug = error if reason is None else None
            logger.error(text, self.name, self.failures, self._reason, exc_info=bug)

    def fault(self) -> str | None:
        """One sentence without the name; None if the work goes on."""
        now_s = self._clock()
        if self._failing or now_s - self._failed_s < SHOWN_S:
            since_s = max(0.0, now_s - self._failed_s)
            return f"failed {since_s:.0f} s ago: {self._reason} ({self.failures} failures)"
        silent_s = now_s - self._beat_s
        if self.silent_after_s is not None and silent_s > self.silent_after_s:
            return f"has made no progress for {silent_s:.0f} s"
        return None


class Guards:
    """The guards of one process, by name."""

    def __init__(self, clock: Clock = time.monotonic, describe: Describe = system_error) -> None:
        """`describe` returns the reason to show for an exception that is no bug, None for a bug."""
        self._clock, self._describe = clock, describe
        self._lock = threading.Lock()
        self._guards: dict[str, Guard] = {}
        self._checks: dict[str, Callable[[], str | None]] = {}

    def guard(self, name: str, *, silent_after_s: float | None = None) -> Guard:
        """The guard with this name; made at the first call. `silent_after_s`: longest time between two heartbeats."""
        with self._lock:
            # Each name becomes a series in Prometheus. A name made of traffic, which would be a bug, must not grow
            # memory without bound.
            if name not in self._guards and len(self._guards) >= MAX_GUARDS:
                name, silent_after_s = "other", None
            found = self._guards.get(name)
            if found is None:
                found = self._guards[name] = Guard(name, silent_after_s, self._clock, self._describe)
            return found

    def all(self) -> list[Guard]:
        return list(self._guards.values())

    def check(self, name: str, find: Callable[[], str | None]) -> None:
        """Also report what `find` returns: a sentence about a fault, or None. It is called at each `faults`."""
        self._checks[name] = find

    def faults(self) -> dict[str, str]:
        """One sentence for each name that is at fault."""
        found = {guard.name: guard.fault() for guard in self.all()}
        for name, find in list(self._checks.items()):
            try:
                found[name] = find()
            except Exception as e:
                found[name] = f"cannot be checked: {error_kind(e)}"
        return {name: sentence for name, sentence in found.items() if sentence is not None}

    def failures(self) -> dict[str, int]:
        """Exceptions since the start, of every guard."""
        return {guard.name: guard.failures for guard in self.all()}


def fault_lines(faults: Mapping[str, str]) -> list[str]:
    """The faults as text, one line each. No lines: there is no fault."""
    return [f"{name}: {sentence}" for name, sentence in faults.items()]


def probe(faults: Mapping[str, str]) -> tuple[int, str]:
    """Status and body of a response of `/recordingz`."""
    lines = fault_lines(faults)
    return (503 if lines else 200), "\n".join(lines or ["recording"]) + "\n"


def guarded_thread(guard: Guard, run: Callable[[], object], stop: threading.Event) -> threading.Thread:
    """A thread, not started, that calls `run` until `stop` is set, again after growing pauses if it raises or returns early."""

    def repeat() -> None:
        pause_s = FIRST_PAUSE_S
        while not stop.is_set():
            began_s = time.monotonic()
            try:
                run()
                if stop.is_set():
                    break
                raise RuntimeError("the thread's function returned before the stop")
            except BaseException as e:  # nothing above a thread could do anything with it
                guard.failed(e)
            pause_s = _next_pause_s(pause_s, began_s)
            stop.wait(pause_s)
        guard.end()

    return threading.Thread(target=repeat, name=guard.name, daemon=True)


async def guarded_task(guard: Guard, run: Callable[[], Awaitable[Any]]) -> None:
    """Await `run()` until it returns or is cancelled, again after growing pauses if it raises."""
    pause_s = FIRST_PAUSE_S
    while True:
        began_s = time.monotonic()
        try:
            await run()
        except Exception as e:
            guard.failed(e)
            pause_s = _next_pause_s(pause_s, began_s)
            await asyncio.sleep(pause_s)
        else:
            guard.end()
            return


def _next_pause_s(pause_s: float, began_s: float) -> float:
    """Work that ran for long begins again soon."""
    ran_long = time.monotonic() - began_s > LONGEST_PAUSE_S
    return FIRST_PAUSE_S if ran_long else min(pause_s * 2, LONGEST_PAUSE_S)

"""Kill the work of any guard once: its next heartbeat or step raises. So each guard of a registry is covered, new ones too."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from streamgauge.ingest.guards import Guard


class Injected(Exception):
    """The injected fault."""


class Injection:
    """Within the block, the guard's next heartbeat or step raises once; `works_again`: a later one did not."""

    def __init__(self, guard: Guard) -> None:
        self._guard: Any = guard
        self.raised = self.works_again = False

    def __enter__(self) -> Injection:
        self._guard.beat, self._guard.attempt = self._beat, self._attempt
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._guard.beat, self._guard.attempt

    def _beat(self) -> None:
        self._raise_once()
        Guard.beat(self._guard)
        self.works_again = True

    def _attempt(self, step: Any, *args: Any) -> bool:
        def step_or_fault(*given: Any) -> None:
            self._raise_once()
            step(*given)
            self.works_again = True

        return Guard.attempt(self._guard, step_or_fault, *args)

    def _raise_once(self) -> None:
        if not self.raised:
            self.raised = True
            raise Injected

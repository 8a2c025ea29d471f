"""Kill the work of any guard once: its next heartbeat or step raises. So each guard of a registry is covered, new ones too."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from ingest.guards import Guard


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
        self._step()
        Guard.beat(self._guard)

    def _attempt(self, step: Any, *args: Any) -> bool:
        def broken(*given: Any) -> Any:
            self._step()
            return step(*given)

        return Guard.attempt(self._guard, broken, *args)

    def _step(self) -> None:
        if self.raised:
            self.works_again = True
        else:
            self.raised = True
            raise Injected

"""Injected exceptions, at places that are taken from the code, so that new ones are covered.

- `Injection` kills the work of any guard once: its next heartbeat or step raises.
- `Fault` raises instead of a method.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from streamgauge.ingest.guards import Guard


class Injected(Exception):
    """The injected fault."""


class Injection:
    """Within the block, the guard's next heartbeat or step raises once.

    `shown`: `faults` then had this fault, by the guard's name. `works_again`: a later heartbeat or step did not raise.
    """

    def __init__(self, guard: Guard, faults: Callable[[], Mapping[str, str]]) -> None:
        self._guard: Any = guard
        self._faults = faults
        self.raised = self.shown = self.works_again = False

    def __enter__(self) -> Injection:
        self._guard.beat, self._guard.attempt, self._guard.failed = self._beat, self._attempt, self._failed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._guard.beat, self._guard.attempt, self._guard.failed

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

    def _failed(self, error: BaseException) -> None:
        Guard.failed(self._guard, error)
        if isinstance(error, Injected):  # now: the guard may work again before a test could look
            self.shown = Injected.__name__ in self._faults().get(self._guard.name, "")

    def _raise_once(self) -> None:
        if not self.raised:
            self.raised = True
            raise Injected


def methods(kind: type) -> list[str]:
    return [
        name
        for name, value in vars(kind).items()
        if (inspect.isroutine(value) or isinstance(value, property) or inspect.isgetsetdescriptor(value))
        and not inspect.ismemberdescriptor(value)
        and (name == "__init__" or not name.startswith("__"))
    ]


class Fault:
    """Raises instead of the method's first call from each place in the code, or of each call."""

    def __init__(self, *, always: bool) -> None:
        self.calls = self.raised = 0
        self.always = always
        self._places: set[tuple[object, int]] = set()

    def instead_of(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(*args: Any, **keywords: Any) -> Any:
            caller = sys._getframe(1)
            place = caller.f_code, caller.f_lineno
            self.calls += 1
            if self.always or place not in self._places:
                self._places.add(place)
                self.raised += 1
                raise RuntimeError("injected")
            return method(*args, **keywords)

        return faulty


def derived(kind: type, name: str, fault: Fault) -> Any:
    method = vars(kind)[name]
    if not inspect.isroutine(method):
        return property(fault.instead_of(method.__get__))
    return fault.instead_of(method)

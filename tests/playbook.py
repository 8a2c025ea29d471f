"""Tests of states as playbooks: an event in (`>>`), the state and the commands out (`<<`). A step that stays unasserted fails."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, Self, TypeVar

Driven = TypeVar("Driven")


class Playbook(Generic[Driven]):
    """One run. A subclass sets `driven`, to which the events are applied."""

    driven: Driven

    def __init__(self) -> None:
        self._is_asserted = True

    def before(self) -> None:
        """Forget the commands of earlier steps."""

    def after(self) -> None:
        """Complete the step."""

    def seen(self) -> str:
        """The state and the commands of the last step."""
        raise NotImplementedError

    def __rshift__(self, event: Callable[[Driven], object]) -> Self:
        self.check_end()
        self.before()
        event(self.driven)
        self.after()
        self._is_asserted = False
        return self

    def __lshift__(self, expected: str) -> Self:
        seen = self.seen()
        assert seen == expected, f"{seen!r} instead of {expected!r}"
        self._is_asserted = True
        return self

    def check_end(self) -> None:
        assert self._is_asserted, "the last step is not asserted"


Played = TypeVar("Played", bound=Playbook[Any])


@contextmanager
def begun_by(create: Callable[..., Played]) -> Iterator[Callable[..., Played]]:
    """What begins a playbook. At the end the last step of each must be asserted."""
    begun: list[Played] = []

    def begin(**options: Any) -> Played:
        begun.append(create(**options))
        return begun[-1]

    yield begin
    for playbook in begun:
        playbook.check_end()


def playbooks_of(module: Mapping[str, Any], *, but: object) -> list[Callable[..., Awaitable[None]]]:
    """The tests of a module that need only `play`."""
    return [
        found
        for name, found in module.items()
        if name.startswith("test_")
        and found is not but
        and list(inspect.signature(found).parameters) == ["play"]
    ]

"""States of alerts: an alert fires once and resolves once, however often its condition flickers. No I/O, no clock.

A condition must hold for `Hold.before_firing_s` before its alert fires, and be absent for `Hold.before_resolving_s` before
it resolves. Times are on one monotonic clock, in seconds.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

MAX_ALERTS = 1_000
"""Alerts that are not inactive. Further conditions are counted and ignored."""


class State(enum.Enum):
    INACTIVE = "inactive"
    PENDING = "pending"
    """The condition is met, but not yet for long enough."""
    FIRING = "firing"
    CLEARING = "clearing"
    """Firing, and the condition is no longer met, but not yet for long enough."""
    RESOLVED = "resolved"


NEXT: Mapping[tuple[State, bool], State] = {
    (State.INACTIVE, True): State.PENDING,
    (State.PENDING, True): State.PENDING,
    (State.PENDING, False): State.INACTIVE,
    (State.FIRING, True): State.FIRING,
    (State.FIRING, False): State.CLEARING,
    (State.CLEARING, True): State.FIRING,
    (State.CLEARING, False): State.CLEARING,
}
"""(state, whether the condition is met) → next state."""
AFTER_HOLD: Mapping[State, State] = {State.PENDING: State.FIRING, State.CLEARING: State.RESOLVED}
"""The next state when a state has lasted for its hold time."""


class Hold(NamedTuple):
    """Hold times of a rule in seconds."""

    before_firing_s: float = 0.0
    before_resolving_s: float = 0.0
    worse_after_s: float | None = None
    """Least time between two reports that a condition got worse. None: that is not reported."""


Severity = Literal["page", "ticket"]
"""`page` needs a person now, `ticket` within days."""
WORSE = 1.5
"""A condition is worse if its value is so many times farther from the threshold."""


class Key(NamedTuple):
    """What identifies an alert. None: the rule does not distinguish it, or it is unknown."""

    rule: str
    gateway: str | None
    model: str | None
    metric: str | None = None
    place: str | None = None
    """JSON object of further dimension values, by dimension."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A rule that is met, with its newest values."""

    value: float
    threshold: float
    message: str
    since_ns: int
    """Wall time at which it began."""
    stream_id: str | None = None
    """An example."""
    client_id: str | None = None
    """The client with most of the affected streams, if it dominates."""
    severity: Severity = "ticket"
    evidence: tuple[str, ...] = ()
    """Short facts."""
    dominant: frozenset[tuple[str, str]] = frozenset()
    """Dimensions with the value that most of the affected streams have, as far as the key does not name them."""

    def is_worse(self, before: Condition) -> bool:
        return abs(self.value - self.threshold) >= WORSE * abs(before.value - before.threshold)


@dataclass(frozen=True, slots=True)
class Change:
    """An alert that has just fired, got worse or resolved."""

    alert_id: str
    key: Key
    state: Literal["firing", "worse", "resolved"]
    condition: Condition
    repeated: bool = False
    """It has fired before, and is only stored again."""


@dataclass(slots=True)
class _Alert:
    condition: Condition
    state: State = State.INACTIVE
    entered_s: float = 0.0
    alert_id: str = ""
    reported: Condition | None = None
    reported_s: float = 0.0
    """The condition and the time of the last change that was returned."""


class AlertStates:
    """The alerts of one process. Not thread-safe."""

    def __init__(
        self,
        holds: Mapping[str, Hold],
        *,
        max_alerts: int = MAX_ALERTS,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        """`holds`: by rule."""
        self._holds = holds
        self._max_alerts = max_alerts
        self._new_id = new_id or (lambda: str(uuid.uuid4()))
        self._alerts: dict[Key, _Alert] = {}
        self.ignored = 0
        """Conditions ignored because there were too many alerts."""

    @property
    def rules(self) -> Collection[str]:
        return self._holds.keys()

    @property
    def firing(self) -> dict[Key, str]:
        """Ids of the alerts that have fired and not resolved."""
        return {
            key: alert.alert_id
            for key, alert in self._alerts.items()
            if alert.state in (State.FIRING, State.CLEARING)
        }

    def repeated(self, rules: Collection[str]) -> list[Change]:
        """The alerts of these rules that have fired and not resolved, with their newest values."""
        return [
            Change(alert.alert_id, key, "firing", alert.condition, repeated=True)
            for key, alert in self._alerts.items()
            if key.rule in rules and alert.state in (State.FIRING, State.CLEARING)
        ]

    def adopt(self, alert_id: str, key: Key, condition: Condition, now_s: float) -> bool:
        """Continue an alert that fired before a restart or in another process. False if the key has one that fires."""
        if key in self.firing:
            return False
        self._alerts[key] = _Alert(condition, State.FIRING, now_s, alert_id, condition, now_s)
        return True

    def forget(self, key: Key) -> None:
        """Remove an alert that another process has resolved."""
        self._alerts.pop(key, None)

    def update(
        self, rules: Collection[str], conditions: Mapping[Key, Condition], now_s: float
    ) -> list[Change]:
        """Process an evaluation of these rules, with all their conditions that are met."""
        changes = []
        for key, condition in conditions.items():
            if key in self._alerts:
                self._alerts[key].condition = condition
            elif len(self._alerts) < self._max_alerts:
                self._alerts[key] = _Alert(condition)
            else:
                self.ignored += 1
        for key, alert in list(self._alerts.items()):
            if key.rule in rules:
                changes += self._advance(key, alert, key in conditions, now_s)
        return changes

    def _advance(self, key: Key, alert: _Alert, met: bool, now_s: float) -> list[Change]:
        before = alert.state
        self._enter(alert, NEXT[before, met], now_s)
        hold = self._holds[key.rule]
        hold_s = hold.before_firing_s if met else hold.before_resolving_s
        # In the same step: a rule without a hold time fires at its first evaluation and not at the second.
        if alert.state in AFTER_HOLD and now_s - alert.entered_s >= hold_s:
            self._enter(alert, AFTER_HOLD[alert.state], now_s)
        if alert.state in (State.INACTIVE, State.RESOLVED):
            del self._alerts[key]
        if alert.state is State.RESOLVED:
            return [Change(alert.alert_id, key, "resolved", alert.condition)]
        if alert.state is State.FIRING and not alert.alert_id:
            alert.alert_id = self._new_id()
            alert.reported, alert.reported_s = alert.condition, now_s
            return [Change(alert.alert_id, key, "firing", alert.condition)]
        if met and alert.reported is not None and hold.worse_after_s is not None:
            late = now_s - alert.reported_s >= hold.worse_after_s
            escalated = alert.condition.severity == "page" != alert.reported.severity
            if escalated or (late and alert.condition.is_worse(alert.reported)):
                alert.reported, alert.reported_s = alert.condition, now_s
                return [Change(alert.alert_id, key, "worse", alert.condition)]
        return []

    @staticmethod
    def _enter(alert: _Alert, state: State, now_s: float) -> None:
        if state is not alert.state:
            alert.state, alert.entered_s = state, now_s

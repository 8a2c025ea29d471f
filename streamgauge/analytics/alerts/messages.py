"""Which changes of alerts become messages: one per incident. Pure.

A change gets no message
1. if a silence matches it,
2. if an incident of the diagnosis explains it: the same gateway and model, as far as the incident names them; none explains spend,
3. if a message about the same rule at the same gateway or about the same model stands for it: its alert still fires, or the
   message is younger than the quiet time. Otherwise a gateway that fails would send one message per model.

A message never stands for an alert of higher severity. A withheld alert that still fires when its silence or the other alert's message
is gone is sent then; one that an incident explains is not. Only an alert with a message gets one when it resolves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from streamgauge.analytics.alerts.alert_states import Change, Key, Severity
from streamgauge.analytics.alerts.incident_rule import DIAGNOSIS, where_of
from streamgauge.analytics.alerts.rules import BUDGET, CLIENT

NOT_ANNOUNCED = "it has had no message"


@dataclass(frozen=True, slots=True)
class Silence:
    """No messages about alerts that the globs match."""

    until_s: float
    """Unix time."""
    rule: str
    model: str
    gateway: str
    reason: str

    def matches(self, key: Key, now_s: float) -> bool:
        values = ((key.rule, self.rule), (key.model, self.model), (key.gateway, self.gateway))
        return now_s < self.until_s and all(fnmatchcase(value or "", glob) for value, glob in values)


@dataclass(slots=True)
class _Sent:
    key: Key
    severity: Severity
    at_s: float
    firing: bool = True


class Messages:
    """The messages of one process. Not thread-safe."""

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self.silences: Sequence[Silence] = ()
        self._sent: dict[str, _Sent] = {}
        """By alert."""
        self._explained: set[str] = set()
        """Alerts that an incident explains. Error budgets burn for hours after it."""

    def adopt(self, alert_id: str, key: Key, severity: Severity, now_s: float) -> None:
        """An alert that had a message before a restart or from another process, and fires."""
        self._sent.setdefault(alert_id, _Sent(key, severity, now_s))

    def forget(self, alert_id: str) -> None:
        """An alert that another process has resolved."""
        self._sent.pop(alert_id, None)
        self._explained.discard(alert_id)

    def reason(self, change: Change, now_s: float) -> str | None:
        """Why the change gets no message. None: it is sent. `now_s`: Unix time."""
        known = self._sent.get(change.alert_id)
        if change.state == "resolved":
            self._explained.discard(change.alert_id)
            if known is None:
                return NOT_ANNOUNCED
            known.firing = False
            return None
        why, by_incident = self._withheld(change, now_s)
        if why is None:
            self._sent[change.alert_id] = _Sent(change.key, change.condition.severity, now_s)
        elif by_incident:
            self._explained.add(change.alert_id)
        return why

    def due(self, firing: Sequence[Change], now_s: float) -> list[Change]:
        """The firing alerts without a message whose reason is gone."""
        for alert_id in [
            i for i, sent in self._sent.items() if not sent.firing and self._is_old(sent, now_s)
        ]:
            del self._sent[alert_id]
        known = self._sent.keys() | self._explained
        return [c for c in firing if c.alert_id not in known and self._withheld(c, now_s)[0] is None]

    def announced(self, firing: Iterable[Change]) -> list[Change]:
        """The firing alerts with a message."""
        return [change for change in firing if change.alert_id in self._sent]

    def _is_old(self, sent: _Sent, now_s: float) -> bool:
        return now_s - sent.at_s >= self._quiet_s

    def _withheld(self, change: Change, now_s: float) -> tuple[str | None, bool]:
        """The reason, and whether it is an incident."""
        if silence := next((s for s in self.silences if s.matches(change.key, now_s)), None):
            return f"silence: {silence.reason}", False
        for alert_id, sent in self._sent.items():
            if (
                alert_id != change.alert_id
                and (sent.firing or not self._is_old(sent, now_s))
                and (sent.severity == "page" or change.condition.severity != "page")
                and _stands_for(sent.key, change)
            ):
                return f"alert {alert_id}", sent.key.rule == DIAGNOSIS != change.key.rule
        return None, False


def _stands_for(sent: Key, change: Change) -> bool:
    key = change.key
    if key.rule == BUDGET.name:
        return False
    if sent.rule == DIAGNOSIS and key.rule != DIAGNOSIS:
        return where_of(sent).items() <= where_of(key).items() | change.condition.dominant
    if sent.rule != key.rule or (CLIENT in (sent.metric, key.metric) and sent.metric != key.metric):
        return False
    if key.rule == DIAGNOSIS:
        mine, other = where_of(sent).items(), where_of(key).items()
        return sent.metric == key.metric and (mine <= other or other <= mine)
    return (key.gateway is not None and key.gateway == sent.gateway) or (
        key.model is not None and key.model == sent.model
    )

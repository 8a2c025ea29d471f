"""The rule `diagnosis`: one condition per incident, however its place and metrics are named from one diagnosis to the next.

1. A diagnosis of the last `RANGE` is made every `EVERY_S`, and while a cause is not confirmed every `UNCONFIRMED_EVERY_S`. How long one
   takes on a busy machine does not delay the next: an incident is then most likely.
2. A cause continues the incident of the same metric whose place it does not contradict. An incident counts from its third diagnosis on,
   because a cause may be chance, and the first ones may name too small a place.
3. After `RANGE` the bad time is the baseline, so a diagnosis no longer shows when it ends. The incident lasts until the metric of its
   place is nearer to its value before than to that of the incident.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from streamgauge.analytics.alerts.alert_states import Condition, Key, Severity
from streamgauge.analytics.diagnosis import aggregates, diagnosis
from streamgauge.analytics.diagnosis.diagnose import diagnose
from streamgauge.analytics.diagnosis.diagnosis import TITLES, Cause, Diagnosis
from streamgauge.analytics.diagnosis.metrics import all_failures, metrics
from streamgauge.analytics.reports import Query
from streamgauge.analytics.reports.objectives import stored_objectives
from streamgauge.analytics.reports.overview import label_names
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.objectives import Objective

DIAGNOSIS = "diagnosis"
"""Name of the rule."""
RANGE = timedelta(minutes=15)
EVERY_S, UNCONFIRMED_EVERY_S = 19.5, 9.5
"""From the start of one to that of the next. The caller comes in rounds, so that these are 20 and 10 s."""
LOOKS = 3
SAME_ONSET = timedelta(minutes=2)
"""Onsets of one incident whose place is named by different dimensions."""
RECENT = timedelta(minutes=2)
LEAST_STREAMS = 5
"""With fewer recent streams an incident that no diagnosis dates has ended."""


@dataclass(slots=True)
class _Incident:
    where: Mapping[str, str]
    titles: frozenset[str]
    condition: Condition
    looks: int = 1

    def continued_by(self, cause: Cause) -> bool:
        if self.titles.isdisjoint(_titles(cause)):
            return False
        mine, other = self.where.items(), cause.where.items()
        if mine <= other or other <= mine:
            return True
        since = datetime.fromtimestamp(self.condition.since_ns / 1e9, UTC)
        agree = all(self.where[d] == cause.where[d] for d in self.where.keys() & cause.where.keys())
        return agree and cause.onset is not None and abs(cause.onset - since) <= SAME_ONSET


class IncidentRule:
    """Evaluates the rule. Used by one thread."""

    def __init__(self, query: Query, clock: Callable[[], int], client_names: Mapping[str, str]) -> None:
        """`clock`: monotonic time in ns. `client_names`: client id → name."""
        self._query, self._clock, self._client_names = query, clock, client_names
        self._due_ns = clock() + int(EVERY_S * 1e9)
        self._incidents: dict[Key, _Incident] = {}

    def adopt(self, key: Key, condition: Condition) -> None:
        """Continue an incident that fired before a restart or in another process."""
        if key not in self._incidents and key.metric in TITLES:
            titles = frozenset((TITLES[key.metric],))
            self._incidents[key] = _Incident(where_of(key), titles, condition, LOOKS)

    @property
    def conditions(self) -> dict[Key, Condition]:
        return {key: one.condition for key, one in self._incidents.items() if one.looks >= LOOKS}

    def evaluate(self, now: datetime | None = None) -> None:
        """Make a diagnosis if it is due. Raises what the query raises."""
        began_ns = self._clock()
        if began_ns < self._due_ns:
            return
        try:
            self._evaluate(now or datetime.now(UTC))
        finally:
            is_unconfirmed = any(one.looks < LOOKS for one in self._incidents.values())
            self._due_ns = began_ns + int(1e9 * (UNCONFIRMED_EVERY_S if is_unconfirmed else EVERY_S))

    def _evaluate(self, now: datetime) -> None:
        chosen = Selection(since=now - RANGE, until=now)
        objectives = stored_objectives(self._query)
        found = diagnose(self._query, chosen, objectives, label_names(self._query))
        known, seen, dated = self._incidents, dict[Key, _Incident](), set[Key]()
        for cause in found.causes:
            severity = severity_of(cause, found, objectives)
            key = next((k for k, one in known.items() if one.continued_by(cause)), None)
            if cause.ended is not None or severity is None or key in seen:
                continue  # the last: a further metric of the same incident
            incident = _Incident(cause.where, _titles(cause), self._condition(cause, found, severity))
            if key is not None:
                before = known[key]
                incident.looks += before.looks
                incident.titles |= before.titles
                if before.looks >= LOOKS:
                    newest = replace(incident.condition, since_ns=before.condition.since_ns)
                    # Values of another metric say nothing about the alert's.
                    incident.condition = newest if cause.metric == key.metric else before.condition
            if key is None or known[key].looks < LOOKS:
                key = key_of(cause)
            seen[key] = incident
            if cause.kind != "constant":
                dated.add(key)
        rest = {k: one for k, one in (known | seen).items() if k not in dated and one.looks >= LOOKS}
        lasting = self._lasting(rest, chosen, objectives)
        self._incidents = {k: one for k, one in seen.items() if k not in rest} | lasting

    def _condition(self, cause: Cause, found: Diagnosis, severity: Severity) -> Condition:
        main = cause.main
        unit = 1e9 if main.unit == "ns" else 1  # durations in seconds
        unaffected = ", ".join(self._name(cause.unaffected_dimension or "", v) for v in cause.unaffected)
        return Condition(
            value=main.value / unit,
            threshold=(main.before or 0.0) / unit,
            message=diagnosis.cause_text(cause, UTC, self._name, measured=found.measured),
            since_ns=int((cause.onset or found.since).timestamp() * 1e9),
            stream_id=cause.example_stream_id,
            client_id=cause.where.get("client"),
            severity=severity,
            evidence=(
                diagnosis.size(cause),
                *cause.evidence,
                *((f"unaffected: {unaffected}",) if unaffected else ()),
            ),
        )

    def _name(self, dimension: str, value: str) -> str:
        named = self._client_names.get(value, value) if dimension == "client" else value
        return diagnosis.plain_name(dimension, named)

    def _lasting(
        self, incidents: Mapping[Key, _Incident], chosen: Selection, objectives: Sequence[Objective]
    ) -> dict[Key, _Incident]:
        """Those whose place is still as bad."""
        compared = metrics(objectives)
        compared |= dict.fromkeys(diagnosis.FAILURES, all_failures(compared))
        asked = [(key, one) for key, one in incidents.items() if key.metric in compared]
        begin, end = chosen.until - RECENT, chosen.until
        candidates = [
            aggregates.Candidate(metric=compared[str(key.metric)], where=one.where, begin=begin, end=end)
            for key, one in asked
        ]
        rows = self._query(aggregates.recent(chosen, candidates)).iter_rows() if asked else ()
        lasting = {}
        for number, n, mean in rows:
            key, one = asked[number]
            if n >= LEAST_STREAMS:
                metric = candidates[number].metric
                value = math.exp(mean) - metric.offset if metric.is_log else mean
                value /= 1e9 if metric.unit == "ns" else 1
                if abs(value - one.condition.value) < abs(value - one.condition.threshold):
                    lasting[key] = one
        return lasting


def severity_of(cause: Cause, found: Diagnosis, objectives: Sequence[Objective]) -> Severity | None:
    """`page` if the streams of the cause, or all of their objective, miss it, and it does not say otherwise. None: no alert.

    A change of traffic is no regression, so it is at most a `ticket`.
    """
    highest = next((o.severity for o in objectives if o.name == cause.objective), "page")
    if highest == "none":
        return None
    values = {TITLES[e.metric]: e.p95 for e in (cause.main, *cause.effects) if e.p95 is not None}
    if cause.metric in diagnosis.FAILURES:
        values[TITLES[cause.metric]] = cause.main.value
    missed = any(
        m.missed or values.get(diagnosis.OBJECTIVES[m.name].removesuffix(" p95"), 0.0) > m.limit
        for m in found.measured
        if cause.objective in (None, m.objective)
    )
    return "page" if missed and highest == "page" and cause.kind != "traffic" else "ticket"


def key_of(cause: Cause) -> Key:
    """The alert of a new incident."""
    rest = {name: value for name, value in cause.where.items() if name not in ("gateway", "model")}
    place = json.dumps(rest, ensure_ascii=False, sort_keys=True) if rest else None
    return Key(DIAGNOSIS, cause.where.get("gateway"), cause.where.get("model"), cause.metric, place)


def where_of(key: Key) -> dict[str, str]:
    """The dimension values of an alert."""
    named = {"model": key.model, "gateway": key.gateway, **json.loads(key.place or "{}")}
    return {name: value for name, value in named.items() if value is not None}


def _titles(cause: Cause) -> frozenset[str]:
    return frozenset(TITLES[effect.metric] for effect in (cause.main, *cause.effects))

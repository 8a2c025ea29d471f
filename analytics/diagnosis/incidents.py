"""Combine the metrics that got worse at one place and time into one incident. Pure.

An incident is named by its first metric in the order of `metrics.FAMILIES`: a lost prompt cache makes TTFT longer, not the reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from streamgauge.analytics.diagnosis.cube import ALL_BUCKETS
from streamgauge.analytics.diagnosis.metrics import FAMILIES
from streamgauge.analytics.diagnosis.search import MAX_CAUSES, Found

SAME_TIME_BUCKETS = 2.0
"""Begins of one incident differ by at most so many buckets of the range."""


@dataclass(frozen=True)
class Incident:
    main: Found
    effects: tuple[Found, ...] = ()


def combine(found: Sequence[Found], edges: Sequence[datetime]) -> list[Incident]:
    """At most `MAX_CAUSES` incidents: those that last first, then by score."""
    incidents: list[Incident] = []
    ordered = sorted(found, key=lambda f: (FAMILIES.index(f.metric.family), f.metric.is_slow, -f.score))
    for change in ordered:
        if any(i.main.metric == change.metric and i.main.where == change.where for i in incidents):
            continue  # the rest of a drift
        for i, incident in enumerate(incidents):
            if _belongs(change, incident, edges):
                known = {f.metric.name for f in (incident.main, *incident.effects)}
                if change.metric.name in known:
                    break
                incidents[i] = replace(incident, effects=(*incident.effects, change))
                break
        else:
            incidents.append(Incident(change))
    incidents.sort(key=lambda i: (i.main.end < ALL_BUCKETS, -i.main.score))
    return incidents[:MAX_CAUSES]


def _belongs(change: Found, incident: Incident, edges: Sequence[datetime]) -> bool:
    main = incident.main
    if change.metric.is_slow:
        same = [f for f in (main, *incident.effects) if f.metric.family == change.metric.family]
        if any(_overlap(change, f) and _nested(change, f) for f in same):
            return True
    bucket = edges[-1] - edges[-2]
    return (
        main.where.items() <= change.where.items()
        and _overlap(change, main)
        and abs(edges[change.begin] - edges[main.begin]) <= SAME_TIME_BUCKETS * bucket
    )


def _overlap(a: Found, b: Found) -> bool:
    return a.begin < b.end and b.begin < a.end


def _nested(a: Found, b: Found) -> bool:
    return a.where.items() <= b.where.items() or b.where.items() <= a.where.items()

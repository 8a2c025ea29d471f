"""How long the diagnosis takes to name the incidents that `streamgauge demo` stages, which its rules were not made with.

The streams are stored as they end. A diagnosis of the last 15 minutes, the range of alerts, is made every 5 s of simulated time. An
incident is named at the first of so many right diagnoses in a row as an alert needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

import numpy as np
import polars as pl

from bench.diagnosis.incidents import Expected, judge
from bench.diagnosis.traffic import MODELS, Fault, main_client, simulate
from streamgauge.analytics.alerts.incident_rule import LOOKS, RANGE
from streamgauge.analytics.diagnosis.diagnose import diagnose
from streamgauge.analytics.reports.selection import Selection
from streamgauge.simulator.incidents import INCIDENTS, SimulatedIncident

KINDS = tuple(kind for kind in INCIDENTS if kind not in ("limit-nears", "empty-answers"))
"""Those that the bench's traffic can have: it has neither rate limits nor empty answers."""
RATE_PER_S = 8.0
EVERY_S, GIVEN_UP_S = 5.0, 180.0
LIMIT_S = 90.0


@dataclass(frozen=True)
class Naming:
    kind: str
    seed: int
    named_s: float | None
    """Time from the onset until the incident is named. None: not within `GIVEN_UP_S`."""
    onset_error_s: float | None
    """Of the diagnosis that named it."""


def staged(kind: str, seed: int, onset_s: float) -> tuple[Fault, Expected]:
    """An incident of the demo as a fault of the bench's traffic, and what has to be named."""
    incident = INCIDENTS[kind]
    if incident.dimension == "client":
        where = {"client": main_client(seed % 5)}
    else:
        where = {"model": next(m.name for m in MODELS if incident.value.startswith(m.name))}
    family, values = _effect(incident)
    return Fault(where=where, onset_s=onset_s, **values), Expected((family,), where, onset_s)  # type: ignore[arg-type]


def _effect(incident: SimulatedIncident) -> tuple[str, dict[str, object]]:
    """The family of the metric that gets worse, and the arguments of `Fault`."""
    forced, share = incident.forced, incident.share
    fault = str(forced.get("fault", ""))
    if fault.startswith("http_"):
        return "failure", {"outcome": "http_error", "status": int(fault[5:]), "share": share}
    if fault in ("truncate", "reset", "inband_error"):
        outcome = {"truncate": "truncated", "reset": "upstream_reset"}.get(fault, fault)
        return "failure", {"outcome": outcome, "share": share, "with_tools": "tool_calls" in forced}
    if fault == "stall":
        return "stall", {"stalled": share}
    if fault == "burst":
        return "burst", {"burst": share}
    if "cached_tokens" in forced:
        return "cache", {"cached": 0.0}
    if "refusal" in forced:
        return "refusal", {"refused": share}
    if "finish" in forced:
        return str(forced["finish"]), {"cut": share}
    name = {"ttft_factor": "ttft", "gap_factor": "itl"}[next(iter(forced))]
    return name, {name: next(iter(forced.values()))}


def name_one(
    query: Callable[[str], pl.DataFrame],
    write: Callable[[pl.DataFrame], None],
    kind: str,
    seed: int,
    until: datetime,
) -> Naming:
    """Stage one incident in the time before `until`."""
    range_s = RANGE.total_seconds()
    onset_s = np.random.default_rng([seed, *kind.encode()]).uniform(0.4, 0.8) * range_s
    fault, expected = staged(kind, seed, onset_s)
    length_s = onset_s + GIVEN_UP_S
    since = until - timedelta(seconds=length_s)
    frame = simulate(
        seed, since=since, length_s=length_s, earlier_s=2 * range_s, rate=RATE_PER_S, faults=[fault]
    )
    ended = frame["started_at"] + pl.duration(nanoseconds=frame["end_ns"])
    frame = frame.with_columns(ended=ended)
    stored_until, right = since - timedelta(days=1), list[tuple[float, float]]()
    for after_s in np.arange(EVERY_S, GIVEN_UP_S + EVERY_S, EVERY_S).tolist():
        now = since + timedelta(seconds=onset_s + after_s)
        write(frame.filter((pl.col("ended") > stored_until) & (pl.col("ended") <= now)).drop("ended"))
        stored_until = now
        chosen = Selection(since=now - RANGE, until=now)
        named, errors_s = judge(diagnose(query, chosen), [expected], since)
        right = [*right, (after_s, errors_s[0])] if named else []
        if len(right) == LOOKS:
            return Naming(kind, seed, *right[0])
    return Naming(kind, seed, None, None)


def table(namings: Sequence[Naming]) -> list[list[str]]:
    """Incident, runs, named within `LIMIT_S`, median and longest time, largest error of the onset."""
    rows = []
    for kind in dict.fromkeys(n.kind for n in namings):
        of_kind = [n for n in namings if n.kind == kind]
        times = [n.named_s if n.named_s is not None else float("inf") for n in of_kind]
        errors = [abs(n.onset_error_s) for n in of_kind if n.onset_error_s is not None]
        in_time = sum(t <= LIMIT_S for t in times)
        worst = f"{max(errors):.1f} s" if errors else "–"
        rows.append(
            [kind, str(len(of_kind)), str(in_time), f"{median(times):.0f} s", f"{max(times):.0f} s", worst]
        )
    return rows

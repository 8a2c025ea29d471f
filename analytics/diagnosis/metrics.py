"""What a diagnosis compares: each metric with its SQL, its direction and the least change that matters. No I/O.

- A metric of kind `share` counts streams: `n` have it, `x` are affected. One of kind `mean` averages a value of each
  stream: `n` streams, the sum `x` and the sum of squares `xx`. Durations are averaged as logarithms, so a change is a factor.
- `at` is the instant that an incident shifts: the end for failures, the start for TTFT, the middle of the output for gaps. With it,
  streams in flight at the onset do not move the onset.
- Limits are those of each stream's own objective (`objective_name`).
- SQL is over the columns of `queries.source`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from streamgauge.analytics.diagnosis.diagnosis import Unit
from streamgauge.analytics.schema.objectives import Objective
from streamgauge.analytics.schema.outcomes import IS_COUNTED, IS_ERROR, IS_REQUEST
from streamgauge.analytics.schema.sql_quoting import literal

START = "started_at"
END = "ended_at"
MIDDLE = "started_at + to_microseconds((ttft_ns + last_output_ns) // 2000)"
FAKE_BURSTINESS = 0.8
"""Above it, most of the output arrived at once."""
LEAST_OUTPUT_EVENTS = 5
"""A shorter answer may well arrive at once."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    name: str
    kind: Literal["share", "mean"]
    unit: Unit
    family: Literal["failure", "loss", "burst", "cache", "stall", "ttft", "itl"]
    """Metrics of one incident at one place are one cause. The first family in `FAMILIES` names it."""
    n: str
    """SQL condition of the streams that have the metric."""
    x: str
    """SQL of the value: a condition if the kind is `share`."""
    at: str = START
    direction: Literal[1, -1] = 1
    """1: larger values are worse."""
    least_change: float = 0.0
    """Least difference of shares or means."""
    least_change_of_stream: str = ""
    """SQL of the same by stream, if objectives differ in it. The least change of a place is the mean over its streams."""
    least_ratio: float = 1.0
    """Least ratio of shares."""
    new_is_bad: bool = False
    """Streams without a baseline of their own are compared with the others."""
    is_slow: bool = False
    """Counts the streams above the objective of its family."""

    @property
    def is_log(self) -> bool:
        return self.unit == "ns"


FAMILIES = ("failure", "loss", "burst", "cache", "stall", "ttft", "itl")


def objective_name(objectives: Sequence[Objective]) -> str:
    """SQL of the name of a stream's objective. Streams of an unknown objective have the last one."""
    *own, default = (literal(o.name) for o in objectives)
    return f"CASE WHEN objective IN ({', '.join(own)}) THEN objective ELSE {default} END" if own else default


def _of_objective(objectives: Sequence[Objective], limit: Callable[[Objective], float | None]) -> str:
    """SQL of the limit of a stream's objective. NULL: no limit."""
    default, names = limit(objectives[-1]), dict[float | None, list[str]]()
    for objective in objectives[:-1]:
        if (value := limit(objective)) != default:
            names.setdefault(value, []).append(literal(objective.name))
    otherwise, *cases = ("NULL" if value is None else repr(value) for value in (default, *names))
    if not cases:
        return otherwise
    whens = (
        f"WHEN objective IN ({', '.join(n)}) THEN {case}"
        for n, case in zip(names.values(), cases, strict=True)
    )
    return f"CASE {' '.join(whens)} ELSE {otherwise} END"


def _least_failures(objective: Objective) -> float:
    limit = 0.05 if objective.error_rate is None else objective.error_rate
    return max(0.6 * limit, 0.001)


def _failure(name: str, x: str, objectives: Sequence[Objective], at: str = END) -> Metric:
    least = [_least_failures(o) for o in objectives]
    of_stream = _of_objective(objectives, _least_failures) if len(set(least)) > 1 else ""
    return Metric(name=name, kind="share", unit="share", family="failure", n=f"({IS_COUNTED})", x=x, at=at,
                  least_change=least[-1], least_change_of_stream=of_stream, least_ratio=1.5, new_is_bad=True)  # fmt: skip


def _slow(name: str, family: Literal["ttft", "itl"], limit_ns: str, at: str) -> Metric:
    value = f"{family}_ns"
    return Metric(name=name, kind="share", unit="share", family=family, n=f"({value} - ({limit_ns})) IS NOT NULL",
                  x=f"{value} > {limit_ns}", at=at, least_change=0.05, least_ratio=2.0, is_slow=True)  # fmt: skip


def all_failures(compared: Mapping[str, Metric]) -> Metric:
    """The failures together. `n` is the same for all of them."""
    return replace(compared["rate_limited"], name="rate_limited", x=f"({IS_ERROR})")


def metrics(objectives: Sequence[Objective]) -> dict[str, Metric]:
    """All metrics by name. The failures exclude each other. The last objective is that of streams without a known one."""
    found = [
        _failure("rate_limited", "outcome = 'http_error' AND http_status = 429", objectives),
        _failure("http_error", "outcome = 'http_error' AND http_status IS DISTINCT FROM 429", objectives),
        _failure("upstream_down", "outcome IN ('connect_error', 'idle_timeout', 'upstream_reset', 'silent')", objectives,
                 at="if(outcome IN ('idle_timeout', 'silent'), active_at, ended_at)"),
        _failure("inband_error", "outcome = 'inband_error'", objectives),
        _failure("truncated", "outcome IN ('truncated', 'malformed')", objectives),
        Metric(name="lost", kind="share", unit="share", family="loss", n=f"({IS_REQUEST})", x="outcome = 'tap_lost' OR lost_bytes > 0",
               at=END, least_change=0.005, least_ratio=2.0, new_is_bad=True),
        Metric(name="burst", kind="share", unit="share", family="burst",
               n=f"burstiness IS NOT NULL AND output_event_count >= {LEAST_OUTPUT_EVENTS}", x=f"burstiness > {FAKE_BURSTINESS}",
               least_change=0.2, least_ratio=2.0),
        Metric(name="cache", kind="mean", unit="share", family="cache", n="cached_input_tokens IS NOT NULL AND input_tokens > 0",
               x="least(1.0, cached_input_tokens / input_tokens)", direction=-1, least_change=0.12),
        Metric(name="stalled", kind="share", unit="share", family="stall", n="stall_count IS NOT NULL AND output_event_count >= 2",
               x="stall_count > 0", at=MIDDLE, least_change=0.05, least_ratio=2.0),
        Metric(name="ttft", kind="mean", unit="ns", family="ttft", n="ttft_ns > 0", x="ln(if(ttft_ns > 0, ttft_ns, NULL))",
               least_change=math.log(1.3)),
        Metric(name="itl", kind="mean", unit="ns", family="itl", n=f"itl_ns > 0 AND coalesce(burstiness, 0) <= {FAKE_BURSTINESS}",
               x="ln(if(itl_ns > 0, itl_ns, NULL))",
               at=MIDDLE, least_change=math.log(1.25)),
    ]  # fmt: skip
    if any(o.ttft_ns is not None for o in objectives):
        found.append(_slow("slow_ttft", "ttft", _of_objective(objectives, lambda o: o.ttft_ns), START))
    if any(o.itl_ns is not None for o in objectives):
        found.append(_slow("slow_itl", "itl", _of_objective(objectives, lambda o: o.itl_ns), MIDDLE))
    return {metric.name: metric for metric in found}

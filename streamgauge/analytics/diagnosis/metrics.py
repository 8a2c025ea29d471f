"""What a diagnosis compares: time buckets, metrics, and the dimensions of places. No I/O.

- A metric of kind `share` counts streams: `n` have it, `x` are affected. One of kind `mean` averages a value of each
  stream: `n` streams, the sum `x` and the sum of squares `xx`. Durations are averaged as logarithms, so a change is a factor.
- `at` is the instant that an incident affects: the end for failures, the start for TTFT, the middle of the output for gaps. So
  streams in flight at the onset do not move it.
- Limits are those of each stream's own objective (`objective_name`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from streamgauge.analytics.diagnosis.diagnosis import Unit
from streamgauge.analytics.reports import blame, quality
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.dimensions import LABEL, LEAST_LOOP, UNKNOWN_APP
from streamgauge.analytics.schema.finish_reasons import FILTER, FINISH, LENGTH, STOP, TOOLS
from streamgauge.analytics.schema.model_names import IS_OTHER_MODEL, NAMES_SERVED_MODEL
from streamgauge.analytics.schema.objectives import Objective
from streamgauge.analytics.schema.outcomes import IS_COUNTED, IS_ERROR, OK
from streamgauge.analytics.schema.sql_quoting import later, literal

# How a diagnosis divides its time

BUCKETS = 30
"""Buckets of the range."""
EARLIER_BUCKETS = 6
"""Wider buckets of the period of the same length before the range, the baseline."""
ALL_BUCKETS = EARLIER_BUCKETS + BUCKETS


def edges(chosen: Selection) -> list[datetime]:
    """The starts of all buckets, and the end of the last one."""
    begin, length = chosen.before().since, chosen.length
    earlier = [begin + length * i / EARLIER_BUCKETS for i in range(EARLIER_BUCKETS)]
    return earlier + [chosen.since + length * i / BUCKETS for i in range(BUCKETS + 1)]


# Metrics

START = "started_at"
END = "ended_at"
MIDDLE = later(START, "(ttft_ns + last_output_ns) // 2")
FAKE_BURSTINESS = 0.8
"""Above this burstiness, most of the output arrived at once."""
LEAST_OUTPUT_EVENTS = 5
"""A shorter answer may arrive at once without a fault."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    name: str
    kind: Literal["share", "mean"]
    unit: Unit
    family: str
    """Metrics of one incident at one place are one cause. The first family in `FAMILIES` names it."""
    n: str
    """SQL condition of the streams that have the metric."""
    x: str
    """SQL of the value: a condition if the kind is `share`."""
    at: str = START
    direction: Literal[1, -1] = 1
    """1: larger values are worse."""
    least_change: float = 0.0
    """Minimum difference of shares or means."""
    least_change_of_stream: str = ""
    """SQL of `least_change` of each stream, if objectives have different ones. The least change of a place is the mean over its streams."""
    least_ratio: float = 1.0
    """Minimum ratio of shares."""
    new_is_bad: bool = False
    """Streams without a baseline of their own are compared with the others."""
    is_slow: bool = False
    """It counts the streams above the objective of its family."""
    offset: float = 0.0
    """Added to a value before its logarithm, so that 0 has one."""
    of_client: bool = False
    """Its level differs more between clients than between models and gateways."""
    by_input: bool = False
    """Streams are compared with those of similar uncached input length (`STRATUM`)."""

    @property
    def is_log(self) -> bool:
        return self.unit != "share"


FAMILIES = (
    "failure", "tool_failure", "loss", "slow_client", "other_model", "loop", "refusal", "empty", "length", "finish", "tool_arguments",
    "violation", "prompt_changed", "tool_calls", "output", "prompts", "reasoning", "cost", "burst", "cache", "stall", "ttft", "itl",
)  # fmt: skip
STRATA = 7
STRATUM = f"""CASE WHEN input_tokens > 0 THEN least({STRATA - 1},
                1 + floor(ln(greatest({quality.UNCACHED_INPUT}, 150) / 150) / ln(3))::INTEGER) ELSE 0 END"""
"""SQL of the group of a stream by its uncached input tokens: below 450, 1,350, 4,050 … 0: unknown."""
SLOW_CLIENT_S = 2.0
"""Streams that wait longer for their client count more in the choice of the compared clients."""


CONNECTION_PROBLEMS = ("refused", "dns", "tls", "upstream_down")
"""Kinds of failed connections: nothing listens, the name has no address, TLS fails, and all others."""
UPSTREAM_PROBLEM = """CASE outcome WHEN 'upstream_reset' THEN outcome WHEN 'idle_timeout' THEN 'timeout' WHEN 'silent' THEN 'timeout'
                WHEN 'connect_error' THEN CASE WHEN error_message = 'ConnectionRefusedError' THEN 'refused'
                    WHEN error_message = 'gaierror' THEN 'dns' WHEN starts_with(error_message, 'SSL') THEN 'tls' ELSE 'upstream_down' END
                END"""
"""SQL of how the connection to the upstream failed or ended early. NULL: neither."""


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
                  x=f"{value} > {limit_ns}", at=at, least_change=0.05, least_ratio=2.0, is_slow=True,
                  by_input=family == "ttft")  # fmt: skip


def _answers(name: str, least_change: float, *, n: str = "TRUE", family: str = "") -> Metric:
    """A measure of answers. Numbers are averaged as logarithms. Shares are averaged as they are if a smaller share is worse."""
    found = quality.MEASURES[name]
    is_mean, value = found.direction != 1, f"({found.value})"
    number = f"{value}::INTEGER" if found.unit == "share" else f"ln(if({value} > 0, {value}, NULL))"
    return Metric(
        name=name, kind="mean" if is_mean else "share", unit=found.unit, family=family or name, n=f"({found.known}) AND {n}",
        x=number if is_mean else value, direction=-1 if is_mean else 1,
        least_change=least_change, least_ratio=2.0,
    )  # fmt: skip


CACHED_PRICE, OUTPUT_PRICE = 0.1, 5.0
"""Usual prices of cached input and output, relative to that of input."""
COST_TOKENS = f"""(input_tokens - {1 - CACHED_PRICE:e} * coalesce(least(cached_input_tokens, input_tokens), 0)
    + {OUTPUT_PRICE:e} * coalesce(output_tokens, 0))"""
"""SQL of the cost of a stream, in uncached input tokens of its model. Only ratios of it are used. In DOUBLE: DECIMAL is slow."""


def _larger(name: str, value: str, least_ratio: float, *, n: str = quality.IS_ANSWER) -> Metric:
    """A number of tokens that is worse if larger."""
    return Metric(name=name, kind="mean", unit="tokens", family=name, n=f"{n} AND {value} > 0",
                  x=f"ln(if({value} > 0, {value}, NULL))", least_change=math.log(least_ratio), of_client=True)  # fmt: skip


AGE = "round(10 * ln(greatest(end_ns, 1) / 1e9))::INTEGER"
"""SQL of the class of a stream's age at its end. Each is 10 % wide. Round numbers of seconds are not near its limits."""
CUT_AT_AGE = "cut"
"""Name of the metric of failures at one age."""
CUT = ("upstream_reset", "timeout", "truncated", "inband_error")
"""Failures that may cut streams at one age. Class 0 is one second; lower classes do not count."""


def cut(compared: Mapping[str, Metric], age: int) -> Metric:
    """Failures at one age. Few streams reach that age, so few failures suffice."""
    x = " OR ".join(f"({compared[name].x})" for name in CUT)
    return replace(compared["truncated"], name=CUT_AT_AGE, x=f"({x}) AND {AGE} = {age}", at=END, least_change=0.003,
                   least_change_of_stream="", least_ratio=2.0, is_slow=True)  # fmt: skip


def all_failures(compared: Mapping[str, Metric]) -> Metric:
    """All failures as one metric. `n` is the same for each of them."""
    return replace(compared["rate_limited"], name="rate_limited", x=f"({IS_ERROR})")


def metrics(objectives: Sequence[Objective]) -> dict[str, Metric]:
    """All metrics by name. The failures are mutually exclusive. The last objective is that of streams without a known one."""
    found = [
        _failure("rate_limited", "outcome = 'http_error' AND http_status = 429", objectives),
        _failure("http_error", "outcome = 'http_error' AND http_status IS DISTINCT FROM 429", objectives),
        *(_failure(name, f"({UPSTREAM_PROBLEM}) = '{name}'", objectives) for name in CONNECTION_PROBLEMS),
        _failure("upstream_reset", f"({UPSTREAM_PROBLEM}) = 'upstream_reset'", objectives),
        _failure("timeout", f"({UPSTREAM_PROBLEM}) = 'timeout'", objectives, at="active_at"),
        _failure("inband_error", "outcome = 'inband_error'", objectives),
        _failure("truncated", "outcome IN ('truncated', 'malformed')", objectives),
        Metric(name="lost", kind="share", unit="share", family="loss", n="TRUE", x="outcome = 'tap_lost' OR lost_bytes > 0",
               at=END, least_change=0.005, least_ratio=2.0, new_is_bad=True),
        replace(_failure("tool_failure", quality.MEASURES["tool_failure"].value, objectives), family="tool_failure",
                n=f"({quality.MEASURES['tool_failure'].known})", least_ratio=2.0, new_is_bad=False),
        Metric(name="slow_client", kind="mean", unit="ns", family="slow_client", n=f"({blame.CLIENT_NS}) >= 0",
               x=f"ln({blame.CLIENT_NS} + 5e8)", at=END, least_change=math.log(2), offset=5e8, of_client=True),
        Metric(name="other_model", kind="share", unit="share", family="other_model", n=f"{quality.IS_ANSWER} AND {NAMES_SERVED_MODEL}",
               x=IS_OTHER_MODEL, least_change=0.05, least_ratio=2.0),
        Metric(name="loop", kind="share", unit="share", family="loop", n="tool_repeats IS NOT NULL", x=f"tool_repeats >= {LEAST_LOOP}",
               least_change=0.05, least_ratio=2.0, new_is_bad=True),
        *(_answers(name, 0.05) for name in ("refusal", "empty", "length", "tool_arguments")),
        Metric(name="violation", kind="share", unit="share", family="violation", n=f"violations IS NOT NULL AND outcome = '{OK}'",
               x="len(violations) > 0", at=END, least_change=0.05, least_ratio=2.0),
        Metric(name="finish", kind="share", unit="share", family="finish", n=f"{quality.IS_ANSWER} AND finish_reason IS NOT NULL",
               x=f"{FINISH} NOT IN {(STOP, LENGTH, TOOLS, FILTER)}", least_change=0.05, least_ratio=2.0, new_is_bad=True),
        Metric(name="prompt_changed", kind="share", unit="share", family="prompt_changed",
               n=f"{quality.IS_ANSWER} AND cached_input_tokens IS NOT NULL", x="coalesce(ends_with(cache_miss_reason, '_changed'), FALSE)",
               least_change=0.05, least_ratio=2.0),
        replace(_answers("tool_calls", 0.15), of_client=True),
        _larger("prompts", "input_tokens", 2.0, n="TRUE"),
        _larger("reasoning", "reasoning_tokens", 1.6),
        _larger("cost", COST_TOKENS, 2.0),
        _answers("output_tokens", math.log(1.4), family="output"),
        _answers("output_chars", math.log(1.4), family="output", n="output_tokens IS NULL"),
        Metric(name="burst", kind="share", unit="share", family="burst",
               n=f"burstiness IS NOT NULL AND output_event_count >= {LEAST_OUTPUT_EVENTS}", x=f"burstiness > {FAKE_BURSTINESS}",
               least_change=0.2, least_ratio=2.0),
        Metric(name="cache", kind="mean", unit="share", family="cache", n=f"input_tokens > 0 AND outcome = '{OK}'",
               x="least(1.0, coalesce(cached_input_tokens, 0) / input_tokens)", direction=-1, least_change=0.12),
        Metric(name="stalled", kind="share", unit="share", family="stall", n="stall_count IS NOT NULL AND output_event_count >= 2",
               x="stall_count > 0", at=MIDDLE, least_change=0.05, least_ratio=2.0),
        Metric(name="ttft", kind="mean", unit="ns", family="ttft", n="ttft_ns > 0", x="ln(if(ttft_ns > 0, ttft_ns, NULL))",
               least_change=math.log(1.3), by_input=True),
        Metric(name="itl", kind="mean", unit="ns", family="itl", n=f"itl_ns > 0 AND coalesce(burstiness, 0) <= {FAKE_BURSTINESS}",
               x="ln(if(itl_ns > 0, itl_ns, NULL))",
               at=MIDDLE, least_change=math.log(1.25)),
    ]  # fmt: skip
    if any(o.ttft_ns is not None for o in objectives):
        found.append(_slow("slow_ttft", "ttft", _of_objective(objectives, lambda o: o.ttft_ns), START))
    if any(o.itl_ns is not None for o in objectives):
        found.append(_slow("slow_itl", "itl", _of_objective(objectives, lambda o: o.itl_ns), MIDDLE))
    return {metric.name: metric for metric in found}


def affected(name: str | None, objectives: Sequence[Objective]) -> str | None:
    """SQL condition of the streams that a metric counts, or that miss the objective of a mean. None if it counts no streams."""
    compared = metrics(objectives)
    metric = compared.get(f"slow_{name}") or compared.get(name or "")
    return f"({metric.n}) AND ({metric.x})" if metric is not None and metric.kind == "share" else None


# Dimensions

CUBE = {"model": 8, "gateway": 5, "client": 6}
"""Dimensions whose combinations are all compared → number of compared values, those with the most streams and failures. The others are one
value, NULL."""


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """A dimension that is compared alone, and in combinations if a value got worse alone."""

    sql: str
    """SQL of its value, over the streams of `source`."""
    most: int
    """As `CUBE`."""
    families: Collection[str] = FAMILIES
    """Families of metrics that it can explain."""
    is_open: bool = False
    """Clients may send any number of values, so only those with the most streams are aggregated."""
    is_ordered: bool = False
    """A place includes its value and all larger ones."""


PAIRED = ("app", LABEL)
"""Dimensions whose failures are looked at with each model, too."""
PAIR = " with "
"""Between the value of a dimension and a model."""
MOST_PAIRS = 40
UNKNOWN = UNKNOWN_APP
LEAST_SIZE_BYTES = 2048
SIZES = 12
MOST_LABEL_VALUES = 12
ALONE = {
    "app": Dimension(sql="app", most=6, is_open=True),
    "tap": Dimension(sql="tap", most=6),
    "server": Dimension(sql="server", most=16),
    LABEL: Dimension(sql="", most=MOST_LABEL_VALUES, is_open=True),
    "size": Dimension(
        sql=f"if(request_bytes > 0, greatest(0, least({SIZES}, floor(log2(request_bytes / {LEAST_SIZE_BYTES}))::INTEGER + 1)), NULL)",
        most=SIZES, is_ordered=True,
        families=("failure", "tool_failure", "refusal", "empty", "length", "tool_calls", "tool_arguments", "burst", "stall", "itl")),
    "served": Dimension(
        sql=f"coalesce(response_model, '{UNKNOWN}')", most=6,
        families=("refusal", "empty", "length", "tool_calls", "tool_arguments", "violation", "output", "reasoning", "burst", "cache",
                  "stall", "ttft", "itl")),
    "finish": Dimension(sql=f"coalesce({FINISH}, '{UNKNOWN}')", most=6, families=("empty", "output", "violation", "burst")),
}  # fmt: skip
"""Unknown is a value. Labels have no SQL of their own: each label is a dimension, and its values are texts NAME=VALUE."""


def size_name(number: int) -> str:
    """Requests of this class and the larger ones."""
    size = LEAST_SIZE_BYTES * 2 ** (number - 1) // 1024
    return f"≥ {size} KiB" if size < 1024 else f"≥ {size // 1024} MiB"


SIZE_NAMES = tuple(size_name(k) for k in range(1, SIZES + 1))

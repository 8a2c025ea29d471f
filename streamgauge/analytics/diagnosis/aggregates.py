"""What a diagnosis compares: the metrics, the SQL of their aggregates, and the aggregates as arrays. No I/O.

- A metric of kind `share` counts streams: `n` have it, `x` are affected. One of kind `mean` averages a value of each
  stream: `n` streams, the sum `x` and the sum of squares `xx`. Durations are averaged as logarithms, so a change is a factor.
- `at` is the instant that an incident shifts: the end for failures, the start for TTFT, the middle of the output for gaps. With it,
  streams in flight at the onset do not move the onset.
- Limits are those of each stream's own objective (`objective_name`).
- `cells` aggregates the range and the period of the same length before it, the baseline, in wide buckets of time. `series` and
  `details` look closer at the places that it shows. Every result has a bounded number of rows, below the 20,000 of a page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from streamgauge.analytics.diagnosis.diagnosis import Unit
from streamgauge.analytics.reports import blame, quality
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.dimensions import (
    CLIENT,
    ENDED_AT,
    GATEWAY,
    INPUT_TOKENS,
    LABEL,
    LEAST_LOOP,
    MODEL,
    has_labels,
    is_client,
)
from streamgauge.analytics.schema.finish_reasons import FINISH
from streamgauge.analytics.schema.model_names import IS_OTHER_MODEL, NAMES_SERVED_MODEL
from streamgauge.analytics.schema.objectives import Objective
from streamgauge.analytics.schema.outcomes import ERROR_RATE, IS_COUNTED, IS_ERROR, IS_REQUEST, OK
from streamgauge.analytics.schema.sql_quoting import instant, later, literal

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
"""Above it, most of the output arrived at once."""
LEAST_OUTPUT_EVENTS = 5
"""A shorter answer may well arrive at once."""


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
    """Least difference of shares or means."""
    least_change_of_stream: str = ""
    """SQL of `least_change` of each stream, if objectives have different ones. The least change of a place is the mean over its streams."""
    least_ratio: float = 1.0
    """Least ratio of shares."""
    new_is_bad: bool = False
    """Streams without a baseline of their own are compared with the others."""
    is_slow: bool = False
    """Counts the streams above the objective of its family."""
    offset: float = 0.0
    """Added to a value before its logarithm, so that 0 has one."""
    of_client: bool = False
    """Clients differ in it more than models and gateways do."""
    by_input: bool = False
    """Streams are compared with those of similar uncached input length (`STRATUM`)."""

    @property
    def is_log(self) -> bool:
        return self.unit != "share"


FAMILIES = (
    "failure", "tool_failure", "loss", "slow_client", "other_model", "loop", "refusal", "empty", "length", "tool_arguments", "violation",
    "tool_calls", "output", "burst", "cache", "stall", "ttft", "itl",
)  # fmt: skip
STRATA = 7
STRATUM = f"""CASE WHEN input_tokens > 0 THEN least({STRATA - 1},
                1 + floor(ln(greatest({quality.UNCACHED_INPUT}, 150) / 150) / ln(3))::INTEGER) ELSE 0 END"""
"""SQL of the group of a stream by its uncached input tokens: below 450, 1,350, 4,050 … 0: unknown."""
SLOW_CLIENT_S = 2.0
"""Streams that wait longer for their client count more in the choice of the clients that are looked at."""


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
        replace(_answers("tool_calls", 0.15), of_client=True),
        _answers("output_tokens", math.log(1.4), family="output"),
        _answers("output_chars", math.log(1.4), family="output", n="output_tokens IS NULL"),
        Metric(name="burst", kind="share", unit="share", family="burst",
               n=f"burstiness IS NOT NULL AND output_event_count >= {LEAST_OUTPUT_EVENTS}", x=f"burstiness > {FAKE_BURSTINESS}",
               least_change=0.2, least_ratio=2.0),
        Metric(name="cache", kind="mean", unit="share", family="cache", n="input_tokens > 0",
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


# SQL

MOST = {"model": 8, "gateway": 5, "client": 6, "app": 6, "tap": 6, "server": 12}
"""Dimension → values that are looked at, those with the most streams and failures. The others are one value, NULL."""
CUBE = ("model", "gateway", "client")
MOST_LABEL_VALUES = 12
"""As `MOST`, of each label. The values of all labels, NAME=VALUE, are one dimension."""
SINGLE = ("app", "tap", "server")
"""Dimensions that are looked at alone, as labels are. Means of them are adjusted for the models, gateways and strata of the streams."""
SILENT_NS = 20_000_000_000
SILENT_FACTOR = 1.5
"""A stream in flight counts as failed, before a timeout ends it, if nothing arrived for `SILENT_NS`, and for `SILENT_FACTOR` times the
longest silence of 99 % of the complete streams of its model and gateway."""
MAX_DETAILS = 20
LEAST_BEFORE = 20
"""Least number of streams before an onset for their median to be shown."""


def source(
    chosen: Selection, begin: datetime | None = None, end: datetime | None = None, *, labelled: bool = False
) -> str:
    """SQL of the streams that are compared: finished ones, and those in flight that are silent. `labelled`: with `labels`."""
    begin, end = begin or chosen.before().since, end or chosen.until
    where = f"started_at >= {instant(begin)} AND started_at < {instant(end)} AND ({chosen.filters()})"
    names = "stream_id, started_at, http_status, error_type, error_phase, ttft_ns, itl_ns, last_output_ns, stall_count, burstiness"
    names += ", request_model, response_model, tool_repeats, repeated_tool, session_id"
    names += f", lost_bytes, objective, waited_client_ns, end_ns, delivered_ns, violations, {', '.join(quality.COLUMNS)}"
    labels = ", labels" if labelled else ""
    names += labels
    # ttfb_ns and last_output_ns: the last time a stream that then fell silent was active
    return f"""
        SELECT {names}, {MODEL} AS model, {GATEWAY} AS gateway, {CLIENT} AS client, client_app AS app, tap, server_instance AS server,
            {ENDED_AT} AS ended_at,
            {later(START, "coalesce(last_output_ns, ttfb_ns, request_sent_ns, 0)")} AS active_at
        FROM (SELECT * REPLACE ({INPUT_TOKENS} AS input_tokens) FROM streams WHERE {where} AND {IS_REQUEST})
        UNION ALL BY NAME (
            WITH quiet AS (
                SELECT * REPLACE ({GATEWAY} AS gateway), {MODEL} AS model, {CLIENT} AS client,
                    {later(START, "coalesce(last_event_ns, 0)")} AS active_at
                FROM open_streams WHERE {where} AND waits_for_client IS NOT TRUE AND {_is_over(SILENT_NS, end)})
            SELECT stream_id, started_at, 'silent' AS outcome, http_status, ttft_ns, last_output_ns, output_event_count,
                model, gateway, client, client_app AS app, tap, active_at, active_at AS ended_at{labels}
            FROM quiet LEFT JOIN (
                SELECT {MODEL} AS model, {GATEWAY} AS gateway,
                    quantile_cont(greatest(coalesce(ttft_ns, end_ns), coalesce(icl_max_ns, 0)), 0.99) AS usual_ns
                FROM streams WHERE {where} AND outcome = '{OK}' AND ({MODEL}, {GATEWAY}) IN (SELECT (model, gateway) FROM quiet)
                GROUP BY ALL) USING (model, gateway)
            WHERE {_is_over(f"({SILENT_FACTOR} * coalesce(usual_ns, 0))::BIGINT", end)})"""


def _is_over(ns: str | int, end: datetime) -> str:
    """SQL condition: this time passed after `active_at`, before the range ends."""
    return f"{later('active_at', str(ns))} < least(now(), {instant(end)})"


def _bucket(chosen: Selection) -> str:
    """SQL of the number of a bucket, as in `edges`."""
    length_us = int(chosen.length.total_seconds() * 1e6)
    after = f"epoch_us(ended_at) - epoch_us({instant(chosen.since)})"
    return f"""CASE WHEN ended_at >= {instant(chosen.since)}
            THEN {EARLIER_BUCKETS} + least({BUCKETS - 1}, ({after}) * {BUCKETS} // {length_us})
            ELSE greatest(0, {EARLIER_BUCKETS} + floor(({after}) * {EARLIER_BUCKETS} / {length_us})) END::INTEGER"""


_SHARED = {"is_answer": quality.IS_ANSWER, "is_counted": IS_COUNTED, "is_error": IS_ERROR, "finish": FINISH}
"""Column → SQL that many metrics have in common. DuckDB evaluates it once only if it is a column."""


def _values(compared: Iterable[Metric]) -> str:
    """SQL of the value of each metric by stream: `m_*`, a condition or a number, NULL for streams without the metric. Over `_SHARED`."""
    values = {}
    for metric in compared:
        x = f"coalesce(({metric.x}), FALSE)" if metric.kind == "share" else metric.x
        values[f"m_{metric.name}"] = f"CASE WHEN {metric.n} THEN {x} END"
        if metric.least_change_of_stream:
            values[f"l_{metric.family}"] = f"CASE WHEN {metric.n} THEN {metric.least_change_of_stream} END"
    sql = _columns(values)
    for name, shared in _SHARED.items():
        sql = sql.replace(shared, name)
    return sql


def same_n(compared: Collection[Metric], metric: Metric) -> str:
    """The first metric that the same streams have. They are counted once."""
    return next(m.name for m in compared if (m.n, m.by_input) == (metric.n, metric.by_input))


def _sums(compared: Collection[Metric], *, adjusted: bool = False) -> dict[str, str]:
    """Column → SQL of the aggregates. `adjusted`: means are the differences from the level of the model, gateway and stratum."""
    sums = {}
    for metric in compared:
        m = f"m_{metric.name}"
        if same_n(compared, metric) == metric.name:
            sums[f"n_{metric.name}"] = f"count({m})"
        if metric.kind == "share":
            sums[f"x_{metric.name}"] = f"count_if({m})"
        else:
            x = f"({m} - level_{metric.name})" if adjusted else m
            sums |= {f"x_{metric.name}": f"sum({x})", f"xx_{metric.name}": f"sum({x} * {x})"}
        if metric.least_change_of_stream:
            sums[f"l_{metric.family}"] = f"sum(l_{metric.family})"
    return sums


def _by_stratum(sums: Mapping[str, str], compared: Iterable[Metric]) -> dict[str, str]:
    """Column → SQL of the sums over strata. The columns of metrics with `by_input` are those of each stratum."""
    divided = {f"{c}_{metric.name}" for metric in compared if metric.by_input for c in ("n", "x", "xx")}
    found = {name: f"sum({name}::DOUBLE)" for name in sums if name not in divided}
    for name in divided & sums.keys():
        found |= {f"{name}_{k}": f"sum({name}::DOUBLE) FILTER (stratum = {k})" for k in range(STRATA)}
    return found


def _columns(expressions: Mapping[str, str]) -> str:
    return ",\n            ".join(f"{value} AS {name}" for name, value in expressions.items())


def cells(chosen: Selection, objectives: Sequence[Objective], labels: Sequence[str] = ()) -> str:
    """SQL of the aggregates that `read` takes. `labels`: the names of those that are looked at.

    `part` (cube, total, label or one of `SINGLE`), `bucket`, the dimensions of `CUBE` and `SINGLE`, `label`, and for each metric `n_*`,
    `x_*` and `xx_*`, in the cube with the stratum at the end if `Metric.by_input`; `l_*` if the least change differs between streams.
    Totals have `objective` and the measured values.
    """
    compared = metrics(objectives).values()
    of_labels = {f"label_{name}": name for name in labels}
    values = [f"labels['{name}'] AS {d}" for d, name in of_labels.items()]
    levels = ", ".join(
        f"avg(m_{m.name}) - sum(sum(m_{m.name})) OVER () / sum(count(m_{m.name})) OVER () AS level_{m.name}"
        for m in compared
        if m.kind == "mean"
    )
    tops = ",\n        ".join(
        f"top_{d} AS (SELECT {d} AS value FROM chosen WHERE {d} IS NOT NULL GROUP BY ALL"
        f" ORDER BY sum(weight) DESC, value LIMIT {most})"
        for d, most in (MOST | dict.fromkeys(of_labels, MOST_LABEL_VALUES)).items()
    )

    def named(d: str) -> str:
        return f"CASE WHEN {d} IN (FROM top_{d}) THEN {d} END AS {d}"

    sums = _sums(compared) | {
        "requests": "count(*)",
        "n_input": "count(*) FILTER (input_tokens > 0)",
        "x_input": "sum(ln(if(input_tokens > 0, input_tokens, NULL)))",
    }
    single_sums = _sums(compared, adjusted=True)
    singles = "".join(
        f"""
        UNION ALL BY NAME
        SELECT '{part}' AS part, bucket, {value} AS {part}, {_columns({name: f"sum({name}::DOUBLE)" for name in single_sums})}
        FROM singles WHERE {d} IS NOT NULL GROUP BY ALL"""
        for d, part, value in (
            *((d, d, d) for d in SINGLE),
            *((d, LABEL, f"'{name}=' || {d}") for d, name in of_labels.items()),
        )
    )
    return f"""
        WITH chosen AS MATERIALIZED (
            SELECT {_bucket(chosen)} AS bucket, {", ".join([*MOST, *values])}, outcome, started_at, ttft_ns, itl_ns, input_tokens,
            if(is_error OR {blame.CLIENT_NS} > {SLOW_CLIENT_S}e9, 6, 1) AS weight,
            {STRATUM} AS stratum, {objective_name(objectives)} AS objective, {_values(compared)}
            FROM (SELECT *, {_columns(_SHARED)} FROM ({source(chosen, labelled=bool(labels))}))),
        {tops},
        levels AS (SELECT model, gateway, stratum, {levels} FROM chosen GROUP BY ALL),
        strata AS (SELECT bucket, {", ".join(map(named, CUBE))}, stratum, {_columns(sums)} FROM chosen GROUP BY ALL),
        singles AS (
            SELECT bucket, {", ".join(map(named, (*SINGLE, *of_labels)))}, {_columns(single_sums)}
            FROM chosen JOIN levels USING (model, gateway, stratum) GROUP BY ALL)
        SELECT 'cube' AS part, bucket, {", ".join(CUBE)}, {_columns(_by_stratum(sums, compared))}
        FROM strata GROUP BY ALL{singles}
        UNION ALL BY NAME
        SELECT 'total' AS part, objective, count(*) AS requests, {ERROR_RATE} AS error_rate,
            quantile_cont(ttft_ns, 0.95) AS ttft_p95_ns, quantile_cont(itl_ns, 0.95) AS itl_p95_ns
        FROM chosen WHERE started_at >= {instant(chosen.since)} GROUP BY ALL"""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A place and a metric to look at closely, between two instants."""

    metric: Metric
    where: Mapping[str, str]
    begin: datetime
    end: datetime
    levels: Mapping[tuple[str, str, int], float] = field(default_factory=dict)
    """(model, gateway, stratum) → mean of the metric in the baseline. For metrics that are means. Without strata, that is 0."""


def _where(where: Mapping[str, str]) -> str:
    parts = [
        is_client(d, [v]) if d == "client" else has_labels([v]) if d == LABEL else f"{d} = {literal(v)}"
        for d, v in where.items()
    ]
    return " AND ".join(parts) or "TRUE"


def _over_chosen(chosen: Selection, candidates: Sequence[Candidate], parts: Iterable[str]) -> str:
    """SQL of all parts over the streams of the candidates' places since shortly before the first candidate."""
    begin = max(min(c.begin for c in candidates) - chosen.length / 2, chosen.before().since)
    rows = source(chosen, begin, labelled=any(LABEL in c.where for c in candidates))
    places = " OR ".join(dict.fromkeys(f"({_where(c.where)})" for c in candidates))
    return f"WITH chosen AS MATERIALIZED (SELECT * FROM ({rows}) WHERE {places}) {' UNION ALL BY NAME '.join(parts)}"


def series(chosen: Selection, candidates: Sequence[Candidate], points: int) -> str:
    """SQL of `candidate` (its number), `point` (of `points`), `n`, `x`, `first_at` (of the first affected stream).

    If the metric is a mean, `x` is the sum of the differences from the level of the model, gateway and stratum.
    """
    parts = []
    for number, candidate in enumerate(candidates):
        metric = candidate.metric
        width_us = max(1, int((candidate.end - candidate.begin).total_seconds() * 1e6) // points)
        x = f"count(*) FILTER ({metric.x}) AS x, min(moment) FILTER ({metric.x}) AS first_at"
        levels = ""
        if metric.kind == "mean":
            rows = ", ".join(
                f"({literal(m)}, {literal(g)}, {k}, {level!r})"
                for (m, g, k), level in candidate.levels.items()
            )
            levels = f" JOIN (VALUES {rows}) AS levels(model, gateway, stratum, level) USING (model, gateway, stratum)"
            x = f"sum((({metric.x}) - level)::DOUBLE) AS x"
        parts.append(
            f"(SELECT {number} AS candidate, ((epoch_us(moment) - epoch_us({instant(candidate.begin)})) // {width_us})::INTEGER AS point,"
            f" count(*) AS n, {x}"
            f" FROM (SELECT *, {metric.at} AS moment, {STRATUM if metric.by_input else 0} AS stratum FROM chosen"
            f" WHERE {_where(candidate.where)} AND ({metric.n})){levels}"
            f" WHERE moment >= {instant(candidate.begin)} AND moment < {instant(candidate.end)} GROUP BY ALL)"
        )
    return _over_chosen(chosen, candidates, parts)


def _quantiles(metric: Metric, candidate: Candidate) -> str:
    """SQL of the quantiles of one metric at the place of a candidate."""
    since, until = instant(candidate.begin), instant(candidate.end)
    now = f"FILTER ({metric.n} AND {metric.at} >= {since} AND {metric.at} < {until})"
    before = f"FILTER ({metric.n} AND {metric.at} < {since})"

    def quantile(share: float, of: str) -> str:
        return f"exp(quantile_cont({metric.x}, {share}) {of}) - {metric.offset}"

    found = {
        f"p50_{metric.name}": quantile(0.5, now),
        f"p95_{metric.name}": quantile(0.95, now),
        f"before_{metric.name}": f"if(count(*) {before} >= {LEAST_BEFORE}, {quantile(0.5, before)}, NULL)",
    }
    return ", ".join(f"{sql} AS {name}" for name, sql in found.items())


def recent(chosen: Selection, candidates: Sequence[Candidate]) -> str:
    """SQL of `candidate`, `n` (its streams) and `value`: the share of affected streams, or the mean."""
    return _over_chosen(
        chosen,
        candidates,
        [
            f"(SELECT {number} AS candidate, count(*) AS n, avg(({c.metric.x})::DOUBLE) AS value"
            f" FROM (SELECT *, {c.metric.at} AS moment FROM chosen WHERE {_where(c.where)} AND ({c.metric.n}))"
            f" WHERE moment >= {instant(c.begin)} AND moment < {instant(c.end)})"
            for number, c in enumerate(candidates)
        ],
    )


def details(
    chosen: Selection,
    objectives: Sequence[Objective],
    candidates: Sequence[Candidate],
    averaged: Collection[str],
) -> str:
    """SQL of the affected streams of each candidate by cause.

    `candidate`, `outcome`, `http_status`, `error_type`, `error_phase`, `streams`, `usual` (as many as before the candidate's begin),
    `with_tools` (streams with a tool call), `objective` (the most frequent one), `broken` (the most frequent dialect with its
    violations), `served` (the most frequent response model), `repeats`, `tool` and `session_id` of the
    longest loop, `stream_id` (an example). Each candidate has one more row, in which `streams` is NULL. It has
    `before_tools`, the share of streams with a tool call before the candidate's begin. For the metrics in `averaged`, which are means of
    logarithms, it has `p50_*` and `p95_*`, and `before_*`, the median of the streams before (NULL if fewer than `LEAST_BEFORE`).
    """
    before = chosen.length / 4
    logs = [metric for name, metric in metrics(objectives).items() if name in averaged]
    parts = []
    for number, candidate in enumerate(candidates):
        metric = candidate.metric
        is_share = metric.kind == "share"
        order = "started_at" if is_share or metric.direction < 0 else metric.x
        parts.append(
            f"(SELECT {number} AS candidate, outcome, http_status, error_type, error_phase, count(*) FILTER (is_now) AS streams,"
            f" {(candidate.end - candidate.begin) / before:.4f} * count(*) FILTER (NOT is_now) AS usual,"
            f" count(*) FILTER (is_now AND tool_call_count > 0) AS with_tools,"
            f" mode({objective_name(objectives)}) AS objective, mode(list_prepend(dialect, violations)) FILTER (is_now) AS broken,"
            f" mode(response_model) FILTER (is_now) AS served,"
            f" max(tool_repeats) FILTER (is_now) AS repeats, arg_max(repeated_tool, tool_repeats) FILTER (is_now) AS tool,"
            f" arg_max(session_id, tool_repeats) FILTER (is_now) AS session_id,"
            f" arg_max(stream_id::VARCHAR, {order}) FILTER (is_now) AS stream_id"
            f" FROM (SELECT *, {metric.at} AS moment, moment >= {instant(candidate.begin)} AS is_now FROM chosen"
            f" WHERE {_where(candidate.where)} AND ({metric.n}) {f'AND ({metric.x})' if is_share else ''})"
            f" WHERE moment >= {instant(candidate.begin - before)} AND moment < {instant(candidate.end)}"
            f" GROUP BY ALL HAVING streams > 0 ORDER BY streams DESC LIMIT {MAX_DETAILS})"
        )
        parts.append(
            f"(SELECT {number} AS candidate, {''.join(_quantiles(m, candidate) + ', ' for m in logs)}"
            f"avg((tool_call_count > 0)::INTEGER) FILTER ({metric.at} < {instant(candidate.begin)}) AS before_tools"
            f" FROM chosen WHERE {_where(candidate.where)})"
        )
    return _over_chosen(chosen, candidates, parts)
